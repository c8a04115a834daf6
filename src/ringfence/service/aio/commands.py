"""Carries out the commands of AIO sessions: each one is a process, judged, bounded and recorded as any run.

A command of a `bash` session has pipes, one of a `shell` session a terminal. When it ends, its files are the project's,
and the next command or file operation sees them.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import Final

from ringfence.dataclass import dataclass
from ringfence.errors import InvalidRequest, RingfenceError
from ringfence.facade import SandboxManager
from ringfence.outcome import Status
from ringfence.processes.process import Process
from ringfence.processes.ring import Piece
from ringfence.service.aio import carried
from ringfence.service.aio.sessions import Command, Desk, Kind, Session

TERMINAL: Final = (40, 120)
"""Rows and columns of a shell session's terminal."""
LONGEST_WAIT_SECONDS: Final = 300.0
"""How long a request waits for a command that its caller gave no time; then it is told that it runs."""
_REMEMBERED: Final = 2048
_SIGNALS: Final = {"SIGTERM": "TERM", "SIGINT": "INT"}
_PATIENCE_SECONDS: Final = 10.0


@dataclass(frozen=True, slots=True)
class Said:
    """What a command said from two offsets on, whole characters only, and where to ask next."""

    stdout: str = ""
    stderr: str = ""
    offset: int = 0
    stderr_offset: int = 0
    is_known: bool = True
    """Whether its output is still kept."""


async def begin(
    desk: Desk,
    manager: SandboxManager,
    session: Session,
    command: str,
    *,
    env: dict[str, str] | None = None,
    hard_timeout: float | None = None,
) -> Command:
    """Start a command in a session, and see it to its end.

    Raises:
        InvalidRequest: The session's terminal is in use; or something about the command is wrong.
        RingfenceError: Whatever refused it; nothing runs.
    """
    on_terminal = session.kind is Kind.SHELL
    async with session.turn:
        if on_terminal and session.running:
            raise InvalidRequest(
                "a command runs in this terminal", reason="conflict", fix="wait for it, write to it, or kill it"
            )
        process = await manager.start_process(
            command,
            terminal=TERMINAL if on_terminal else None,
            timeout=hard_timeout,
            cwd=session.carried.cwd,
            env={**(env or {}), **(session.carried.environment() if on_terminal else {})},
            inputs=carried.INPUTS if on_terminal else {},
        )
        begun = Command(process.exec_id, command[:_REMEMBERED], process.process_id)
        session.add(begun)
    desk.watch(asyncio.ensure_future(_to_its_end(session, begun, process)))
    return begun


async def _to_its_end(session: Session, command: Command, process: Process) -> None:
    try:
        result = await process.wait()
        command.exit_code, command.killed_by = result.exit_code, result.killed_by
        if session.kind is Kind.SHELL:
            session.carried = carried.after(session.carried, (await process.poll()).stdout.data)
    except (RingfenceError, asyncio.CancelledError):
        pass  # it could not be run to its end; its state says so
    finally:
        command.status = str(process.state)
        command.over.set()


async def ended(command: Command, seconds: float | None) -> bool:
    """Wait for the end of a command, at most so long; say whether it has ended."""
    most = LONGEST_WAIT_SECONDS if seconds is None else min(seconds, LONGEST_WAIT_SECONDS)
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(max(0.0, most)):
            await command.over.wait()
    return command.over.is_set()


async def ended_or_silent(
    manager: SandboxManager, command: Command, seconds: float | None, silent_seconds: float
) -> bool:
    """Wait as `ended` does, but no longer than the command says nothing; say whether it was silent for so long."""
    deadline = time.monotonic() + (LONGEST_WAIT_SECONDS if seconds is None else min(seconds, LONGEST_WAIT_SECONDS))
    try:
        process = await manager.process(command.process_id)
    except InvalidRequest:  # so much has ended since that it is forgotten
        return not await ended(command, seconds)
    offset = 0
    while not command.over.is_set():
        left = deadline - time.monotonic()
        if left <= 0:
            return False
        heard = await process.poll(offset, 0, wait_seconds=min(left, silent_seconds))
        if heard.stdout.next_offset == offset:
            if process.is_over:
                await command.over.wait()
            return not command.over.is_set() and left > silent_seconds
        offset = heard.stdout.next_offset
    return False


