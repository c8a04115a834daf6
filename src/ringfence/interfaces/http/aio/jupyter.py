"""`/v1/jupyter`: cells of Python, in the interpreter of a session or in one of their own."""

from __future__ import annotations

import time
from typing import Annotated, Any

from fastapi import Body
from pydantic import StringConstraints
from starlette.responses import Response

from ringfence.errors import InvalidRequest
from ringfence.interfaces.http.aio.code import Timeout, message_of
from ringfence.interfaces.http.aio.envelope import Envelope, View, expected, told
from ringfence.interfaces.http.aio.fields import Asked, FilePath, SessionName, SessionPath, Text
from ringfence.interfaces.http.aio.seat import AtSeat
from ringfence.interfaces.http.routes import Router
from ringfence.outcome import ExecutionResult
from ringfence.service.aio import kernels
from ringfence.service.aio.paths import guest_directory
from ringfence.service.aio.sessions import IDLE_SECONDS, Kind, Session

router = Router(prefix="/v1/jupyter", tags=["aio jupyter"])
KernelName = Annotated[str, StringConstraints(max_length=64)]
_MOST_SESSIONS = 16


class CellBody(Asked):
    """A cell; with a `session_id`, after those that came before it."""

    code: Text
    timeout: Timeout | None = None
    kernel_name: KernelName | None = None
    session_id: SessionName | None = None
    cwd: FilePath | None = None


class CreateBody(Asked):
    """A session to be."""

    session_id: SessionName | None = None
    kernel_name: KernelName | None = None
    cwd: FilePath | None = None


class CellView(View):
    """What came of a cell."""

    kernel_name: str
    status: str
    outputs: list[dict[str, Any]]
    code: str
    session_id: str | None = None
    execution_count: int | None = None
    msg_id: str | None = None


class CreatedView(View):
    """A session that was made."""

    session_id: str
    kernel_name: str
    message: str


class SessionsView(View):
    """The sessions of a project, by name."""

    sessions: dict[str, dict[str, Any]]


class InfoView(View):
    """What there is."""

    default_kernel: str
    available_kernels: list[str]
    active_sessions: int
    session_timeout_seconds: int
    max_sessions: int
    kernel_detection: str
    description: str


@router.post("/execute", response_model=None, responses={200: {"model": Envelope[CellView]}})
async def execute(seat: AtSeat, body: Annotated[CellBody, Body()]) -> Response:
    """Run a cell. Without a session its files are the project's at once; with one, when the session ends."""
    with expected("execute", kernel_name=kernels.KERNEL, status="error", outputs=[], code=body.code):
        _require_python(body.kernel_name)
        if body.session_id is None:
            async with seat.turn() as manager:
                result = await kernels.run_once(manager, body.code, guest_directory(body.cwd), body.timeout)
            return told(_form(body.code, result), message_of(result))
        cwd = None if body.cwd is None else guest_directory(body.cwd)
        session = seat.desk.opened(seat.place, Kind.PYTHON, body.session_id, cwd)
        result = await kernels.run(seat.desk, seat.manager, seat.place, session, body.code, body.timeout)
    return told(_form(body.code, result, session), message_of(result))


@router.post("/sessions/create", response_model=None, responses={200: {"model": Envelope[CreatedView]}})
async def create(seat: AtSeat, body: Annotated[CreateBody, Body()]) -> Response:
    """Start the interpreter of a session, or find the one of this name."""
    with expected("create", session_id=body.session_id or "", kernel_name=kernels.KERNEL, message=""):
        _require_python(body.kernel_name)
        cwd = None if body.cwd is None else guest_directory(body.cwd)
        session = seat.desk.opened(seat.place, Kind.PYTHON, body.session_id, cwd)
        await kernels.begin(seat.desk, seat.manager, seat.place, session)
    message = "the session is ready"
    return told({"session_id": session.session_id, "kernel_name": kernels.KERNEL, "message": message}, message)


@router.get("/sessions", response_model=None, responses={200: {"model": Envelope[SessionsView]}})
async def sessions(seat: AtSeat) -> Response:
    """List the sessions of the project."""
    found = {session.session_id: seat.desk.age(session) for session in seat.desk.listed(seat.place, Kind.PYTHON)}
    now = time.time()
    return told(
        {
            "sessions": {
                name: {"kernel_name": kernels.KERNEL, "last_used": now - idle, "age_seconds": int(age)}
                for name, (age, idle) in found.items()
            }
        }
    )


@router.delete("/sessions", response_model=None, responses={200: {"model": Envelope[View]}})
async def clean(seat: AtSeat) -> Response:
    """End every session of the project."""
    found = seat.desk.listed(seat.place, Kind.PYTHON)
    for session in found:
        await kernels.end(seat.desk, seat.manager, seat.place, session)
    return told({"closed": len(found)}, "the sessions are closed")


@router.delete("/sessions/{session_id:aio_name}", response_model=None, responses={200: {"model": Envelope[View]}})
async def close(seat: AtSeat, session_id: SessionPath) -> Response:
    """End a session; what it wrote is the project's when this is answered."""
    with expected("close", session_id=session_id):
        session = seat.desk.find(seat.place, Kind.PYTHON, session_id)
    await kernels.end(seat.desk, seat.manager, seat.place, session)
    return told({"session_id": session_id}, "the session is closed")


@router.get("/info", response_model=None, responses={200: {"model": Envelope[InfoView]}})
async def info(seat: AtSeat) -> Response:
    """Say what there is."""
    return told(
        {
            "default_kernel": kernels.KERNEL,
            "available_kernels": [kernels.KERNEL],
            "active_sessions": len(seat.desk.listed(seat.place, Kind.PYTHON)),
            "session_timeout_seconds": int(IDLE_SECONDS),
            "max_sessions": _MOST_SESSIONS,
            "kernel_detection": "fixed",
            "description": "cells of Python, each judged and recorded; a session is one box",
        }
    )


def _require_python(kernel_name: str | None) -> None:
    if kernel_name is not None and not kernel_name.lower().startswith("python"):
        raise InvalidRequest("the only kernel is python3", reason="unknown_language", fix="leave kernel_name out")


def _form(code: str, result: ExecutionResult, session: Session | None = None) -> dict[str, Any]:
    count = None if session is None else session.count
    return {
        "kernel_name": kernels.KERNEL,
        "session_id": None if session is None else session.session_id,
        "status": kernels.status_of(result),
        "execution_count": count,
        "outputs": kernels.outputs_of(result, count),
        "code": code,
        "msg_id": result.exec_id,
    }
