"""The gate before all routes: nothing but the short health answer passes without a key, and no body is read first."""

from __future__ import annotations

from typing import Final

from starlette.requests import HTTPConnection
from starlette.types import ASGIApp, Receive, Scope, Send

from ringfence.errors import RingfenceError
from ringfence.interfaces.http.door import house_of, no_key
from ringfence.interfaces.http.problem import response
from ringfence.service.callers import Principal

OPEN_PATHS: Final = frozenset({"/sandbox/health"})
"""What answers to everybody, if not with everything."""


class Gate:
    """Finds out who calls, once, and keeps it in the request's state."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, with its principal, or answer that it needs a key."""
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        connection = HTTPConnection(scope)
        try:
            principal = await self._principal(connection)
        except RingfenceError as refused:
            await response(refused)(scope, receive, send)
            return
        connection.state.principal = principal
        await self._app(scope, receive, send)

    async def _principal(self, connection: HTTPConnection) -> Principal | None:
        known = getattr(connection.state, "principal", None)  # the owner's socket says so itself
        if isinstance(known, Principal):
            return known
        scheme, _, key = connection.headers.get("authorization", "").partition(" ")
        found = await house_of(connection).keys.find(key.strip()) if scheme.lower() == "bearer" else None
        if found is None and connection.url.path not in OPEN_PATHS:
            raise no_key()
        return found
