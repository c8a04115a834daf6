"""Input for a guest at the end of a stream that also carries everything else: never more on its way than a window."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

from ringfence.errors import InvalidRequest
from ringfence.isolation.protocol import Kind
from ringfence.isolation.stream.line import Talk
from ringfence.isolation.stream.wire import PIECE_BYTES, WINDOW_BYTES

MOST_UNREAD = 256 * 1024
"""How much input waits on our side for a guest that does not read; whoever sends more waits."""


def _nothing() -> None:
    return None


class WindowFeed:
    """Sends input as it comes and as fast as the guest takes it."""

    def __init__(self, loop: asyncio.AbstractEventLoop, talk: Talk, on_taken: Callable[[], None] = _nothing) -> None:
        """Nothing flows before `begin`."""
        self._loop = loop
        self._talk = talk
        self._on_taken = on_taken
        self._unread = bytearray()
        self._on_its_way = 0
        self._flows = False
        self._ending = False
        self._closed = False
        self._waiting: list[asyncio.Future[None]] = []

    def put(self, data: bytes) -> None:
        """Have `data` sent first."""
        self._unread += data

    def begin(self) -> None:
        """Let it flow: the guest has its job."""
        self._flows = True
        self._flow()

    async def send(self, data: bytes) -> None:
        """Take `data` whole, once there is room.

        Raises:
            InvalidRequest: The guest no longer reads, or the input was ended.
        """
        while not (self._closed or self._ending) and self._unread and len(self._unread) + len(data) > MOST_UNREAD:
            waiter = self._loop.create_future()
            self._waiting.append(waiter)
            try:
                await waiter
            finally:
                with contextlib.suppress(ValueError):
                    self._waiting.remove(waiter)
        if self._closed or self._ending:
            raise InvalidRequest("the process no longer reads its input", reason="input_closed")
        self._unread += data
        self._flow()

    def end_when_empty(self) -> None:
        """End the input when everything has been sent."""
        self._ending = True
        self._flow()

    def end(self) -> None:
        """Send nothing more; a guest that ended leaves the rest unread."""
        self._closed = True
        self._unread.clear()
        self._wake()

    def taken(self, count: int | None) -> bool:
        """Hear that the guest took so many bytes, or takes no more; False when it cannot have."""
        if count is None:
            self.end()
            return True
        if not 0 < count <= self._on_its_way:
            return False
        self._on_its_way -= count
        self._on_taken()
        self._flow()
        self._wake()
        return True

    def _flow(self) -> None:
        if not self._flows or self._closed:
            return
        while self._unread and self._on_its_way < WINDOW_BYTES:
            piece = bytes(self._unread[: min(PIECE_BYTES, WINDOW_BYTES - self._on_its_way)])
            del self._unread[: len(piece)]
            self._on_its_way += len(piece)
            self._talk.say(Kind.STDIN, piece)
        if self._ending and not self._unread:
            self._closed = True
            self._talk.say(Kind.STDIN)

    def _wake(self) -> None:
        for waiter in self._waiting:
            if not waiter.done():
                waiter.set_result(None)
