"""What a run that somebody stays with has in common, whichever way its box is spoken to: his input, his listening."""

from __future__ import annotations

import asyncio
import contextlib
from abc import ABC, abstractmethod
from typing import Protocol

from ringfence.attachment import Attachment, Controls, Observed
from ringfence.errors import InvalidRequest
from ringfence.isolation.capture import Capture, Overheard
from ringfence.outcome import Layers, OnOutput, SandboxType

MOST_UNREAD = 256 * 1024
"""How much input waits on our side for a guest that does not read; whoever sends more waits."""
END_OF_INPUT = b"\x04"
"""What a terminal is told in the place of an end."""


class Kept(Protocol):
    """A worker whose run somebody stays with."""

    sandbox_id: str
    sandbox_type: SandboxType
    backend: str
    layers: Layers

    def kill(self, why: str) -> None:
        """End everything in the box."""
        ...


class Inflow(ABC):
    """Input as it comes, for a guest that reads as fast as it likes: little of it is held, and none after the end."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        """Nothing flows yet."""
        self._loop = loop
        self._unread = bytearray()
        self._ending = False
        self._closed = False
        self._waiting: list[asyncio.Future[None]] = []

    def put(self, data: bytes) -> None:
        """Have `data` go first."""
        self._unread += data

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
        """End the input when everything has gone."""
        self._ending = True
        self._flow()

    @abstractmethod
    def begin(self) -> None:
        """Let it flow: the guest has its job."""

    @abstractmethod
    def end(self) -> None:
        """Let nothing more go; a guest that ended leaves the rest unread."""

    @abstractmethod
    def _flow(self) -> None:
        """Pass on what the guest has room for."""

    def _wake(self) -> None:
        for waiter in self._waiting:
            if not waiter.done():
                waiter.set_result(None)


class Company(Controls):
    """Who stays with one run: hears all of it, is told of its silence, and can do nothing when it is over."""

    feed: Inflow

    def __init__(self, worker: Kept, loop: asyncio.AbstractEventLoop, attachment: Attachment) -> None:
        """The run has not begun."""
        self._kept = worker
        self._loop = loop
        self._attachment = attachment
        self.terminal = attachment.terminal
        self._over = False
        self._last_stir = loop.time()

    @property
    def observed(self) -> Observed:
        """The box it runs in, as the host saw it when it was sealed."""
        worker = self._kept
        return Observed(worker.sandbox_id, worker.sandbox_type, worker.backend, worker.layers)

    def capture(self, name: str, cap: int, on_output: OnOutput | None) -> Capture:
        """Return a capture that also lets the attached one hear everything, however much that is."""
        return Overheard(name, cap, on_output, self._hear)

    async def announce(self, first: bytes) -> None:
        """Hand the controls over, with `first` as the beginning of the guest's input."""
        self.feed.put(first)
        await self._attachment.attach(self)

    def exceeded(self) -> str | None:
        """Name the limit on silence when it has been reached."""
        idle = self._attachment.idle_seconds
        return "idle_timeout" if idle is not None and self._loop.time() - self._last_stir >= idle else None

    async def send(self, data: bytes) -> None:
        """Give `data` to the guest's input, all of it or nothing."""
        await self.feed.send(data)

    async def end_input(self) -> None:
        """End the guest's input once it has what was sent; a terminal is told by the character for it."""
        if self.terminal is not None:
            await self.feed.send(END_OF_INPUT)
        else:
            self.feed.end_when_empty()

    def kill(self, why: str) -> None:
        """End everything in the box, while it is this run's."""
        if not self._over:
            self._kept.kill(why)

    def _hear(self, name: str, data: bytes) -> None:
        self._stir()
        self._attachment.hear(name, data)

    def _stir(self) -> None:
        self._last_stir = self._loop.time()

    def _require_life(self) -> None:
        if self._over:
            raise InvalidRequest("the process is over", reason="process_ended")

    def _require_terminal(self) -> None:
        if self.terminal is None:
            raise InvalidRequest("the process has no terminal", reason="no_terminal")
        self._require_life()
