"""The service of a home, found by its socket: told nothing before it is certain that it is our own user's."""

from __future__ import annotations

import os
import socket
import stat
import struct
from pathlib import Path
from typing import Final

from ringfence.client.retry import Retrying
from ringfence.client.service import Service
from ringfence.errors import Unavailable
from ringfence.wire.address import Address
from ringfence.wire.transport import Transport

SOCKET_NAME: Final = "service.sock"


def open_service(home: str | Path, retrying: Retrying | None = None) -> Service | None:
    """Return the service that answers on the socket of this home, or None if there is none of ours.

    A socket that somebody else could have put there is as good as none: the caller goes on without a service, and
    what it was about to send is told to nobody.
    """
    path = os.path.abspath(os.path.join(home, SOCKET_NAME))  # noqa: PTH100, PTH118  the command's start pays for each Path
    try:
        seen = os.lstat(path)
    except OSError:
        return None
    if not stat.S_ISSOCK(seen.st_mode) or seen.st_uid != os.geteuid():
        return None
    transport = Transport(Address(f"unix:{path}", socket_path=path), peer=_ours)
    try:
        transport.connect()
    except Unavailable:
        return None
    return Service(transport, retrying)


def _ours(sock: socket.socket) -> None:
    """Refuse a process of another user, whoever the file is said to belong to."""
    _, uid, _ = struct.unpack("3i", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i")))
    if uid != os.geteuid():
        raise Unavailable("the socket of the service is another user's", reason="key_store_unsafe")
