"""Which side of a Windows and WSL machine this process is on, and what `wslpath` says of the other's paths."""

from __future__ import annotations

import platform
import shutil
import subprocess
import sys
from functools import cache
from typing import Final

from ringfence.paths.adapter import Side

_PATIENCE: Final = 10.0
_LONGEST: Final = 4096


@cache
def this_side() -> Side:
    """Return whose spelling of paths this process has to use."""
    if sys.platform == "win32":
        return Side.WINDOWS
    return Side.WSL if "microsoft" in platform.release().lower() else Side.LINUX


def ask_wslpath(path: str, to: Side) -> str | None:
    """Return what `path` of the other side is called on `to`; None where no `wslpath` can be asked, or it cannot tell.

    Only the machine knows: where drives appear in WSL is a setting of each distribution.
    """
    command = _command(to)
    if command is None:
        return None
    try:
        done = subprocess.run(
            [*command, path],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=_PATIENCE,
            check=True,
        )
        said = done.stdout[:_LONGEST].decode("utf-8").rstrip("\r\n")
    except (OSError, ValueError, subprocess.SubprocessError):
        return None
    return said or None


def _command(to: Side) -> list[str] | None:
    """Return how `wslpath` is asked from here: on Windows it is a program inside WSL."""
    if to is Side.WSL:
        found = shutil.which("wslpath")
        return None if found is None else [found, "-u"]
    if to is Side.WINDOWS:
        found = shutil.which("wsl.exe")
        return None if found is None else [found, "--exec", "wslpath", "-w"]
    return None
