"""`POST /sandbox/ops`: one brokered operation of 000, on the files of a project or out into the network."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Annotated

from fastapi import Body, Depends
from starlette.requests import Request
from starlette.responses import Response

from ringfence.interfaces.http.calls import grant_of
from ringfence.interfaces.http.door import allowed, house_of
from ringfence.interfaces.http.exec_models import OperationBody, OperationView
from ringfence.interfaces.http.execs import as_json, taking_work
from ringfence.interfaces.http.problem import documented
from ringfence.interfaces.http.routes import Router
from ringfence.operation.brokered import ProcExec
from ringfence.operation.form import from_json
from ringfence.outcome import ExecutionResult
from ringfence.outcome_form import broker_form, result_form
from ringfence.service.callers import Access, Principal
from ringfence.service.exec_form import correlation_of, project_name

router = Router(prefix="/sandbox/ops", tags=["ops"])


@router.post("", response_model=None, responses={200: {"model": OperationView}, **documented(404, 409, 504)})
async def perform(
    request: Request,
    who: Annotated[Principal, Depends(allowed(Access.AGENT))],
    body: Annotated[OperationBody, Body()],
) -> Response:
    """Carry out one operation: files, temporary space, one program without a shell, or one request to the network.

    `operation` is `{"op": "fs_read", "path": "work/a.txt"}` and the like; contents are base64. What the policy does not
    allow is 403; a program that fails is an answer like any other.
    """
    house = house_of(request)
    execs = taking_work(house)
    asked = body.model_dump(exclude_unset=True, exclude_none=True)
    correlation = correlation_of(asked, request_id=getattr(request.state, "request_id", None))
    named = correlation.project_id or correlation.conversation_id
    project = None if named is None else project_name(named)
    operation = from_json(body.operation)
    manager = await house.manager_under(who, grant_of(request), project, correlation)
    # a program needs a box, and waits for its turn; a file does not, and requests wait for those of their tenant
    async with execs.turn_for(who, correlation) if isinstance(operation, ProcExec) else nullcontext():
        outcome = await manager.perform(operation)
    form = result_form(outcome) if isinstance(outcome, ExecutionResult) else broker_form(outcome)
    return as_json(form)
