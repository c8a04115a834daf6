"""`GET /metrics`: what the evidence amounts to, of every tenant to those who may see that, else of the caller's own."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from typing import Annotated, Any

from fastapi import Depends, Request
from starlette.responses import PlainTextResponse

from ringfence.interfaces.cli.evidence_desk import INTACT, read_place
from ringfence.interfaces.cli.metrics import counted
from ringfence.interfaces.http.door import HouseOf, allowed
from ringfence.interfaces.http.evidence_desk import HouseDesk
from ringfence.interfaces.http.routes import Router
from ringfence.metrics.exposition import OPENMETRICS, PROMETHEUS, openmetrics_text, prometheus_text
from ringfence.metrics.recorder import Recorder
from ringfence.service.callers import Access, Principal
from ringfence.service.house import House
from ringfence.service.tally import watch_pool

router = Router(tags=["metrics"])
_counting = threading.Lock()
_TEXT: dict[int | str, dict[str, Any]] = {200: {"content": {"text/plain": {"schema": {"type": "string"}}}}}


@router.get("/metrics", response_class=PlainTextResponse, responses=_TEXT)
async def get_metrics(
    who: Annotated[Principal, Depends(allowed(Access.OPERATOR, Access.AUDITOR))], house: HouseOf, request: Request
) -> PlainTextResponse:
    """Return the numbers in the text that Prometheus scrapes, or as OpenMetrics where that is asked for."""
    recorder = await house.readers.read(who.tenant, _recorder, house, who.reads)
    if "application/openmetrics-text" in request.headers.get("accept", ""):
        return PlainTextResponse(openmetrics_text(recorder), media_type=OPENMETRICS)
    return PlainTextResponse(prometheus_text(recorder), media_type=PROMETHEUS)


def _recorder(house: House, tenant: str | None) -> Recorder:
    desk = HouseDesk(house)
    if tenant is None:
        with _counting:
            recorder = counted(desk)
        watch_pool(recorder, house.manager)
        return recorder

    def records(position: Mapping[str, int]) -> Iterator[tuple[str, int, Mapping[str, Any]]]:
        known = dict(position)  # it moves while it is read
        with desk.reading() as reader:
            for log in reader.logs():
                first = max(log.first_seq, known.get(log.log_id, -1) + 1)
                for place in reader.records(log.number, first):
                    read = read_place(place)
                    yield log.log_id, place.seq, read.members if read.state == INTACT else {}

    return house.tallies.of(tenant, records)
