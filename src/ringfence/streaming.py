"""What was heard of a run and not read yet: bounded however slow its reader is, with no gap unsaid."""

from __future__ import annotations

from collections import deque

from ringfence.isolation.capture import gap_line

MOST_UNREAD = 4 * 1024 * 1024
"""How many bytes wait for a reader; beyond that the oldest give way, and a line says how many did."""

_OVERHEAD = 256  # of an entry, so that a guest which prints byte by byte is not cheaper than it is


class Backlog:
    """What was heard and not read yet: in order, never more than `most` bytes, and no gap unsaid."""

    def __init__(self, most: int = MOST_UNREAD) -> None:
        """Hold up to `most` bytes, counting what an entry costs by itself."""
        self._most = most
        self._entries: deque[tuple[str, bytes]] = deque()
        self._weight = 0
        self._lost: dict[str, int] = {}
        self._taken: dict[str, bytes] = {}

    def put(self, name: str, data: bytes) -> None:
        """Add a chunk; the oldest ones give way."""
        self._entries.append((name, data))
        self._weight += len(data) + _OVERHEAD
        while self._weight > self._most and len(self._entries) > 1:
            oldest, gone = self._drop()
            self._lost[oldest] = self._lost.get(oldest, 0) + len(gone)

    def take(self) -> tuple[str, bytes] | None:
        """Return the next chunk, or the line that stands for what was lost before it; None when there is nothing."""
        if self._lost:
            name, lost = next(iter(self._lost.items()))
            del self._lost[name]
            return name, gap_line(lost, after=self._taken.get(name, b""))
        if not self._entries:
            return None
        name, data = self._drop()
        self._taken[name] = data[-1:]
        return name, data

    @property
    def weight(self) -> int:
        """How much is held."""
        return self._weight

    def _drop(self) -> tuple[str, bytes]:
        name, data = self._entries.popleft()
        self._weight -= len(data) + _OVERHEAD
        return name, data
