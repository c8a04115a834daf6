"""Grants that come beside a request, and `DELETE /grants/calls/{call_id}`, the end of a call made under one."""

from __future__ import annotations

from typing import Annotated, Final

from fastapi import Depends, Path
from starlette.requests import HTTPConnection
from starlette.responses import Response

from ringfence.errors import InvalidRequest
from ringfence.interfaces.http.door import HouseOf, allowed
from ringfence.interfaces.http.headers import first_of
from ringfence.interfaces.http.routes import Router
from ringfence.service.callers import Access, Principal
from ringfence.service.calls import GrantShown, grant_shown

router = Router(prefix="/grants/calls", tags=["grants"])
GRANT_HEADER: Final = "x-ringfence-grant"
CALL_HEADER: Final = "x-ringfence-call"
_HEADERS: Final = (GRANT_HEADER.encode(), CALL_HEADER.encode())
_TAKEN_BY: Final = ("/sandbox/execs", "/sandbox/ops", "/grants/calls/")


@router.delete("/{call_id}", status_code=204, response_class=Response, response_model=None)
async def end_call(
    call_id: Annotated[str, Path(min_length=1, max_length=256)],
    who: Annotated[Principal, Depends(allowed(Access.AGENT))],
    house: HouseOf,
) -> Response:
    """End a call that was made under a grant: whoever shows it again replays it. Ending it twice changes nothing."""
    await house.calls.end(who, call_id)
    return Response(status_code=204)


def grant_of(connection: HTTPConnection) -> GrantShown | None:
    """Return the grant that came with a request.

    Raises:
        InvalidRequest: The headers are not as they should be.
    """
    given = [header for header in connection.scope["headers"] if header[0] in _HEADERS]
    if not given:
        return None
    shown = {name: value.decode("latin-1") for name, value in given}
    if len(shown) < len(given):  # of two nobody can say which one is meant
        raise InvalidRequest("X-Ringfence-Grant and X-Ringfence-Call are given once", reason="invalid_value")
    return grant_shown(*(shown.get(name) for name in _HEADERS))


def refuse_grant_elsewhere(connection: HTTPConnection) -> None:
    """Refuse a grant where no route takes one: left out, it would give its caller more than it allows.

    Raises:
        InvalidRequest: There is one.
    """
    path: str = connection.scope["path"]
    taken = path.startswith(_TAKEN_BY) or (path.startswith("/skills/") and path.endswith("/invoke"))
    if not taken and first_of(connection.scope, _HEADERS[0]) is not None:
        raise InvalidRequest("this path takes no grant in this version", reason="not_in_this_version")
