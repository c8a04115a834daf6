"""`/v1/code`: one run in a box for each piece of code, or a cell of a session where its state is to be kept."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import Body
from pydantic import Field
from starlette.responses import Response

from ringfence.errors import InvalidRequest
from ringfence.interfaces.http.aio.envelope import Envelope, View, expected, told
from ringfence.interfaces.http.aio.fields import Asked, FilePath, SessionName, Text
from ringfence.interfaces.http.aio.seat import AtSeat, Seat
from ringfence.interfaces.http.routes import Router
from ringfence.outcome import ExecutionResult
from ringfence.service.aio import kernels
from ringfence.service.aio.paths import guest_directory
from ringfence.service.aio.sessions import Kind

router = Router(prefix="/v1/code", tags=["aio code"])
Timeout = Annotated[int, Field(ge=1, le=300)]


class CodeBody(Asked):
    """Code to run; `stateful` keeps the variables of Python for the next of the same `session_id`."""

    language: Literal["python", "javascript"]
    code: Text
    timeout: Timeout | None = None
    cwd: FilePath | None = None
    stateful: bool | None = None
    session_id: SessionName | None = None


class CodeView(View):
    """What came of it."""

    language: str
    status: str
    code: str
    outputs: list[dict[str, Any]] | None = None
    stdout: str | None = None
    stderr: str | None = None
    exit_code: int | None = None
    traceback: list[str] | None = None
    session_id: str | None = None


class LanguagesView(View):
    """The languages there are."""

    languages: list[dict[str, Any]]


@router.post("/execute", response_model=None, responses={200: {"model": Envelope[CodeView]}})
async def execute(seat: AtSeat, body: Annotated[CodeBody, Body()]) -> Response:
    """Run code; what it does to itself is told by `status`."""
    with expected("execute", language=body.language, status="error", code=body.code):
        if body.stateful and body.language != "python":
            raise InvalidRequest("only python keeps its state", reason="not_in_this_version", fix="leave stateful out")
        if body.stateful:
            return await _cell(seat, body)
        async with seat.turn() as manager:
            result = await manager.execute_code(body.language, body.code, body.timeout, cwd=guest_directory(body.cwd))
    return told(_form(body, result), message_of(result))


async def _cell(seat: Seat, body: CodeBody) -> Response:
    cwd = None if body.cwd is None else guest_directory(body.cwd)
    session = seat.desk.opened(seat.place, Kind.PYTHON, body.session_id, cwd)
    result = await kernels.run(seat.desk, seat.manager, seat.place, session, body.code, body.timeout)
    return told({**_form(body, result), "session_id": session.session_id}, message_of(result))


@router.get("/info", response_model=None, responses={200: {"model": Envelope[LanguagesView]}})
async def info(_seat: AtSeat) -> Response:
    """List the languages."""
    common = {"default_timeout": 60, "max_timeout": 300}
    return told(
        {
            "languages": [
                {"language": "python", "description": "Python, in a box of its own; cells of a session", **common},
                {"language": "javascript", "description": "JavaScript with Node, in a box of its own", **common},
            ]
        }
    )


def message_of(result: ExecutionResult) -> str:
    """Return what there is to say of a run beside its output."""
    return "the code was run" if result.error is None else result.error


def _form(body: CodeBody, result: ExecutionResult) -> dict[str, Any]:
    return {
        "language": body.language,
        "status": kernels.status_of(result),
        "code": body.code,
        "outputs": kernels.outputs_of(result),
        "stdout": result.stdout,
        "stderr": result.stderr,
        "exit_code": result.exit_code,
        "traceback": None if result.success else result.stderr.splitlines()[-100:],
    }
