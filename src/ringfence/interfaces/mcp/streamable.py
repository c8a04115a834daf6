"""The protocol over HTTP: a door of the service at `/mcp`, where each request acts for whom its key speaks."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qs

import anyio
from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
from mcp.server.auth.provider import AccessToken
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from starlette.routing import Route

from ringfence.errors import Denied, InvalidRequest, RingfenceError, Unavailable
from ringfence.interfaces.http.door import no_key, origin_name
from ringfence.interfaces.http.problem import response
from ringfence.interfaces.http.routes import read_body, require_plain_query
from ringfence.interfaces.mcp.server import Offers, Seat, build
from ringfence.service.callers import Access, Principal

if TYPE_CHECKING:
    from anyio.abc import TaskGroup, TaskStatus
    from mcp.server.context import ServerRequestContext
    from starlette.types import Message, Receive, Scope, Send

    from ringfence.service.house import House

PATH: Final = "/mcp"
USUAL_PROJECT: Final = "mcp"
MOST_BODY: Final = 4 << 20
MOST_SESSIONS: Final = 128
"""How many sessions the older clients of one tenant may have at a time; newer clients have none."""
IDLE_SECONDS: Final = 600.0
"""How long a session may be silent."""


class McpDoor:
    """The ASGI application of one house; whoever comes has been let in by a gate that knows the key."""

    def __init__(
        self,
        house: House,
        *,
        role: str | None = None,
        offers: Offers | None = None,
    ) -> None:
        """Act in the agent role `role` of the policy."""
        # it would write down what clients send, and a line for each that is refused, as often as they like
        logging.getLogger("mcp.server").setLevel(logging.ERROR)
        self._house = house
        self._role = role
        self.server = build(self.seat, offers)
        # one for each tenant: of sessions in one place, whoever opens the most would leave none to the others
        self._sessions: dict[str, StreamableHTTPSessionManager] = {}
        self._opening = anyio.Lock()
        self._keeping: TaskGroup | None = None

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Serve while the block lasts; what is under way at its end is cancelled, and killed."""
        async with anyio.create_task_group() as self._keeping:
            try:
                yield
            finally:
                self._keeping.cancel_scope.cancel()

    def route(self) -> Route:
        """Return the route that belongs into the service's application."""
        return Route(PATH, endpoint=self, include_in_schema=False)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request of the protocol."""
        try:
            principal = _principal(scope)
            _require_own_origin(scope, self._house.settings.cors_origins)
            _require_short(scope)
            require_plain_query(scope["query_string"])
            if self._house.draining:
                raise Unavailable("the service is about to end", reason="draining", fix="try again in a moment")
            if scope["method"] == "POST":
                receive = await _read_once(receive)
        except RingfenceError as refused:
            await response(refused)(scope, receive, send)
            return
        # the library lets a session be used only with the credential that opened it
        who = AccessToken(
            token=principal.key_id, client_id=principal.key_id, scopes=[], subject=principal.caller.subject_id
        )
        scope["user"] = AuthenticatedUser(who)
        sessions = await self._sessions_of(principal.caller.tenant)
        await sessions.handle_request(scope, receive, send)

    async def _sessions_of(self, tenant: str) -> StreamableHTTPSessionManager:
        async with self._opening:
            if tenant not in self._sessions:
                if self._keeping is None:
                    raise Unavailable("the door is not open", reason="draining")
                made = StreamableHTTPSessionManager(
                    self.server,
                    max_request_body_size=MOST_BODY,
                    max_sessions=MOST_SESSIONS,
                    session_idle_timeout=IDLE_SECONDS,
                )
                await self._keeping.start(_kept, made)
                self._sessions[tenant] = made
            return self._sessions[tenant]

    def seat(self, context: ServerRequestContext[Any, Any]) -> Seat:
        """Return whom a request acts for: the caller of its key, in the project that its URL names."""
        request = context.request
        if request is None:
            raise no_key()
        principal = _principal(request.scope)
        project = parse_qs(request.scope.get("query_string", b"").decode("latin-1")).get("project", [USUAL_PROJECT])[-1]
        manager = self._house.manager_for(principal, project).acting_for(role=self._role)
        execs = self._house.execs
        if execs is None:
            return Seat(manager, principal.caller.tenant, project)
        return Seat(manager, principal.caller.tenant, project, partial(execs.turn_for, principal))


async def _kept(sessions: StreamableHTTPSessionManager, *, task_status: TaskStatus[None]) -> None:
    """Keep the sessions of a tenant, in a task of their own: whoever opens them has to close them."""
    async with sessions.run():
        task_status.started()
        await anyio.sleep_forever()


def _principal(scope: Scope) -> Principal:
    principal = scope.get("state", {}).get("principal")
    if not isinstance(principal, Principal):
        raise no_key()
    if not principal.may(Access.AGENT):
        raise Denied(f"a key for {principal.access} does not reach here", reason="access", fix="use an agent's key")
    return principal


def _require_own_origin(scope: Scope, others: Iterable[str]) -> None:
    """Refuse a web page of another place; a gate has made sure that the Host header is a name of this one."""
    origin = _header(scope, b"origin")
    if origin is None or origin in others:
        return
    if origin_name(origin) != (_header(scope, b"host") or "").lower():
        raise Denied("a web page of another place may not call this", reason="foreign_host")


def _require_short(scope: Scope) -> None:
    """Refuse a body that says it is too long, before any of it is read."""
    length = _header(scope, b"content-length")
    if length is not None and length.isdecimal() and int(length) > MOST_BODY:
        raise _too_large()


async def _read_once(receive: Receive) -> Receive:
    """Read a message whose keys are each written once, for the library to read it again, which would take the last.

    Whether it is a message at all is for the library to say.
    """
    pieces: list[Message] = []
    size = 0
    while True:
        piece = await receive()
        pieces.append(piece)
        size += len(piece.get("body", b""))
        if size > MOST_BODY:
            raise _too_large()
        if not piece.get("more_body", False):
            break
    with suppress(ValueError, RecursionError):
        read_body(b"".join(piece.get("body", b"") for piece in pieces))
    kept = iter(pieces)

    async def receive_again() -> Message:
        return next(kept, None) or await receive()

    return receive_again


def _too_large() -> InvalidRequest:
    return InvalidRequest(f"a message has at most {MOST_BODY} bytes", reason="body_too_large")


def _header(scope: Scope, name: bytes) -> str | None:
    return next((value.decode("latin-1") for key, value in scope["headers"] if key == name), None)
