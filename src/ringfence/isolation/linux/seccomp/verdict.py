"""The answers a filter gives about a call of the guest, and how a call's arguments lead to one.

`Branch` is a decision tree; `judge` walks it in plain Python, `bpf` compiles it, and tests hold the two together.
"""

from __future__ import annotations

import errno
from collections.abc import Mapping, Sequence
from typing import TypeAlias

from ringfence.dataclass import dataclass

LOW_WORD = 0xFFFFFFFF

ALLOW = 0x7FFF0000
KILL_PROCESS = 0x80000000
_ERRNO = 0x00050000


def refuse(code: int) -> int:
    """Return the verdict that fails the call with the error number `code`."""
    return _ERRNO | code


EPERM = refuse(errno.EPERM)
ENOSYS = refuse(errno.ENOSYS)
DONE = refuse(0)
"""The call is not made, and its caller told that it succeeded."""


@dataclass(frozen=True, slots=True)
class Branch:
    """Look at the low 32 bits of an argument under `mask`: the case that holds the value decides, else `otherwise`.

    Only the low half is ever compared: the kernel reads these arguments as `int`, and a filter that compared all
    64 bits was passed by setting a high one (CVE-2019-7303, CVE-2019-10063).
    """

    argument: int
    cases: Mapping[tuple[int, ...], Decision]
    otherwise: int
    mask: int = LOW_WORD


Decision: TypeAlias = int | Branch


def judge(decision: Decision, arguments: Sequence[int]) -> int:
    """Return the verdict on a call with these `arguments`."""
    while isinstance(decision, Branch):
        value = arguments[decision.argument] & LOW_WORD & decision.mask
        decision = next((then for values, then in decision.cases.items() if value in values), decision.otherwise)
    return decision


def strictest(first: int, second: int) -> int:
    """Return what the kernel does when two loaded filters answer `first` and `second`."""
    return min(first, second, key=_rank)


def _rank(verdict: int) -> int:
    # The kernel compares the action half as a signed number: KILL_PROCESS is the lowest.
    action = verdict & 0xFFFF0000
    return action - (1 << 32) if action & 0x80000000 else action
