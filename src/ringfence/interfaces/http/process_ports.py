"""`/sandbox/processes/{id}/ports/{port}/…`: a web server inside a box, shown from here without being trusted as us.

What the guest answers is served from our own address, so it is treated as what it is, a stranger's page: it gets none
of our credentials, sets no cookie here, and a browser puts it into an origin of its own (CSP `sandbox`), from which it
can reach nothing of ours.
"""

from __future__ import annotations

import asyncio
import re
import socket
from collections.abc import AsyncIterator
from typing import Annotated, Final

import h11
from fastapi import APIRouter, Depends
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Scope

from ringfence.errors import TimedOut, Unavailable
from ringfence.interfaces.http.aio import key as aio
from ringfence.interfaces.http.door import HouseOf, allowed
from ringfence.service import processes
from ringfence.service.callers import Access, Principal

router = APIRouter()

MOST_ANSWER_BYTES: Final = 64 * 1024 * 1024
ANSWER_SECONDS: Final = 30.0
"""How long the guest may take for the head of its answer, and then for each next piece of it."""
WHOLE_SECONDS: Final = 300.0
_CHUNK: Final = 1 << 16
_MOST_HEAD: Final = 64 * 1024
_PARTS_OF_PREFIX: Final = 6  # "", sandbox, processes, id, ports, port

METHODS: Final = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
# RFC 9110 7.6.1, and what is between the caller and us alone
_NOT_FORWARDED: Final = frozenset(
    {
        *("connection", "keep-alive", "proxy-connection", "te", "trailer", "transfer-encoding", "upgrade"),
        *("proxy-authenticate", "proxy-authorization", "authorization", "cookie", "host", "content-length", "expect"),
        aio.HEADER,  # which carries a key on other paths: a client may have it on every request
        *("forwarded", "x-forwarded-for", "x-forwarded-host", "x-forwarded-proto", "x-real-ip", "origin", "referer"),
    }
)
# What says something about the content alone. Everything else could speak in our name: to the browser (cookies,
# storage, workers, policies), to a cache that serves others too, or to a proxy before us that obeys what it passes on.
_RETURNED: Final = frozenset(
    {
        *("content-type", "content-encoding", "content-language", "content-disposition", "content-range"),
        *("accept-ranges", "allow", "etag", "last-modified", "retry-after", "vary"),
    }
)
_ORDERS: Final = (
    *("x-accel-", "x-sendfile", "x-lighttpd-", "x-litespeed-", "x-reproxy-", "x-varnish", "x-cache", "x-forwarded"),
    *("x-frame-", "x-content-type-", "x-xss-", "x-permitted-", "x-dns-", "x-real-", "x-request-", "x-ringfence-"),
)
"""Of the names that are everybody's own, those which somebody on the way has made his."""
_CLIMBS: Final = re.compile(r"\.\.|\\|[\x00-\x20]|%2e|%2f|%5c", re.IGNORECASE)  # a browser reads `%2e` as a dot
_A_STRANGERS_PAGE: Final = {
    "Content-Security-Policy": "sandbox allow-scripts allow-forms",
    "X-Content-Type-Options": "nosniff",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
}


@router.api_route("/{process_id}/ports/{port}/{path:path}", methods=list(METHODS), include_in_schema=False)
async def forward(
    request: Request,
    process_id: str,
    port: int,
    path: str,  # noqa: ARG001  taken as it was sent, from the request
    who: Annotated[Principal, Depends(allowed(Access.AGENT))],
    house: HouseOf,
) -> Response:
    """Pass a request on to a port that the process was started with, and its answer back."""
    process = processes.found(house, who, process_id)
    connected = await process.connect(port)
    exchange = Exchange(connected, f"/sandbox/processes/{process_id}/ports/{port}", port)
    try:
        head = await exchange.ask(request)
    except BaseException:
        await exchange.close()
        raise
    if request.method == "HEAD" or head.status_code in (204, 304):
        await exchange.close()
        return Response(None, head.status_code, exchange.returned(head))
    return StreamingResponse(exchange.body(), head.status_code, exchange.returned(head))


