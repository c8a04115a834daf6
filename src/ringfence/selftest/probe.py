"""One attempt to get out of a box: what it tries, the guarantee it would break, and how anybody tells that it did."""

from __future__ import annotations

import json
from collections.abc import Mapping
from enum import StrEnum
from typing import Any, Final

from ringfence.dataclass import dataclass, field

MARK: Final = "ringfence-selftest:"
"""Begins the one line in which a probe says how it went; what else it prints is its business."""

PRELUDE: Final = f"""
import ctypes, errno, json, os, signal, socket, struct, subprocess, sys, time
libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long
given = json.loads(sys.argv[1])
got = []

def call(name, *arguments):
    '''Make a raw system call and say how it ended: 'done', or the name of the error.'''
    number = given['numbers'].get(name)
    if number is None:
        return 'ENOSYS'
    ctypes.set_errno(0)
    whole = [ctypes.c_long(each) if isinstance(each, int) else each for each in arguments]
    result = libc.syscall(ctypes.c_long(number), *whole)
    return 'done' if result >= 0 else errno.errorcode.get(ctypes.get_errno(), 'E?')

def note(what, outcome):
    '''Remember that something went through: 'done', or an error that only an open door gives.'''
    if outcome not in ('EPERM', 'ENOSYS', 'EACCES', 'EOPNOTSUPP'):
        got.append(what + ': ' + outcome)

def attempt(what, action, *arguments, **options):
    '''Do something that must not work.'''
    try:
        found = action(*arguments, **options)
    except Exception:
        return None
    got.append(what)
    return found

def tell():
    print('\\n{MARK}' + json.dumps(got), flush=True)

"""
EPILOGUE: Final = "\ntell()\n"


@dataclass(frozen=True, slots=True)
class Probe:
    """One attempt."""

    name: str
    guarantee: int
    """The number in SECURITY.md of what it would break."""
    tries: str
    program: str
    again: str = ""
    """A second program, run after the first, where the attempt is on what one run leaves to the next."""
    limits: Mapping[str, Any] = field(default_factory=dict)
    """The limits of the run, by their names, where the attempt is on them."""
    exits_with: int | None = None
    """What its exit status has to be told as, where the attempt is on that."""
    most_output: int | None = None
    """How many bytes of output may be kept of it, where the attempt is on that."""

    def text(self, which: str) -> str:
        """Return a program of it, whole."""
        return PRELUDE + which + EPILOGUE


@dataclass(frozen=True, slots=True)
class Seen:
    """What came of one run of a probe, as whoever ran it saw it."""

    stdout: bytes
    exit_code: int | None = 0
    killed_by: str | None = None
    stderr: str = ""
    artifacts: tuple[bytes, ...] = ()


class Verdict(StrEnum):
    """How an attempt ended."""

    HELD = "held"
    GOT_THROUGH = "got_through"
    UNTRIED = "untried"
    """It could not be tried, so nothing is known."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """A probe and how it ended."""

    probe: Probe
    verdict: Verdict
    how: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain JSON values."""
        return {
            "probe": self.probe.name,
            "guarantee": f"G{self.probe.guarantee}",
            "tries": self.probe.tries,
            "verdict": str(self.verdict),
            "how": self.how,
        }


def judge(probe: Probe, runs: tuple[Seen, ...], noticed: tuple[str, ...], secret: str) -> Attempt:
    """Say of a probe whether it got through: by what the host noticed, else by what it says itself.

    It is our own program, so that its word counts here; what it says of a host that noticed nothing is still a finding.
    """
    last = runs[-1]
    through = [*noticed, *(_told(last.stdout) or ())]
    if any(secret.encode() in content for content in last.artifacts):
        through.append("an artifact has the host's secret in it")
    if probe.exits_with is not None and (last.exit_code, last.killed_by) != (probe.exits_with, None):
        through.append(f"its exit status came as {last.exit_code}")
    if probe.most_output is not None and len(last.stdout) > probe.most_output:
        through.append(f"{len(last.stdout)} bytes of its output were kept")
    if through:
        return Attempt(probe, Verdict.GOT_THROUGH, "; ".join(through)[:300])
    if all(_told(run.stdout) is not None or _was_ended(run) or probe.most_output for run in runs):
        return Attempt(probe, Verdict.HELD, f"ended by {last.killed_by}" if last.killed_by else "")
    words = " ".join(last.stderr.split())[-200:]
    return Attempt(probe, Verdict.UNTRIED, f"it ended with {last.exit_code} and told nothing: {words}")


def _told(stdout: bytes) -> list[str] | None:
    for line in reversed(stdout.decode("utf-8", "replace").splitlines()):
        if line.startswith(MARK):
            try:
                return [str(each) for each in json.loads(line.removeprefix(MARK))]
            except ValueError:
                return None
    return None


def _was_ended(run: Seen) -> bool:
    """Whether a limit or the filter of the box ended it, in the middle of what it tried."""
    return run.killed_by is not None or (run.exit_code is not None and run.exit_code > 128)