async def said(
    manager: SandboxManager, command: Command, offset: int = 0, stderr_offset: int = 0, wait_seconds: float = 0.0
) -> Said:
    """Return what a command said from the offsets on; with `wait_seconds`, once there is something, or it is over."""
    try:
        process = await manager.process(command.process_id)
    except InvalidRequest:
        return Said(offset=offset, stderr_offset=stderr_offset, is_known=False)
    heard = await process.poll(offset, stderr_offset, wait_seconds=wait_seconds)
    if process.is_over:
        await command.over.wait()
    stdout, next_offset = _text(heard.stdout, is_over=process.is_over)
    stderr, next_stderr = _text(heard.stderr, is_over=process.is_over)
    return Said(stdout, stderr, next_offset, next_stderr)


async def on_screen(manager: SandboxManager, command: Command) -> str:
    """Return what a command on a terminal shows."""
    try:
        process = await manager.process(command.process_id)
    except InvalidRequest:
        return ""
    heard = await process.poll()
    return carried.shown(heard.stdout.data).decode("utf-8", "replace").replace("\r\n", "\n")


async def write(manager: SandboxManager, command: Command, text: str) -> None:
    """Give a command its input.

    Raises:
        InvalidRequest: It has ended.
        QuotaExceeded: It does not read.
    """
    process = await manager.process(command.process_id)
    try:
        data = text.encode()
    except UnicodeEncodeError:
        raise InvalidRequest("the input is not valid Unicode text", reason="invalid_text") from None
    await process.send(data, wait_seconds=_PATIENCE_SECONDS)


async def end(manager: SandboxManager, command: Command, signal: str = "SIGKILL") -> None:
    """End a command: SIGKILL at once and with everything it started, the others as the program takes them.

    Raises:
        InvalidRequest: There is no such signal.
    """
    if signal != "SIGKILL" and signal not in _SIGNALS:
        raise InvalidRequest("a signal is SIGTERM, SIGKILL or SIGINT", reason="invalid_value")
    if command.over.is_set():
        return
    with contextlib.suppress(InvalidRequest):  # it has just ended by itself
        process = await manager.process(command.process_id)
        if signal == "SIGKILL":
            await process.kill()
            await command.over.wait()
        else:
            await process.signal(_SIGNALS[signal])


def status_of(command: Command, kind: Kind) -> str:
    """Return where a command stands, in the words of its kind of session."""
    running, timed_out, stopped = (
        ("running", "hard_timeout", "terminated") if kind is Kind.SHELL else ("running", "timed_out", "killed")
    )
    match command.status:
        case None:
            return running
        case Status.TIMED_OUT:
            return timed_out
        case Status.SUCCEEDED | Status.FAILED:
            return "completed"
        case _:
            return stopped


def cut(text: str, most: int) -> str:
    """Return a text of at most `most` characters, its beginning and a note; 0 is no bound."""
    if not most or len(text) <= most:
        return text
    return f"{text[:most]}\n[{len(text) - most} more characters]"


def _text(piece: Piece, *, is_over: bool) -> tuple[str, int]:
    """Return a stretch as text: a character that is still on its way is left for the next time."""
    data = piece.data
    for missing in () if is_over else range(1, min(4, len(data) + 1)):
        lead = data[-missing]
        if lead >= 0xC0:
            if missing < (2 if lead < 0xE0 else 3 if lead < 0xF0 else 4):
                data = data[:-missing]
            break
        if lead < 0x80:
            break
    return data.decode("utf-8", "replace"), piece.offset + len(data)
