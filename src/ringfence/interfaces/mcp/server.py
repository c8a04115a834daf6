"""The server of the protocol over a manager: it lists what is offered, checks every argument and carries out calls."""

from __future__ import annotations

import logging
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import TYPE_CHECKING, Any, Final

from mcp.server.lowlevel.server import Server
from mcp.shared.exceptions import MCPError
from mcp_types import INVALID_PARAMS, CallToolRequestParams, CallToolResult, ListToolsResult, PaginatedRequestParams

from ringfence.dataclass import dataclass
from ringfence.errors import InternalError, QuotaExceeded, RingfenceError
from ringfence.evidence.correlation import Correlation
from ringfence.interfaces.mcp import files, pages, processes, runs, skills, web
from ringfence.interfaces.mcp.answers import refusal
from ringfence.interfaces.mcp.carrying import Progress, Report
from ringfence.version import __version__

if TYPE_CHECKING:
    from mcp.server.context import ServerRequestContext

    from ringfence.facade import SandboxManager
    from ringfence.interfaces.mcp.offer import Offer
    from ringfence.outcome import OnOutput

SeatOf = Callable[["ServerRequestContext[Any, Any]"], "Seat"]
"""Says whom a request acts for."""

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
    turn: Callable[[Correlation], AbstractAsyncContextManager[None]] = lambda _correlation: nullcontext()
    """Waits for a box of the service, in line with everybody else."""


BUILT_IN: Final = (*runs.OFFERS, *files.OFFERS, *processes.OFFERS, *web.OFFERS, *pages.OFFERS)


class Offers:
    """What callers are offered: the same built-in tools to everybody, and the skills that a role may use."""

    def __init__(self, always: Sequence[Offer] = BUILT_IN) -> None:
        """`always` are those that are there without a skill."""
        self._always = {offer.name: offer for offer in always}

    async def all(self, manager: SandboxManager) -> Sequence[Offer]:
        """Return what the manager's caller is offered."""
        return (*self._always.values(), *await skills.offers(manager))

    async def find(self, manager: SandboxManager, name: str) -> Offer | None:
        """Return one of those, by its exact name."""
        return self._always.get(name) or await skills.find(manager, name)

    def schema_of(self, name: str) -> Mapping[str, Any] | None:
        """Return the arguments of a built-in tool: what the transport compares the headers of a request with."""
        found = self._always.get(name)
        return None if found is None else found.input_schema


def build(seat_of: SeatOf, offers: Offers | None = None) -> Server[Any]:
    """Return the server; whom a request acts for is asked for every one of them."""
    offers = offers or Offers()
    desk = Desk(seat_of, offers)
    return Server(
        "ringfence",
        version=__version__,
        title="Ringfence",
        description="Runs what a model wrote, in real isolation, with proof of what happened.",
        instructions=_INSTRUCTIONS,
        get_tool_input_schema=offers.schema_of,
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
        offers = await self._offers.all(self._seat_of(context).manager)
        return ListToolsResult(tools=[offer.described() for offer in offers])

    async def call_tool(self, context: ServerRequestContext[Any, Any], params: CallToolRequestParams) -> CallToolResult:
        """Carry out one call; whatever is refused, or fails, is a tool error that says so."""
        report = _report_of(context)
        seat = self._seat_of(context)
        correlation = _correlation(context, seat.project)
        manager = seat.manager.acting_for(correlation=correlation)
        offer = await self._offers.find(manager, params.name)
        if offer is None:
            raise MCPError(INVALID_PARAMS, f"there is no tool {params.name[:100]!a}; see tools/list")
        if self._under_way[seat.tenant] >= MOST_CALLS:
            return refusal(QuotaExceeded(f"{MOST_CALLS} calls are under way", reason="concurrency", fix="try later"))
        self._under_way[seat.tenant] += 1
        try:
            turn = seat.turn(correlation) if offer.takes_turn else nullcontext()
            return await carry(offer, manager, params.arguments or {}, report, turn)
        finally:
            self._under_way[seat.tenant] -= 1
            self._under_way += Counter()  # forgets whoever has none under way


async def carry(
    offer: Offer,
    manager: SandboxManager,
    arguments: Mapping[str, Any],
    report: Report | None,
    turn: AbstractAsyncContextManager[None],
) -> CallToolResult:
    """Carry out a call of an offer when it is its turn; a refusal or a failure is a tool error that says so."""
    in_structure = offer.has_errors_in_structure

    async def carried(on_output: OnOutput) -> CallToolResult:
        async with turn:
            return await offer.carry(manager, arguments, on_output)

    try:
        offer.check(arguments)
    except RingfenceError as error:
        return refusal(error, in_structure=in_structure)
    try:
        return await Progress(report).during(carried)
    except MCPError:
        raise  # an error of the protocol, such as a capability that its client lacks, and none of the tool
    except RingfenceError as error:
        return refusal(error, offer.needs(arguments), in_structure=in_structure)
    except Exception:
        log.exception("%s failed", offer.name)
        failed = InternalError("the tool failed", fix="see the log of the server")
        return refusal(failed, in_structure=in_structure)


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
