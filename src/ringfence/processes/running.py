"""One process while it runs and until it is forgotten: what it said, what may be done to it, how it ended."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from signal import Signals
from typing import TYPE_CHECKING

from ringfence.dataclass import dataclass
from ringfence.errors import InvalidRequest, QuotaExceeded, RingfenceError
from ringfence.operation import MAX_STDIN_BYTES
from ringfence.outcome import ExecutionResult, Status
from ringfence.processes.records import Ended, Started
from ringfence.processes.ring import Piece, Ring

if TYPE_CHECKING:
    from ringfence.attachment import Controls, Observed
    from ringfence.interpreter.conversation import Conversation

KEPT_BYTES = 1024 * 1024
"""How much of each output is kept; older bytes are lost, and counted."""
MOST_SENT = 256 * 1024
"""How much is taken at one time for the guest's input."""
MOST_READ = 1024 * 1024
_SIGNALS = {
    name: Signals[f"SIG{name}"] for name in ("INT", "TERM", "HUP", "QUIT", "USR1", "USR2", "CONT", "TSTP", "WINCH")
}
_MOST_ROWS = 1000


@dataclass(frozen=True, slots=True)
class ProcessOutput:
    """Where a process stands and what it said since; a process on a terminal says everything on `stdout`."""

    state: Status
    exit_code: int | None
    stdout: Piece
    stderr: Piece


@dataclass(frozen=True, slots=True)
class ProcessInfo:
    """One process as a list shows it."""

    process_id: str
    exec_id: str
    state: Status
    exit_code: int | None
    killed_by: str | None
    language: str
    session_id: str | None
    terminal: tuple[int, int] | None
    """Rows and columns, as they are now."""
    ports: tuple[int, ...]
    started_ms: int
    stdout_bytes: int
    stderr_bytes: int


Announce = Callable[[], Awaitable[None]]
"""Makes durable that a process starts."""


