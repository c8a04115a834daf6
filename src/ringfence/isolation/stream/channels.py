"""One connection into a container, carried by its stream beside everything else; the same on both of its ends.

Neither end sends more than the other has room for, so a connection that nobody reads from stops by itself and keeps
nothing else from arriving.
"""

from __future__ import annotations

import contextlib
import socket
import struct

from ringfence.isolation.protocol import Kind
from ringfence.isolation.stream.wire import PIECE_BYTES, WINDOW_BYTES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

_NUMBER = struct.Struct(">I")


def numbered(payload: bytes) -> tuple[int, bytes]:
    """Return the number of the connection that a message is about, and the rest of it.

    Raises:
        ValueError: It has none.
    """
    if len(payload) < _NUMBER.size:
        raise ValueError("a word about no connection")
    return _NUMBER.unpack_from(payload)[0], payload[_NUMBER.size :]


class Channel:
    """A socket on this side, and what is on its way between it and the other."""

    def __init__(self, number: int, end: socket.socket, say: Callable[[Kind, bytes], None]) -> None:
        """Take over `end`."""
        self._name = _NUMBER.pack(number)
        self.end = end
        self._say = say
        self._may_send = WINDOW_BYTES
        self._may_come = WINDOW_BYTES
        self._unwritten = bytearray()
        self._read_all = False
        self._heard_all = False
        end.setblocking(False)

    @property
    def wants_read(self) -> bool:
        """Whether there is room on the other side for what can be read on this one."""
        return not self._read_all and self._may_send > 0

    @property
    def wants_write(self) -> bool:
        """Whether something waits to be written."""
        return bool(self._unwritten)

    @property
    def is_over(self) -> bool:
        """Whether nothing more will happen here."""
        return self._read_all and self._heard_all and not self._unwritten

    def read(self) -> None:
        """Send on what can be read."""
        try:
            data = self.end.recv(min(PIECE_BYTES, self._may_send))
        except BlockingIOError:
            return
        except OSError:
            data = b""
        self._may_send -= len(data)
        self._read_all = not data
        self._say(Kind.FLOW, self._name + data)

    def write(self) -> None:
        """Write what has come, and make room for as much."""
        try:
            count = self.end.send(self._unwritten[:PIECE_BYTES])
        except BlockingIOError:
            return
        except OSError:  # nobody reads any more: what still comes is taken and forgotten
            count = len(self._unwritten)
        del self._unwritten[:count]
        self._may_come += count
        self._say(Kind.ROOM, self._name + b"%d" % count)
        self._finish_writing()

    def hear(self, data: bytes) -> bool:
        """Take what the other side sent; False when it may not have."""
        if self._heard_all or len(data) > self._may_come:
            return False
        self._may_come -= len(data)
        self._unwritten += data
        self._heard_all = not data
        self._finish_writing()
        return True

    def make_room(self, count: bytes) -> bool:
        """Hear how much the other side has passed on; False when it cannot have."""
        if not count.isdigit() or len(count) > 10 or not 0 < int(count) <= WINDOW_BYTES - self._may_send:
            return False
        self._may_send += int(count)
        return True

    def _finish_writing(self) -> None:
        if self._heard_all and not self._unwritten:
            with contextlib.suppress(OSError):
                self.end.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        """Let go of the socket."""
        self.end.close()
