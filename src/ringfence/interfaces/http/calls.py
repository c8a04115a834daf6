"""Grants that come beside a request, and `DELETE /grants/calls/{call_id}`, the end of a call made under one."""

from __future__ import annotations

from typing import Annotated, Final

from fastapi import Depends, Path
from starlette.requests import HTTPConnection
from starlette.responses import Response

from ringfence.errors import InvalidRequest
from ringfence.interfaces.http.door import HouseOf, allowed
from ringfence.interfaces.http.routes import Router
from ringfence.service.callers import Access, Principal
from ringfence.service.calls import GrantShown, grant_shown

router = Router(prefix="/grants/calls", tags=["grants"])
GRANT_HEADER: Final = "x-ringfence-grant"
CALL_HEADER: Final = "x-ringfence-call"
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
    given = [connection.headers.getlist(name) for name in (GRANT_HEADER, CALL_HEADER)]
    if any(len(values) > 1 for values in given):  # of two nobody can say which one is meant
        raise InvalidRequest("X-Ringfence-Grant and X-Ringfence-Call are given once", reason="invalid_value")
    token, call_id = (values[0] if values else None for values in given)
    return grant_shown(token, call_id)


def refuse_grant_elsewhere(connection: HTTPConnection) -> None:
    """Refuse a grant where no route takes one: left out, it would give its caller more than it allows.

    Raises:
        InvalidRequest: There is one.
    """
    path: str = connection.scope["path"]
    taken = path.startswith(_TAKEN_BY) or (path.startswith("/skills/") and path.endswith("/invoke"))
    if GRANT_HEADER in connection.headers and not taken:
        raise InvalidRequest("this path takes no grant in this version", reason="not_in_this_version")
