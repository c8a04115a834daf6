"""The system calls of a browser's box: a guest's, and of the rest only what Chromium builds its own sandbox with.

Chromium puts each renderer into namespaces and a filter of its own. Were that to fall, this one still stands between it
and what a guest of Ringfence never gets: mounts, io_uring, keyrings, bpf, other processes' memory.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Final

from ringfence.isolation.linux import kernel
from ringfence.isolation.linux.seccomp.arguments import CLONE_NEW, CLONE_PARENT
from ringfence.isolation.linux.seccomp.bpf import compile_filter
from ringfence.isolation.linux.seccomp.numbers import Machine, machine_named
from ringfence.isolation.linux.seccomp.policy import guest_policy
from ringfence.isolation.linux.seccomp.verdict import ALLOW, ENOSYS, EPERM, Branch, Decision

# A user namespace to have rights in, and the two it wants to be alone in. No mount namespace: that would be a root's
# view of file systems, where most holes in the kernel were found; nor one of the kinds that Chromium does not make.
_MAKES: Final = kernel.CLONE_NEWUSER | kernel.CLONE_NEWPID | kernel.CLONE_NEWNET
_NEVER: Final = (CLONE_NEW | CLONE_PARENT) & ~_MAKES
_NOT_OTHERS: Final = Branch(0, {(0,): ALLOW}, EPERM, mask=_NEVER)

WIDENED: Final[Mapping[str, Decision]] = {
    "clone": _NOT_OTHERS,
    "unshare": Branch(0, {(0,): ALLOW}, EPERM, mask=_NEVER),
    "chroot": ALLOW,  # into an empty directory: its own sandbox again
    "capset": ALLOW,  # it gives up what the user namespace gave it
    "prlimit64": ALLOW,  # it lowers the limits of its children
    "inotify_init1": ALLOW,
    "inotify_add_watch": ALLOW,
    "inotify_rm_watch": ALLOW,
}


def browser_policy(machine: Machine) -> dict[int, Decision]:
    """Return the decision on every call that has a number here."""
    widened = {machine.numbers[name]: decision for name, decision in WIDENED.items() if name in machine.numbers}
    return guest_policy(machine) | widened


@cache
def browser_filter(machine: str) -> bytes:
    """Return the filter that the browser is started under, for `os.uname().machine`.

    Raises:
        IsolationUnavailable: There is no system call table for this machine.
    """
    known = machine_named(machine)
    return compile_filter(known, browser_policy(known), ENOSYS)
