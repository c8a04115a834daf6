"""The repositories that an operator registered, for projects to begin with: `/sandbox/repositories` and `checkout`."""

from __future__ import annotations

import asyncio
from typing import Annotated

from fastapi import Body
from pydantic import BaseModel, ConfigDict, StringConstraints
from starlette.requests import Request
from starlette.responses import Response

from ringfence.interfaces.http.door import HouseOf
from ringfence.interfaces.http.execs import as_json
from ringfence.interfaces.http.problem import documented
from ringfence.interfaces.http.routes import Router
from ringfence.interfaces.http.workspaces import Agent, Done, ProjectId, done, manager_of
from ringfence.operation.workspace import WsCheckout
from ringfence.workspaces.registered import repository_names

router = Router(prefix="/sandbox", tags=["workspaces"])


class RepositoryView(BaseModel):
    """A repository by its name; where it lies is the operator's to know."""

    repository: str


class RepositoryList(BaseModel):
    """The repositories that projects of the caller's tenant may begin with."""

    repositories: list[RepositoryView]


class CheckedOut(Done):
    """What was copied; special files are `skipped`, and hooks, remotes and the like of git are `left_out`."""

    repository: str
    entries: int
    files: int
    bytes: int
    skipped: int
    left_out: int


class Wanted(BaseModel):
    """Which repository to begin with."""

    model_config = ConfigDict(extra="forbid", strict=True)

    repository: Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9_\-]{0,62}$")]


@router.get("/repositories", response_model=None, responses={200: {"model": RepositoryList}})
async def list_repositories(who: Agent, house: HouseOf) -> Response:
    """List the repositories that the operator registered for the caller's tenant."""
    names = await asyncio.to_thread(repository_names, house.home, who.tenant)
    return as_json({"repositories": [{"repository": name} for name in names]})


@router.post(
    "/workspaces/{project_id}/checkout",
    response_model=None,
    status_code=201,
    responses={201: {"model": CheckedOut}, **documented(404, 409, 504)},
)
async def check_out(
    request: Request, who: Agent, house: HouseOf, project_id: ProjectId, body: Annotated[Wanted, Body()]
) -> Response:
    """Fill a project, new or empty, with a copy of a repository; it is the project's own from then on."""
    manager = await manager_of(request, who, house, project_id, make=True)
    return done(await manager.perform(WsCheckout(body.repository)), 201)
