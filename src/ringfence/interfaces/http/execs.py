"""`/sandbox/execs`: ask for an execution, look at it, follow it, end it, and fetch what it left."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import partial
from typing import Annotated, Any, Final
from urllib.parse import quote

from fastapi import Body, Depends, Header, Query
from starlette.requests import Request
from starlette.responses import Response

from ringfence.errors import InternalError, InvalidRequest, RingfenceError, Unavailable
from ringfence.interfaces.http.calls import grant_of
from ringfence.interfaces.http.door import allowed, house_of
from ringfence.interfaces.http.event_stream import EVENT_SCHEMA, EventStream
from ringfence.interfaces.http.exec_models import ArtifactList, ExecBody, ExecPage, ExecView, Filters
from ringfence.interfaces.http.headers import all_of, first_of
from ringfence.interfaces.http.once import read_key
from ringfence.interfaces.http.problem import answer as problem_answer
from ringfence.interfaces.http.problem import documented
from ringfence.interfaces.http.routes import Router
from ringfence.service.callers import Access, Principal
from ringfence.service.exec_finder import FILTERS, Question, read_cursor, write_cursor
from ringfence.service.exec_form import GRANT_MEMBER, read_exec
from ringfence.service.execs import Execs
from ringfence.service.house import House

router = Router(prefix="/sandbox/execs", tags=["execs"])

Runner = Annotated[Principal, Depends(allowed(Access.AGENT))]
Looker = Annotated[Principal, Depends(allowed(Access.AGENT, Access.OPERATOR))]
Lister = Annotated[Principal, Depends(allowed(Access.AGENT, Access.OPERATOR, Access.AUDITOR))]
_CONTENT: Final = frozenset({"stdout", "stderr", "stdout_b64", "stderr_b64", "out", "pending"})


@router.post(
    "",
    status_code=201,
    response_model=None,
    responses={
        201: {"model": ExecView, "description": "It has ended; how, its status says"},
        202: {"model": ExecView, "description": "It waits or runs; ask again under its exec_id"},
        **documented(404, 409),
    },
)
async def run(
    request: Request,
    who: Runner,
    body: Annotated[ExecBody, Body()],
    idempotency_key: Annotated[
        str | None, Header(description="The same key with the same body gives the same execution, for 24 hours")
    ] = None,
) -> Response:
    """Run something in the box of a project.

    With `wait` (the default) the answer comes when it has ended, or with 202 after five minutes. A caller whose
    connection breaks while his execution still stands in line takes it with him; what has begun goes on, and so does
    whatever was asked for with `wait: false` or an `Idempotency-Key`, also over a restart of the service.
    """
    house = house_of(request)
    execs = taking_work(house)
    if body.skill_id is not None:
        await require_skill(house, who, body.skill_id)
    asked = body.model_dump(exclude_unset=True, exclude_none=True)
    shown = grant_of(request)
    if shown is not None:
        asked[GRANT_MEMBER] = shown.digest()
    form = read_exec(asked, request_id=_request_id(request), traceparent=_traceparent(request))

    async def gone() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    # all of them: of two, somebody before us may have gone by the other
    key = read_key(() if idempotency_key is None else all_of(request.scope, b"idempotency-key"))
    headers: dict[str, str] = {}
    again = partial(headers.update, {"Idempotency-Replayed": "true"})
    try:
        answer = await execs.submit(who, form, key=key, wait=body.wait, shown=shown, gone=gone, again=again)
    except RingfenceError as refused:
        problem = await problem_answer(request, refused)
        problem.headers.update(headers)
        return problem
    headers["Location"] = f"/sandbox/execs/{answer.view['exec_id']}"
    return as_json(answer.view, 201 if answer.is_finished else 202, headers)


@router.get("", response_model=None, responses={200: {"model": ExecPage}})
async def page(request: Request, who: Lister, filters: Annotated[Filters, Query()]) -> Response:
    """List executions, newest first: those that wait and run here, and all that the journal has."""
    names = filters.model_dump(include=set(FILTERS), exclude_none=True)
    before = None if filters.cursor is None else read_cursor(filters.cursor)
    question = Question(who.reads, names, filters.status, filters.limit, before)
    found = await execs_of(house_of(request)).list(question)
    following = None if found.next is None else write_cursor(found.next)
    return as_json({"items": list(found.items), "next_cursor": following})


@router.get("/{exec_id}", response_model=None, responses={200: {"model": ExecView}, **documented(404)})
async def detail(exec_id: str, who: Looker, request: Request) -> Response:
    """Show one execution: the twenty fields of 003, and its result with its output."""
    return as_json(_shown(who, await execs_of(house_of(request)).get(who, exec_id)))


@router.post("/{exec_id}/cancel", response_model=None, responses={200: {"model": ExecView}, **documented(404)})
async def cancel(exec_id: str, who: Looker, request: Request) -> Response:
    """End an execution that waits or runs; one that has ended stays as it is, so asking again changes nothing."""
    return as_json(_shown(who, await execs_of(house_of(request)).cancel(who, exec_id)))


@router.get(
    "/{exec_id}/events",
    response_class=Response,
    responses={
        200: {
            "description": "Events `status`, `output`, `lost`, and last `result` or `problem`",
            "content": {"text/event-stream": {"schema": EVENT_SCHEMA}},
        },
        **documented(404),
    },
)
async def events(
    exec_id: str,
    who: Runner,
    request: Request,
    last_event_id: Annotated[str | None, Header(description="The id of the last event that was seen")] = None,
) -> Response:
    """Follow an execution: its states and its output as they come, from the beginning or from where one left off."""
    after = _event_number(last_event_id)
    house = house_of(request)
    stream = await execs_of(house).events(who, exec_id, after)
    return EventStream(stream, after, is_ending=lambda: house.draining)


@router.get("/{exec_id}/artifacts", response_model=None, responses={200: {"model": ArtifactList}, **documented(404)})
async def artifacts(exec_id: str, who: Runner, request: Request) -> Response:
    """List the files that an execution left in `/workspace/artifacts`."""
    found = await execs_of(house_of(request)).artifacts(who, exec_id)
    return as_json({"exec_id": exec_id, "artifacts": list(found)})


_BINARY: Final = {"content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}}


@router.get(
    "/{exec_id}/artifacts/{path:path}",
    response_class=Response,
    responses={200: {"description": "The file", **_BINARY}, **documented(404)},
)
async def artifact(exec_id: str, path: str, who: Runner, request: Request) -> Response:
    """Download one file that an execution left, by the path that the list has for it."""
    content = await execs_of(house_of(request)).artifact(who, exec_id, path)
    name = path.rpartition("/")[2]
    return _download(content, "application/octet-stream", f"attachment; filename*=UTF-8''{quote(name, safe='')}")


_TEXT: Final = {"content": {"text/plain": {"schema": {"type": "string"}}}}


@router.get(
    "/{exec_id}/stdout",
    response_class=Response,
    responses={200: {"description": "What was written, as far as it was kept", **_TEXT}, **documented(404, 409)},
)
async def stdout(exec_id: str, who: Runner, request: Request) -> Response:
    """Fetch what an execution wrote to its standard output."""
    return _plain_text(await execs_of(house_of(request)).output(who, exec_id, "stdout"))


@router.get(
    "/{exec_id}/stderr",
    response_class=Response,
    responses={200: {"description": "What was written, as far as it was kept", **_TEXT}, **documented(404, 409)},
)
async def stderr(exec_id: str, who: Runner, request: Request) -> Response:
    """Fetch what an execution wrote to its standard error."""
    return _plain_text(await execs_of(house_of(request)).output(who, exec_id, "stderr"))


def taking_work(house: House) -> Execs:
    """Return the queue of a house that goes on.

    Raises:
        Unavailable: The service is about to end.
    """
    if house.draining:
        raise Unavailable("the service is about to end; ask again", reason="draining")
    return execs_of(house)


def execs_of(house: House) -> Execs:
    """Return the queue of the house."""
    execs = house.execs
    if not isinstance(execs, Execs):
        raise InternalError("this house was opened without a queue")
    return execs


async def require_skill(house: House, who: Principal, skill_id: str) -> None:
    """Refuse to run on behalf of a skill that nobody offers the caller.

    Raises:
        InvalidRequest: There is none of this name.
    """
    if skill_id not in {skill.id for skill in await house.manager_for(who).skills()}:
        raise InvalidRequest("there is no such skill", reason="not_found")


def as_json(value: Mapping[str, Any], status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """Return an answer whose every character is ASCII: what a guest wrote cannot end a string or a line of it."""
    return Response(json.dumps(value).encode("ascii"), status, dict(headers or {}), "application/json")


def _shown(who: Principal, view: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the view without content for those who may see what runs, and not what it says."""
    if who.may(Access.AGENT):
        return view
    return {name: value for name, value in view.items() if name not in _CONTENT}


def _plain_text(content: bytes) -> Response:
    return _download(content, "text/plain; charset=utf-8", "inline")


def _download(content: bytes, media_type: str, disposition: str) -> Response:
    # whatever the guest wrote, no browser may take it for a page of this service
    headers = {
        "Content-Disposition": disposition,
        "X-Content-Type-Options": "nosniff",
        "Content-Security-Policy": "sandbox; default-src 'none'",
    }
    answer = Response(content, headers=headers)
    answer.headers["Content-Type"] = media_type
    return answer


def _event_number(text: str | None) -> int:
    if text is None or not text.strip():
        return 0
    if not text.isascii() or not text.isdigit() or len(text) > 15:
        raise InvalidRequest("Last-Event-ID must be the id of an event, a whole number", reason="invalid_range")
    return int(text)


def _request_id(request: Request) -> str | None:
    found = getattr(request.state, "request_id", None)
    return found if isinstance(found, str) else None


def _traceparent(request: Request) -> str | None:
    """Return the trace that the caller is in; what could not be one is nobody's trace."""
    found = first_of(request.scope, b"traceparent")
    return found if found and len(found) <= 128 and found.isascii() and found.isprintable() else None
