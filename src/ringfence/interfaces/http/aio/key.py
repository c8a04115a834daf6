"""The three ways in which AIO's clients bring a key, of which exactly one may be used."""

from __future__ import annotations

from typing import Final
from urllib.parse import parse_qsl, urlencode

from starlette.requests import HTTPConnection

PREFIX: Final = "/v1/"
"""Where all routes of this surface lie."""
HEADER: Final = "x-aio-api-key"
QUERY: Final = "api_key"


def is_aio(path: str) -> bool:
    """Whether a path is one of this surface."""
    return path.startswith(PREFIX)


def key_of(connection: HTTPConnection) -> str | None:
    """Return the key of a request, and take it out of its query, so that nobody behind the gate can repeat it."""
    bearers = [given.partition(" ") for given in connection.headers.getlist("authorization")]
    found = [key.strip() if scheme.lower() == "bearer" else "" for scheme, _, key in bearers]
    found += connection.headers.getlist(HEADER)
    if QUERY.encode() in connection.scope["query_string"]:
        asked = parse_qsl(
            connection.scope["query_string"].decode("latin-1"), keep_blank_values=True, encoding="latin-1"
        )
        found += [value for name, value in asked if name == QUERY]
        rest = [(name, value) for name, value in asked if name != QUERY]
        connection.scope["query_string"] = urlencode(rest, encoding="latin-1").encode("ascii")
    if not found:
        return None
    return found[0] if len(found) == 1 else ""  # of two nobody can say which one is meant
