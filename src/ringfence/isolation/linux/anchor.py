"""The anchor of a worker's memory: a process that shares it and sleeps, so that the worker's end is quickly told.

Taking a process's memory apart is most of what its end costs, and its parent is told only afterwards. While the anchor
sleeps, the memory outlives the process; it goes with the namespace, when nobody waits any more.

It is the one process that may be left when a run counts as over, so it must never run what a guest wrote. The guest can
rewrite every byte of it, and therefore must not be able to wake it: not by a stop signal, which nobody can block, and
not by a descriptor that sends one.
"""

from __future__ import annotations

import ctypes
import os
import time

from ringfence.isolation.linux import landlock
from ringfence.isolation.linux.steps import ANY, Steps

_CLONE_VM, _CLONE_PIDFD, _CLONE_PARENT_SETTID = 0x100, 0x1000, 0x10_0000
_SIG_BLOCK, _SIG_SETMASK = 0, 2
_SIGNAL_SET_BYTES = 8
_EVERY_SIGNAL = b"\xff" * _SIGNAL_SET_BYTES
_REST_SECONDS = 5.0
_FIRST_PAUSE, _LONGEST_PAUSE = 0.0001, 0.002


class Anchor:
    """The anchor as the host holds it."""

    def __init__(self, pidfd: int) -> None:
        """Take over `pidfd`, and note the numbers of a process that is alive now."""
        self.pidfd = pidfd
        info = os.open(f"/proc/self/fdinfo/{pidfd}", os.O_RDONLY | os.O_CLOEXEC)
        try:
            levels = os.read(info, 1024).partition(b"\nNSpid:")[2].partition(b"\n")[0].split()
        finally:
            os.close(info)
        if len(levels) < 2:
            raise ProcessLookupError("the anchor of a worker's memory died at once")
        self.pid = int(levels[0])
        self._zygotes_number = levels[1]

    def is_all_of(self, left: list[bytes]) -> bool:
        """Whether the processes `left` in a box, as the zygote numbers them, are the anchor alone.

        To be asked while it lives: a dead one's number may be another's.
        """
        return left == [self._zygotes_number]

    def close(self) -> None:
        """Let go of it; it ends with its box."""
        os.close(self.pidfd)
        self.pidfd = -1


def cast(steps: Steps, abi: int, pidfd: int, free: tuple[int, int]) -> None:
    """Start the anchor of the process, as the descriptor `pidfd`, and put it out of the process's reach.

    `pidfd` and then `free` are the lowest free descriptors. Closing its copies of the others is the first thing the
    anchor does: they would keep pipes open and files locked that the guest has closed.
    """
    _start(steps, _CLONE_PIDFD)
    landlock.step_away_from(steps, abi, pidfd, free)


def cast_by_another(steps: Steps) -> ctypes.Array[ctypes.c_int]:
    """Start the anchor of a process that is yet to become the guest's user, whom its kernel keeps from signalling it.

    For kernels that let nobody signal another user's process, and where the process has no more than 16 descriptors
    open. Return where the anchor's number is once the steps have run.
    """
    return _start(steps, _CLONE_PARENT_SETTID)


def _start(steps: Steps, told_by: int) -> ctypes.Array[ctypes.c_int]:
    usual, where = ctypes.create_string_buffer(_SIGNAL_SET_BYTES), (ctypes.c_int * 1)()
    # with every signal blocked it never runs a handler, on what is another process's stack
    steps.add("rt_sigprocmask", _SIG_BLOCK, _EVERY_SIGNAL, usual, _SIGNAL_SET_BYTES)
    # no exit signal: the guest's wait() does not see it among its children
    steps.add("clone", _CLONE_VM | told_by, 0, where, expect=ANY)
    steps.add("rt_sigprocmask", _SIG_SETMASK, usual, 0, _SIGNAL_SET_BYTES)
    return where


def wait_until_at_rest(pid: int) -> None:
    """Return when the anchor sleeps: until then it would run on through memory that is about to be the guest's.

    Raises:
        TimeoutError: It does not.
    """
    deadline = time.monotonic() + _REST_SECONDS
    pause = _FIRST_PAUSE
    while not _sleeps(pid):
        if time.monotonic() > deadline:
            raise TimeoutError("the anchor of a worker's memory does not come to rest")
        # what keeps it from resting is that others have the processors: asking on and on would be one more
        time.sleep(pause)
        pause = min(_LONGEST_PAUSE, pause * 2)


def _sleeps(pid: int) -> bool:
    fd = os.open(f"/proc/{pid}/stat", os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(fd, 1024).rpartition(b") ")[2].startswith(b"S")
    finally:
        os.close(fd)
