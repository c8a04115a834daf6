"""Server-sent events of one process: what it says, by its place, and last how it ended.

The id of an event is where both of its outputs stood after it, so whoever comes again with `Last-Event-ID` goes on from
there, and a `lost` event tells of bytes that were asked for and are no longer kept.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from ringfence.errors import InvalidRequest
from ringfence.processes.process import Process
from ringfence.processes.running import ProcessOutput
from ringfence.service.events import HEARTBEAT_SECONDS
from ringfence.service.processes import info_form, piece_form

_SIGN_OF_LIFE = b": still here\n\n"
_AT_ONCE = 64 * 1024
_MOST = 2**53


class ProcessEvents(Response):
    """Answers with what a process says until it is over, or nobody listens any more."""

    media_type = "text/event-stream"

    def __init__(self, process: Process, offsets: tuple[int, int], *, is_ending: Callable[[], bool]) -> None:
        """`is_ending` is whether the service is about to end, and with it every answer."""
        super().__init__(headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        self._process = process
        self._offsets = offsets
        self._is_ending = is_ending

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002  ASGI has it
        """Send what there is, then what comes."""
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        await send({"type": "http.response.body", "body": b"retry: 2000\n\n", "more_body": True})
        leaving = asyncio.ensure_future(_until_gone(receive))
        telling = asyncio.ensure_future(self._tell(send))
        try:
            await asyncio.wait([leaving, telling], return_when=asyncio.FIRST_COMPLETED)
        finally:
            leaving.cancel()
            telling.cancel()
        if telling.done() and not telling.cancelled():
            telling.result()
            await send({"type": "http.response.body", "body": b""})

    async def _tell(self, send: Send) -> None:
        stdout, stderr = self._offsets
        while True:
            said = await self._process.poll(stdout, stderr, _AT_ONCE, HEARTBEAT_SECONDS)
            events = list(_events(said))
            stdout, stderr = said.stdout.next_offset, said.stderr.next_offset
            if not events and self._process.info.state == said.state and self._process.is_over:
                events.append(("ended", info_form(self._process.info)))
            body = b"".join(_written(f"{stdout}-{stderr}", name, data) for name, data in events)
            await send({"type": "http.response.body", "body": body or _SIGN_OF_LIFE, "more_body": True})
            if (events and events[-1][0] == "ended") or (not events and self._is_ending()):
                return


def read_event_id(text: str) -> tuple[int, int]:
    """Return the offsets that an event's id stands for.

    Raises:
        InvalidRequest: It is none of ours.
    """
    parts = text.split("-")
    if len(parts) == 2 and all(part.isascii() and part.isdecimal() and len(part) < 17 for part in parts):
        stdout, stderr = map(int, parts)
        if max(stdout, stderr) < _MOST:
            return stdout, stderr
    raise InvalidRequest("Last-Event-ID is no id of an event of a process", reason="invalid_value")


def _events(said: ProcessOutput) -> list[tuple[str, dict[str, Any]]]:
    told: list[tuple[str, dict[str, Any]]] = []
    for name, piece in (("stdout", said.stdout), ("stderr", said.stderr)):
        if piece.lost_bytes:
            told.append(("lost", {"stream": name, "bytes": piece.lost_bytes, "offset": piece.offset}))
        if piece.data:
            told.append(("output", {"stream": name, **piece_form(piece)}))
    return told


def _written(number: str, name: str, data: dict[str, Any]) -> bytes:
    return f"id: {number}\nevent: {name}\ndata: {json.dumps(data, separators=(',', ':'))}\n\n".encode()


async def _until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
