"""A run in a container that somebody stays with: his input, his signals and his terminal's size, as messages."""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import TYPE_CHECKING, Self

from ringfence.attachment import Attachment, Observed
from ringfence.errors import CapabilityBlocked, InvalidRequest
from ringfence.isolation.capture import Capture, Overheard
from ringfence.isolation.protocol import Kind
from ringfence.isolation.stream.feeding import WindowFeed
from ringfence.isolation.stream.ports import Ways
from ringfence.outcome import OnOutput

if TYPE_CHECKING:
    from ringfence.isolation.stream.host import StreamWorker

_END_OF_INPUT = b"\x04"


class StreamControls:
    """Implements `ports.Controls` for workers at the end of a stream."""

    def __init__(self, worker: StreamWorker, loop: asyncio.AbstractEventLoop, attachment: Attachment) -> None:
        """Take hold of the waiting worker."""
        self._worker = worker
        self._loop = loop
        self._attachment = attachment
        self.terminal = attachment.terminal
        self.feed = WindowFeed(loop, worker.talk, self._stir)
        # first of all: from now on the stream's own ends are its
        self._ways = Ways(worker.talk) if attachment.ports else None
        self._begun = False
        self._over = False
        self._last_stir = loop.time()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        """Let go: the controls do nothing from now on."""
        self._over = True
        self.feed.end()
        if self._ways is not None:
            self._ways.end()

    @property
    def observed(self) -> Observed:
        """The box it runs in, as the host saw it when it was sealed."""
        worker = self._worker
        return Observed(worker.sandbox_id, worker.sandbox_type, worker.backend, worker.layers)

    def capture(self, name: str, cap: int, on_output: OnOutput | None) -> Capture:
        """Return a capture that also lets the attached one hear everything, however much that is."""
        return Overheard(name, cap, on_output, self._hear)

    def _hear(self, name: str, data: bytes) -> None:
        self._stir()
        self._attachment.hear(name, data)

    def _stir(self) -> None:
        self._last_stir = self._loop.time()

    async def announce(self, first: bytes) -> None:
        """Hand the controls over, with `first` as the beginning of the guest's input."""
        self.feed.put(first)
        await self._attachment.attach(self)

    def begin(self) -> None:
        """Count the silence from now on; a size that was asked for meanwhile is the terminal's."""
        self._begun = True
        self._stir()
        if self.terminal is not None and self.terminal != self._attachment.terminal:
            self._say(Kind.RESIZE, b"%d %d" % self.terminal)

    def exceeded(self) -> str | None:
        """Name the limit on silence when it has been reached."""
        idle = self._attachment.idle_seconds
        return "idle_timeout" if idle is not None and self._loop.time() - self._last_stir >= idle else None

    async def send(self, data: bytes) -> None:
        """Give `data` to the guest's input, all of it or nothing."""
        await self.feed.send(data)
        self._worker.keep_sending()

    async def end_input(self) -> None:
        """End the guest's input once it has what was sent; a terminal is told by the character for it."""
        if self.terminal is not None:
            await self.feed.send(_END_OF_INPUT)
        else:
            self.feed.end_when_empty()
        self._worker.keep_sending()

    def resize(self, rows: int, columns: int) -> None:
        """Give the terminal another size; the kernel tells the guest."""
        if self.terminal is None:
            raise InvalidRequest("the process has no terminal", reason="no_terminal")
        self._require_life()
        self.terminal = rows, columns
        if self._begun:
            self._say(Kind.RESIZE, b"%d %d" % (rows, columns))

    def signal(self, number: int) -> None:
        """Send a signal: from the terminal to its foreground, otherwise to the worker and its group."""
        self._require_life()
        if self._begun:
            self._say(Kind.SIGNAL, b"%d" % number)

    def kill(self, why: str) -> None:
        """End everything in the box, while it is this run's."""
        if not self._over:
            self._worker.kill(why)

    def _say(self, kind: Kind, payload: bytes) -> None:
        self._worker.talk.say(kind, payload)
        self._worker.keep_sending()

    def _require_life(self) -> None:
        if self._over:
            raise InvalidRequest("the process is over", reason="process_ended")

    def connect(self, port: int) -> int:
        """Return a connection to a port of the container's own loopback."""
        if self._ways is None or port not in self._attachment.ports:
            raise CapabilityBlocked(
                f"port {port} was not asked for when the process was started",
                reason="port",
                fix="start it with ports=…",
            )
        return self._ways.connect(port)
