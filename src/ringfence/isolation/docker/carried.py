"""For images without python3: this machine's own interpreter, shown read-only and started by its own loader.

A worker is a Python program, and a container without an interpreter could only be driven by a `docker exec` for every
step. With one brought along everything is as in any other image, whatever C library that has. What is shown is the tree
that native boxes show too.
"""

from __future__ import annotations

import os
import struct
import sys
from pathlib import Path
from typing import Final

from ringfence.dataclass import dataclass
from ringfence.errors import IsolationUnavailable

SHOWN_AT: Final = "/opt/ringfence/machine"
_TREE: Final = "/usr"
_ELF_64: Final = b"\x7fELF\x02\x01"
_HEADER: Final = struct.Struct("<32xQ14xHH")  # where the program headers begin, how long one is, how many there are
_PROGRAM: Final = struct.Struct("<IIQQQQQQ")
_INTERPRETER: Final = 3


@dataclass(frozen=True, slots=True)
class Carried:
    """What has to be shown in the container, and the words that start the interpreter there instead of `python3`."""

    shown: tuple[str, str]
    words: tuple[str, ...]


def carried_python() -> Carried:
    """Return how this machine's interpreter runs in a container that has none.

    Raises:
        IsolationUnavailable: It is not of this machine's system, and so cannot be shown as one tree.
    """
    interpreter = os.path.realpath(getattr(sys, "_base_executable", "") or sys.executable)
    loader = loader_of(Path(interpreter).read_bytes())
    if loader is None or not all(map(_is_shown, (interpreter, os.path.realpath(loader)))):
        raise IsolationUnavailable(
            f"{interpreter} is not part of {_TREE}, and cannot be brought into a container",
            fix="run Ringfence with the system's own Python, or use an image with python3",
        )
    loader = os.path.realpath(loader)
    libraries = dict.fromkeys((os.path.dirname(loader), f"{_TREE}/lib", f"{_TREE}/local/lib"))
    path = ":".join(map(_inside, libraries))
    return Carried((_TREE, SHOWN_AT), (_inside(loader), "--library-path", path, _inside(interpreter)))


def loader_of(program: bytes) -> str | None:
    """Return the loader that an ELF program of 64 bits asks for; None for a static one, or for no such program."""
    if not program.startswith(_ELF_64):
        return None
    start, size, count = _HEADER.unpack_from(program)
    for number in range(count):
        kind, _, offset, _, _, length, _, _ = _PROGRAM.unpack_from(program, start + number * size)
        if kind == _INTERPRETER:
            return program[offset : offset + length].rstrip(b"\0").decode()
    return None


def _is_shown(path: str) -> bool:
    return path.startswith(f"{_TREE}/")


def _inside(path: str) -> str:
    return SHOWN_AT + path.removeprefix(_TREE)
