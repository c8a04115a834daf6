"""Connects to what a guest listens on, within the container's own network, for whoever may from outside."""

from __future__ import annotations

import errno
import select
import socket

from ringfence.isolation.protocol import Kind
from ringfence.isolation.stream.channels import Channel, numbered

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ringfence.isolation.stream.inside_relay import Stream

_LOOPBACKS = ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1"))


class Doors:
    """The connections into this container that are open or being made."""

    def __init__(self, stream: Stream) -> None:
        """There is none yet."""
        self._stream = stream
        self._channels: dict[int, Channel] = {}
        self._dialling: dict[int, tuple[int, int, socket.socket]] = {}

    def obey(self, kind: Kind, payload: bytes) -> None:
        """Do what the host says about a connection."""
        number, rest = numbered(payload)
        if kind is Kind.DIAL:
            self._dial(number, int(rest), 0)
        elif number in self._channels:
            channel = self._channels[number]
            if kind is Kind.FLOW:
                channel.hear(rest)
            else:
                channel.make_room(rest)
            self._forget_if_over(number)

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
        self._stream.say(Kind.DIAL, number.to_bytes(4, "big") + b"%d" % code)

    def watch(self, poll: select.poll) -> None:
        """Have `poll` wake when something can be done here."""
        for _, _, made in self._dialling.values():
            poll.register(made, select.POLLOUT)
        for channel in self._channels.values():
            readable = select.POLLIN if channel.wants_read and not self._stream.is_full else 0
            wanted = readable | (select.POLLOUT if channel.wants_write else 0)
            if wanted:
                poll.register(channel.end, wanted)

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
                self._channels[number] = Channel(number, made, self._stream.say)
                self._answer(number, 0)
        for number, channel in list(self._channels.items()):
            events = ready.get(channel.end.fileno(), 0)
            if events & ~select.POLLOUT and channel.wants_read:
                channel.read()
            if events and channel.wants_write:
                channel.write()
            self._forget_if_over(number)

    def _forget_if_over(self, number: int) -> None:
        if self._channels[number].is_over:
            self._channels.pop(number).close()
