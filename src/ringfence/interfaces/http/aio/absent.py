"""What AIO has and this service has not: each call is told so, and nothing is pretended."""

from __future__ import annotations

from typing import Final

from starlette.responses import Response

from ringfence.interfaces.http.aio import envelope
from ringfence.interfaces.http.aio.seat import AtSeat
from ringfence.interfaces.http.execs import as_json
from ringfence.interfaces.http.problem import problem_of
from ringfence.interfaces.http.routes import Router

router = Router(include_in_schema=False)
_PARTS: Final = ("browser", "display", "proxy", "util", "nodejs/info", "nodejs/sessions", "sandbox/hooks", "file/watch")
_METHODS: Final = ["GET", "POST", "PUT", "PATCH", "DELETE"]
_NOT_IMPLEMENTED: Final = 501


async def absent(_seat: AtSeat) -> Response:
    """Refuse a call with an envelope."""
    raise envelope.absent("such part")


@router.get("/v1/browser/screenshot")
@router.get("/v1/browser/page/screenshot")
@router.get("/v1/browser/proxy.pac")
async def no_stream(_seat: AtSeat) -> Response:
    """Refuse by the status what is answered with bytes: a client would take an envelope for a picture."""
    missing = envelope.absent("such part").error
    return as_json(envelope.refused(problem_of(missing)), _NOT_IMPLEMENTED)


for _part in _PARTS:
    router.add_api_route(f"/v1/{_part}", absent, methods=_METHODS)
    router.add_api_route(f"/v1/{_part}/{{rest:path}}", absent, methods=_METHODS)
