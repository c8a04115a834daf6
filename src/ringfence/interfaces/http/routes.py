"""Routes that take nothing which two readers would take for two things: no key and no parameter is given twice."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Iterator
from functools import partial
from typing import Any, Final
from urllib.parse import unquote_to_bytes

from fastapi import APIRouter
from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute
from pydantic import BaseModel
from starlette.datastructures import QueryParams
from starlette.requests import Request
from starlette.responses import Response

from ringfence.authority import strict_json
from ringfence.errors import InvalidRequest

MOST_MEMBERS: Final = 65_536
"""How many objects and keys a body may have: each may be wrong, and to say of millions where costs a minute of all."""


class PlainRoute(APIRoute):
    """A route whose requests say each thing once; a proxy in front may have judged by the other of two."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return what serves one request."""
        handle = super().get_route_handler()
        known = frozenset(_parameters(self.dependant))

        async def handle_plain(request: Request) -> Response:
            if query := request.scope["query_string"]:
                require_plain_query(query)
                _require_known(request.query_params, known)
            return await handle(_PlainRequest(request.scope, request.receive))

        return handle_plain


def _parameters(dependant: Dependant) -> Iterator[str]:
    """Yield what a query may ask of a route; where a model reads it, that refuses by itself what it does not know."""
    for needed in dependant.dependencies:
        yield from _parameters(needed)
    for each in dependant.query_params:
        model = each.field_info.annotation
        if isinstance(model, type) and issubclass(model, BaseModel):
            yield from model.model_fields
        else:
            yield each.alias


def _require_known(asked: Iterable[str], known: frozenset[str]) -> None:
    """Refuse a question that the route does not know: without it, it would be answered another one.

    Raises:
        InvalidRequest: Naming it.
    """
    for name in asked:
        if name not in known:
            raise InvalidRequest(f"query: there is no parameter {name[:64]!a} here", reason="invalid_request")


Router = partial(APIRouter, route_class=PlainRoute)
"""What every module of resources makes its routes with."""


def require_plain_query(query: bytes) -> None:
    """Refuse a query that gives a parameter twice, or is no text.

    Raises:
        InvalidRequest: It does, or is not.
    """
    try:
        unquote_to_bytes(query).decode()
    except UnicodeDecodeError:  # each byte that is none would become the same letter, and two names one
        raise InvalidRequest("query: it is not UTF-8", reason="malformed") from None
    asked = QueryParams(query)
    if len(asked) != len(asked.multi_items()):
        raise InvalidRequest("query: a parameter is given twice", reason="given_twice")


def read_body(body: bytes) -> Any:
    """Return the value that a body of JSON is.

    Raises:
        InvalidRequest: A key of an object is written twice, or there are too many of them.
        ValueError: It is no JSON.
        RecursionError: It is nested too deep.
    """
    try:
        return strict_json.read(body, most_members=MOST_MEMBERS)
    except strict_json.KeyTwice as twice:
        name = "".join(letter if letter.isprintable() else "?" for letter in twice.key[:64])
        raise InvalidRequest(f"body: {name!a} is written twice in one object", reason="given_twice") from None
    except strict_json.TooManyMembers:
        raise InvalidRequest(
            f"body: it may have {MOST_MEMBERS} objects and keys, and twice as many texts",
            reason="body_too_large",
            limit=MOST_MEMBERS,
        ) from None


class _PlainRequest(Request):
    async def json(self) -> Any:
        return read_body(await self.body())
