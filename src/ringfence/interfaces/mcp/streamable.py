"""The protocol over HTTP: a door of the service at `/mcp`, where each request acts for whom its key speaks."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qs

from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
from mcp.server.auth.provider import AccessToken
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp.server.transport_security import TransportSecuritySettings
from starlette.responses import JSONResponse
from starlette.routing import Route

from ringfence.errors import Denied, RingfenceError, Unavailable
from ringfence.interfaces.mcp.server import Offers, Seat, build, built_in
from ringfence.service.callers import Access, Principal

if TYPE_CHECKING:
    from mcp.server.context import ServerRequestContext
    from starlette.types import Receive, Scope, Send

    from ringfence.service.house import House

PATH: Final = "/mcp"
USUAL_PROJECT: Final = "mcp"
MOST_BODY: Final = 4 << 20
MOST_SESSIONS: Final = 1024
IDLE_SECONDS: Final = 600.0
"""How long a session of an older client may be silent; newer clients have none."""
_LOOPBACK: Final = ("127.0.0.1", "localhost", "[::1]")


class McpDoor:
    """The ASGI application of one house; whoever comes has been let in by a gate that knows the key."""

    def __init__(
        self,
        house: House,
        *,
        role: str | None = None,
        offers: Offers = built_in,
        hosts: Iterable[str] = _LOOPBACK,
    ) -> None:
        """Act in the agent role `role` of the policy.

        `hosts` are the names it may be called by: a page that rebinds a name of its own to this address has none.
        """
        self._house = house
        self._role = role
        self.server = build(self._seat, offers)
        self._sessions = StreamableHTTPSessionManager(
            self.server,
            security_settings=_only_called(hosts),
            max_request_body_size=MOST_BODY,
            max_sessions=MOST_SESSIONS,
            session_idle_timeout=IDLE_SECONDS,
        )

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Serve while the block lasts; what is under way at its end is cancelled, and killed."""
        async with self._sessions.run():
            yield

    def route(self) -> Route:
        """Return the route that belongs into the service's application."""
        return Route(PATH, endpoint=self, include_in_schema=False)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request of the protocol."""
        try:
            principal = _principal(scope)
            if self._house.draining:
                raise Unavailable("the service is about to end", reason="draining", fix="try again in a moment")
        except RingfenceError as refused:
            await refused_response(refused)(scope, receive, send)
            return
        # the library lets a session be used only with the credential that opened it
        who = AccessToken(
            token=principal.key_id, client_id=principal.key_id, scopes=[], subject=principal.caller.subject_id
        )
        scope["user"] = AuthenticatedUser(who)
        await self._sessions.handle_request(scope, receive, send)

    def _seat(self, context: ServerRequestContext[Any, Any]) -> Seat:
        request = context.request
        if request is None:
            raise no_key()
        principal = _principal(request.scope)
        project = parse_qs(request.scope.get("query_string", b"").decode("latin-1")).get("project", [USUAL_PROJECT])[-1]
        manager = self._house.manager_for(principal, project).acting_for(role=self._role)
        return Seat(manager, principal.caller.tenant, project)


def refused_response(refused: RingfenceError) -> JSONResponse:
    """Return the answer to a request that did not get as far as the protocol."""
    status = refused.answer.http_status
    headers = {"WWW-Authenticate": "Bearer"} if status == 401 else {"Retry-After": "1"} if status == 503 else None
    body = {
        "type": "about:blank",
        "title": refused.answer.title,
        "status": status,
        "detail": str(refused),
        "code": refused.code,
        "reason": refused.reason,
        "retryable": refused.retryable,
        "fix": refused.fix,
    }
    return JSONResponse(body, status, headers, media_type="application/problem+json")


def _principal(scope: Scope) -> Principal:
    principal = scope.get("state", {}).get("principal")
    if not isinstance(principal, Principal):
        raise no_key()
    if not principal.may(Access.AGENT):
        raise Denied(f"a key for {principal.access} does not reach here", reason="access", fix="use an agent's key")
    return principal


def no_key() -> Denied:
    """Return the one answer to every key that is missing, unknown, expired or revoked."""
    return Denied("this needs an API key", reason="no_key", fix="send 'Authorization: Bearer <key>'")


def _only_called(hosts: Iterable[str]) -> TransportSecuritySettings:
    names = tuple(hosts)
    return TransportSecuritySettings(
        enable_dns_rebinding_protection=True,
        allowed_hosts=[form for name in names for form in (name, f"{name}:*")],
        allowed_origins=[
            f"{scheme}://{form}" for name in names for scheme in ("http", "https") for form in (name, f"{name}:*")
        ],
    )
