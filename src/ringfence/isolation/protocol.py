"""What host and worker say to each other: length-prefixed messages over any byte stream.

A message is four bytes of length (big-endian, of what follows), one byte of kind, and a payload. The same words
serve a worker on a socket of its own, whose output travels on pipes, and one inside a container, whose output
travels as messages.
"""

from __future__ import annotations

import struct
from enum import IntEnum

MAX_MESSAGE = 128 * 1024 * 1024
_HEADER = struct.Struct(">IB")


class Kind(IntEnum):
    """What a message means; numbers are never reused."""

    READY = 1  # worker → host: parked, sealed, waiting for its one job
    START = 2  # host → worker: run the job that came before; until this word nothing of it runs
    STARTED = 3  # worker → host: the job was understood; what follows is the guest's doing
    STDIN = 4  # host → worker: bytes for the guest's standard input; empty means end of file
    STDOUT = 5  # worker → host: bytes the guest wrote
    STDERR = 6
    RESIZE = 7  # host → worker: the guest's terminal has a new size
    SIGNAL = 8  # host → worker: deliver a signal to the guest
    EXIT = 9  # parent → host: wait status, cpu in µs, peak in KiB, then what is left: all decimal numbers
    FAILED = 10  # init → host: the box could not be built; stage and reason, as JSON
    SEALED = 11  # worker → host: nothing more will be given up; a descriptor of its anchor, if it has one, is attached
    TERMINAL = 12  # worker → host: it has opened a terminal in the box; the outer end is attached
    # only where nothing but one stream leads into the box
    SETUP = 13  # host → init: which worker to park, as JSON; the first word of all
    ENTRY = 14  # either way: one entry of a tree of files, as in `stream.wire`
    PIECE = 15  # either way: the next bytes of the file that the last entry was
    GONE = 16  # init → host: a path that the guest removed from what its session had
    PLACED = 17  # host → init: these were all of the files; init → host: they are in place, or an error number
    TAKEN = 18  # init → host: how many bytes of input the guest's end has taken; empty when it takes no more
    END = 19  # host → init: kill everything of the guest
    HARVEST = 20  # host → init: send what the dead guest left, within these bounds; init → host: that was all of it
    DIAL = 21  # host → init: connect to a port, under a number of its own; init → host: that number, an error number
    FLOW = 22  # either way: bytes of the connection of a number; none when no more come
    ROOM = 23  # either way: how many of the bytes of a connection were passed on, so that as many more may come
    CALL = 24  # init → host: the guest connected to its way out, under this number; host → init: it is shut for good
    CUT = 25  # either way: the connection of a number is over, in both directions at once
    JOB = 26  # host → worker: the job, as JSON; it is got ready while the host writes down that it begins


class ProtocolError(ValueError):
    """The other side said something that is not a message of ours."""


def encode(kind: Kind, payload: bytes = b"") -> bytes:
    """Return one message as bytes."""
    if len(payload) >= MAX_MESSAGE:
        raise ProtocolError("message too long")
    return _HEADER.pack(len(payload) + 1, kind) + payload


class Decoder:
    """Cuts a byte stream into messages, however the bytes arrive."""

    def __init__(self, limit: int = MAX_MESSAGE) -> None:
        """Refuse any message longer than `limit`, before buffering it."""
        self._limit = limit
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[tuple[Kind, bytes]]:
        """Return the messages completed by `data`.

        Raises:
            ProtocolError: The length or the kind is impossible.
        """
        self._buffer += data
        messages = []
        while len(self._buffer) >= _HEADER.size:
            length, number = _HEADER.unpack_from(self._buffer)
            if not 1 <= length <= self._limit:
                raise ProtocolError(f"impossible message length {length}")
            try:
                kind = Kind(number)
            except ValueError:
                raise ProtocolError(f"unknown message kind {number}") from None
            end = 4 + length
            if len(self._buffer) < end:
                break
            messages.append((kind, bytes(self._buffer[_HEADER.size : end])))
            del self._buffer[:end]
        return messages
