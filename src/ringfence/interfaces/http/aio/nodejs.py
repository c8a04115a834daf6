"""`/v1/nodejs`: JavaScript, one run in a box for each piece of code; no state is kept from one to the next."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Body
from pydantic import Field
from starlette.responses import Response

from ringfence.errors import InvalidRequest
from ringfence.interfaces.http.aio.code import Timeout, message_of
from ringfence.interfaces.http.aio.envelope import Envelope, View, expected, told
from ringfence.interfaces.http.aio.fields import Asked, FilePath, SessionName, Text
from ringfence.interfaces.http.aio.seat import AtSeat
from ringfence.interfaces.http.routes import Router
from ringfence.service.aio import kernels
from ringfence.service.aio.paths import guest_directory

router = Router(prefix="/v1/nodejs", tags=["aio nodejs"])


class NodeBody(Asked):
    """Code to run; `files` appear in its working directory, and are the project's from then on."""

    code: Text
    timeout: Timeout | None = None
    stdin: Text | None = None
    files: Annotated[dict[FilePath, Text], Field(max_length=100)] | None = None
    stateful: bool | None = None
    session_id: SessionName | None = None
    cwd: FilePath | None = None
    version: Annotated[str, Field(max_length=32)] | None = None


class NodeView(View):
    """What came of it."""

    language: str
    status: str
    code: str
    exit_code: int
    outputs: list[dict[str, Any]] | None = None
    stdout: str | None = None
    stderr: str | None = None


@router.post("/execute", response_model=None, responses={200: {"model": Envelope[NodeView]}})
async def execute(seat: AtSeat, body: Annotated[NodeBody, Body()]) -> Response:
    """Run JavaScript; what it does to itself is told by `status`."""
    with expected("execute", language="javascript", status="error", code=body.code, exit_code=-1):
        if body.stateful or body.session_id is not None:
            raise InvalidRequest("javascript keeps no state", reason="not_in_this_version", fix="leave stateful out")
        if body.version is not None:
            raise InvalidRequest("there is one version of Node", reason="not_in_this_version", fix="leave version out")
        async with seat.turn() as manager:
            result = await manager.execute_code(
                "javascript",
                body.code,
                body.timeout,
                stdin=body.stdin or "",
                files=body.files or {},
                cwd=guest_directory(body.cwd),
            )
    return told(
        {
            "language": "javascript",
            "status": kernels.status_of(result),
            "code": body.code,
            "exit_code": -1 if result.exit_code is None else result.exit_code,
            "outputs": kernels.outputs_of(result),
            "stdout": result.stdout,
            "stderr": result.stderr,
        },
        message_of(result),
    )
