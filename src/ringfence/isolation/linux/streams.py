"""What an application has done to its own process that no channel of ours may notice."""

from __future__ import annotations

import os
import signal
import socket

_STANDARD_ERROR = 2


def occupy() -> None:
    """Put /dev/null on the numbers 0, 1 and 2 where they are closed: whatever is opened next would get them.

    A channel of ours on such a number would be lost in a child, which gets streams there, and would carry to a box
    whatever a library of the application prints.
    """
    while (fd := os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)) <= _STANDARD_ERROR:
        pass
    os.close(fd)


def write_to_guest(fd: int, data: bytes | bytearray | memoryview) -> int:
    """Write to a pipe that a guest may have closed, also where the application lets SIGPIPE end it.

    Raises:
        BrokenPipeError: Nobody reads it any more.
    """
    if signal.getsignal(signal.SIGPIPE) is not signal.SIG_DFL:
        return os.write(fd, data)
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGPIPE})
    try:
        return os.write(fd, data)
    except BrokenPipeError:
        if signal.SIGPIPE not in blocked:
            signal.sigtimedwait({signal.SIGPIPE}, 0)  # it is this thread's, and waits for the mask to be lifted
        raise
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)


def pair(kind: int = socket.SOCK_STREAM) -> tuple[socket.socket, socket.socket]:
    """Return the two ends of a channel, both of which block.

    With `socket.setdefaulttimeout` an application makes every new socket one that does not, which is a property of the
    end and not of who holds it: a process of ours that got it would find nothing to read and take it for the end.
    """
    ends = socket.socketpair(socket.AF_UNIX, kind)
    for end in ends:
        if end.gettimeout() is not None:
            end.setblocking(True)
    return ends
