"""One session's talk with the interpreter in its box: a cell at a time, each bounded in time and output."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from time import perf_counter
from typing import Protocol

from ringfence.capability.limits import Limits
from ringfence.dataclass import dataclass
from ringfence.errors import InvalidRequest
from ringfence.interpreter import frames
from ringfence.interpreter.frames import BrokenSession, Done, Frame
from ringfence.isolation.capture import Capture
from ringfence.outcome import ExecutionResult, OnOutput, Status

_GRACE_SECONDS = 2.0
_SENT_AT_ONCE = 128 * 1024


class Interpreter(Protocol):
    """The process in which the driver runs, as a session needs it."""

    async def send(self, data: bytes) -> None:
        """Write to its standard input."""
        ...

    async def interrupt(self) -> None:
        """Interrupt what it is doing, as Ctrl-C does."""
        ...

    async def kill(self) -> None:
        """End it and everything it started."""
        ...

    async def wait(self) -> ExecutionResult:
        """Return how it ended, once it has."""
        ...


@dataclass(frozen=True, slots=True)
class Cell:
    """What came of one cell: how it ended, and what it wrote; `done` is missing when it took the session with it."""

    status: Status
    stdout: Capture
    stderr: Capture
    elapsed_seconds: float
    done: Done | None = None
    killed_by: str | None = None
    session: ExecutionResult | None = None
    """How the session's process ended, where it has."""


class Conversation:
    """Sends cells to the box and hears what they say; a cell that will not end takes the session with it."""

    def __init__(self) -> None:
        """Output may come before the process is attached; nothing is lost."""
        self._reader = frames.Reader()
        self._turn = asyncio.Lock()
        self._number = 0
        self._hearing: _Hearing | None = None
        self._broken = False
        self._process: Interpreter | None = None
        self._ending: asyncio.Task[ExecutionResult] | None = None

    def attach(self, process: Interpreter) -> None:
        """Say in which process the driver runs."""
        self._process = process
        self._ending = asyncio.ensure_future(process.wait())

    @property
    def is_over(self) -> bool:
        """Whether no cell can run any more."""
        return self._broken or self._ending is None or self._ending.done()

    def hear(self, stream: str, data: bytes) -> None:
        """Take what the box wrote; everything of ours comes on standard output."""
        if self._broken or stream != "stdout":
            return  # before the driver has taken over standard error, only the interpreter itself writes to it
        try:
            heard = self._reader.feed(data)
            for kind, payload in heard:
                if self._hearing is not None:
                    self._hearing.take(kind, payload)
        except BrokenSession:
            self._broken = True
            if self._hearing is not None:
                self._hearing.give_up()

    async def run(self, code: str, limits: Limits, on_output: OnOutput | None = None) -> Cell:
        """Run one cell after those before it.

        A cell that does not end in time is interrupted, as Ctrl-C does, and takes the session with it when that does
        not help; so does one whose caller is cancelled.

        Raises:
            InvalidRequest: The session is over; nothing ran.
        """
        async with self._turn:
            process = self._process
            if process is None or self.is_over:
                raise InvalidRequest("the session is over", reason="session_over", fix="begin a new one")
            self._number += 1
            hearing = self._hearing = _Hearing(self._number, limits, on_output)
            began = perf_counter()
            try:
                return await self._until_over(process, hearing, code, limits, began)
            finally:
                self._hearing = None

    async def _until_over(
        self, process: Interpreter, hearing: _Hearing, code: str, limits: Limits, began: float
    ) -> Cell:
        assert self._ending is not None  # noqa: S101  attached: `run` has looked
        try:
            sent = await _sent(process, frames.cell(hearing.number, code), limits.wall_seconds)
            in_time = sent and await self._wait(hearing, limits.wall_seconds - (perf_counter() - began))
            if not sent:
                await process.kill()  # what it was given of the cell cannot be taken back
                await asyncio.wait({self._ending})
            elif not in_time:
                await self._stop(process, hearing)
        except asyncio.CancelledError:
            await _whatever_comes(lambda: self._stop(process, hearing))
            raise
        if hearing.broken or (self._broken and hearing.done is None):
            await process.kill()
            await asyncio.wait({self._ending})
        return hearing.cell(perf_counter() - began, in_time=in_time, ending=self._ending)

    async def _wait(self, hearing: _Hearing, seconds: float) -> bool:
        """Wait for the end of the cell or of the whole session; False when neither came in time."""
        assert self._ending is not None  # noqa: S101
        heard = asyncio.ensure_future(hearing.over.wait())
        try:
            done, _ = await asyncio.wait({heard, self._ending}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        finally:
            heard.cancel()
        return bool(done)

    async def _stop(self, process: Interpreter, hearing: _Hearing) -> None:
        with contextlib.suppress(InvalidRequest):  # it has just ended by itself
            await process.interrupt()
        if not await self._wait(hearing, _GRACE_SECONDS):
            await process.kill()
            assert self._ending is not None  # noqa: S101
            await asyncio.wait({self._ending})


class _Hearing:
    """What one cell says, while it is its turn."""

    def __init__(self, number: int, limits: Limits, on_output: OnOutput | None) -> None:
        self.number = number
        self._limits = limits
        self._streams = {
            Frame.STDOUT: Capture("stdout", limits.stdout_bytes, on_output),
            Frame.STDERR: Capture("stderr", limits.stderr_bytes, on_output),
        }
        self.done: Done | None = None
        self.broken = False
        self.over = asyncio.Event()

    def take(self, kind: Frame, payload: bytes) -> None:
        if kind is not Frame.DONE:
            self._streams[kind].add(payload)
            return
        done = frames.read_done(payload, most_artifact_bytes=self._limits.artifact_bytes)
        if done.number != self.number:
            raise BrokenSession("the interpreter answers for a cell it was not given")
        self.done = done
        self.over.set()

    def give_up(self) -> None:
        self.broken = True
        self.over.set()

    def cell(self, elapsed: float, *, in_time: bool, ending: asyncio.Task[ExecutionResult]) -> Cell:
        session = ending.result() if ending.done() and ending.exception() is None else None
        stdout, stderr = self._streams[Frame.STDOUT], self._streams[Frame.STDERR]
        if not in_time:
            return Cell(Status.TIMED_OUT, stdout, stderr, elapsed, self.done, "wall_timeout", session)
        if self.done is None:
            killed_by = session.killed_by if session is not None else None
            status = Status.KILLED if killed_by is not None else Status.FAILED
            return Cell(status, stdout, stderr, elapsed, None, killed_by, session)
        failed = self.done.error is not None or self.done.status
        return Cell(Status.FAILED if failed else Status.SUCCEEDED, stdout, stderr, elapsed, self.done, None, session)


async def _sent(process: Interpreter, said: bytes, seconds: float) -> bool:
    """Whether the interpreter took all of it in time: what a cell left running may keep it from reading ever again."""
    try:
        async with asyncio.timeout(seconds):
            for start in range(0, len(said), _SENT_AT_ONCE):
                await process.send(said[start : start + _SENT_AT_ONCE])
    except TimeoutError:
        return False
    return True


async def _whatever_comes(act: Callable[[], Awaitable[None]]) -> None:
    """Carry it through, however often the caller is cancelled meanwhile."""
    task = asyncio.ensure_future(act())
    while not task.done():
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.shield(task)
