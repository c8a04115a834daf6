"""The frame of every answer: an id to find it by, headers that keep browsers harmless, a problem for any mistake."""

from __future__ import annotations

import re
import secrets
from typing import Final

from starlette.requests import HTTPConnection
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ringfence.errors import InternalError
from ringfence.interfaces.http.problem import log_failure, response

SECURITY: Final = (
    ("X-Content-Type-Options", "nosniff"),
    ("Cache-Control", "no-store"),
    ("Content-Security-Policy", "default-src 'none'; frame-ancestors 'none'"),
    ("X-Frame-Options", "DENY"),
    ("Referrer-Policy", "no-referrer"),
    ("Cross-Origin-Resource-Policy", "same-origin"),
)
"""What is on every answer, unless a route says something stricter of its own."""
_SECURITY = tuple((name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in SECURITY)
_REQUEST_ID = re.compile(r"[A-Za-z0-9_.-]{1,64}\Z")


class Frame:
    """The outermost layer: whatever comes out of the service passes through it."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request; what nobody foresaw is logged here and answered as a failure of ours."""
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        connection = HTTPConnection(scope)
        request_id = _request_id(first_of(scope, b"x-request-id"))
        connection.state.request_id = request_id
        started = False

        async def framed(message: Message) -> None:
            nonlocal started
            if message["type"] in ("http.response.start", "websocket.http.response.start", "websocket.accept"):
                started = True
                _add_headers(message, request_id)
            await send(message)

        try:
            await self._app(scope, receive, framed)
        except Exception as error:  # noqa: BLE001  the outermost handler: whoever calls learns nothing of our insides
            log_failure(connection, error)
            if not started:
                await response(InternalError("an error nobody foresaw"))(scope, receive, framed)


def all_of(scope: Scope, name: bytes) -> list[str]:
    """Return the values of a header, whose name is in lower case; every request is asked for many that it has not."""
    return [value.decode("latin-1") for each, value in scope["headers"] if each == name]


def first_of(scope: Scope, name: bytes) -> str | None:
    """Return the first value of a header, if it is there."""
    return next(iter(all_of(scope, name)), None)


def _add_headers(message: Message, request_id: str) -> None:
    own = [pair for pair in message.get("headers", ()) if pair[0] != b"x-request-id"]
    said = {name for name, _ in own}
    own += [pair for pair in _SECURITY if pair[0] not in said]
    own.append((b"x-request-id", request_id.encode("latin-1")))
    message["headers"] = own


def _request_id(given: str | None) -> str:
    """Return the caller's own id where it is one, or a new one."""
    return given if given is not None and _REQUEST_ID.match(given) else f"req_{secrets.token_hex(12)}"
