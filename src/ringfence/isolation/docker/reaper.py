"""No container outlives us: each carries the name of its owner, and what a dead owner left is removed.

A container ends by itself when its stream ends, and the engine removes it; this is for what an engine that was killed
at that moment forgot. Only containers of this home are looked at, and only those whose owner is known to be over.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shutil
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Final

from ringfence.budgets.owner import Owner, is_gone, this_process
from ringfence.isolation.docker.engine import Engine, Listed

HOME_LABEL: Final = "io.ringfence.home"
OWNER_LABEL: Final = "io.ringfence.owner"
_OWNER: Final = re.compile(r"([0-9a-f-]{36})_(\d+)_(\d+)_(\d+)", re.ASCII)
_NAMESPACE: Final = re.compile(r"pid:\[(\d+)\]")


def home_id(home: Path) -> str:
    """Return what tells the containers of one home on one machine from all others of an engine that many may share."""
    machine = ""
    with contextlib.suppress(OSError):
        machine = Path("/etc/machine-id").read_text(encoding="ascii", errors="replace").strip()
    name = f"{machine}\0{os.uname().nodename}\0{home.resolve()}"
    return hashlib.sha256(name.encode("utf-8", "surrogateescape")).hexdigest()[:16]


def write_owner(owner: Owner) -> str:
    """Return an owner as one word, for a label or the name of a directory."""
    found = _NAMESPACE.search(owner.pid_namespace)
    return f"{owner.boot_id}_{found[1] if found else 0}_{owner.pid}_{owner.started}"


def read_owner(word: str) -> Owner | None:
    """Read what `write_owner` wrote; None for a word of anybody else's."""
    found = _OWNER.fullmatch(word)
    return Owner(found[1], f"pid:[{found[2]}]", int(found[3]), int(found[4])) if found else None


def labels(home: Path) -> dict[str, str]:
    """Return what a container of this process is marked with."""
    return {HOME_LABEL: home_id(home), OWNER_LABEL: write_owner(this_process())}


def orphans(listed: Iterable[Listed], is_over: Callable[[Owner], bool]) -> list[str]:
    """Return which containers nobody owns any more; one with no owner that can be read is left alone."""
    return [each.id for each in listed if (owner := _owner_of(each.labels)) is not None and is_over(owner)]


def _owner_of(marks: Mapping[str, str]) -> Owner | None:
    return read_owner(marks.get(OWNER_LABEL, ""))


class Reaper:
    """Removes what dead processes of this home left: containers, and the directories of their inputs."""

    def __init__(self, engine: Engine, home: Path, *, remote: bool) -> None:
        """Look at nothing yet."""
        self._engine = engine
        self._home = home
        self._remote = remote

    def sweep(self) -> int:
        """Remove them, and return how many containers that were.

        Raises:
            IsolationUnavailable: The engine does not answer.
        """
        found = orphans(self._engine.listed(f"{HOME_LABEL}={home_id(self._home)}"), self._is_over)
        self._engine.remove(found)
        self._sweep_directories()
        return len(found)

    def _is_over(self, owner: Owner) -> bool:
        # another machine may have the same name and home, and share the engine: its boots are not ours to judge
        if self._remote and owner.boot_id != this_process().boot_id:
            return False
        return is_gone(owner)

    def _sweep_directories(self) -> None:
        boxes = directory_of_boxes(self._home)
        with contextlib.suppress(FileNotFoundError), os.scandir(boxes) as entries:
            for entry in entries:
                owner = read_owner(entry.name)
                if owner is not None and is_gone(owner):
                    shutil.rmtree(entry.path, ignore_errors=True)


def directory_of_boxes(home: Path) -> Path:
    """Return where the inputs of containers lie until they are gone."""
    return home / "boxes" / "docker"


def own_directory(home: Path) -> Path:
    """Return the directory for the inputs of this process's containers, made if need be."""
    own = directory_of_boxes(home) / write_owner(this_process())
    own.mkdir(mode=0o700, parents=True, exist_ok=True)
    return own
