"""The gate before all routes: nothing but the short health answer passes without a key, and no body is read first."""

from __future__ import annotations

import re
from contextlib import nullcontext
from functools import partial
from typing import Final

from starlette.requests import HTTPConnection
from starlette.types import ASGIApp, Receive, Scope, Send

from ringfence.errors import Denied, InvalidRequest, RingfenceError, Unavailable
from ringfence.interfaces.http.aio import key as aio
from ringfence.interfaces.http.calls import refuse_grant_elsewhere
from ringfence.interfaces.http.door import house_of, no_key
from ringfence.interfaces.http.headers import all_of, first_of
from ringfence.interfaces.http.lasting import Lasting
from ringfence.interfaces.http.problem import response
from ringfence.service.callers import Principal
from ringfence.service.house import House

OPEN_PATHS: Final = frozenset({"/sandbox/health"})
"""What answers to everybody, if not with everything."""
_OF_THIS_MACHINE: Final = frozenset({"127.0.0.1", "localhost", "[::1]"})
_EVERYWHERE: Final = frozenset({"0.0.0.0", "::"})  # noqa: S104  compared with, never listened on
_HOST: Final = re.compile(r"(\[[0-9a-f:.]+\]|[^\[\]:]*)(?::[0-9]*)?")
_KEY: Final = "ringfence.bearer."
_READING: Final = frozenset({"GET", "HEAD", "OPTIONS"})


class Gate:
    """Finds out who calls, once, and keeps it in the request's state."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on with its principal, or refuse it."""
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        connection = HTTPConnection(scope)
        house = house_of(connection)
        known = getattr(connection.state, "principal", None)  # the owner's socket says so itself
        try:
            is_owners = isinstance(known, Principal)
            if not is_owners:
                _require_own_host(connection, house)
            key = aio.key_of(connection) if _is_aio(connection, house) else _key(connection)
            # there too: whoever passes on what others send must not make owners of those who say who they are
            if not is_owners or key is not None:
                known = await house.keys.find(key) if key else None
                if key:
                    lasting = Lasting(receive, send, partial(_is_valid, house, key))
                    receive, send = lasting.receive, lasting.send
            if known is None and scope["path"] not in OPEN_PATHS:
                raise no_key()
            _require_one_line(scope["path"])
            refuse_grant_elsewhere(connection)
            is_work = scope.get("method", "GET") not in _READING
            if house.draining and is_work:
                raise Unavailable("the service is about to end", reason="draining", retry_after_seconds=5)
            _require_share(house, known)
        except RingfenceError as refused:
            await response(refused)(scope, receive, send)
            return
        connection.state.principal = known
        tenant = "" if known is None else known.tenant
        house.requests[tenant] += 1
        try:
            with house.working() if is_work else nullcontext():
                await self._app(scope, receive, send)
        finally:
            house.requests[tenant] -= 1
            if not house.requests[tenant]:
                del house.requests[tenant]


def _is_aio(connection: HTTPConnection, house: House) -> bool:
    return house.settings.aio and aio.is_aio(connection.scope["path"])


def _key(connection: HTTPConnection) -> str | None:
    """Return the key that is sent; none of it where it is sent in a way that names no key."""
    given = all_of(connection.scope, b"authorization")
    if not given and connection.scope["type"] == "websocket":
        # a page cannot set a header of a websocket, but it can name protocols
        given = [
            f"Bearer {name.removeprefix(_KEY)}" for name in connection.scope["subprotocols"] if name.startswith(_KEY)
        ]
    if not given:
        return None
    scheme, _, key = given[0].partition(" ")
    # of two nobody can say which one is meant
    return key.strip() if scheme.lower() == "bearer" and len(given) == 1 else ""


def _require_one_line(path: str) -> None:
    """Refuse a path with a line end: the framework finds `/keys` under `/keys%0a`, and nobody else on the way does.

    Raises:
        InvalidRequest: It has one.
    """
    if "\n" in path:
        raise InvalidRequest("there is nothing of this name", reason="not_found")


async def _is_valid(house: House, key: str) -> bool:
    return await house.keys.find(key) is not None


def _require_share(house: House, known: Principal | None) -> None:
    """Refuse a tenant whose requests, streams and terminals have half of all connections: the rest is the others'.

    An admin is never refused here, who may have to end some of them.
    """
    if known is None or known.may():
        return
    if house.requests[known.tenant] >= max(1, house.settings.max_connections // 2):
        raise Unavailable("too many connections of this tenant are open", reason="too_many_connections")


def _require_own_host(connection: HTTPConnection, house: House) -> None:
    """Refuse what is addressed to another name: a web page whose name was made to point here (DNS rebinding).

    A service that others reach by names of their own knows them from `server.allowed_hosts`, or takes any.
    """
    settings = house.settings
    given = first_of(connection.scope, b"host")
    if given is None:  # which no browser leaves out
        return
    if not settings.is_loopback and not settings.allowed_hosts:
        return
    name = _without_port(given)
    own = {*_OF_THIS_MACHINE, *(host.lower() for host in settings.allowed_hosts)}
    if settings.host not in _EVERYWHERE:
        own.add(settings.host.lower())
    if name not in own:
        raise Denied("the Host header names another place than this service", reason="foreign_host")


def _without_port(host: str) -> str:
    found = _HOST.fullmatch(host.strip().lower())
    return "" if found is None else found[1].rstrip(".")
