"""`/sandbox/processes`: start what goes on by itself, hear it, feed it, interrupt it, end it, reach its ports."""

from __future__ import annotations

import base64
import binascii
from typing import Annotated, Any

from fastapi import Body, Depends, Header, Query
from starlette.requests import Request
from starlette.responses import Response

from ringfence.errors import InvalidRequest
from ringfence.interfaces.http import process_port_sockets, process_ports, process_tty
from ringfence.interfaces.http.door import HouseOf, allowed
from ringfence.interfaces.http.event_stream import EVENT_SCHEMA
from ringfence.interfaces.http.exec_models import OperationView
from ringfence.interfaces.http.execs import as_json
from ringfence.interfaces.http.problem import documented
from ringfence.interfaces.http.process_events import ProcessEvents, read_event_id
from ringfence.interfaces.http.process_models import (
    CellBody,
    OffsetsQuery,
    PollQuery,
    ProcessBody,
    ProcessList,
    ProcessOutputView,
    ProcessView,
    SignalBody,
    Size,
    StdinBody,
)
from ringfence.interfaces.http.routes import Router
from ringfence.outcome_form import result_form
from ringfence.service import processes
from ringfence.service.callers import Access, Principal
from ringfence.service.exec_form import read_exec

router = Router(prefix="/sandbox/processes", tags=["processes"])
Runner = Annotated[Principal, Depends(allowed(Access.AGENT))]
Looker = Annotated[Principal, Depends(allowed(Access.AGENT, Access.OPERATOR))]
_PATIENCE_SECONDS = 10.0
_NOT_OF_THE_RUN = ("terminal", "idle_timeout_ms", "ports", "wait_ms", "interpreter")
_Answers = dict[int | str, dict[str, Any]]
_VIEW: _Answers = {200: {"model": ProcessView}, **documented(404)}


@router.post(
    "", status_code=201, response_model=None, responses={201: {"model": ProcessOutputView}, **documented(404, 409)}
)
async def start(request: Request, who: Runner, house: HouseOf, body: Annotated[ProcessBody, Body()]) -> Response:
    """Start a process: one run, judged and recorded as any other, that goes on when its caller goes away.

    The answer comes with its first output, or after `wait_ms`. It ends by itself, at its limits, when it is killed, or
    with the service.
    """
    form = read_exec(_run_of(body), request_id=getattr(request.state, "request_id", None))
    asked = processes.AskedProcess(
        form,
        interpreter=body.interpreter is not None,
        terminal=None if body.terminal is None else (body.terminal.rows, body.terminal.columns),
        idle_timeout=None if body.idle_timeout_ms is None else body.idle_timeout_ms / 1000,
        ports=tuple(body.ports),
    )
    process = await processes.start(house, who, asked)
    said = await process.poll(wait_seconds=body.wait_ms / 1000)
    headers = {"Location": f"/sandbox/processes/{process.process_id}"}
    return as_json(processes.output_form(process, said), 201, headers)


@router.get("", response_model=None, responses={200: {"model": ProcessList}})
async def page(who: Looker, house: HouseOf) -> Response:
    """List the processes that run, and the last of those that are over."""
    return as_json({"items": [processes.info_form(info) for info in processes.listed(house, who)]})


@router.get("/{process_id}", response_model=None, responses={200: {"model": ProcessOutputView}, **documented(404)})
async def poll(process_id: str, who: Runner, house: HouseOf, asked: Annotated[PollQuery, Query()]) -> Response:
    """Tell where a process stands and what it said from the offsets on; with `wait_ms`, once there is something.

    Ask next from `next_offset`: then no byte is missing that `lost_bytes` does not count.
    """
    process = processes.found(house, who, process_id)
    said = await process.poll(asked.stdout_offset, asked.stderr_offset, asked.max_bytes, asked.wait_ms / 1000)
    return as_json(processes.output_form(process, said))


