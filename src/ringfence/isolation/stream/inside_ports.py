"""Connections across the border of a container without a network: to what a guest listens on, and from it to the host.

All of them end here, on the container's own loopback. A guest has connections to this process, never a descriptor of
the stream that carries them on: it can connect, send and hang up, and say nothing about connections.
"""

from __future__ import annotations

import contextlib
import errno
import resource
import select
import socket

from ringfence.isolation.protocol import Kind
from ringfence.isolation.stream.channels import ABOUT_ONE, CALLS, MOST_CALLS, Channels, numbered, numbering

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ringfence.isolation.stream.inside_relay import Stream

DOOR_WORDS = (Kind.DIAL, Kind.CALL, *ABOUT_ONE)
_LOOPBACKS = ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1"))
_BACKLOG = 512
_OWN_FILES = 128
_MOST_NUMBERS = CALLS


def listening(port: int) -> socket.socket:
    """Return the socket that a guest finds its way out behind; made before there is a guest, who could take its place.

    Raises:
        OSError: This container has no loopback.
    """
    made = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    made.bind(("127.0.0.1", port))
    made.listen(_BACKLOG)
    made.setblocking(False)
    return made


class Doors:
    """The connections into and out of this container that are open or being made."""

    def __init__(self, stream: Stream, way_out: socket.socket | None) -> None:
        """There is none yet."""
        self._stream = stream
        self._channels = Channels(stream.say, lambda: not stream.is_full)
        self._dialling: dict[int, tuple[int, int, socket.socket]] = {}
        self._way_out = way_out
        self._called = 0
        self._most_calls = max(1, min(MOST_CALLS, resource.getrlimit(resource.RLIMIT_NOFILE)[0] - _OWN_FILES))

    def obey(self, kind: Kind, payload: bytes) -> None:
        """Do what the host says about a connection."""
        if kind is Kind.CALL:
            self._shut_way_out()
            return
        number, rest = numbered(payload)
        if kind is Kind.DIAL:
            self._dial(number, int(rest), 0)
        else:
            self._channels.hear(kind, number, rest)

    def _dial(self, number: int, port: int, attempt: int, refused: int = errno.ECONNREFUSED) -> None:
        """Try both loopbacks, one after the other, as a browser told `localhost` would."""
        if attempt == len(_LOOPBACKS):
            self._answer(number, refused)
            return
        family, host = _LOOPBACKS[attempt]
        try:
            made = socket.socket(family, socket.SOCK_STREAM)
        except OSError as error:
            self._dial(number, port, attempt + 1, error.errno or errno.EIO)
            return
        made.setblocking(False)
        code = made.connect_ex((host, port))
        if code in (0, errno.EINPROGRESS):
            self._dialling[number] = port, attempt, made
        else:
            made.close()
            self._dial(number, port, attempt + 1, code)

    def _answer(self, number: int, code: int) -> None:
        self._stream.say(Kind.DIAL, numbering(number) + b"%d" % code)

    @property
    def _takes_calls(self) -> bool:
        return not self._stream.is_full and self._channels.calls < self._most_calls

    def watch(self, poll: select.poll) -> None:
        """Have `poll` wake when something can be done here."""
        for _, _, made in self._dialling.values():
            poll.register(made, select.POLLOUT)
        if self._way_out is not None and self._takes_calls:  # who connects to a box that is full waits in the kernel
            poll.register(self._way_out, select.POLLIN)
        self._channels.watch(poll)

    def see_to(self, ready: dict[int, int]) -> None:
        """Do what can be done."""
        for number, (port, attempt, made) in list(self._dialling.items()):
            if made.fileno() not in ready:
                continue
            del self._dialling[number]
            code = made.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            if code:
                made.close()
                self._dial(number, port, attempt + 1, code)
            else:
                self._channels.add(number, made)
                self._answer(number, 0)
        self._channels.see_to(ready)
        if self._way_out is not None and self._way_out.fileno() in ready:
            self._take_calls(self._way_out)

    def _take_calls(self, way_out: socket.socket) -> None:
        """Tell the host of whoever connected to the way out."""
        while self._takes_calls:
            try:
                end, _ = way_out.accept()
            except OSError:  # nobody else has
                return
            with contextlib.suppress(OSError):  # it may be gone already
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            number = CALLS + self._called
            self._called += 1
            self._channels.add(number, end)
            self._stream.say(Kind.CALL, numbering(number))
            if self._called == _MOST_NUMBERS:
                self._shut_way_out()
                return

    def _shut_way_out(self) -> None:
        """Have whoever connects from now on be refused."""
        if self._way_out is not None:
            self._way_out.close()
            self._way_out = None