class Exchange:
    """One request and its answer, over a connection that was made in the box."""

    def __init__(self, connected: socket.socket, prefix: str, port: int) -> None:
        """Take over `connected`; `prefix` is where the guest's root lies for whoever asks."""
        self._socket = connected
        self._prefix = prefix
        self._port = port
        self._spoken = h11.Connection(h11.CLIENT, max_incomplete_event_size=_MOST_HEAD)
        self._deadline = asyncio.get_running_loop().time() + WHOLE_SECONDS
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None

    async def ask(self, request: Request) -> h11.Response:
        """Send the request, and return the head of the answer.

        Raises:
            Unavailable: What answers there speaks no HTTP.
            TimedOut: It does not answer.
        """
        self._socket.setblocking(False)
        self._reader, self._writer = await asyncio.open_connection(sock=self._socket, limit=_CHUNK)
        body = await request.body()
        try:
            self._say(
                h11.Request(method=request.method, target=target_of(request.scope), headers=self._asked(request, body))
            )
            if body:
                self._say(h11.Data(data=body))
            self._say(h11.EndOfMessage())
            async with asyncio.timeout(ANSWER_SECONDS):
                await self._writer.drain()
            while True:
                event = await self._next()
                if isinstance(event, h11.Response):
                    return event
                if not isinstance(event, h11.InformationalResponse):
                    raise Unavailable("the process closed the connection without an answer", reason="connect_failed")
        except TimeoutError:
            raise TimedOut(f"port {self._port} of the process does not answer", reason="read_timeout") from None
        except (h11.ProtocolError, OSError) as error:
            said = "speaks no HTTP" if isinstance(error, h11.ProtocolError) else "closed the connection"
            raise Unavailable(f"what listens on port {self._port} {said}", reason="connect_failed") from error

    async def body(self) -> AsyncIterator[bytes]:
        """Yield the answer's body, up to its cap; cut short, the connection is closed without its end."""
        total = 0
        try:
            while True:
                event = await self._next()
                if isinstance(event, h11.Data):
                    total += len(event.data)
                    if total > MOST_ANSWER_BYTES:
                        raise Unavailable("the answer of the process is too long", reason="connect_failed")
                    yield bytes(event.data)
                elif isinstance(event, h11.EndOfMessage | h11.ConnectionClosed):
                    return
        finally:
            await self.close()

    async def close(self) -> None:
        """Let go of the connection."""
        if self._writer is None:
            self._socket.close()
            return
        self._writer.transport.abort()

    def returned(self, head: h11.Response) -> dict[str, str]:
        """Return the headers that go back: none that speaks in our name, and a redirect only within the process."""
        kept: dict[str, str] = {}
        for name, value in ((name.decode("ascii"), value.decode("latin-1")) for name, value in head.headers):
            if name in _RETURNED or (name.startswith("x-") and not name.startswith(_ORDERS)):
                kept[name] = value
            elif name == "location" and (inside := self._inside(value)) is not None:
                kept[name] = inside
        return {**kept, **_A_STRANGERS_PAGE}

    def _inside(self, location: str) -> str | None:
        """Return where a redirect leads for whoever asks, if it stays with the process."""
        for origin in (f"http://localhost:{self._port}", f"http://127.0.0.1:{self._port}"):
            if location == origin or location.startswith(f"{origin}/"):
                location = location.removeprefix(origin) or "/"
        if _CLIMBS.search(location) or location.startswith("//"):
            return None  # up and out of the prefix, or to another host
        if location.startswith("/"):
            return self._prefix + location
        return location if ":" not in location else None

    def _asked(self, request: Request, body: bytes) -> list[tuple[str, str]]:
        kept = forwarded(request.headers, self._prefix)
        kept += [("host", f"localhost:{self._port}"), ("connection", "close")]
        if body or request.method in ("POST", "PUT", "PATCH"):
            kept.append(("content-length", str(len(body))))
        return kept

    def _say(self, event: h11.Event) -> None:
        data = self._spoken.send(event)
        if data and self._writer is not None:
            self._writer.write(data)

    async def _next(self) -> object:
        """Return the next part of the answer, in time."""
        while (event := self._spoken.next_event()) is h11.NEED_DATA:
            left = self._deadline - asyncio.get_running_loop().time()
            async with asyncio.timeout(min(ANSWER_SECONDS, left)):
                data = await self._reader.read(_CHUNK) if self._reader is not None else b""
            self._spoken.receive_data(data)
        return event


def target_of(scope: Scope) -> bytes:
    """Return the path as it was sent, below the prefix; decoded and encoded again it might be another."""
    raw: bytes = scope.get("raw_path") or scope["path"].encode()
    path = b"/" + raw.partition(b"?")[0].split(b"/", _PARTS_OF_PREFIX)[-1]
    query: bytes = scope["query_string"]
    return path + b"?" + query if query else path


def forwarded(headers: Headers, prefix: str) -> list[tuple[str, str]]:
    """Return what of a request's headers the guest gets: nothing that is between the caller and us."""
    kept = [
        (name, value)
        for name, value in headers.items()
        if name not in _NOT_FORWARDED and not name.startswith(("x-ringfence-", "sec-"))
    ]
    return [*kept, ("x-forwarded-prefix", prefix)]