class Running:
    """Implements `ports.Attachment`; of the event loop it was started in."""

    def __init__(self, about: Started, announce: Announce, *, started_ms: int = 0) -> None:
        """Nothing runs yet."""
        self.about = about
        self.started_ms = started_ms
        self.terminal = about.terminal
        self.idle_seconds = about.idle_seconds
        self.ports = about.ports
        self.stdout, self.stderr = Ring(KEPT_BYTES), Ring(KEPT_BYTES)
        self.stdin_bytes = 0
        self.was_announced = False
        self.observed: Observed | None = None
        self.conversation: Conversation | None = None
        """The talk with its interpreter, where it is one that takes cells."""
        self.result: ExecutionResult | None = None
        self.error: BaseException | None = None
        self._announce = announce
        self._loop = asyncio.get_running_loop()
        self._controls: Controls | None = None
        self._over = asyncio.Event()
        self._stirred: set[asyncio.Future[None]] = set()
        self._task: asyncio.Task[ExecutionResult] | None = None
        self._killed = False
        self._way_in: ThreadPoolExecutor | None = None

    # --- for the run ---

    async def attach(self, controls: Controls) -> None:
        """Take the controls; the first time, write down that there is a process."""
        if not self.was_announced:
            await self._announce()
            self.was_announced = True
        self._controls, self.observed = controls, controls.observed
        if self._killed:
            controls.kill("cancelled")
        self._stir()

    def hear(self, name: str, data: bytes) -> None:
        """Keep what was said, and wake whoever waits for it."""
        (self.stdout if name == "stdout" else self.stderr).write(data)
        if self.conversation is not None:
            self.conversation.hear(name, data)
        self._stir()

    def live(self, run: Awaitable[ExecutionResult], afterwards: Callable[[], Awaitable[None]]) -> None:
        """Begin to run; `afterwards` is done before anybody is told that it is over."""
        self._task = asyncio.ensure_future(self._live(run, afterwards))
        self._task.add_done_callback(_look_at)

    async def _live(
        self, run: Awaitable[ExecutionResult], afterwards: Callable[[], Awaitable[None]]
    ) -> ExecutionResult:
        try:
            self.result = await run
        except BaseException as error:
            self.error = error
            raise
        finally:
            self._controls = None
            if self._way_in is not None:
                self._way_in.shutdown(wait=False)
            try:
                await afterwards()
            finally:
                self._over.set()
                self._stir()
        return self.result

    # --- for whoever started it ---

    @property
    def state(self) -> Status:
        """Where it stands: queued, running, or how it ended."""
        if self.result is not None and self._over.is_set():
            return self.result.status
        if self.error is not None and self._over.is_set():
            return Status.CANCELLED if isinstance(self.error, asyncio.CancelledError) else Status.ERROR
        return Status.RUNNING if self.was_announced else Status.QUEUED

    @property
    def is_over(self) -> bool:
        """Whether nothing of it is left in any box, and its end is on record."""
        return self._over.is_set()

    @property
    def exit_code(self) -> int | None:
        """What the program ended with, once it has."""
        return self.result.exit_code if self.result is not None and self._over.is_set() else None

    @property
    def weight(self) -> int:
        """How many bytes are held for it."""
        kept = self.stdout.end - self.stdout.start + self.stderr.end - self.stderr.start
        if self.result is None:
            return kept
        artifacts = sum(len(artifact.content) for artifact in self.result.artifacts)
        return kept + len(self.result.stdout_raw) + len(self.result.stderr_raw) + artifacts

    def info(self) -> ProcessInfo:
        """Return it as a list shows it."""
        about = self.about
        return ProcessInfo(
            about.process_id,
            about.exec_id,
            self.state,
            self.exit_code,
            self.ended().killed_by if self.is_over else None,
            about.language,
            about.session_id,
            self.terminal,
            about.ports,
            self.started_ms,
            self.stdout.end,
            self.stderr.end,
        )

    def ended(self) -> Ended:
        """Return what is told of its end."""
        if self.result is not None:
            outcome, exit_code, killed_by = str(self.result.status), self.result.exit_code, self.result.killed_by
        else:
            cancelled = isinstance(self.error, asyncio.CancelledError)
            outcome, exit_code = str(Status.CANCELLED if cancelled else Status.ERROR), None
            killed_by = "cancelled" if cancelled else None
        return Ended(outcome, exit_code, killed_by, self.stdin_bytes, self.stdout.end, self.stderr.end)

    async def under_way(self) -> None:
        """Wait until it runs.

        Raises:
            RingfenceError: It never did.
        """
        while not self.was_announced and not self._over.is_set():
            await self._something_happens(None)
        if not self.was_announced and self.error is not None:
            raise self.error

    async def poll(
        self, stdout_offset: int = 0, stderr_offset: int = 0, max_bytes: int = MOST_READ, wait_seconds: float = 0.0
    ) -> ProcessOutput:
        """Return what was said from the offsets on; with `wait_seconds`, once there is something, or it is over."""
        self._require_loop()
        deadline = self._loop.time() + wait_seconds
        most = min(max_bytes, MOST_READ)
        while True:
            said = ProcessOutput(
                self.state,
                self.exit_code,
                self.stdout.read(stdout_offset, most),
                self.stderr.read(stderr_offset, most),
            )
            left = deadline - self._loop.time()
            if said.stdout.data or said.stderr.data or self._over.is_set() or left <= 0:
                return said
            await self._something_happens(left)

    async def stream(self, stdout_offset: int = 0, stderr_offset: int = 0) -> AsyncIterator[tuple[str, int, bytes]]:
        """Yield `(name, offset, bytes)` until it is over; an offset that is not the last one's end tells of a loss."""
        while True:
            over = self._over.is_set()
            said = await self.poll(stdout_offset, stderr_offset, 64 * 1024)
            for name, piece in (("stdout", said.stdout), ("stderr", said.stderr)):
                if piece.data:
                    yield name, piece.offset, piece.data
            moved = said.stdout.data or said.stderr.data
            stdout_offset, stderr_offset = said.stdout.next_offset, said.stderr.next_offset
            if not moved:
                if over:
                    return
                await self._something_happens(None, stdout_offset, stderr_offset)

    async def send(self, data: bytes, *, end: bool = False, wait_seconds: float | None = None) -> None:
        """Give `data` to its input, all of it or nothing, waiting while it reads too little; `end` closes it.

        Raises:
            InvalidRequest: It is over, or its input is closed; or `data` is more than one call may bring.
            QuotaExceeded: It would be more in all than a process is sent, or it still does not read.
        """
        controls = self._require_controls()
        if len(data) > MOST_SENT:
            raise InvalidRequest(f"more than {MOST_SENT} bytes of input at one time", reason="too_large")
        if self.stdin_bytes + len(data) > MAX_STDIN_BYTES:
            raise QuotaExceeded(f"a process is sent at most {MAX_STDIN_BYTES} bytes", reason="bytes_in")
        if data:
            try:
                async with asyncio.timeout(wait_seconds):
                    await controls.send(data)
            except TimeoutError:
                raise QuotaExceeded(
                    "the process does not read its input: nothing of this was taken", reason="input_full"
                ) from None
            self.stdin_bytes += len(data)
        if end:
            await controls.end_input()

    def resize(self, rows: int, columns: int) -> None:
        """Give its terminal another size.

        Raises:
            InvalidRequest: It has none, or no terminal has that size.
        """
        check_size((rows, columns))
        self._require_controls().resize(rows, columns)
        self.terminal = rows, columns

    def signal(self, name: str) -> None:
        """Send it a signal, by a name such as `INT`; on a terminal an interrupt is for whoever is in the foreground.

        Raises:
            InvalidRequest: It is over, or there is no such signal.
        """
        number = _SIGNALS.get(name.upper().removeprefix("SIG"))
        if number is None:
            known = ", ".join(_SIGNALS)
            raise InvalidRequest(f"{name[:20]!r} is not one of {known}", reason="invalid_value", fix="or kill it")
        self._require_controls().signal(number)

    async def kill(self) -> None:
        """End it and everything it started; when this returns, nothing is left. One that is over stays as it is."""
        self._require_loop()
        self._killed = True
        if self._controls is not None:
            self._controls.kill("cancelled")
        elif self._task is not None and not self.was_announced:
            self._task.cancel()
        await self._over.wait()

    async def wait(self) -> ExecutionResult:
        """Return what came of it, once it is over.

        Raises:
            RingfenceError: It could not be run to its end.
        """
        self._require_loop()
        await self._over.wait()
        if self.result is None:
            raise self.error if isinstance(self.error, RingfenceError) else asyncio.CancelledError
        return self.result

    async def connect(self, port: int) -> int:
        """Return a descriptor connected to a port that it was started with.

        Raises:
            InvalidRequest: It is over.
            CapabilityBlocked: It was not started with this port.
            Unavailable: Nobody listens there.
        """
        controls = self._require_controls()
        if self._way_in is None:
            # of its own: a guest that accepts nothing has whoever connects wait, and nobody else
            self._way_in = ThreadPoolExecutor(1, "ringfence-way-in")
        return await self._loop.run_in_executor(self._way_in, controls.connect, port)

    def _require_controls(self) -> Controls:
        self._require_loop()
        if self._controls is None:
            raise InvalidRequest("the process is over", reason="process_ended")
        return self._controls

    def _require_loop(self) -> None:
        if asyncio.get_running_loop() is not self._loop:
            raise InvalidRequest("the process was started in another event loop", reason="invalid_value")

    def _stir(self) -> None:
        for waiter in self._stirred:
            if not waiter.done():
                waiter.set_result(None)
        self._stirred.clear()

    async def _something_happens(
        self, seconds: float | None, stdout_offset: int | None = None, stderr_offset: int | None = None
    ) -> None:
        """Wait for output or an end, unless there is already output beyond the offsets."""
        if self._over.is_set() or (
            stdout_offset is not None
            and stderr_offset is not None
            and (self.stdout.end > stdout_offset or self.stderr.end > stderr_offset)
        ):
            return
        waiter = self._loop.create_future()
        self._stirred.add(waiter)
        try:
            await asyncio.wait([waiter], timeout=seconds)
        finally:
            self._stirred.discard(waiter)


def check_size(terminal: tuple[int, int]) -> None:
    """Refuse a size that no terminal has.

    Raises:
        InvalidRequest: Naming it.
    """
    numbers: object = terminal
    fits = isinstance(numbers, tuple) and [type(number) for number in numbers] == [int, int]
    if not fits or not all(1 <= number <= _MOST_ROWS for number in terminal):
        raise InvalidRequest(
            f"a terminal is (rows, columns), 1 to {_MOST_ROWS} each, not {str(terminal)[:50]}", reason="invalid_value"
        )


def _look_at(task: asyncio.Task[ExecutionResult]) -> None:
    """Take note of how it ended: whoever asks gets it, and nobody has to."""
    if not task.cancelled():
        task.exception()
