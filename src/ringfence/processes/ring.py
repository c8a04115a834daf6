"""The last bytes of an output that never ends, found by their absolute place, with every lost byte counted."""

from __future__ import annotations

from ringfence.dataclass import dataclass


@dataclass(frozen=True, slots=True)
class Piece:
    """A stretch of one stream; `offset` counts from the first byte the guest ever wrote to it."""

    offset: int
    """Where `data` begins: where it was asked for, or later when those bytes are gone."""
    data: bytes
    next_offset: int
    """What to ask for next; nothing between two pieces is missing unless `lost_bytes` says so."""
    lost_bytes: int
    """How many bytes from where it was asked to `offset` are no longer kept."""


class Ring:
    """Never holds more than its cap, whatever is written; older bytes make room for newer ones."""

    __slots__ = ("_cap", "_held", "_skip", "end")

    def __init__(self, cap: int) -> None:
        """Keep the last `cap` bytes."""
        if cap < 1:
            raise ValueError("a ring holds at least one byte")
        self._cap = cap
        self._held = bytearray()
        # bytes at the front that no longer count: moving them away for each write would copy the ring each time
        self._skip = 0
        self.end = 0
        """How many bytes were ever written."""

    @property
    def start(self) -> int:
        """The place of the oldest byte that is kept."""
        return self.end - (len(self._held) - self._skip)

    def write(self, data: bytes) -> None:
        """Append `data`; of more than fits, its end."""
        self.end += len(data)
        if len(data) >= self._cap:
            self._held[:] = data[len(data) - self._cap :]
            self._skip = 0
            return
        self._held += data
        self._skip = max(self._skip, len(self._held) - self._cap)
        if self._skip > self._cap:
            del self._held[: self._skip]
            self._skip = 0

    def read(self, offset: int, most: int) -> Piece:
        """Return up to `most` bytes from `offset` on; from beyond the end nothing, and the end is what to ask next."""
        begin = min(max(offset, self.start), self.end)
        first = self._skip + begin - self.start
        data = bytes(self._held[first : first + max(0, most)])
        return Piece(begin, data, begin + len(data), max(0, begin - max(0, offset)))
