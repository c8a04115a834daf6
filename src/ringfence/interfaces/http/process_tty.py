"""`WS /sandbox/processes/{id}/tty`: a terminal over a websocket; bytes are bytes, text frames are controls as JSON."""

from __future__ import annotations

import asyncio
import json
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, WebSocket
from starlette.websockets import WebSocketDisconnect

from ringfence.authority import strict_json
from ringfence.errors import Denied, InvalidRequest, RingfenceError
from ringfence.interfaces.http.door import allowed, house_of, origin_name
from ringfence.interfaces.http.process_models import Offset
from ringfence.processes.process import Process
from ringfence.processes.running import MOST_SENT
from ringfence.service import processes
from ringfence.service.callers import Access, Principal

SUBPROTOCOL = "ringfence.tty"
"""What a browser offers beside the one that carries its key, and gets back."""
_NORMAL, _REFUSED = 1000, 1008

router = APIRouter()


@router.websocket("/{process_id}/tty")
async def tty(
    websocket: WebSocket,
    process_id: str,
    who: Annotated[Principal, Depends(allowed(Access.AGENT))],
    stdout_offset: Annotated[Offset, Query()] = 0,
) -> None:
    """Show the terminal of a process from an offset on, and type into it.

    Sent: bytes for the terminal; text `{"type": "resize", "rows": …, "columns": …}`, `{"type": "signal", "signal": …}`.
    Told: bytes of the terminal; text `{"type": "lost", "bytes": …}` and last `{"type": "ended", …}`.
    """
    house = house_of(websocket)
    require_own_page(websocket, house.settings.cors_origins)
    process = processes.found(house, who, process_id)
    if process.terminal is None:
        raise InvalidRequest("the process has no terminal", reason="no_terminal")
    offered = websocket.scope.get("subprotocols") or ()
    await websocket.accept(subprotocol=SUBPROTOCOL if SUBPROTOCOL in offered else None)
    showing = asyncio.ensure_future(_show(websocket, process, stdout_offset))
    typing = asyncio.ensure_future(_type(websocket, process))
    try:
        await asyncio.wait([showing, typing], return_when=asyncio.FIRST_COMPLETED)
        if showing.done():
            showing.result()
            await websocket.close(_NORMAL)
        else:
            typing.result()
    except RingfenceError as refused:
        await websocket.close(_REFUSED, f"{refused.code} {refused.reason}"[:120])
    except WebSocketDisconnect:
        pass  # the process goes on
    finally:
        showing.cancel()
        typing.cancel()
        await asyncio.gather(showing, typing, return_exceptions=True)


def require_own_page(websocket: WebSocket, allowed_origins: Any) -> None:
    """Refuse another site's page: browsers let any page open a websocket to anywhere.

    Raises:
        Denied: The page is neither of this service nor of an origin it is opened to.
    """
    origin = websocket.headers.get("origin")
    if origin is None or origin in (allowed_origins or ()):
        return
    if origin_name(origin) != websocket.headers.get("host", "").lower():
        raise Denied("a page of another site may not open a terminal here", reason="foreign_origin")


async def _show(websocket: WebSocket, process: Process, offset: int) -> None:
    async for name, at, data in process.stream(offset):
        if name != "stdout":
            continue
        if at > offset:
            await websocket.send_text(json.dumps({"type": "lost", "bytes": at - offset}))
        await websocket.send_bytes(data)
        offset = at + len(data)
    await websocket.send_text(json.dumps({"type": "ended", **processes.info_form(process.info)}))


async def _type(websocket: WebSocket, process: Process) -> None:
    """Pass on what is typed, as fast as the process reads: what it does not read yet waits with whoever types."""
    while True:
        message = await websocket.receive()
        if message["type"] == "websocket.disconnect":
            raise WebSocketDisconnect(message.get("code") or _NORMAL)
        data = message.get("bytes")
        if data is None:
            await _control(process, message.get("text") or "")
            continue
        for start in range(0, len(data), MOST_SENT):
            await process.send(data[start : start + MOST_SENT])


async def _control(process: Process, text: str) -> None:
    try:
        asked = strict_json.read(text.encode())
        kind = asked["type"]
        if kind == "resize":
            await process.resize(asked["rows"], asked["columns"])
        elif kind == "signal":
            await process.signal(str(asked["signal"]))
        else:
            raise InvalidRequest("a control is of type resize or signal", reason="invalid_value")
    except (ValueError, KeyError, TypeError, RecursionError):
        raise InvalidRequest("a text frame is a control, as JSON", reason="malformed") from None
