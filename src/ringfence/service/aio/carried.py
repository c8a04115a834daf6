"""What a shell session keeps from one command to the next, though each runs in a box of its own.

The commands of a terminal session share their directory and exported variables. A bash that starts reads the program
below before the command itself, which is judged as it was written; when the command ends, the program tells both on the
terminal, in a control string that no terminal shows. What it tells is the guest's word, and reaches no further than the
next command of the same session.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from ringfence.dataclass import dataclass, field
from ringfence.errors import RingfenceError
from ringfence.operation import WORKING_DIRECTORY, shell_start
from ringfence.operation.path import workspace_path

INPUTS: Final[Mapping[str, bytes]] = MappingProxyType({shell_start.NAME: shell_start.TEXT})
"""What the box of every command is given to read first."""
_STARTS: Final = {shell_start.VARIABLE: shell_start.PATH}
_TOLD: Final = re.compile(rb"\x1b\]7711;([A-Za-z0-9+/=]*);([A-Za-z0-9+/=]*)\x07")
_BEGINS: Final = b"\x1b]7711;"
_VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}\Z")
_OF_EACH_SHELL: Final = frozenset({"PWD", "OLDPWD", "SHLVL", "_", "TERM", shell_start.VARIABLE})
_MOST_BYTES: Final = 32 * 1024


@dataclass(frozen=True, slots=True)
class Carried:
    """The directory and the variables that the next command starts with."""

    cwd: str = WORKING_DIRECTORY
    variables: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))

    def environment(self) -> dict[str, str]:
        """Return the environment for a command whose end is to be told."""
        return {**self.variables, **_STARTS}


def shown(output: bytes) -> bytes:
    """Return what a terminal said without what was told to us, nor the beginning of it."""
    cleaned = _TOLD.sub(b"", output)
    begun = cleaned.rfind(_BEGINS)
    return cleaned if begun < 0 or b"\x07" in cleaned[begun:] else cleaned[:begun]


def after(before: Carried, output: bytes) -> Carried:
    """Return what the session has after a command that said `output`; what cannot be used changes nothing."""
    told = _TOLD.findall(output)
    if not told:
        return before
    began, ended = (_variables(part) for part in told[-1])
    if began is None or ended is None:
        return before
    kept = {
        name: value
        for name, value in ended.items()
        if name not in _OF_EACH_SHELL and (name in before.variables or began.get(name) != value)
    }
    if sum(len(name) + len(value.encode()) for name, value in kept.items()) > _MOST_BYTES:
        return before
    return Carried(_directory(ended.get("PWD"), before.cwd), MappingProxyType(kept))


def _variables(told: bytes) -> dict[str, str] | None:
    try:
        entries = base64.b64decode(told, validate=True).decode().split("\0")
    except (binascii.Error, UnicodeDecodeError):
        return None
    pairs = (entry.partition("=") for entry in entries)
    return {name: value for name, _, value in pairs if _VARIABLE.match(name)}


def _directory(told: str | None, usual: str) -> str:
    """Return where the next command starts: a directory of the project, which is all that outlives a box."""
    if told is None:
        return usual
    try:
        return workspace_path(told)
    except RingfenceError:
        return usual
