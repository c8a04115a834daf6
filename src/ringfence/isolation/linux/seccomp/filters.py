"""The three seccomp programs of a box, ready to be loaded: two that make up the guest's policy, one for its init.

The base filter is loaded once, in the zygote, and inherited; it still lets init build a box. The small seal filter is
loaded by each worker before it parks and takes that away. The kernel obeys the stricter of the two, which is exactly
`policy.guest_policy`.
"""

from __future__ import annotations

from functools import cache

from ringfence.isolation.linux.seccomp.bpf import compile_filter
from ringfence.isolation.linux.seccomp.numbers import machine_named
from ringfence.isolation.linux.seccomp.policy import base_policy, frugal_policy, init_policy, seal_policy
from ringfence.isolation.linux.seccomp.verdict import ALLOW, ENOSYS, KILL_PROCESS


@cache
def base_filter(machine: str) -> bytes:
    """Return the filter that the zygote loads, for `os.uname().machine`.

    Raises:
        IsolationUnavailable: There is no system call table for this machine.
    """
    known = machine_named(machine)
    return compile_filter(known, base_policy(known), ENOSYS)


@cache
def seal_filter(machine: str) -> bytes:
    """Return the filter that a worker adds to the base filter before it can meet guest code.

    Raises:
        IsolationUnavailable: There is no system call table for this machine.
    """
    known = machine_named(machine)
    return compile_filter(known, seal_policy(known), ALLOW)


@cache
def frugal_filter(machine: str) -> bytes:
    """Return the seal filter for machines where no cgroup counts a run's memory.

    Raises:
        IsolationUnavailable: There is no system call table for this machine.
    """
    known = machine_named(machine)
    return compile_filter(known, frugal_policy(known), ALLOW)


@cache
def init_filter(machine: str) -> bytes:
    """Return the filter of the box's pid 1 for the time after it has started its worker.

    Raises:
        IsolationUnavailable: There is no system call table for this machine.
    """
    known = machine_named(machine)
    return compile_filter(known, init_policy(known), KILL_PROCESS)
