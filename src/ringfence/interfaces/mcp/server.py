"""The server of the protocol over a manager: it lists what is offered, checks every argument and carries out calls."""

from __future__ import annotations

import logging
import re
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from mcp.server.lowlevel.server import Server
from mcp.shared.exceptions import MCPError
from mcp_types import INVALID_PARAMS, CallToolRequestParams, CallToolResult, ListToolsResult, PaginatedRequestParams

from ringfence.errors import InternalError, QuotaExceeded, RingfenceError
from ringfence.evidence.correlation import Correlation
from ringfence.interfaces.mcp import files, runs
from ringfence.interfaces.mcp.answers import refusal
from ringfence.interfaces.mcp.carrying import Progress, Report
from ringfence.version import __version__

if TYPE_CHECKING:
    from mcp.server.context import ServerRequestContext

    from ringfence.facade import SandboxManager
    from ringfence.interfaces.mcp.offer import Offer

SeatOf = Callable[["ServerRequestContext[Any, Any]"], "Seat"]
"""Says whom a request acts for."""
Offers = Callable[["SandboxManager"], Awaitable[Sequence["Offer"]]]
"""Says what a caller is offered."""

MOST_CALLS: Final = 64
"""Calls of one tenant that may be under way; one more is refused at once, and may be tried again."""
_MOST_TOKEN: Final = 256
_TRACEPARENT = re.compile(r"00-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}\Z")
_INSTRUCTIONS = (
    "Everything here runs in an isolated box or on the files of one project, is checked against a policy first and is "
    "recorded. A refusal is a tool error that says what would be needed."
)

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Seat:
    """Whom one request acts for: a manager that can touch nothing of anybody else, and on whose account it counts."""

    manager: SandboxManager
    tenant: str
    project: str


async def built_in(_manager: SandboxManager) -> Sequence[Offer]:
    """Return the tools that are there without a skill."""
    return (*runs.OFFERS, *files.OFFERS)


def build(seat_of: SeatOf, offers: Offers = built_in) -> Server[Any]:
    """Return the server; whom a request acts for is asked for every one of them."""
    desk = Desk(seat_of, offers)
    return Server(
        "ringfence",
        version=__version__,
        title="Ringfence",
        description="Runs what a model wrote, in real isolation, with proof of what happened.",
        instructions=_INSTRUCTIONS,
        on_list_tools=desk.list_tools,
        on_call_tool=desk.call_tool,
    )


class Desk:
    """Answers `tools/list` and `tools/call`."""

    def __init__(self, seat_of: SeatOf, offers: Offers) -> None:
        self._seat_of = seat_of
        self._offers = offers
        self._under_way: Counter[str] = Counter()

    async def list_tools(
        self, context: ServerRequestContext[Any, Any], _params: PaginatedRequestParams | None
    ) -> ListToolsResult:
        """Return every tool that the caller is offered."""
        offers = await self._offers(self._seat_of(context).manager)
        return ListToolsResult(tools=[offer.described() for offer in offers])

    async def call_tool(self, context: ServerRequestContext[Any, Any], params: CallToolRequestParams) -> CallToolResult:
        """Carry out one call; whatever is refused, or fails, is a tool error that says so."""
        report = _report_of(context)
        seat = self._seat_of(context)
        manager = seat.manager.acting_for(correlation=_correlation(context, seat.project))
        offer = next((each for each in await self._offers(manager) if each.name == params.name), None)
        if offer is None:
            raise MCPError(INVALID_PARAMS, f"there is no tool {params.name[:100]!a}; see tools/list")
        if self._under_way[seat.tenant] >= MOST_CALLS:
            return refusal(QuotaExceeded(f"{MOST_CALLS} calls are under way", reason="concurrency", fix="try later"))
        self._under_way[seat.tenant] += 1
        try:
            return await self._carry(offer, manager, params.arguments or {}, report)
        finally:
            self._under_way[seat.tenant] -= 1
            self._under_way += Counter()  # forgets whoever has none under way

    async def _carry(
        self, offer: Offer, manager: SandboxManager, arguments: Mapping[str, Any], report: Report | None
    ) -> CallToolResult:
        try:
            offer.check(arguments)
        except RingfenceError as error:
            return refusal(error)
        try:
            return await Progress(report).during(lambda on_output: offer.carry(manager, arguments, on_output))
        except RingfenceError as error:
            return refusal(error, offer.needs(arguments))
        except Exception:
            log.exception("%s failed", offer.name)
            return refusal(InternalError("the tool failed", fix="see the log of the server"))


def _report_of(context: ServerRequestContext[Any, Any]) -> Report | None:
    """Return how to tell the client of progress, where it asked for it with a token of its own.

    Raises:
        MCPError: The token is longer than one that says which call it is: it would come back with every line.
    """
    token = (context.meta or {}).get("progress_token")
    if token is None:
        return None
    if len(str(token)) > _MOST_TOKEN:
        raise MCPError(INVALID_PARAMS, f"progressToken must be at most {_MOST_TOKEN} characters")
    session = context.session

    async def report(progress: float, message: str) -> None:
        await session.report_progress(progress, message=message)

    return report


def _correlation(context: ServerRequestContext[Any, Any], project: str) -> Correlation:
    """Return what the evidence is found by: the client's number of the request, and its trace where it has one."""
    request_id = str(context.request_id)
    trace = (context.meta or {}).get("traceparent")
    return Correlation(
        project_id=project if 0 < len(project) <= _MOST_TOKEN and project.isprintable() else None,
        request_id=request_id if 0 < len(request_id) <= _MOST_TOKEN and request_id.isprintable() else None,
        traceparent=trace if isinstance(trace, str) and _TRACEPARENT.match(trace) else None,
    )
