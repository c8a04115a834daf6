"""How much a request may bring: bytes of headers and of body, counted as they come and refused before they are kept."""

from __future__ import annotations

from collections import Counter
from typing import Final

from starlette.requests import HTTPConnection
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ringfence.errors import InvalidRequest, Overloaded
from ringfence.interfaces.http.door import house_of
from ringfence.interfaces.http.problem import response
from ringfence.service.callers import Principal

_BODIES_OF_A_TENANT: Final = 8
"""How many of the largest bodies a tenant may have under way; of smaller ones, as many more."""
_ADVICE_SECONDS: Final = 5


class Limits:
    """Refuses requests that are too large, with their body still unread where its length was said."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on whose body cannot be longer than the service takes."""
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        house = house_of(HTTPConnection(scope))
        settings = house.settings
        most = settings.max_body_bytes
        if _size_of_head(scope) > settings.max_header_bytes:
            await _refuse(_headers_too_large(settings.max_header_bytes), scope, receive, send)
            return
        if _said_length(scope) > most:
            await _refuse(_body_too_large(most), scope, receive, send)
            return
        if scope["type"] == "websocket":
            await self._app(scope, receive, send)
            return
        body = _Body(receive, most, house.bodies, scope)
        try:
            await self._app(scope, body.receive, send)
        finally:
            body.forget()


class _Body:
    """One body on its way in, counted with those of its tenant: all of them are in memory until they are answered."""

    def __init__(self, receive: Receive, most: int, bodies: Counter[str], scope: Scope) -> None:
        self._receive = receive
        self._most = most
        self._bodies = bodies
        self._scope = scope
        self._tenant = ""
        self._received = 0

    async def receive(self) -> Message:
        """Take some of it; nobody asks for it before its caller is known."""
        message = await self._receive()
        if message["type"] == "http.request" and message.get("body"):
            self._count(len(message["body"]))
        return message

    def forget(self) -> None:
        """Give back what was counted."""
        self._bodies[self._tenant] -= self._received
        if not self._bodies[self._tenant]:
            del self._bodies[self._tenant]

    def _count(self, size: int) -> None:
        if not self._received:
            principal = self._scope.get("state", {}).get("principal")
            self._tenant = principal.tenant if isinstance(principal, Principal) else ""
        self._received += size
        self._bodies[self._tenant] += size
        if self._received > self._most:
            raise _body_too_large(self._most)
        if self._bodies[self._tenant] > _BODIES_OF_A_TENANT * self._most:
            raise Overloaded(
                "the requests of this tenant that are under way hold as many bytes as they may",
                scope="tenant",
                limit=_BODIES_OF_A_TENANT * self._most,
                retry_after_seconds=_ADVICE_SECONDS,
            )


async def _refuse(error: InvalidRequest, scope: Scope, receive: Receive, send: Send) -> None:
    answer = response(error)
    answer.headers["Connection"] = "close"  # what else it sends is nobody's request
    await answer(scope, receive, send)


def _size_of_head(scope: Scope) -> int:
    return (
        len(scope.get("raw_path") or b"")
        + len(scope["query_string"])
        + sum(len(name) + len(value) + 4 for name, value in scope["headers"])
    )


def _said_length(scope: Scope) -> int:
    """Return what `Content-Length` says; the parser below refuses what is no number, or not the same twice."""
    for name, value in scope["headers"]:
        if name == b"content-length":
            return int(value) if value.isdigit() else 0
    return 0


def _body_too_large(most: int) -> InvalidRequest:
    return InvalidRequest(f"a body may have {most} bytes", reason="body_too_large", limit=most)


def _headers_too_large(most: int) -> InvalidRequest:
    return InvalidRequest(f"path and headers may have {most} bytes", reason="headers_too_large", limit=most)
