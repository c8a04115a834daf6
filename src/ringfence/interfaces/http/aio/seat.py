"""Whom a request of this surface acts for: the caller of its key, in the project of that key or the one it names."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated, Any, Final

from fastapi import Depends, Header
from starlette.requests import HTTPConnection

from ringfence.dataclass import dataclass
from ringfence.errors import InternalError
from ringfence.evidence.correlation import Correlation
from ringfence.facade import SandboxManager
from ringfence.interfaces.http.door import HouseOf, allowed
from ringfence.interfaces.http.execs import taking_work
from ringfence.service.aio.sessions import Desk, Place
from ringfence.service.callers import Access, Principal
from ringfence.service.exec_form import correlation_of, project_name
from ringfence.service.house import House

_PROJECT: Final = r"^[A-Za-z0-9_][A-Za-z0-9_.\-]{0,127}$"


@dataclass(frozen=True, slots=True)
class Seat:
    """One caller in one project."""

    who: Principal
    house: House
    desk: Desk
    place: Place
    correlation: Correlation

    @property
    def manager(self) -> SandboxManager:
        """What acts for the caller there."""
        return self.house.manager_for(self.who, self.place.project, self.correlation)

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[SandboxManager]:
        """Give the manager when it is the caller's turn, as for an execution.

        Raises:
            Overloaded: As many as may wait are waiting.
        """
        async with taking_work(self.house).turn_for(self.who, self.correlation):
            yield self.manager


async def _seat(
    connection: HTTPConnection,
    who: Annotated[Principal, Depends(allowed(Access.AGENT))],
    house: HouseOf,
    x_ringfence_project: Annotated[
        str | None, Header(pattern=_PROJECT, description="the project; without it, the one of the key")
    ] = None,
) -> Seat:
    project = project_name(x_ringfence_project or f"aio-{who.key_id}")
    asked: dict[str, Any] = {"project_id": project}
    correlation = correlation_of(asked, request_id=getattr(connection.state, "request_id", None))
    return Seat(who, house, desk_of(connection), Place(who.tenant, project), correlation)


def desk_of(connection: HTTPConnection) -> Desk:
    """Return the sessions of this service."""
    desk = connection.app.state.aio
    if not isinstance(desk, Desk):
        raise InternalError("the application was built without this surface")
    return desk


AtSeat = Annotated[Seat, Depends(_seat)]
"""The seat, as a route's parameter."""
