"""Sends the head of an answer together with its body: one system call, and one time that the client is woken."""

from __future__ import annotations

import asyncio
from typing import Any, Final

_ENOUGH: Final = 16 * 1024
"""What is larger leaves at once: the transport below says when a client does not read, and nothing is kept from it."""


class Joined(asyncio.Transport):
    """A transport that keeps what is written until the answer is whole, or until the event loop comes round."""

    def __init__(self, below: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        """Write to `below`, which stays whose protocol it was."""
        super().__init__()
        self.below = below
        self._loop = loop
        self._held: list[bytes] = []
        self._size = 0
        self._soon: asyncio.Handle | None = None

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Take some of an answer."""
        if not data:
            return
        self._held.append(bytes(data))
        self._size += len(data)
        if self._size > _ENOUGH:
            self.flush()
        elif self._soon is None:
            self._soon = self._loop.call_soon(self.flush)

    def flush(self) -> None:
        """Send what was taken."""
        if self._soon is not None:
            self._soon.cancel()
            self._soon = None
        if self._held:
            whole = self._held[0] if len(self._held) == 1 else b"".join(self._held)
            self._held.clear()
            self._size = 0
            self.below.write(whole)

    def close(self) -> None:
        """Close once everything is sent."""
        self.flush()
        self.below.close()

    def abort(self) -> None:
        """Close at once, whatever was not sent."""
        self._held.clear()
        self._size = 0
        self.flush()
        self.below.abort()

    def pause_reading(self) -> None:
        """Take nothing from the client for a while."""
        self.below.pause_reading()

    def resume_reading(self) -> None:
        """Take what the client sends again."""
        self.below.resume_reading()

    def is_closing(self) -> bool:
        """Whether nothing can be written any more."""
        return self.below.is_closing()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """Return what is known about the connection."""
        return self.below.get_extra_info(name, default)
