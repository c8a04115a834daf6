"""Connections carried by the stream of a container beside everything else; the same on both of its ends.

Neither end sends more than the other has room for, so a connection that nobody reads from stops by itself and keeps
nothing else from arriving.
"""

from __future__ import annotations

import contextlib
import select
import socket
import struct

from ringfence.isolation.protocol import Kind
from ringfence.isolation.stream.wire import PIECE_BYTES, ROOM_BYTES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

_NUMBER = struct.Struct(">I")
CALLS = 1 << 31
"""From here on the guest's own connections are numbered, below it those that the host asked for."""
MOST_CALLS = 528
"""Of one guest at one time: a few more than the proxy takes of one box, so that it can say why it takes no more."""
ABOUT_ONE = (Kind.FLOW, Kind.ROOM, Kind.CUT)


def numbered(payload: bytes) -> tuple[int, bytes]:
    """Return the number of the connection that a message is about, and the rest of it.

    Raises:
        ValueError: It has none.
    """
    if len(payload) < _NUMBER.size:
        raise ValueError("a word about no connection")
    return _NUMBER.unpack_from(payload)[0], payload[_NUMBER.size :]


def numbering(number: int) -> bytes:
    """Return how a message begins that is about the connection of a number."""
    return _NUMBER.pack(number)


class Channel:
    """A socket on this side, and what is on its way between it and the other."""

    def __init__(self, number: int, end: socket.socket, say: Callable[[Kind, bytes], None]) -> None:
        """Take over `end`."""
        self._name = numbering(number)
        self.end = end
        self._say = say
        self._may_send = ROOM_BYTES
        self._may_come = ROOM_BYTES
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
    def has_read_all(self) -> bool:
        """Whether nothing more can be read on this side; that it takes nothing more either would still be news."""
        return self._read_all

    @property
    def is_over(self) -> bool:
        """Whether nothing more will happen here."""
        return self._read_all and self._heard_all and not self._unwritten

    def read(self, *, hung_up: bool) -> None:
        """Send on what can be read; when that is over, and `hung_up` tells that nothing is taken either, say so."""
        try:
            data = self.end.recv(min(PIECE_BYTES, self._may_send))
        except BlockingIOError:
            return
        except OSError:
            self.cut()
            return
        if not data and hung_up:
            self.cut()
            return
        self._may_send -= len(data)
        self._read_all = not data
        self._say(Kind.FLOW, self._name + data)

    def write(self) -> None:
        """Write what has come, and make room for as much."""
        try:
            count = self.end.send(self._unwritten[:PIECE_BYTES], socket.MSG_NOSIGNAL)
        except BlockingIOError:
            return
        except OSError:  # nobody reads any more
            self.cut()
            return
        del self._unwritten[:count]
        self._may_come += count
        self._say(Kind.ROOM, self._name + b"%d" % count)
        self._finish_writing()

    def cut(self) -> None:
        """Be over at once, and have the other side hear of it."""
        if not self.is_over:
            self._unwritten.clear()
            self._read_all = self._heard_all = True
            self._say(Kind.CUT, self._name)

    def hear(self, kind: Kind, data: bytes) -> bool:
        """Take a word of the other side about this connection; False when it cannot have said that."""
        if kind is Kind.ROOM:
            return self._make_room(data)
        if kind is Kind.CUT:  # what has come before is still passed on
            self._read_all = self._heard_all = True
            return not data
        if self._heard_all or len(data) > self._may_come:
            return False
        self._may_come -= len(data)
        self._unwritten += data
        self._heard_all = not data
        self._finish_writing()
        return True

    def _make_room(self, count: bytes) -> bool:
        if not count.isdigit() or len(count) > 10 or not 0 < int(count) <= ROOM_BYTES - self._may_send:
            return False
        self._may_send += int(count)
        return True

    def _finish_writing(self) -> None:
        if self._heard_all and not self._unwritten:
            with contextlib.suppress(OSError):
                self.end.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        """Let go of the socket, also for a forked child that has a copy."""
        with contextlib.suppress(OSError):
            self.end.shutdown(socket.SHUT_RDWR)
        self.end.close()


class Channels:
    """All connections that one side has open."""

    def __init__(self, say: Callable[[Kind, bytes], None], has_room: Callable[[], bool]) -> None:
        """`say` sends a message, `has_room` tells whether more may be sent before some has been taken."""
        self._say = say
        self._has_room = has_room
        self._open: dict[int, Channel] = {}
        self.calls = 0
        """How many of them the guest made."""

    def __len__(self) -> int:
        """Return how many there are."""
        return len(self._open)

    def add(self, number: int, end: socket.socket) -> None:
        """Carry what goes through `end` from now on."""
        self._open[number] = Channel(number, end, self._say)
        self.calls += number >= CALLS

    def hear(self, kind: Kind, number: int, rest: bytes) -> bool:
        """Take a word about one of them; False when it cannot be.

        About one that is not there it says nothing: the other side had not heard yet that it is over.
        """
        channel = self._open.get(number)
        if channel is None:
            return True
        possible = channel.hear(kind, rest)
        self._forget_if_over(number, channel)
        return possible

    def watch(self, poll: select.poll) -> None:
        """Have `poll` wake when something can be done here."""
        has_room = self._has_room()
        for channel in self._open.values():
            wanted = (select.POLLIN if channel.wants_read and has_room else 0) | (
                select.POLLOUT if channel.wants_write else 0
            )
            if wanted or channel.has_read_all:  # of the latter, that it hung up is told unasked
                poll.register(channel.end, wanted)

    def see_to(self, ready: dict[int, int]) -> None:
        """Do what can be done; who was read from comes last the next time, so that nobody waits for ever."""
        for number, channel in list(self._open.items()):
            events = ready.get(channel.end.fileno(), 0)
            if not events:
                continue
            if channel.wants_read and events & ~select.POLLOUT and self._has_room():
                channel.read(hung_up=bool(events & select.POLLHUP))
                self._open[number] = self._open.pop(number)
            elif channel.has_read_all and events & (select.POLLHUP | select.POLLERR):
                channel.cut()
            if channel.wants_write:
                channel.write()
            self._forget_if_over(number, channel)

    def close(self) -> None:
        """End all of them."""
        for channel in self._open.values():
            channel.close()
        self._open.clear()
        self.calls = 0

    def _forget_if_over(self, number: int, channel: Channel) -> None:
        if channel.is_over:
            channel.close()
            del self._open[number]
            self.calls -= number >= CALLS
