"""The protocol over HTTP without the rest of the service: on loopback, for whoever has an API key of this home."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final

import uvicorn
from starlette.applications import Starlette

from ringfence.errors import Denied, RingfenceError
from ringfence.interfaces.mcp.streamable import PATH, McpDoor, no_key, refused_response
from ringfence.service.callers import Access

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

    from ringfence.service.house import House

_OF_THIS_MACHINE: Final = frozenset({"127.0.0.1", "localhost", "[::1]"})
_DRAIN_SECONDS: Final = 5
_MOST_HEADER_BYTES: Final = 32 << 10


class Gate:
    """Lets in whoever brings a key, before a byte of the body is read."""

    def __init__(self, app: ASGIApp, house: House) -> None:
        self._app = app
        self._house = house

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on with its principal, or answer that it needs a key."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        try:
            _require_own_host(scope)
            given = [value for name, value in scope["headers"] if name == b"authorization"]
            scheme, _, key = given[0].decode("latin-1").partition(" ") if len(given) == 1 else ("", "", "")
            principal = await self._house.keys.find(key.strip()) if scheme.lower() == "bearer" else None
            if principal is None:
                raise no_key()
        except RingfenceError as refused:
            await refused_response(refused)(scope, receive, send)
            return
        scope.setdefault("state", {})["principal"] = principal
        await self._app(scope, receive, send)


def _require_own_host(scope: Scope) -> None:
    """Refuse what is addressed to another name: a web page whose name was made to point here (DNS rebinding)."""
    given = [value.decode("latin-1").lower() for name, value in scope["headers"] if name == b"host"]
    name = "".join(given).removesuffix(f":{scope['server'][1]}")
    if name not in _OF_THIS_MACHINE:
        raise Denied("the Host header names another place than this server", reason="foreign_host")


def application(house: House, door: McpDoor) -> ASGIApp:
    """Return the application: the gate, and behind it the one route."""

    @asynccontextmanager
    async def lifespan(_app: Starlette) -> AsyncIterator[dict[str, Any]]:
        try:
            async with house.manager, door.running():
                yield {}
        finally:
            await house.close()  # here, because a signal ends the process as soon as the server has

    return Gate(Starlette(routes=[door.route()], lifespan=lifespan), house)


def serve(house: House, role: str | None = None) -> int:
    """Serve until a signal comes; return the exit code."""
    settings = house.settings
    if not house.keys.has_active():
        _, text = house.keys.create(Access.AGENT, name="mcp")
        sys.stderr.write(f"ringfence mcp: made the first API key, shown only now: {text}\n")
    config = uvicorn.Config(
        application(house, McpDoor(house, role=role)),
        host=settings.host,
        port=settings.port,
        log_level="warning",
        access_log=False,
        server_header=False,
        lifespan="on",
        h11_max_incomplete_event_size=_MOST_HEADER_BYTES,
        timeout_graceful_shutdown=_DRAIN_SECONDS,
    )
    asyncio.run(_Announcing(config).serve())
    return 0


class _Announcing(uvicorn.Server):
    """Says where it listens once it does."""

    async def startup(self, sockets: list[Any] | None = None) -> None:
        """Listen, and say so."""
        await super().startup(sockets)
        for listening in self.servers:
            for each in listening.sockets:
                host, port = each.getsockname()[:2]
                shown = f"[{host}]" if ":" in host else host
                sys.stderr.write(f"ringfence mcp: listening on http://{shown}:{port}{PATH}\n")
                sys.stderr.flush()
