"""Input for a guest at the end of a stream that also carries everything else: never more on its way than a window."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from ringfence.isolation.company import Inflow
from ringfence.isolation.protocol import Kind
from ringfence.isolation.stream.line import Talk
from ringfence.isolation.stream.wire import PIECE_BYTES, WINDOW_BYTES


def _nothing() -> None:
    return None


class WindowFeed(Inflow):
    """Sends input as it comes, so much ahead of what the guest has taken."""

    def __init__(self, loop: asyncio.AbstractEventLoop, talk: Talk, on_taken: Callable[[], None] = _nothing) -> None:
        """Nothing flows before `begin`."""
        super().__init__(loop)
        self._talk = talk
        self._on_taken = on_taken
        self._on_its_way = 0
        self._flows = False

    def begin(self) -> None:
        """Let it flow: the guest has its job."""
        self._flows = True
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
