"""How files travel through the one stream of a container, in both directions.

Read by whatever Python 3.8 or later the image has, as everything that `boot.bundle` sends.
"""

from __future__ import annotations

import struct

WORK, ARTIFACTS, INPUTS = 0, 1, 2
AREAS = ("/workspace/work", "/workspace/artifacts", "/workspace/inputs")

FILE, DIRECTORY, LINK, FIFO, SOCKET = 1, 2, 3, 4, 5
HAS_CONTENT = 1
"""`size` bytes follow in pieces; without it only the size is told."""
UNTOUCHED = 2
"""The caller placed it, and the guest left it as it was."""

PIECE_BYTES = 1 << 16
WINDOW_BYTES = 1 << 18
"""How much input is on its way at most: a guest that reads nothing must not keep the other words from arriving."""
ROOM_BYTES = 1 << 16
"""The same for each connection of a guest: it may have hundreds, and the host keeps so much of each at most."""

_HEADER = struct.Struct(">BBBIqQH")
MOST_NAME = 4096

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NamedTuple

    class Entry(NamedTuple):
        """One file, directory, link or special file of an area."""

        area: int
        kind: int
        flags: int
        mode: int
        mtime_ns: int
        size: int
        path: bytes
        target: bytes = b""

else:
    from collections import namedtuple

    Entry = namedtuple("Entry", "area kind flags mode mtime_ns size path target", defaults=(b"",))


def pack(entry: Entry) -> bytes:
    """Return the payload that tells of `entry`."""
    area, kind, flags, mode, mtime_ns, size, path, target = entry
    return _HEADER.pack(area, kind, flags, mode, mtime_ns, size, len(path)) + path + target


def unpack(payload: bytes) -> Entry:
    """Return what a payload tells of; nothing in it is believed yet but its form.

    Raises:
        ValueError: It tells of nothing.
    """
    if len(payload) < _HEADER.size:
        raise ValueError("an entry without a header")
    area, kind, flags, mode, mtime_ns, size, length = _HEADER.unpack_from(payload)
    rest = payload[_HEADER.size :]
    path, target = rest[:length], rest[length:]
    is_link = kind == LINK
    if (
        area >= len(AREAS)
        or not FILE <= kind <= SOCKET
        or not 0 < length <= MOST_NAME
        or len(path) != length
        or bool(target) != is_link
        or len(target) > MOST_NAME
    ):
        raise ValueError("an entry that cannot be")
    return Entry(area, kind, flags, mode, mtime_ns, size, path, target)
