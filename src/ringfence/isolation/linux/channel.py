"""Whole messages with descriptors attached, between the host and the processes it started."""

from __future__ import annotations

import array
import json
import os
import socket

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

LONG = 1 << 20
SHORT = 1 << 14
"""As much as one box has to say or to be told; a buffer for the longest message is new memory for every one."""
_MAX_DESCRIPTORS = 16
_INT = array.array("i").itemsize
# plain numbers: the library's flags are combined by code of its own
_CLOEXEC, _CUT = int(socket.MSG_CMSG_CLOEXEC), int(socket.MSG_TRUNC | socket.MSG_CTRUNC)


def send(channel: socket.socket, message: dict[str, Any], fds: Sequence[int] = ()) -> None:
    """Send one message; the receiver gets copies of `fds`."""
    ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
    channel.sendmsg([json.dumps(message).encode()], ancillary)


def receive(channel: socket.socket, most: int = LONG) -> tuple[dict[str, Any] | None, list[int]]:
    """Return the next message, of at most so many bytes, and its descriptors, or `None` when the other side is gone."""
    space = socket.CMSG_SPACE(_MAX_DESCRIPTORS * _INT)
    data, ancillary, flags, _ = channel.recvmsg(most, space, _CLOEXEC)
    fds = array.array("i")
    for level, kind, payload in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            fds.frombytes(payload[: len(payload) - len(payload) % _INT])
    if flags & _CUT:
        for fd in fds:
            os.close(fd)
        raise OSError(f"a message of more than {most} bytes or {_MAX_DESCRIPTORS} descriptors")
    return (json.loads(data) if data else None), list(fds)
