"""`/v1/mcp`: the tools of this service's own MCP server, listed and called without the protocol."""

from __future__ import annotations

from contextlib import nullcontext
from importlib.util import find_spec
from typing import Annotated, Any, Final

from fastapi import Body, Path
from starlette.responses import Response

from ringfence.errors import InvalidRequest, Unavailable
from ringfence.interfaces.http.aio.envelope import Envelope, View, expected, told
from ringfence.interfaces.http.aio.seat import AtSeat
from ringfence.interfaces.http.execs import taking_work
from ringfence.interfaces.http.routes import Router

router = Router(prefix="/v1/mcp", tags=["aio mcp"])
SERVER: Final = "ringfence"
Name = Annotated[str, Path(min_length=1, max_length=256)]


class ToolsView(View):
    """The tools of a server."""

    tools: list[dict[str, Any]]


class CalledView(View):
    """What came of a call."""

    content: list[dict[str, Any]]


@router.get("/servers", response_model=None, responses={200: {"model": Envelope[list[str]]}})
async def servers(_seat: AtSeat) -> Response:
    """List the servers: the one there is."""
    return told([SERVER])


@router.get("/{server_name}/tools", response_model=None, responses={200: {"model": Envelope[ToolsView]}})
async def tools(seat: AtSeat, server_name: Name) -> Response:
    """List the tools that the caller is offered."""
    with expected("list_tools", tools=[]):
        _require(server_name)
        from ringfence.interfaces.mcp.server import Offers  # not at the top: its library is large, and an extra

        offered = await Offers().all(seat.manager)
    return told({"tools": [_json(offer.described()) for offer in offered]})


@router.post("/{server_name}/tools/{tool_name}", response_model=None, responses={200: {"model": Envelope[CalledView]}})
async def call(
    seat: AtSeat, server_name: Name, tool_name: Name, arguments: Annotated[dict[str, Any] | None, Body()] = None
) -> Response:
    """Call a tool; a refusal is a result with `isError`, as the protocol has it."""
    with expected("call_tool", content=[], isError=True):
        _require(server_name)
        from ringfence.interfaces.mcp.server import Offers, carry

        manager = seat.manager
        offer = await Offers().find(manager, tool_name)
        if offer is None:
            raise InvalidRequest("there is no such tool", reason="not_found")
        turn = taking_work(seat.house).turn_for(seat.who, seat.correlation) if offer.takes_turn else nullcontext()
        result = await carry(offer, manager, arguments or {}, None, turn)
    return told(_json(result), "the tool was called")


def _require(server_name: str) -> None:
    if server_name != SERVER:
        raise InvalidRequest("there is no such server", reason="not_found")
    if find_spec("mcp") is None:
        raise Unavailable("the MCP server is not installed", reason="extra_missing", fix="pip install 'ringfence[mcp]'")


def _json(model: Any) -> dict[str, Any]:
    dumped: dict[str, Any] = model.model_dump(mode="json", by_alias=True, exclude_none=True)
    return dumped
