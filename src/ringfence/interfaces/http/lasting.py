"""Streams that outlive their key: each ends soon after the key is revoked or expires, whatever it had left to say."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from typing import Final

from starlette.types import Message, Receive, Send

_LOOK_EVERY: Final = 1.0
_REVOKED: Final = 1008


class Lasting:
    """One answer or websocket; what passes through it has its key looked at again, now and then."""

    def __init__(self, receive: Receive, send: Send, is_valid: Callable[[], Awaitable[bool]]) -> None:
        """The key was valid just now."""
        self._receive = receive
        self._send = send
        self._is_valid = is_valid
        self._looked_at = time.monotonic()
        self._is_over = False

    async def receive(self) -> Message:
        """Take what comes; a websocket whose key is void is closed to its caller's next message."""
        message = await self._receive()
        if message["type"] == "websocket.receive" and await self._is_void():
            await self._end("websocket")
            return {"type": "websocket.disconnect", "code": _REVOKED}
        return message

    async def send(self, message: Message) -> None:
        """Pass on what is said, and nothing more once the key is void."""
        if self._is_over:
            return
        kind = message["type"]
        is_more = kind == "websocket.send" or (kind == "http.response.body" and message.get("more_body", False))
        if is_more and await self._is_void():
            await self._end(kind.partition(".")[0])
            return
        await self._send(message)

    async def _is_void(self) -> bool:
        now = time.monotonic()
        if now - self._looked_at < _LOOK_EVERY:
            return False
        self._looked_at = now
        return not await self._is_valid()

    async def _end(self, kind: str) -> None:
        if self._is_over:
            return
        self._is_over = True
        if kind == "websocket":
            await self._send({"type": "websocket.close", "code": _REVOKED, "reason": "no_key"})
        else:  # and the server then tells the route that nobody listens any more
            await self._send({"type": "http.response.body", "body": b"", "more_body": False})
