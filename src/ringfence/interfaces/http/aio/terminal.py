"""`WS /v1/shell/ws`: a terminal for as long as somebody is connected to it, in AIO's messages."""

from __future__ import annotations

import asyncio
import codecs
import json
import time
from typing import Any, Final

from fastapi import APIRouter, WebSocket
from starlette.websockets import WebSocketDisconnect

from ringfence.authority import strict_json
from ringfence.errors import InvalidRequest, RingfenceError
from ringfence.interfaces.http.aio.seat import AtSeat, Seat
from ringfence.interfaces.http.process_tty import require_own_page
from ringfence.operation import CodeRun, Language
from ringfence.processes.process import Process
from ringfence.processes.running import MOST_SENT
from ringfence.service.aio.commands import TERMINAL
from ringfence.service.aio.sessions import IDLE_SECONDS

router = APIRouter()
_SHELL: Final = "exec bash --norc -i"
_PING_SECONDS: Final = 30.0
_NORMAL, _REFUSED = 1000, 1008


@router.websocket("/v1/shell/ws")
async def terminal(websocket: WebSocket, seat: AtSeat) -> None:
    """Start a shell of the project and connect it: one run, which ends with the connection.

    Sent: `{"type": "input", "data"}`, `{"type": "resize", "data": {"cols", "rows"}}`, `{"type": "pong"}`.
    Told: `session_id`, `ready`, then `output` as it comes, and `ping`.
    """
    require_own_page(websocket, seat.house.settings.cors_origins)
    process = await _started(seat)
    try:
        await websocket.accept()
        await _say(websocket, "session_id", process.process_id)
        await _say(websocket, "ready", None)
        await _connect(websocket, process)
    finally:
        await asyncio.shield(process.kill())


async def _started(seat: Seat) -> Process:
    longest = seat.house.manager.engine.authority.longest(CodeRun(Language.BASH, _SHELL))
    return await seat.manager.start_process(_SHELL, terminal=TERMINAL, timeout=longest, idle_timeout=IDLE_SECONDS)


async def _connect(websocket: WebSocket, process: Process) -> None:
    """Show and type until one side has had enough; a message that is none ends it."""
    tasks = [asyncio.ensure_future(work(websocket, process)) for work in (_show, _type, _ping)]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
        await websocket.close(_NORMAL)
    except RingfenceError as refused:
        await websocket.close(_REFUSED, f"{refused.code} {refused.reason}"[:120])
    except WebSocketDisconnect:
        pass
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _show(websocket: WebSocket, process: Process) -> None:
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    async for _, _, data in process.stream():
        await _say(websocket, "output", decoder.decode(data))


async def _ping(websocket: WebSocket, _process: Process) -> None:
    while True:
        await asyncio.sleep(_PING_SECONDS)
        await _say(websocket, "ping", time.time())


async def _type(websocket: WebSocket, process: Process) -> None:
    while True:
        try:
            message = strict_json.read((await websocket.receive_text()).encode())
            kind, data = message["type"], message.get("data")
            if kind == "input":
                await _input(process, str(data))
            elif kind == "resize":
                await process.resize(data["rows"], data["cols"])
            elif kind != "pong":
                raise InvalidRequest("a message is of type input, resize or pong", reason="invalid_value")
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            raise InvalidRequest("a message is an object with a type and data", reason="malformed") from None


async def _input(process: Process, text: str) -> None:
    data = text.encode()
    for start in range(0, len(data), MOST_SENT):
        await process.send(data[start : start + MOST_SENT])


async def _say(websocket: WebSocket, kind: str, data: Any) -> None:
    await websocket.send_text(json.dumps({"type": kind, "data": data}))
