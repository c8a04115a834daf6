"""`/sandbox/execs/{exec_id}/commit` and `/discard`: what a run would change, kept or forgotten on its caller's word."""

from __future__ import annotations

from typing import Annotated

from fastapi import Body
from pydantic import BaseModel, ConfigDict
from starlette.responses import Response

from ringfence.errors import InvalidRequest
from ringfence.interfaces.http.door import HouseOf
from ringfence.interfaces.http.exec_models import OperationView
from ringfence.interfaces.http.execs import Runner, as_json, execs_of, taking_work
from ringfence.interfaces.http.problem import documented
from ringfence.interfaces.http.routes import Router
from ringfence.outcome_form import broker_form
from ringfence.service.callers import Principal
from ringfence.service.house import House

router = Router(prefix="/sandbox/execs", tags=["proposals"])


class CommitBody(BaseModel):
    """How to commit: with `force` also over what others changed since the run began."""

    model_config = ConfigDict(extra="forbid", strict=True)

    force: bool = False


_AS_ASKED = CommitBody()


@router.post(
    "/{exec_id}/commit", response_model=None, responses={200: {"model": OperationView}, **documented(404, 409)}
)
async def commit(
    exec_id: str, who: Runner, house: HouseOf, body: Annotated[CommitBody, Body()] = _AS_ASKED
) -> Response:
    """Apply what an execution with `policy_overrides.commit: "ask"` would change in its project.

    409 `conflict` when others changed the same files since it began; 403 `change_denied` when the policy lets nobody
    change one of them. Nothing is changed then, and it waits on.
    """
    taking_work(house)
    manager = house.manager_for(who, await _project_of(house, who, exec_id))
    return as_json(broker_form(await manager.commit(exec_id, force=body.force)))


@router.post("/{exec_id}/discard", response_model=None, responses={200: {"model": OperationView}, **documented(404)})
async def discard(exec_id: str, who: Runner, house: HouseOf) -> Response:
    """Forget what an execution would change."""
    taking_work(house)
    manager = house.manager_for(who, await _project_of(house, who, exec_id))
    return as_json(broker_form(await manager.discard(exec_id)))


async def _project_of(house: House, who: Principal, exec_id: str) -> str:
    """Return whose files an execution worked on; one of another tenant is not there."""
    project = (await execs_of(house).get(who, exec_id)).get("project_id")
    if not isinstance(project, str):
        raise InvalidRequest("there is no such execution", reason="not_found")
    return project
