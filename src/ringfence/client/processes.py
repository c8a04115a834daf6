"""A process that a service runs, in the hands of a program: what `Process` is, asked for over the connection."""

from __future__ import annotations

import base64
import time
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from ringfence.config import of_the_service
from ringfence.dataclass import replace
from ringfence.errors import QuotaExceeded
from ringfence.outcome import ExecutionResult, Status
from ringfence.outcome_form import read_base64, read_member, read_object, read_one_of, wrong_form
from ringfence.processes.process import Process
from ringfence.processes.ring import Piece
from ringfence.processes.running import MOST_READ, ProcessInfo, ProcessOutput

if TYPE_CHECKING:
    import socket

    from ringfence.client.remote import Remote

_LONGEST_WAIT: Final = 20.0
_AT_ONCE: Final = 64 * 1024
_UNFINISHED: Final = frozenset({Status.QUEUED, Status.RUNNING})


class RemoteProcess(Process):
    """What is known of it is as of the last answer; `poll` and the like bring it up to date."""

    def __init__(self, remote: Remote, info: ProcessInfo) -> None:
        """Made by `SandboxManager.start_process` and `SandboxManager.process`."""
        self._remote = remote
        self._info = info

    @property
    def process_id(self) -> str:
        """What it is called among processes."""
        return self._info.process_id

    @property
    def exec_id(self) -> str:
        """What its run is called, in results and in evidence."""
        return self._info.exec_id

    @property
    def state(self) -> Status:
        """Where it stands: running, or how it ended."""
        return self._info.state

    @property
    def exit_code(self) -> int | None:
        """What the program ended with, once it has."""
        return self._info.exit_code

    @property
    def terminal(self) -> tuple[int, int] | None:
        """The rows and columns of its terminal, where it has one."""
        return self._info.terminal

    @property
    def is_over(self) -> bool:
        """Whether nothing of it is left."""
        return self._info.state not in _UNFINISHED

    @property
    def info(self) -> ProcessInfo:
        """What a list shows of it."""
        return self._info

    async def poll(
        self, stdout_offset: int = 0, stderr_offset: int = 0, max_bytes: int = MOST_READ, wait_seconds: float = 0.0
    ) -> ProcessOutput:
        """Return what was said from the offsets on; with `wait_seconds`, once there is something, or it is over."""
        end = time.monotonic() + wait_seconds
        while True:
            wait = max(0.0, min(end - time.monotonic(), _LONGEST_WAIT))
            asked = f"stdout_offset={stdout_offset}&stderr_offset={stderr_offset}&max_bytes={max_bytes}"
            answer = await self._remote.call("GET", f"{self._target}?{asked}&wait_ms={wait * 1000:.0f}")
            said = self._heard(answer)
            if said.stdout.data or said.stderr.data or self.is_over or time.monotonic() >= end:
                return said

    async def stream(self, stdout_offset: int = 0, stderr_offset: int = 0) -> AsyncIterator[tuple[str, int, bytes]]:
        """Yield `(name, offset, bytes)` until it is over; an offset that is not the last one's end tells of a loss."""
        while True:
            said = await self.poll(stdout_offset, stderr_offset, _AT_ONCE, _LONGEST_WAIT)
            for name, piece in (("stdout", said.stdout), ("stderr", said.stderr)):
                if piece.data:
                    yield name, piece.offset, piece.data
            stdout_offset, stderr_offset = said.stdout.next_offset, said.stderr.next_offset
            if self.is_over and not (said.stdout.data or said.stderr.data):
                return

    async def send(self, data: bytes | str, *, end: bool = False, wait_seconds: float | None = None) -> None:
        """Give `data` to its input, all of it or nothing, waiting while it reads too little; `end` closes it.

        Raises:
            InvalidRequest: It is over, or its input is closed.
            QuotaExceeded: It would be more in all than a process is sent, or it does not read within `wait_seconds`.
        """
        until = None if wait_seconds is None else time.monotonic() + wait_seconds
        given = base64.b64encode(data.encode() if isinstance(data, str) else data).decode()
        while True:
            try:
                return await self._tell("stdin", {"data_b64": given, "end": end})
            except QuotaExceeded as full:  # nothing of it was taken
                if full.reason != "input_full" or (until is not None and time.monotonic() >= until):
                    raise

    async def resize(self, rows: int, columns: int) -> None:
        """Give its terminal another size.

        Raises:
            InvalidRequest: It has none.
        """
        await self._tell("resize", {"rows": rows, "columns": columns})

    async def signal(self, name: str) -> None:
        """Send it a signal: `INT`, on a terminal, interrupts whatever is in its foreground."""
        await self._tell("signal", {"signal": name})

    async def kill(self) -> None:
        """End it and everything it started; when this returns, nothing is left."""
        await self._tell("kill", None)

    async def wait(self) -> ExecutionResult:
        """Return what came of it, once it is over."""
        async for _ in self.stream(self._info.stdout_bytes, self._info.stderr_bytes):
            continue
        return await self._remote.result_of(self.exec_id)

    async def connect(self, port: int) -> socket.socket:
        """Refuse: a socket does not travel; a web server in the process is reached through the service's own address.

        Raises:
            InvalidRequest: Always.
        """
        refused = of_the_service(f"a socket to port {port} of a process")
        refused.fix = f"ask for {self._target}/ports/{port}/ at the service"
        raise refused

    @property
    def _target(self) -> str:
        return f"/sandbox/processes/{quote(self.process_id, safe='')}"

    async def _tell(self, what: str, form: dict[str, Any] | None) -> None:
        repeatable = what in ("kill", "resize")
        self._info = read_info(await self._remote.call("POST", f"{self._target}/{what}", form, repeatable=repeatable))

    def _heard(self, answer: object) -> ProcessOutput:
        form = read_object(answer)
        self._info = read_info(form)
        stdout, stderr = _piece(form.get("stdout")), _piece(form.get("stderr"))
        # what it has said by now, and not only what of it was asked for
        self._info = replace(self._info, stdout_bytes=max(self._info.stdout_bytes, stdout.next_offset))
        return ProcessOutput(self._info.state, self._info.exit_code, stdout, stderr)


def read_info(answer: object) -> ProcessInfo:
    """Return one process as the service tells of it.

    Raises:
        Unavailable: It tells of none.
    """
    form = read_object(answer)
    size, ports = form.get("terminal"), read_member(form, "ports", list)
    if any(not isinstance(port, int) for port in ports):
        raise wrong_form("'ports'")
    terminal = None if size is None else (read_member(size, "rows", int), read_member(size, "columns", int))
    exit_code, killed_by, project = form.get("exit_code"), form.get("killed_by"), form.get("project_id")
    return ProcessInfo(
        process_id=read_member(form, "process_id", str),
        exec_id=read_member(form, "exec_id", str),
        state=read_one_of(Status, form, "state"),
        exit_code=None if exit_code is None else read_member(form, "exit_code", int),
        killed_by=None if killed_by is None else read_member(form, "killed_by", str),
        language=read_member(form, "language", str),
        session_id=None if project is None else read_member(form, "project_id", str),
        terminal=terminal,
        ports=tuple(ports),
        started_ms=read_member(form, "started_at_ms", int),
        stdout_bytes=read_member(form, "stdout_bytes", int),
        stderr_bytes=read_member(form, "stderr_bytes", int),
    )


def _piece(answer: object) -> Piece:
    form = read_object(answer)
    return Piece(
        read_member(form, "offset", int),
        read_base64("data_b64", read_member(form, "data_b64", str)),
        read_member(form, "next_offset", int),
        read_member(form, "lost_bytes", int),
    )
