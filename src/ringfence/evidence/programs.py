"""The programs a recorded script started, by name alone: enough to hold most command lists against it again.

It walks a script as the judge of command lists does. What the judge would not have read is not summed up either, so
that a list is never held against less than it once was.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache

from ringfence.dataclass import dataclass
from ringfence.risk.grammar import GrammarMissing, TooComplex
from ringfence.risk.shell import CommandLists, CommandVerdict, judge_command
from ringfence.risk.shell_programs import look_behind
from ringfence.risk.shell_tree import Command, read_script

MOST_PROGRAMS = 64
_REMEMBERED_CHARACTERS = 8192
# What is written without quotes; a name of other characters could carry content into a record.
_NAME = re.compile(r"[A-Za-z0-9_.+/:\[-]{1,64}\Z")
_KNOWN_LATER = "$X"


@dataclass(frozen=True, slots=True)
class Called:
    """What a script starts, each name once; `unclear` is whether it also does what only the running shell knows."""

    programs: tuple[str, ...]
    unclear: bool
    suspects: bool
    """Whether words of it may be commands (`watch curl …`): deny lists look at them, and `programs` has none."""

    def script(self) -> str:
        """Return a script that starts the same programs, without their arguments."""
        lines = [f"'{name}'" for name in self.programs]
        return "\n".join([*lines, _KNOWN_LATER] if self.unclear else lines)


def called(code: str) -> Called | None:
    """Return what a bash script starts, or nothing when that cannot be said in full.

    Known again by its text: reading a script takes a hundred times longer than anything else about a record.
    """
    return _remembered(code) if len(code) <= _REMEMBERED_CHARACTERS else _called(code)


def short_of(summed_up: Called, *, allowed: tuple[str, ...] | None, denied: Iterable[tuple[str, ...]]) -> str | None:
    """Return why the names alone do not tell what these lists say about the script, or nothing when they do.

    `denied` are entries by their words; one of several words needs the arguments of its program.
    """
    again = called(summed_up.script())
    if again is None or set(again.programs) != set(summed_up.programs):
        return "a program of the script does something else without its arguments"
    if allowed is not None and again.unclear != summed_up.unclear:
        return "what a program of the script does depends on its arguments"
    denied = tuple(denied)
    if denied and summed_up.suspects:
        return "what a program of the script may start is among its arguments"
    entries = [*denied, *(tuple(entry.split()) for entry in allowed or ())]
    longer = tuple(entry[0] for entry in entries if len(entry) > 1)
    if longer and judge_command(summed_up.script(), CommandLists(None, longer)).verdict is CommandVerdict.DENIED:
        return "a list or rule looks at the arguments of a program of the script"
    return None


@lru_cache(maxsize=256)
def _remembered(code: str) -> Called | None:
    return _called(code)


def _called(code: str) -> Called | None:
    judgement = judge_command(code, CommandLists())
    if judgement.unread:
        return None
    walk = _Walk()
    try:
        walk.script(code)
    except (GrammarMissing, TooComplex, _NotToBeWritten):
        return None
    unclear = any(finding.verdict is CommandVerdict.UNKNOWN for finding in judgement.findings)
    return Called(tuple(walk.names), unclear, walk.suspects)


class _NotToBeWritten(Exception):
    """A name is none that people give programs, or there are too many of them."""


class _Walk:
    """Goes where the judge goes, which has found before that the way is not too long."""

    def __init__(self) -> None:
        self.names: dict[str, None] = {}
        self.suspects = False
        self._broken = False

    def script(self, code: str) -> None:
        if self._broken:
            return
        script = read_script(code)
        self._broken = script.broken
        for command in script.commands:
            self._command(command)

    def _command(self, command: Command) -> None:
        if command.name is not None:
            self.names[command.name] = None
            if _NAME.match(command.name) is None or len(self.names) > MOST_PROGRAMS:
                raise _NotToBeWritten
        behind = look_behind(command)
        self.suspects |= bool(behind.perhaps or behind.perhaps_scripts)
        for nested in behind.commands:
            self._command(nested)
        for code in behind.scripts:
            self.script(code)
