"""`Idempotency-Key` on whatever is asked for with POST: carried out once, and answered alike however often it is asked.

Executions have their own way, in `service.execs`: they are promised, and run after a restart. Everything else is done
while its caller waits; what is kept of it is the answer.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable
from typing import Final

from starlette.requests import HTTPConnection
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ringfence.errors import InvalidRequest, RingfenceError
from ringfence.interfaces.http.calls import CALL_HEADER, GRANT_HEADER
from ringfence.interfaces.http.door import house_of
from ringfence.interfaces.http.problem import MEDIA_TYPE, response
from ringfence.service.answers import AnswerStore, Claim, Kept, claim_for, mismatch, unanswered
from ringfence.service.callers import Principal

HEADER: Final = "idempotency-key"
LONGEST_KEY: Final = 255
_OWN_WAY: Final = frozenset({"/sandbox/execs", "/mcp"})
SHOWN_ONCE: Final = ("/keys", "/grants")
_KEPT_HEADERS: Final = frozenset({"content-type", "location"})
# what is refused for these has not begun, and there may be room for it in a moment
_NOT_BEGUN: Final = frozenset({"draining", "queue_full", "concurrency", "too_many_connections", "input_full"})


class Once:
    """Stands between the gate and the routes; whoever gets here is known."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._under_way: dict[tuple[str, str], tuple[Claim, asyncio.Future[Kept | None]]] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on what has no key; of what has one, carry out the first and answer the others as it was answered."""
        if not takes_key(scope):
            await self._app(scope, receive, send)
            return
        connection = HTTPConnection(scope)
        try:
            key = read_key(connection.headers.getlist(HEADER))
            principal = connection.state.principal
            if key is None or not isinstance(principal, Principal):
                await self._app(scope, receive, send)
                return
            if scope["path"].startswith(SHOWN_ONCE):
                raise InvalidRequest(
                    "what is made here is shown once and kept nowhere, so it takes no Idempotency-Key",
                    reason="shown_once",
                    fix="leave it out; list what there is before making it again",
                )
            body = await _whole(receive)
            if body is None:  # the caller left before he had said what he wants
                return
            kept, replayed = await self._carried_out(_claim(connection, principal, key, body), scope, body)
        except RingfenceError as refused:
            await response(refused)(scope, receive, send)
            return
        answer = Response(kept.body, kept.status, dict(kept.headers))
        if replayed:
            answer.headers["Idempotency-Replayed"] = "true"
        await answer(scope, receive, send)

    async def _carried_out(self, claim: Claim, scope: Scope, body: bytes) -> tuple[Kept, bool]:
        place = (claim.tenant, claim.key)
        if place in self._under_way:
            first, coming = self._under_way[place]
            if first.digest != claim.digest:
                raise mismatch()
            given = await asyncio.shield(coming)
            if given is None:
                raise unanswered()
            return given, True
        done: asyncio.Future[Kept | None] = asyncio.get_running_loop().create_future()
        self._under_way[place] = (claim, done)
        made: Kept | None = None
        try:
            house = house_of(HTTPConnection(scope))
            store = AnswerStore(house.database)
            known = await asyncio.to_thread(store.begin, claim, house.clock.now_ms())
            if known is not None:
                made = known
                return known, True
            made = await self._first(store, claim, scope, body)
            return made, False
        finally:
            del self._under_way[place]
            done.set_result(made)

    async def _first(self, store: AnswerStore, claim: Claim, scope: Scope, body: bytes) -> Kept:
        answer = _Answer()
        # whoever leaves does not take it with him: he can ask for it again
        await self._app(scope, _Said(body).receive, answer.send)
        kept = answer.kept()
        if _has_not_begun(kept):
            await asyncio.to_thread(store.forget, claim)
        else:
            await asyncio.to_thread(store.answered, claim, kept)
        return kept


def takes_key(scope: Scope) -> bool:
    """Whether an `Idempotency-Key` of this request is this module's to keep."""
    if scope["type"] != "http" or scope["method"] != "POST":
        return False
    path: str = scope["path"]
    # what is passed on to a port is the guest's to understand
    return path not in _OWN_WAY and not path.startswith("/v1/") and "/ports/" not in path


def read_key(given: Iterable[str]) -> str | None:
    """Return the key that came with a request.

    Raises:
        InvalidRequest: It cannot be one, or there are two.
    """
    keys = list(given)
    if not keys:
        return None
    key = keys[0]
    if len(keys) > 1 or not 0 < len(key) <= LONGEST_KEY or not key.isascii() or not key.isprintable():
        raise InvalidRequest(
            f"Idempotency-Key must be one of 1 to {LONGEST_KEY} printable ASCII characters", reason="invalid_name"
        )
    return key


def _claim(connection: HTTPConnection, who: Principal, key: str, body: bytes) -> Claim:
    """Return the claim of a request: with other rights it is another request, whatever it says."""
    headers = connection.headers
    rights = (str(who.access), who.role or "", who.caller.subject_id)
    shown = (headers.get(GRANT_HEADER, ""), headers.get(CALL_HEADER, ""))
    target = (connection.scope["path"], connection.scope["query_string"], headers.get("content-type", ""))
    return claim_for(who.tenant, key, *rights, *shown, *target, body)


async def _whole(receive: Receive) -> bytes | None:
    body = bytearray()
    while True:
        message = await receive()
        if message["type"] != "http.request":
            return None
        body += message.get("body", b"")
        if not message.get("more_body", False):
            return bytes(body)


class _Said:
    """A body that has arrived already, and a caller who seems to stay."""

    def __init__(self, body: bytes) -> None:
        self._body: bytes | None = body

    async def receive(self) -> Message:
        if self._body is None:
            await asyncio.Event().wait()
        body, self._body = self._body, None
        return {"type": "http.request", "body": body or b"", "more_body": False}


class _Answer:
    """What a route says, held back until it is kept."""

    def __init__(self) -> None:
        self._status = 500
        self._headers: list[tuple[bytes, bytes]] = []
        self._body = bytearray()

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._status, self._headers = message["status"], list(message.get("headers", ()))
        elif message["type"] == "http.response.body":
            self._body += message.get("body", b"")

    def kept(self) -> Kept:
        named = ((name.decode("latin-1").lower(), value.decode("latin-1")) for name, value in self._headers)
        return Kept(self._status, tuple(pair for pair in named if pair[0] in _KEPT_HEADERS), bytes(self._body))


def _has_not_begun(kept: Kept) -> bool:
    if kept.status not in (429, 503) or ("content-type", MEDIA_TYPE) not in kept.headers:
        return False
    return json.loads(kept.body).get("reason") in _NOT_BEGUN
