"""How much a request may bring: bytes of headers and of body, counted as they come and refused before they are kept."""

from __future__ import annotations

from starlette.requests import HTTPConnection
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ringfence.errors import InvalidRequest
from ringfence.interfaces.http.door import house_of
from ringfence.interfaces.http.problem import response


class Limits:
    """Refuses requests that are too large, with their body still unread where its length was said."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on whose body cannot be longer than the service takes."""
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        settings = house_of(HTTPConnection(scope)).settings
        most = settings.max_body_bytes
        if _size_of_head(scope) > settings.max_header_bytes:
            await _refuse(_headers_too_large(settings.max_header_bytes), scope, receive, send)
            return
        if _said_length(scope) > most:
            await _refuse(_body_too_large(most), scope, receive, send)
            return
        received = 0

        async def counted() -> Message:
            nonlocal received
            message = await receive()
            if message["type"] == "http.request":
                received += len(message.get("body", b""))
                if received > most:
                    raise _body_too_large(most)
            return message

        await self._app(scope, counted if scope["type"] == "http" else receive, send)


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
