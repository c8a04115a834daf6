"""`/v1/bash`: commands with pipes; each is a process of its own, and its session a name and a directory."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Annotated, Any

from fastapi import Body
from pydantic import Field
from starlette.responses import Response

from ringfence.errors import InvalidRequest
from ringfence.interfaces.http.aio.envelope import Envelope, View, expected, told
from ringfence.interfaces.http.aio.fields import (
    Asked,
    FilePath,
    Number,
    Seconds,
    SessionName,
    SessionPath,
    Text,
)
from ringfence.interfaces.http.aio.seat import AtSeat, Seat
from ringfence.interfaces.http.routes import Router
from ringfence.service.aio import commands
from ringfence.service.aio.paths import guest_directory
from ringfence.service.aio.sessions import Command, Kind, Session

router = Router(prefix="/v1/bash", tags=["aio bash"])
_USUAL_LENGTH = 50_000
_LONGEST_POLL_SECONDS = 60.0


class ExecBody(Asked):
    """A command; `timeout` bounds how long the answer is waited for, `hard_timeout` the command itself."""

    command: Text
    session_id: SessionName | None = None
    exec_dir: FilePath | None = None
    env: dict[str, str | None] | None = None
    async_mode: bool | None = None
    timeout: Seconds | None = None
    hard_timeout: Seconds | None = None
    max_output_length: Number | None = None


class OutputBody(Asked):
    """What to read of a command's output, the last one's where none is named."""

    session_id: SessionName
    command_id: SessionName | None = None
    offset: Number | None = None
    stderr_offset: Number | None = None
    wait: bool | None = None
    wait_timeout: Seconds | None = None


class WriteBody(Asked):
    """Input for a command."""

    session_id: SessionName
    command_id: SessionName | None = None
    input: Text


class KillBody(Asked):
    """A signal for what runs in a session."""

    session_id: SessionName
    signal: Annotated[str, Field(max_length=16)] | None = None


class CreateBody(Asked):
    """A session to be."""

    session_id: SessionName | None = None
    exec_dir: FilePath | None = None
    snapshot_path: FilePath | None = None


class ExecView(View):
    """A command, and what it has said so far."""

    session_id: str
    command_id: str
    command: str
    status: str
    stdout: str | None = None
    stderr: str | None = None
    exit_code: int | None = None
    offset: int | None = None
    stderr_offset: int | None = None


class OutputView(View):
    """What a command said from the offsets on."""

    session_id: str
    stdout: str | None = None
    stderr: str | None = None
    offset: int | None = None
    stderr_offset: int | None = None
    command: dict[str, Any] | None = None


class SessionView(View):
    """One session."""

    session_id: str
    status: str
    working_dir: str
    created_at: str
    last_used_at: str
    current_command: str | None = None
    command_count: int | None = None


@router.post("/exec", response_model=None, responses={200: {"model": Envelope[ExecView]}})
async def execute(seat: AtSeat, body: Annotated[ExecBody, Body()]) -> Response:
    """Run a command, and wait for it unless `async_mode` or `timeout` say otherwise."""
    unknown = {"session_id": body.session_id or "", "command_id": "", "command": body.command, "status": "failed"}
    with expected("exec", **unknown):
        cwd = None if body.exec_dir is None else guest_directory(body.exec_dir)
        session = seat.desk.opened(seat.place, Kind.BASH, body.session_id, cwd)
        env = {name: value for name, value in (body.env or {}).items() if value is not None}
        command = await commands.begin(
            seat.desk, seat.manager, session, body.command, env=env, hard_timeout=body.hard_timeout or None
        )
    if not body.async_mode:
        await commands.ended(command, body.timeout)
    said = await commands.said(seat.manager, command)
    most = _USUAL_LENGTH if body.max_output_length is None else body.max_output_length
    return told(
        {
            "session_id": session.session_id,
            "command_id": command.command_id,
            "command": body.command,
            "status": commands.status_of(command, Kind.BASH),
            "stdout": commands.cut(said.stdout, most),
            "stderr": commands.cut(said.stderr, most),
            "exit_code": command.exit_code,
            "offset": said.offset,
            "stderr_offset": said.stderr_offset,
        },
        message_of(command),
    )


@router.post("/output", response_model=None, responses={200: {"model": Envelope[OutputView]}})
async def output(seat: AtSeat, body: Annotated[OutputBody, Body()]) -> Response:
    """Read what a command said from the offsets on; with `wait`, once there is something."""
    with expected("output", session_id=body.session_id):
        session = seat.desk.find(seat.place, Kind.BASH, body.session_id)
        command = session.command(body.command_id)
    seconds = min(body.wait_timeout or _LONGEST_POLL_SECONDS, _LONGEST_POLL_SECONDS) if body.wait else 0.0
    said = await commands.said(seat.manager, command, body.offset or 0, body.stderr_offset or 0, seconds)
    data = {
        "session_id": session.session_id,
        "stdout": said.stdout,
        "stderr": said.stderr,
        "offset": said.offset,
        "stderr_offset": said.stderr_offset,
        "command": _command_form(command),
    }
    return told(data, message_of(command) if said.is_known else "the output of this command is no longer kept")


@router.post("/write", response_model=None, responses={200: {"model": Envelope[View]}})
async def write(seat: AtSeat, body: Annotated[WriteBody, Body()]) -> Response:
    """Give a command input."""
    with expected("write", session_id=body.session_id):
        command = seat.desk.find(seat.place, Kind.BASH, body.session_id).command(body.command_id)
        await commands.write(seat.manager, command, body.input)
    return told({"session_id": body.session_id}, "the input was sent")


@router.post("/kill", response_model=None, responses={200: {"model": Envelope[View]}})
async def kill(seat: AtSeat, body: Annotated[KillBody, Body()]) -> Response:
    """Signal everything that runs in a session."""
    with expected("kill", session_id=body.session_id):
        session = seat.desk.find(seat.place, Kind.BASH, body.session_id)
        for command in session.running:
            await commands.end(seat.manager, command, body.signal or "SIGTERM")
    return told({"session_id": body.session_id}, "the signal was sent")


@router.get("/sessions", response_model=None, responses={200: {"model": Envelope[list[SessionView]]}})
async def sessions(seat: AtSeat) -> Response:
    """List the sessions of the project."""
    return told([session_form(seat, session) for session in seat.desk.listed(seat.place, Kind.BASH)])


@router.post("/sessions/create", response_model=None, responses={200: {"model": Envelope[SessionView]}})
async def create(seat: AtSeat, body: Annotated[CreateBody, Body()]) -> Response:
    """Make a session, or find the one of this name."""
    moment = datetime.now(UTC).isoformat()
    unknown = {"session_id": body.session_id or "", "status": "closed", "working_dir": body.exec_dir or ""}
    with expected("create", **unknown, created_at=moment, last_used_at=moment):
        if body.snapshot_path is not None:
            raise InvalidRequest("a session has no snapshot of a shell to begin with", reason="not_in_this_version")
        cwd = None if body.exec_dir is None else guest_directory(body.exec_dir)
        session = seat.desk.opened(seat.place, Kind.BASH, body.session_id, cwd)
    return told(session_form(seat, session))


@router.post("/sessions/{session_id}/close", response_model=None, responses={200: {"model": Envelope[View]}})
async def close(seat: AtSeat, session_id: SessionPath) -> Response:
    """End a session and everything that runs in it."""
    with expected("close", session_id=session_id):
        session = seat.desk.find(seat.place, Kind.BASH, session_id)
    await end_session(seat, session)
    return told({"session_id": session_id}, "the session is closed")


async def end_session(seat: Seat, session: Session) -> None:
    """Forget a session, and end what runs in it."""
    seat.desk.forget(seat.place, session)
    for command in session.running:
        await commands.end(seat.manager, command)


def session_form(seat: Seat, session: Session) -> dict[str, Any]:
    """Return a session as a list shows it."""
    now = datetime.now(UTC)
    created, used = (now - timedelta(seconds=seconds) for seconds in seat.desk.age(session))
    running = session.running
    return {
        "session_id": session.session_id,
        "status": "ready",
        "working_dir": session.carried.cwd,
        "created_at": created.isoformat(),
        "last_used_at": used.isoformat(),
        "current_command": running[-1].text if running else None,
        "command_count": session.count,
    }


def message_of(command: Command) -> str:
    """Return what there is to say of a command beside its output."""
    if command.status is None:
        return "the command runs"
    return "the command has ended" if command.killed_by is None else f"the command was ended: {command.killed_by}"


def _command_form(command: Command) -> dict[str, Any]:
    return {
        "command_id": command.command_id,
        "command": command.text,
        "status": commands.status_of(command, Kind.BASH),
        "exit_code": command.exit_code,
    }
