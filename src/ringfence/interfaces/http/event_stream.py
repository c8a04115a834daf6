"""Server-sent events of one execution, written straight to the connection: a client that only waits costs two tasks.

A client that comes again says in `Last-Event-ID` what it has; where the ring no longer has what follows, a `lost` event
says so. The last event is `result`, or `problem`.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any, Final

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from ringfence.errors import RingfenceError
from ringfence.interfaces.http.problem import problem_of
from ringfence.service.events import HEARTBEAT_SECONDS, Event
from ringfence.service.execs import Stream

EVENT_SCHEMA: Final = {
    "type": "object",
    "required": ["event", "data"],
    "properties": {"id": {"type": "string"}, "event": {"type": "string"}, "data": {"type": "string"}},
}
"""One event, as the OpenAPI document describes it; `data` is JSON."""
_SIGN_OF_LIFE = b": still here\n\n"


class EventStream(Response):
    """Answers with the events of a stream until it is over, or nobody listens any more."""

    media_type = "text/event-stream"

    def __init__(
        self, stream: Stream, after: int, *, is_ending: Callable[[], bool], heartbeat: float = HEARTBEAT_SECONDS
    ) -> None:
        """`is_ending` is whether the service is about to end, and with it every answer."""
        super().__init__(headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        self._stream = stream
        self._after = after
        self._is_ending = is_ending
        self._heartbeat = heartbeat

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002  ASGI has it
        """Send what there is, then what comes."""
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        # the first bytes at once: some clients take nothing for an answer until the body begins
        await send({"type": "http.response.body", "body": b"retry: 2000\n\n", "more_body": True})
        leaving = asyncio.ensure_future(_until_gone(receive))
        try:
            await self._tell(send, leaving)
        finally:
            leaving.cancel()
        if not leaving.done():
            await send({"type": "http.response.body", "body": b""})

    async def _tell(self, send: Send, leaving: asyncio.Future[None]) -> None:
        ring, after = self._stream.ring, self._after
        while not leaving.done():
            events = ring.after(after)
            if events:
                after = events[-1].number
                body = b"".join(map(_written, events))
                await send({"type": "http.response.body", "body": body, "more_body": True})
            elif ring.is_over:
                ending = Event(max(ring.last, after) + 1, *_concluded(await self._stream.conclusion()))
                await send({"type": "http.response.body", "body": _written(ending), "more_body": True})
                return
            elif not await ring.wait(after, self._heartbeat):
                if self._is_ending():
                    return
                await send({"type": "http.response.body", "body": _SIGN_OF_LIFE, "more_body": True})


async def _until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _written(event: Event) -> bytes:
    return f"id: {event.number}\nevent: {event.name}\ndata: {event.data}\n\n".encode()


def _concluded(ending: dict[str, Any] | RingfenceError) -> tuple[str, str]:
    if isinstance(ending, RingfenceError):
        return "problem", json.dumps(problem_of(ending), separators=(",", ":"))
    return "result", json.dumps(ending, separators=(",", ":"))
