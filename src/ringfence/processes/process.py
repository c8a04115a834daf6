"""What a program holds of a process it started: poll, stream, send, resize, signal, kill, wait, connect."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator

from ringfence.outcome import ExecutionResult, Status
from ringfence.processes.running import MOST_READ, ProcessInfo, ProcessOutput, Running


class Process:
    """A process that runs, or ran, in a box of its own; letting go of this object does not end it."""

    def __init__(self, running: Running) -> None:
        """Made by `SandboxManager.start_process` and `SandboxManager.process`."""
        self._running = running

    @property
    def process_id(self) -> str:
        """What it is called among processes."""
        return self._running.about.process_id

    @property
    def exec_id(self) -> str:
        """What its run is called, in results and in evidence."""
        return self._running.about.exec_id

    @property
    def state(self) -> Status:
        """Where it stands: running, or how it ended."""
        return self._running.state

    @property
    def exit_code(self) -> int | None:
        """What the program ended with, once it has."""
        return self._running.exit_code

    @property
    def terminal(self) -> tuple[int, int] | None:
        """The rows and columns of its terminal, where it has one."""
        return self._running.terminal

    @property
    def is_over(self) -> bool:
        """Whether nothing of it is left, and its end is on record."""
        return self._running.is_over

    @property
    def info(self) -> ProcessInfo:
        """What a list shows of it."""
        return self._running.info()

    async def poll(
        self, stdout_offset: int = 0, stderr_offset: int = 0, max_bytes: int = MOST_READ, wait_seconds: float = 0.0
    ) -> ProcessOutput:
        """Return what was said from the offsets on; with `wait_seconds`, once there is something, or it is over."""
        return await self._running.poll(stdout_offset, stderr_offset, max_bytes, wait_seconds)

    def stream(self, stdout_offset: int = 0, stderr_offset: int = 0) -> AsyncIterator[tuple[str, int, bytes]]:
        """Yield `(name, offset, bytes)` until it is over; an offset that is not the last one's end tells of a loss."""
        return self._running.stream(stdout_offset, stderr_offset)

    async def send(self, data: bytes | str, *, end: bool = False, wait_seconds: float | None = None) -> None:
        """Give `data` to its input, all of it or nothing, waiting while it reads too little; `end` closes it.

        Raises:
            InvalidRequest: It is over, or its input is closed.
            QuotaExceeded: It would be more in all than a process is sent, or it does not read within `wait_seconds`.
        """
        await self._running.send(data.encode() if isinstance(data, str) else data, end=end, wait_seconds=wait_seconds)

    async def resize(self, rows: int, columns: int) -> None:
        """Give its terminal another size.

        Raises:
            InvalidRequest: It has none.
        """
        self._running.resize(rows, columns)

    async def signal(self, name: str) -> None:
        """Send it a signal: `INT`, on a terminal, interrupts whatever is in its foreground."""
        self._running.signal(name)

    async def interrupt(self) -> None:
        """Interrupt it, as Ctrl-C does."""
        await self.signal("INT")

    async def kill(self) -> None:
        """End it and everything it started; when this returns, nothing is left."""
        await self._running.kill()

    async def wait(self) -> ExecutionResult:
        """Return what came of it, once it is over."""
        return await self._running.wait()

    async def connect(self, port: int) -> socket.socket:
        """Return a socket connected to a port that it was started with, on the box's own loopback.

        Raises:
            CapabilityBlocked: It was not started with this port.
            Unavailable: Nobody listens there.
        """
        return socket.socket(fileno=await self._running.connect(port))
