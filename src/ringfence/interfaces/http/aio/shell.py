"""`/v1/shell`: commands on a terminal, one at a time, whose session keeps the directory and exported variables."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Body
from starlette.responses import Response

from ringfence.interfaces.http.aio.bash import end_session, message_of, session_form
from ringfence.interfaces.http.aio.envelope import Envelope, View, absent, expected, told
from ringfence.interfaces.http.aio.fields import (
    Asked,
    FilePath,
    Seconds,
    SessionName,
    SessionPath,
    Text,
    WholeSeconds,
)
from ringfence.interfaces.http.aio.seat import AtSeat, Seat
from ringfence.interfaces.http.routes import Router
from ringfence.service.aio import commands
from ringfence.service.aio.paths import guest_directory
from ringfence.service.aio.sessions import IDLE_SECONDS, MOST_OF_A_TENANT, Command, Kind, Session

router = Router(prefix="/v1/shell", tags=["aio shell"])
_SILENT_SECONDS = 120.0
_USUAL_LENGTH = 30_000
_MOST_RECORDS = 8


class ExecBody(Asked):
    """A command for the terminal of a session."""

    command: Text
    id: SessionName | None = None
    exec_dir: FilePath | None = None
    async_mode: bool | None = None
    timeout: Seconds | None = None
    strict: bool | None = None
    no_change_timeout: WholeSeconds | None = None
    hard_timeout: Seconds | None = None
    preserve_symlinks: bool | None = None
    truncate: bool | None = None


class IdBody(Asked):
    """A session."""

    id: SessionName


class WaitBody(Asked):
    """How long to wait for what runs in a session."""

    id: SessionName
    seconds: WholeSeconds | None = None
    max_wait_seconds: WholeSeconds | None = None


class WriteBody(Asked):
    """What to type."""

    id: SessionName
    input: Text
    press_enter: bool = False


class CreateBody(Asked):
    """A session to be."""

    id: SessionName | None = None
    exec_dir: FilePath | None = None
    no_change_timeout: WholeSeconds | None = None
    preserve_symlinks: bool | None = None


class UpdateBody(Asked):
    """What to change of a session."""

    id: SessionName
    no_change_timeout: WholeSeconds | None = None


class CommandView(View):
    """A command, and what its terminal shows."""

    session_id: str
    command: str
    status: str
    output: str | None = None
    console: list[dict[str, Any]] | None = None
    exit_code: int | None = None


class ScreenView(View):
    """What the terminal of a session shows."""

    session_id: str
    output: str
    status: str
    command: str | None = None
    console: list[dict[str, Any]] | None = None
    exit_code: int | None = None


class StateView(View):
    """Where a session's command stands."""

    status: str


class CreatedView(View):
    """A session that was made."""

    session_id: str
    working_dir: str


class SessionsView(View):
    """The sessions of a project, by name."""

    sessions: dict[str, dict[str, Any]]


class StatsView(View):
    """How many sessions there are, and may be."""

    total_sessions: int
    active_sessions: int
    idle_sessions: int
    max_sessions: int
    session_timeout: int
    usage_ratio: float


@router.post("/exec", response_model=None, responses={200: {"model": Envelope[CommandView]}})
async def execute(seat: AtSeat, body: Annotated[ExecBody, Body()]) -> Response:
    """Run a command on the terminal of a session, made where there is none."""
    with expected("exec", session_id=body.id or "", command=body.command, status="failed"):
        cwd = None if body.exec_dir is None else guest_directory(body.exec_dir)
        session = seat.desk.opened(seat.place, Kind.SHELL, body.id, cwd)
        command = await commands.begin(
            seat.desk, seat.manager, session, body.command, hard_timeout=body.hard_timeout or None
        )
    silent = False
    if not body.async_mode:
        seconds = body.no_change_timeout or session.no_change_seconds or _SILENT_SECONDS
        silent = await commands.ended_or_silent(seat.manager, command, body.timeout, float(seconds))
    output = await commands.on_screen(seat.manager, command)
    shown = commands.cut(output, 0 if body.truncate is False else _USUAL_LENGTH)
    return told(
        {
            "session_id": session.session_id,
            "command": body.command,
            "status": "no_change_timeout" if silent else commands.status_of(command, Kind.SHELL),
            "output": shown,
            "console": [_record(session, command, shown)],
            "exit_code": command.exit_code,
        },
        message_of(command),
    )


@router.post("/view", response_model=None, responses={200: {"model": Envelope[ScreenView]}})
async def view(seat: AtSeat, body: Annotated[IdBody, Body()]) -> Response:
    """Show what the last command of a session said, and those before it as far as they are kept."""
    with expected("view", session_id=body.id, output="", status="failed"):
        session = seat.desk.find(seat.place, Kind.SHELL, body.id)
    last = session.last
    shown = list(session.commands.values())[-_MOST_RECORDS:]
    records = [
        _record(session, command, commands.cut(await commands.on_screen(seat.manager, command), _USUAL_LENGTH))
        for command in shown
    ]
    return told(
        {
            "session_id": session.session_id,
            "output": records[-1]["output"] if records else "",
            "status": "completed" if last is None else commands.status_of(last, Kind.SHELL),
            "command": None if last is None else last.text,
            "console": records,
            "exit_code": None if last is None else last.exit_code,
        }
    )


