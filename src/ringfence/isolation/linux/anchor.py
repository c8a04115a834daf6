"""The anchor of a worker's memory: a process that shares it and sleeps, so that the worker's end is quickly told.

It is the one process that may be left when a run counts as over, so it must never run what a guest wrote. The guest can
rewrite every byte of it, and therefore must not be able to wake it: not by a stop signal, which nobody can block, and
not by a descriptor that sends one.
"""

from __future__ import annotations

import os
import socket
import sys

from ringfence.isolation.linux import kernel, landlock

_OPEN = 4
_PACKED = b"".join(fd.to_bytes(4, sys.byteorder) for fd in range(_OPEN))


class Anchor:
    """The anchor as the host holds it."""

    def __init__(self, pidfd: int) -> None:
        """Take over `pidfd`."""
        self.pidfd = pidfd

    def is_all_of(self, left: tuple[int, ...]) -> bool:
        """Whether the processes `left` in a box are the living anchor alone.

        By its descriptor, not its number: a guest could kill it and have another process take the number.
        """
        if len(left) != 1 or self.pidfd < 0:
            return False
        info = os.open(f"/proc/self/fdinfo/{self.pidfd}", os.O_RDONLY | os.O_CLOEXEC)
        try:
            _, _, levels = os.read(info, 1024).partition(b"\nNSpid:")
        finally:
            os.close(info)
        # ours, then the zygote's, in whose numbers `left` is written
        return levels.partition(b"\n")[0].split()[1:2] == [b"%d" % left[0]]

    def close(self) -> None:
        """Let go of it; it ends with its box."""
        os.close(self.pidfd)
        self.pidfd = -1


def cast(abi: int) -> int:
    """Start the anchor of this process, whose only descriptors are 0 to 3, and return a pidfd of it.

    Raises:
        PermissionError: This process could wake it.
    """
    pid = _start_with_empty_hands()
    pidfd = os.pidfd_open(pid)
    # before it has come to rest it would run on through memory that is about to be the guest's
    while not _sleeps(pid):
        os.sched_yield()
    landlock.step_away_from(abi, pidfd)
    return pidfd


def _start_with_empty_hands() -> int:
    """Clone while this process holds nothing but a message that its descriptors are in.

    A copy of a descriptor in the anchor would keep pipes open and files locked that the guest has closed, and a table
    for both would do so as soon as the guest executes another program.
    """
    receiver, sender = socket.socketpair()
    with receiver:
        with sender:
            sender.sendmsg([b"d"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, _PACKED)])
        kernel.close_all_from(0, _OPEN - 1)
        pid = kernel.anchor_memory()
        kernel.unshare_descriptors()
        # the lowest free numbers, in order: 0 to 3 again
        receiver.recvmsg(1, socket.CMSG_SPACE(len(_PACKED)))
    return pid


def _sleeps(pid: int) -> bool:
    fd = os.open(f"/proc/{pid}/stat", os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(fd, 1024).rpartition(b") ")[2].startswith(b"S")
    finally:
        os.close(fd)
