"""A run in a container that somebody stays with: his input, his signals and his terminal's size, as messages."""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import TYPE_CHECKING, Self

from ringfence.attachment import Attachment
from ringfence.errors import CapabilityBlocked
from ringfence.isolation.company import Company
from ringfence.isolation.protocol import Kind
from ringfence.isolation.stream.feeding import WindowFeed

if TYPE_CHECKING:
    from ringfence.isolation.stream.host import StreamWorker
    from ringfence.isolation.stream.ports import Ways


class StreamControls(Company):
    """Implements `attachment.Controls` for workers at the end of a stream."""

    feed: WindowFeed

    def __init__(
        self, worker: StreamWorker, loop: asyncio.AbstractEventLoop, attachment: Attachment, ways: Ways | None
    ) -> None:
        """Take hold of the waiting worker, whose ports are reached by `ways`."""
        super().__init__(worker, loop, attachment)
        self._worker = worker
        self.feed = WindowFeed(loop, worker.talk, self._stir)
        self._ways = ways
        self._begun = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        """Let go: the controls do nothing from now on."""
        self._over = True
        self.feed.end()

    def begin(self) -> None:
        """Count the silence from now on; a size that was asked for meanwhile is the terminal's."""
        self._begun = True
        self._stir()
        if self.terminal is not None and self.terminal != self._attachment.terminal:
            self._say(Kind.RESIZE, b"%d %d" % self.terminal)

    async def send(self, data: bytes) -> None:
        """Give `data` to the guest's input, all of it or nothing."""
        await super().send(data)
        self._worker.keep_sending()

    async def end_input(self) -> None:
        """End the guest's input once it has what was sent; a terminal is told by the character for it."""
        await super().end_input()
        self._worker.keep_sending()

    def resize(self, rows: int, columns: int) -> None:
        """Give the terminal another size; the kernel tells the guest."""
        self._require_terminal()
        self.terminal = rows, columns
        if self._begun:
            self._say(Kind.RESIZE, b"%d %d" % (rows, columns))

    def signal(self, number: int) -> None:
        """Send a signal: from the terminal to its foreground, otherwise to the worker and its group."""
        self._require_life()
        if self._begun:
            self._say(Kind.SIGNAL, b"%d" % number)

    def _say(self, kind: Kind, payload: bytes) -> None:
        self._worker.talk.say(kind, payload)
        self._worker.keep_sending()

    def connect(self, port: int) -> int:
        """Return a connection to a port of the container's own loopback."""
        if self._ways is None or port not in self._attachment.ports:
            raise CapabilityBlocked(
                f"port {port} was not asked for when the process was started",
                reason="port",
                fix="start it with ports=…",
            )
        return self._ways.connect(port)
