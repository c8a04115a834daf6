"""One connection of the service: how long a client may take, what it is told when it speaks no HTTP, and who it is."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import struct
from typing import Any, Final

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

from ringfence.errors import InvalidRequest, RingfenceError, TimedOut, Unavailable
from ringfence.interfaces.http.headers import SECURITY
from ringfence.interfaces.http.joined import Joined
from ringfence.interfaces.http.problem import MEDIA_TYPE, problem_of
from ringfence.service.callers import OWNER
from ringfence.service.settings import ServiceSettings

CANCELLED_BY_HANGING_UP: Final = frozenset({"/mcp"})
"""Paths whose protocol has no other way to cancel a call: a client that closes its half wants no answer."""
_SLOWEST_BODY: Final = 64 * 1024
"""Bytes in a second below which a body counts as one that never ends."""
_WRAPPING: Final = 2
"""How many times its largest size a request may take on the wire: what chunks say about themselves is in no body."""
_LONGEST_METHOD: Final = 32
_MOST_INCOMPLETE: Final = 64 * 1024
_CREDENTIALS: Final = struct.Struct("3i")


class _OneReading(h11.Connection):
    """Takes no request of which two readers could see different ends: a proxy before us may be the other one."""

    def next_event(self) -> Any:
        """Return what came next.

        Raises:
            h11.RemoteProtocolError: It has two lengths, one that its version does not know, or a method that is none.
        """
        event = super().next_event()
        if isinstance(event, h11.Request) and not _has_one_meaning(event):
            raise h11.RemoteProtocolError("not a request that has one meaning")
        return event


def _has_one_meaning(request: h11.Request) -> bool:
    lengths = {name for name, _ in request.headers} & {b"content-length", b"transfer-encoding"}
    if len(lengths) > 1 or len(request.method) > _LONGEST_METHOD:
        return False
    if request.http_version == b"1.0":  # which has no chunks: for another reader the body is the next request
        return b"transfer-encoding" not in lengths
    return request.http_version.startswith(b"1.")


class Connection(H11Protocol):
    """A client that has `read_seconds` for each request, and more only for a body that really comes.

    A request that was sent whole is answered even when the client has closed its own half of the connection.
    """

    settings: ServiceSettings
    _joined: Joined
    _deadline: asyncio.TimerHandle | None = None
    _began: float = 0.0
    _received: int = 0

    def __init__(self, *args: Any, **named: Any) -> None:
        """Be made by the server for a client that is about to come."""
        super().__init__(*args, **named)
        self.conn = _OneReading(h11.SERVER, self.config.h11_max_incomplete_event_size or _MOST_INCOMPLETE)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Take a client, unless it is one too many, or another user's at the socket of the home."""
        super().connection_made(transport)
        self.transport = self._joined = Joined(transport, self.loop, self.settings.write_seconds)
        sock = transport.get_extra_info("socket")
        if sock is not None and sock.family == socket.AF_UNIX:
            if _peer_uid(sock) != os.geteuid():
                transport.abort()
                return
            # `app_state` becomes the state of every request of this connection, and nothing a client sends gets there
            self.app_state = {**self.app_state, "principal": OWNER}
        elif len(self.connections) > self.settings.max_connections:
            self._refuse(Unavailable("too many connections are open", reason="too_many_connections"))
            return
        self._start_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the client."""
        self._stop_reading()
        self._joined.forget()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Take some of a request."""
        if self._deadline is None and self._is_between_requests():
            self._start_reading()
        self._received += len(data)
        super().data_received(data)
        if not self._is_reading():
            self._stop_reading()
        elif self._received > _WRAPPING * (self.settings.max_header_bytes + self.settings.max_body_bytes):
            most = self.settings.max_body_bytes
            self._refuse(InvalidRequest(f"a body may have {most} bytes", reason="body_too_large", limit=most))

    def eof_received(self) -> bool | None:  # type: ignore[override]
        """Answer what was asked before the client closed its half, and say to what was cut off that it was."""
        cycle = self._current()
        if cycle is not None and cycle.scope["path"] in CANCELLED_BY_HANGING_UP:
            return None
        if cycle is not None and not cycle.response_complete and not cycle.more_body:
            cycle.keep_alive = False
            return True
        if self._is_reading() and self._received:
            self._refuse(InvalidRequest("the request ends in its middle", reason="malformed"))
        return None

    def handle_websocket_upgrade(self, event: h11.Request) -> None:
        """Leave the connection to the websocket, which has its own idea of time."""
        self._stop_reading()
        super().handle_websocket_upgrade(event)

    def send_400_response(self, msg: str) -> None:  # noqa: ARG002  what the base says about it is not for clients
        """Say of what is no HTTP that it is none."""
        most = self.settings.max_header_bytes
        if len(self.conn.trailing_data[0]) > most:
            self._refuse(InvalidRequest(f"path and headers may have {most} bytes", reason="headers_too_large"))
        else:
            self._refuse(InvalidRequest("this is no HTTP request", reason="malformed"))

    def on_response_complete(self) -> None:
        """Get ready for the next request on the connection."""
        self._joined.flush()
        if self.conn.their_state is h11.DONE:  # what else has come is of the next request, which may be whole already
            self._received = len(self.conn.trailing_data[0])
        super().on_response_complete()
        if self.conn.our_state is h11.IDLE and self.conn.their_state is h11.IDLE:
            self._stop_reading()
            self._received = 0
            if self.conn.trailing_data[0]:
                self._start_reading()

    def pause_writing(self) -> None:
        """Wait for a client that does not read, and not for ever: it keeps what it was told in our memory."""
        super().pause_writing()
        self._joined.await_reading()

    def resume_writing(self) -> None:
        """Go on with a client that reads again."""
        self._joined.was_read()
        super().resume_writing()

    def _is_between_requests(self) -> bool:
        cycle = self._current()
        return cycle is None or cycle.response_complete

    def _is_reading(self) -> bool:
        """Whether the client still owes some of a request."""
        cycle = self._current()
        if cycle is None:
            return True
        if cycle.response_complete:
            return self.conn.their_state is h11.SEND_BODY or bool(self.conn.trailing_data[0])
        return cycle.more_body

    def _current(self) -> RequestResponseCycle | None:
        return self.cycle  # which is nothing before the first request, whatever its type says

    def _start_reading(self) -> None:
        self._began = self.loop.time()
        self._deadline = self.loop.call_later(self.settings.read_seconds, self._look_at_the_clock)

    def _stop_reading(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _look_at_the_clock(self) -> None:
        self._deadline = None
        if self.transport.is_closing() or not self._is_reading():
            return
        # what comes after the answer is only taken to be thrown away, and not for long
        is_body = not self._is_between_requests()
        allowed = self.settings.read_seconds + (self._received / _SLOWEST_BODY if is_body else 0.0)
        left = self._began + allowed - self.loop.time()
        if left > 0:
            self._deadline = self.loop.call_later(left, self._look_at_the_clock)
        elif self._received:
            self._refuse(TimedOut("the request came too slowly", reason="slow_request"))
        else:
            self.transport.close()  # it never said a word

    def _refuse(self, error: RingfenceError) -> None:
        """Answer with a problem where an answer is still possible, and close."""
        if self.transport.is_closing():
            return
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE, h11.ERROR) and not self._is_answering():
            self.transport.write(raw_answer(error))
        self.transport.close()

    def _is_answering(self) -> bool:
        cycle = self._current()
        return cycle is not None and cycle.response_started and not cycle.response_complete


def connection_class(settings: ServiceSettings) -> type[Connection]:
    """Return the class of the connections of one service."""
    return type("ServiceConnection", (Connection,), {"settings": settings})


def raw_answer(error: RingfenceError) -> bytes:
    """Return an error as the bytes of an answer, for whoever never came as far as the application."""
    body = json.dumps(problem_of(error)).encode()
    status = error.answer.http_status
    head: list[tuple[str, Any]] = [
        *SECURITY,
        ("Content-Type", MEDIA_TYPE),
        ("Content-Length", len(body)),
        ("Connection", "close"),
        *((("Retry-After", 1),) if status == 503 else ()),
    ]
    lines = [f"HTTP/1.1 {status} {error.answer.title}", *(f"{name}: {value}" for name, value in head), "", ""]
    return "\r\n".join(lines).encode("ascii") + body


def _peer_uid(sock: socket.socket) -> int:
    return int(_CREDENTIALS.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))[1])
