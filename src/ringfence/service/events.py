"""What an execution has to tell while it goes on: its states and its output, kept in a bounded ring with their numbers.

Whoever comes late or comes again reads on from any number; what the ring no longer has is named, never skipped.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
from collections import deque
from typing import Final, NamedTuple

RING_BYTES: Final = 256 * 1024
RING_EVENTS: Final = 4096
HEARTBEAT_SECONDS: Final = 15.0
_encode = json.JSONEncoder(separators=(",", ":")).encode


class Event(NamedTuple):
    """One thing that happened; `number` counts from 1 within its execution."""

    number: int
    name: str
    data: str


class Ring:
    """The last events of one execution, and those who wait for the next; of one event loop."""

    __slots__ = ("_changed", "_events", "_next", "_offsets", "_size", "is_over")

    def __init__(self) -> None:
        """Nothing happened yet."""
        self._events: deque[Event] = deque()
        self._size = 0
        self._next = 1
        self._offsets: dict[str, int] = {}
        self._changed: asyncio.Event | None = None
        self.is_over = False

    @property
    def last(self) -> int:
        """The number of the newest event; 0 before the first."""
        return self._next - 1

    @property
    def size(self) -> int:
        """How many characters the events that are kept have."""
        return self._size

    def status(self, status: str) -> None:
        """Say that the execution is in another state."""
        self._add("status", f'{{"status":"{status}"}}')  # a word of `Status`

    def output(self, stream: str, chunk: bytes) -> None:
        """Say what came out: the bytes, and the text where they are text."""
        offset = self._offsets.get(stream, 0)
        self._offsets[stream] = offset + len(chunk)
        data = {"stream": stream, "offset": offset, "data_b64": base64.b64encode(chunk).decode()}
        with contextlib.suppress(UnicodeDecodeError):
            data["text"] = chunk.decode()
        self._add("output", _encode(data))

    def end(self) -> None:
        """Nothing more will happen."""
        self.is_over = True
        self._wake()

    def after(self, number: int) -> tuple[Event, ...]:
        """Return what happened after an event; first of all what of it is lost, if anything is."""
        first = self._next - len(self._events)
        kept = tuple(event for event in self._events if event.number > number)
        if number + 1 < first:
            lost = _encode({"from": number + 1, "to": first - 1})
            return (Event(first - 1, "lost", lost), *kept)
        return kept

    async def wait(self, number: int, seconds: float) -> bool:
        """Wait until something happened after an event, or everything has; False when nothing did for so long."""
        if self._next > number + 1 or self.is_over:
            return True
        if self._changed is None:
            self._changed = asyncio.Event()
        try:
            async with asyncio.timeout(seconds):
                await self._changed.wait()
        except TimeoutError:
            return False
        return True

    def _add(self, name: str, data: str) -> None:
        event = Event(self._next, name, data)
        self._next += 1
        self._events.append(event)
        self._size += len(event.data)
        while self._size > RING_BYTES or len(self._events) > RING_EVENTS:
            if len(self._events) == 1:
                break
            self._size -= len(self._events.popleft().data)
        self._wake()

    def _wake(self) -> None:
        changed, self._changed = self._changed, None
        if changed is not None:
            changed.set()


def forgotten(status: str, after: int) -> Ring:
    """Return the ring of an execution whose own is gone: that whatever it had is lost, and the state it ended in."""
    ring = Ring()
    ring._next = after + 1
    ring._add("lost", _encode({"from": after + 1, "to": None}))
    ring.status(status)
    ring.end()
    return ring