@router.post("/wait", response_model=None, responses={200: {"model": Envelope[StateView]}})
async def wait(seat: AtSeat, body: Annotated[WaitBody, Body()]) -> Response:
    """Wait until the command of a session has ended."""
    with expected("wait", status="failed"):
        session = seat.desk.find(seat.place, Kind.SHELL, body.id)
        command = session.command(None)
    seconds = body.max_wait_seconds if body.seconds is None else body.seconds
    await commands.ended(command, None if seconds is None else float(seconds))
    return told(_state(command), message_of(command))


@router.post("/write", response_model=None, responses={200: {"model": Envelope[StateView]}})
async def write(seat: AtSeat, body: Annotated[WriteBody, Body()]) -> Response:
    """Type into the terminal of a session."""
    with expected("write", status="failed"):
        command = seat.desk.find(seat.place, Kind.SHELL, body.id).command(None)
        await commands.write(seat.manager, command, body.input + ("\n" if body.press_enter else ""))
    return told(_state(command), "it was typed")


@router.post("/kill", response_model=None, responses={200: {"model": Envelope[StateView]}})
async def kill(seat: AtSeat, body: Annotated[IdBody, Body()]) -> Response:
    """End the command of a session."""
    with expected("kill", status="failed"):
        command = seat.desk.find(seat.place, Kind.SHELL, body.id).command(None)
        await commands.end(seat.manager, command)
    return told({**_state(command), "exit_code": command.exit_code, "returncode": command.exit_code})


@router.get("/sessions", response_model=None, responses={200: {"model": Envelope[SessionsView]}})
async def sessions(seat: AtSeat) -> Response:
    """List the sessions of the project."""
    found = seat.desk.listed(seat.place, Kind.SHELL)
    return told({"sessions": {session.session_id: _listed(seat, session) for session in found}})


@router.post("/sessions/create", response_model=None, responses={200: {"model": Envelope[CreatedView]}})
async def create(seat: AtSeat, body: Annotated[CreateBody, Body()]) -> Response:
    """Make a session, or find the one of this name."""
    with expected("create", session_id=body.id or "", working_dir=body.exec_dir or ""):
        cwd = None if body.exec_dir is None else guest_directory(body.exec_dir)
        session = seat.desk.opened(seat.place, Kind.SHELL, body.id, cwd)
    if body.no_change_timeout:
        session.no_change_seconds = float(body.no_change_timeout)
    return told({"session_id": session.session_id, "working_dir": session.carried.cwd})


@router.post("/sessions/update", response_model=None, responses={200: {"model": Envelope[View]}})
async def update(seat: AtSeat, body: Annotated[UpdateBody, Body()]) -> Response:
    """Change how long the commands of a session may be silent before their caller is told."""
    with expected("update", session_id=body.id):
        session = seat.desk.find(seat.place, Kind.SHELL, body.id)
    session.no_change_seconds = None if body.no_change_timeout is None else float(body.no_change_timeout)
    return told({"session_id": session.session_id})


@router.get("/sessions/stats", response_model=None, responses={200: {"model": Envelope[StatsView]}})
async def stats(seat: AtSeat) -> Response:
    """Count the sessions of the project."""
    found = seat.desk.listed(seat.place, Kind.SHELL)
    active = sum(session.is_busy or seat.desk.age(session)[1] < _ACTIVE_SECONDS for session in found)
    return told(
        {
            "total_sessions": len(found),
            "active_sessions": active,
            "idle_sessions": len(found) - active,
            "max_sessions": MOST_OF_A_TENANT,
            "session_timeout": int(IDLE_SECONDS),
            "usage_ratio": len(found) / MOST_OF_A_TENANT,
        }
    )


_ACTIVE_SECONDS = 300.0


@router.delete("/sessions", response_model=None, responses={200: {"model": Envelope[View]}})
async def clean(seat: AtSeat) -> Response:
    """End every session of the project."""
    found = seat.desk.listed(seat.place, Kind.SHELL)
    for session in found:
        await end_session(seat, session)
    return told({"closed": len(found)}, "the sessions are closed")


@router.delete("/sessions/{session_id:aio_name}", response_model=None, responses={200: {"model": Envelope[View]}})
async def close(seat: AtSeat, session_id: SessionPath) -> Response:
    """End a session and what runs in it."""
    with expected("close", session_id=session_id):
        session = seat.desk.find(seat.place, Kind.SHELL, session_id)
    await end_session(seat, session)
    return told({"session_id": session_id}, "the session is closed")


@router.get("/terminal-url", response_model=None, responses={200: {"model": Envelope[str]}})
async def terminal_url(_seat: AtSeat) -> Response:
    """Say that there is no page with a terminal; `/sandbox/processes/{id}/tty` has one for programs."""
    raise absent("page with a terminal")


def _record(session: Session, command: Command, output: str) -> dict[str, Any]:
    return {"ps1": f"sandbox:{session.carried.cwd}$ ", "command": command.text, "output": output}


def _state(command: Command) -> dict[str, Any]:
    return {"status": commands.status_of(command, Kind.SHELL)}


def _listed(seat: Seat, session: Session) -> dict[str, Any]:
    form = session_form(seat, session)
    kept = ("working_dir", "created_at", "last_used_at", "current_command")
    status = "running" if session.running else "ready"
    return {**{name: form[name] for name in kept}, "status": status, "age_seconds": int(seat.desk.age(session)[0])}
