"""The straight way to `POST /sandbox/execs`: what is plainly right skips the framework's routing, nothing else does.

The framework finds the route, its dependencies and their parameters anew for every request, which costs a run as much
as judging it does. Here a request whose caller, type and body leave no question goes to the very function that the
route has. Whatever is not like that, a wrong body or a caller with another access, is left to the framework with its
body unread, so that every refusal is the framework's own.
"""

from __future__ import annotations

from typing import Final

from pydantic import ValidationError
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ringfence.errors import InvalidRequest, RingfenceError
from ringfence.interfaces.http import execs, problem
from ringfence.interfaces.http.exec_models import ExecBody
from ringfence.interfaces.http.headers import all_of, first_of
from ringfence.interfaces.http.routes import read_body
from ringfence.service.callers import Access, Principal

_PATH: Final = "/sandbox/execs"
_JSON: Final = "application/json"


class Straight:
    """Stands where the routes begin: whoever gets here is known, and his request is within all limits."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer what is plainly an execution to run, and pass everything else on."""
        if scope["type"] != "http" or scope["method"] != "POST" or scope["path"] != _PATH:
            await self._app(scope, receive, send)
            return
        who = scope["state"].get("principal")
        first = await receive()
        body = _plain_body(scope, first)
        if body is None or not isinstance(who, Principal) or not who.may(Access.AGENT):
            await self._app(scope, _Again(first, receive).receive, send)
            return
        request = Request(scope, receive)
        try:
            answer = await execs.run(request, who, body, first_of(scope, b"idempotency-key"))
        except RingfenceError as error:
            answer = await problem.answer(request, error)
        await answer(scope, receive, send)


class _Again:
    """A body whose first piece was looked at, for somebody who has not seen it."""

    def __init__(self, first: Message, receive: Receive) -> None:
        self._first: Message | None = first
        self._receive = receive

    async def receive(self) -> Message:
        first, self._first = self._first, None
        return await self._receive() if first is None else first


def _plain_body(scope: Scope, message: Message) -> ExecBody | None:
    """Return the body, where it came in one piece, as small ones do, and is what the schema has."""
    if message["type"] != "http.request" or message.get("more_body", False):
        return None
    if all_of(scope, b"content-type") != [_JSON]:
        return None
    try:
        return ExecBody.model_validate(read_body(message.get("body", b"")))
    except (ValidationError, InvalidRequest, ValueError, RecursionError):
        return None
