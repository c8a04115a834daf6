"""How a route learns which house it is in and who calls, and refuses whoever's access does not reach it."""

from __future__ import annotations

from typing import Annotated
from urllib.parse import urlsplit

from fastapi import Depends
from fastapi.openapi.models import HTTPBearer
from fastapi.security.base import SecurityBase
from starlette.requests import HTTPConnection

from ringfence.errors import Denied
from ringfence.service.callers import Access, Principal
from ringfence.service.house import House


def house_of(connection: HTTPConnection) -> House:
    """Return the house whose door this is; works for requests and websockets alike."""
    house = connection.app.state.house
    if not isinstance(house, House):
        raise TypeError("the application was built without a house")
    return house


def allowed(*accesses: Access) -> Door:
    """Return the dependency that gives a route its caller: `who: Annotated[Principal, Depends(allowed(Access.AGENT))]`.

    An admin is always allowed. Whoever brings no key never gets as far as a route.
    """
    return Door(accesses)


class Door(SecurityBase):
    """Checks one route's callers; the framework reads off it what the OpenAPI document says about keys."""

    model = HTTPBearer(description="An API key: `ringfence key create --access agent`")
    scheme_name = "ApiKey"

    def __init__(self, accesses: tuple[Access, ...]) -> None:
        self._accesses = accesses

    async def __call__(self, connection: HTTPConnection) -> Principal:
        """Return who calls, or refuse."""
        principal = principal_of(connection)
        if principal is None:
            raise no_key()
        if not principal.may(*self._accesses):
            raise Denied(f"a key for {principal.access} does not reach here", reason="access")
        return principal


def principal_of(connection: HTTPConnection) -> Principal | None:
    """Return who calls, where a key or the owner's socket says so."""
    principal = getattr(connection.state, "principal", None)
    return principal if isinstance(principal, Principal) else None


def no_key() -> Denied:
    """Return the one answer to every key that is missing, unknown, expired or revoked."""
    return Denied(
        "this needs an API key", reason="no_key", fix="send 'Authorization: Bearer <key>'; see 'ringfence key create'"
    )


def origin_name(origin: str) -> str | None:
    """Return the host and port of the page that calls, by its `Origin`, in lower case; None where it has none."""
    try:
        return urlsplit(origin).netloc.lower() or None
    except ValueError:
        return None


async def _house(connection: HTTPConnection) -> House:
    return house_of(connection)  # one that is not async would be called in a thread


HouseOf = Annotated[House, Depends(_house)]
"""The house, as a route's parameter."""
