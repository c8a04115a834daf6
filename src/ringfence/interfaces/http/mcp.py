"""`/mcp`, in the service or alone: the protocol's door behind the gate of all routes, opened by the first client."""

from __future__ import annotations

import asyncio
from importlib.util import find_spec
from typing import TYPE_CHECKING

from fastapi import FastAPI
from starlette.routing import Route

from ringfence.errors import Unavailable
from ringfence.interfaces.http import problem
from ringfence.interfaces.http.gate import Gate
from ringfence.interfaces.http.headers import Frame
from ringfence.interfaces.http.limits import Limits

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

    from ringfence.interfaces.mcp.streamable import McpDoor
    from ringfence.service.house import House

PATH = "/mcp"


class McpRoute:
    """Opens the door when somebody comes: its library takes longer to import than the rest of the service."""

    def __init__(self, house: House, role: str | None = None) -> None:
        """Act in the agent role `role` of the policy; nothing is imported yet."""
        self._house = house
        self._role = role
        self._opening = asyncio.Lock()
        self._door: McpDoor | None = None
        self._keeping: asyncio.Task[None] | None = None
        self._ending = asyncio.Event()

    def route(self) -> Route:
        """Return the route for the application."""
        return Route(PATH, endpoint=self, include_in_schema=False)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request of the protocol."""
        async with self._opening:
            if self._door is None and find_spec("mcp") is not None:
                await self._open()
        if self._door is None:
            refused = Unavailable(
                "the MCP server is not installed", reason="extra_missing", fix="pip install 'ringfence[mcp]'"
            )
            await problem.response(refused)(scope, receive, send)
            return
        await self._door(scope, receive, send)

    async def close(self) -> None:
        """End the sessions of older clients, and what they left running."""
        self._ending.set()
        if self._keeping is not None:
            await self._keeping

    async def _open(self) -> None:
        self._door = await asyncio.to_thread(_made, self._house, self._role)
        opened = asyncio.Event()
        # in a task of its own, because it has to be closed by whoever opened it
        self._keeping = asyncio.ensure_future(self._keep(self._door, opened))
        await opened.wait()

    async def _keep(self, door: McpDoor, opened: asyncio.Event) -> None:
        async with door.running():
            opened.set()
            await self._ending.wait()


def build_alone(house: House, role: str | None = None) -> FastAPI:
    """Return an application that has this door and no other."""
    mcp = McpRoute(house, role)
    app = behind_the_gate(house, mcp.route())
    app.state.mcp = mcp
    return app


def behind_the_gate(house: House, route: Route) -> FastAPI:
    """Return an application of one route, with the keys, bounds and headers of the service."""
    app = FastAPI(openapi_url=None, docs_url=None, redoc_url=None, redirect_slashes=False, routes=[route])
    app.state.house = house
    problem.install(app)
    for layer in (Gate, Limits, Frame):
        app.add_middleware(layer)
    return app


def _made(house: House, role: str | None) -> McpDoor:
    from ringfence.interfaces.mcp.streamable import McpDoor

    return McpDoor(house, role=role)