@router.get(
    "/{process_id}/stream",
    response_class=Response,
    responses={
        200: {
            "description": "Events `output`, and last `ended`; an id says from where on to go on",
            "content": {"text/event-stream": {"schema": EVENT_SCHEMA}},
        },
        **documented(404),
    },
)
async def stream(
    process_id: str,
    who: Runner,
    house: HouseOf,
    asked: Annotated[OffsetsQuery, Query()],
    last_event_id: Annotated[str | None, Header(description="The id of the last event that was seen")] = None,
) -> Response:
    """Follow a process: what it says as it comes, from the offsets on or from where one left off."""
    process = processes.found(house, who, process_id)
    offsets = (asked.stdout_offset, asked.stderr_offset) if last_event_id is None else read_event_id(last_event_id)
    return ProcessEvents(process, offsets, is_ending=lambda: house.draining)


@router.post(
    "/{process_id}/cells", response_model=None, responses={200: {"model": OperationView}, **documented(404, 409, 504)}
)
async def run_cell(process_id: str, who: Runner, house: HouseOf, body: Annotated[CellBody, Body()]) -> Response:
    """Run the next cell of an interpreter: judged, bounded and recorded as any run, with what those before it left."""
    seconds = None if body.timeout_ms is None else body.timeout_ms / 1000
    result = await processes.run_cell(house, who, process_id, body.code, seconds)
    return as_json({**result_form(result), "value": result.value})


@router.post("/{process_id}/stdin", response_model=None, responses={**_VIEW, **documented(409)})
async def send(process_id: str, who: Runner, house: HouseOf, body: Annotated[StdinBody, Body()]) -> Response:
    """Give bytes to the input of a process, all of them or none; 429 when it does not read them."""
    process = processes.found(house, who, process_id)
    await process.send(_content(body), end=body.end, wait_seconds=_PATIENCE_SECONDS)
    return as_json(processes.info_form(process.info))


@router.post("/{process_id}/resize", response_model=None, responses={**_VIEW, **documented(409)})
async def resize(process_id: str, who: Runner, house: HouseOf, body: Annotated[Size, Body()]) -> Response:
    """Give the terminal of a process another size."""
    process = processes.found(house, who, process_id)
    await process.resize(body.rows, body.columns)
    return as_json(processes.info_form(process.info))


@router.post("/{process_id}/signal", response_model=None, responses={**_VIEW, **documented(409)})
async def signal(process_id: str, who: Runner, house: HouseOf, body: Annotated[SignalBody, Body()]) -> Response:
    """Send a signal to a process; an interrupt is for whatever is in the foreground of its terminal."""
    process = processes.found(house, who, process_id)
    await process.signal(body.signal)
    return as_json(processes.info_form(process.info))


@router.post("/{process_id}/kill", response_model=None, responses=_VIEW)
async def kill(process_id: str, who: Looker, house: HouseOf) -> Response:
    """End a process and everything it started; one that is over stays as it is, so asking again changes nothing."""
    process = processes.found(house, who, process_id)
    await process.kill()
    return as_json(processes.info_form(process.info))


router.include_router(process_tty.router)
router.include_router(process_ports.router)
router.include_router(process_port_sockets.router)


def _run_of(body: ProcessBody) -> dict[str, Any]:
    """Return the run that the process is, as a body of an execution has it."""
    asked = body.model_dump(exclude_unset=True, exclude_none=True)
    run = asked.get("exec")
    if body.interpreter is not None:
        given = run or {}
        if run is not None and (
            given.keys() & {"code", "command", "args", "stdin", "stdin_b64"} or run["kind"] != "python"
        ):
            raise InvalidRequest("an interpreter is given its code as cells", fix="leave exec.code out, or interpreter")
        run = {**given, "kind": "python", "code": ""}
    elif run is None:
        raise InvalidRequest("exec is needed: it says what to run", fix="or interpreter: python")
    return {**{name: value for name, value in asked.items() if name not in _NOT_OF_THE_RUN}, "exec": run}


def _content(body: StdinBody) -> bytes:
    if body.data is not None and body.data_b64 is not None:
        raise InvalidRequest("data and data_b64 are two ways to say the same; give one", reason="invalid_content")
    try:
        if body.data_b64 is not None:
            return base64.b64decode(body.data_b64, validate=True)
        return (body.data or "").encode()
    except UnicodeEncodeError:
        raise InvalidRequest("data is not valid Unicode text", reason="invalid_text") from None
    except (binascii.Error, ValueError):
        raise InvalidRequest("data_b64 is not base64", reason="invalid_content") from None
