"""The guest's policy as a profile for container engines: what `policy` allows, in the JSON that runc and crun read.

An engine can say no only one way for a call it knows (`defaultErrnoRet`), so what our own filter refuses with a more
telling error is plain EPERM here; which calls pass is exactly the same, and a test asks libseccomp's program about it.
The file `seccomp.json` beside this module is `profile_text()`.
"""

from __future__ import annotations

import errno
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from ringfence.isolation.linux.seccomp.arguments import GUEST_RULES
from ringfence.isolation.linux.seccomp.policy import ABSENT, ALLOWED, REFUSED
from ringfence.isolation.linux.seccomp.verdict import ALLOW, Branch, Decision

PROFILE: Final = Path(__file__).with_name("seccomp.json")
"""The shipped profile, to be named in `--security-opt seccomp=…`."""

_ARCHITECTURES = ("SCMP_ARCH_X86_64", "SCMP_ARCH_AARCH64")  # calls of 32-bit programs and of x32 end the caller
_LOOKING_INTO_OTHERS = "tamper with or look into other processes"

# (argument, mask, value): the call passes if the argument has this value under this mask.
_Test = tuple[int, int, int]


def container_profile() -> dict[str, Any]:
    """Return the profile: everything is refused but what the guest of a box may call."""
    return {
        "defaultAction": "SCMP_ACT_ERRNO",
        "defaultErrnoRet": errno.EPERM,
        "architectures": list(_ARCHITECTURES),
        "syscalls": [
            *(_entry(reason, _names(names), "SCMP_ACT_ALLOW") for reason, names in ALLOWED.items()),
            *_argument_entries(),
            *(_entry(reason, _names(names), "SCMP_ACT_ERRNO", error=errno.ENOSYS) for reason, names in ABSENT.items()),
            _entry(_LOOKING_INTO_OTHERS, _names(REFUSED[_LOOKING_INTO_OTHERS]), "SCMP_ACT_ERRNO", error=errno.EPERM),
        ],
    }


def profile_text() -> str:
    """Return what is in the file: one entry a line, so that a change can be read."""
    profile = container_profile()
    entries = ",\n".join(f"  {json.dumps(entry)}" for entry in profile.pop("syscalls"))
    head = json.dumps(profile, indent=1).removesuffix("\n}")
    return f'{head},\n "syscalls": [\n{entries}\n ]\n}}\n'


def _argument_entries() -> Iterator[dict[str, Any]]:
    for name, rule in sorted(GUEST_RULES.items()):
        for tests in _ways_to_pass(rule):
            yield _entry("", [name], "SCMP_ACT_ALLOW", tests)


def _ways_to_pass(decision: Decision, tests: tuple[_Test, ...] = ()) -> Iterator[tuple[_Test, ...]]:
    """Yield the conjunctions that together are true for exactly the arguments that `decision` allows."""
    if not isinstance(decision, Branch):
        if decision == ALLOW:
            yield tests
        return
    for values, then in decision.cases.items():
        for value in values:
            yield from _ways_to_pass(then, (*tests, (decision.argument, decision.mask, value)))
    named = {value for values in decision.cases for value in values}
    if decision.otherwise == ALLOW:
        for mask, value in _all_but(named, decision.mask):
            yield (*tests, (decision.argument, mask, value))


def _all_but(values: set[int], mask: int) -> Iterator[tuple[int, int]]:
    """Yield (mask, value) pairs that match every number but those whose bits under `mask` are one of `values`.

    The language of profiles knows "equal under a mask" but not "different under a mask", and comparing all 64 bits
    would let a value pass by a high bit that the kernel does not look at (CVE-2019-7303).
    """
    bits = [1 << place for place in reversed(range(32)) if mask >> place & 1]

    def split(values: set[int], depth: int, fixed: int, value: int) -> Iterator[tuple[int, int]]:
        if not values:
            yield fixed, value
        elif depth < len(bits):
            bit = bits[depth]
            yield from split({each for each in values if not each & bit}, depth + 1, fixed | bit, value)
            yield from split({each for each in values if each & bit}, depth + 1, fixed | bit, value | bit)

    return split(values, 0, 0, 0)


def _names(text: str) -> list[str]:
    return sorted(set(text.split()) - GUEST_RULES.keys())


def _entry(
    reason: str, names: Sequence[str], action: str, tests: Sequence[_Test] = (), *, error: int | None = None
) -> dict[str, Any]:
    entry: dict[str, Any] = {"names": list(names), "action": action}
    if error is not None:
        entry["errnoRet"] = error
    if tests:
        entry["args"] = [
            {"index": index, "value": mask, "valueTwo": value, "op": "SCMP_CMP_MASKED_EQ"}
            for index, mask, value in tests
        ]
    if reason:
        entry["comment"] = reason
    return entry
