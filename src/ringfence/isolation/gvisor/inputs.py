"""The directories by which boxes are given their inputs, below a name that tells their owner: the next one can tidy."""

from __future__ import annotations

import contextlib
import os
import shutil
from pathlib import Path

from ringfence.isolation.linux.cgroup_owner import (
    current_owner,
    directory_name,
    is_dead,
    parse_owner,
    pid_namespace,
    process_state,
)


class Inputs:
    """Directories of one owner, made and removed with their boxes."""

    def __init__(self, home: Path) -> None:
        """Make the owner's directory, after removing those of owners that are dead."""
        above = home / "gvisor"
        above.mkdir(mode=0o700, parents=True, exist_ok=True)
        sweep(above)
        self.path = above / directory_name(current_owner())
        self.path.mkdir(mode=0o755)

    def make(self, name: str) -> Path:
        """Make the directory of one box; anybody in the box may read it, and nobody else finds it."""
        path = self.path / name
        path.mkdir()
        path.chmod(0o755)
        return path

    def remove(self, name: str) -> None:
        """Remove the directory of a box that is over."""
        shutil.rmtree(self.path / name, ignore_errors=True)

    def close(self) -> None:
        """Remove what is left."""
        shutil.rmtree(self.path, ignore_errors=True)


def sweep(above: Path) -> None:
    """Remove what dead owners left; what belongs to the living, or to nobody by its name, is not touched."""
    namespace = pid_namespace()
    with contextlib.suppress(FileNotFoundError):
        for name in os.listdir(above):
            owner = parse_owner(name)
            if owner is not None and is_dead(owner, process_state(owner.pid), namespace):
                shutil.rmtree(above / name, ignore_errors=True)
