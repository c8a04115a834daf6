"""Puts the routes of the service together, behind one gate."""

from __future__ import annotations

import importlib
from typing import Final

from fastapi import FastAPI
from starlette.routing import WebSocketRoute
from starlette.types import Receive, Scope, Send
from starlette.websockets import WebSocket

from ringfence.errors import InvalidRequest
from ringfence.interfaces.http import problem
from ringfence.interfaces.http.document import document
from ringfence.interfaces.http.gate import Gate
from ringfence.interfaces.http.headers import Frame
from ringfence.interfaces.http.limits import Limits
from ringfence.interfaces.http.mcp import McpRoute
from ringfence.interfaces.http.once import Once
from ringfence.interfaces.http.straight import Straight
from ringfence.service.house import House
from ringfence.version import __version__

RESOURCES: Final = (
    "sign", "health", "keys", "execs", "proposals", "ops", "processes", "workspaces", "repositories", "skills",
    "evidence", "calls", "grants", "metrics", "secrets",
)  # fmt: skip
"""The modules beside this one that have a `router`."""


class _Service(FastAPI):
    """The framework without the telemetry that it looks for with every request: what is told of them is ours to say."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        scope["app"] = self
        if self.middleware_stack is None:
            self.middleware_stack = self.build_middleware_stack()
        await self.middleware_stack(scope, receive, send)


def build(house: House) -> FastAPI:
    """Return the application for one house."""
    app = _Service(title="Ringfence", version=__version__, docs_url=None, redoc_url=None, redirect_slashes=False)
    app.state.house = house
    problem.install(app)
    app.state.routers = []
    for name in RESOURCES:
        router = importlib.import_module(f"ringfence.interfaces.http.{name}").router
        app.include_router(router)
        app.state.routers.append(router)
    app.state.mcp = McpRoute(house)
    app.router.routes.append(app.state.mcp.route())
    if house.settings.aio:
        from ringfence.interfaces.http.aio import surface  # not at the top: most services are without it

        surface.install(app)
    app.router.routes.append(WebSocketRoute("/{path:path}", _no_websocket))
    # the last one added is the first that a request meets
    app.add_middleware(Straight)
    app.add_middleware(Once)
    app.add_middleware(Gate)
    app.add_middleware(Limits)
    if house.settings.cors_origins:
        from starlette.middleware.cors import CORSMiddleware

        app.add_middleware(
            CORSMiddleware,
            allow_origins=house.settings.cors_origins,
            allow_methods=("GET", "POST", "PUT", "DELETE"),
            allow_headers=("Authorization", "Content-Type", "Idempotency-Key", "X-Request-Id"),
            expose_headers=("X-Request-Id", "Retry-After"),
        )
    app.add_middleware(Frame)
    if house.settings.aio:
        surface.wrap(app)
    document(app)
    return app


async def _no_websocket(websocket: WebSocket) -> None:  # noqa: ARG001  whoever asks
    """Say where there is no websocket that there is none: the framework would only close."""
    raise InvalidRequest("there is nothing of this name", reason="not_found")
