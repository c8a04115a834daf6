"""The ledger of a page that outlives the operation which opened it: what each one may move, and what it moved.

The proxy counts in a thread of its own and an executor asks from another, so each number has one writer.
"""

from __future__ import annotations

from threading import RLock

from ringfence.dataclass import replace
from ringfence.egress.proxy.ledger import Entry, Ledger
from ringfence.outcome import Destination, Network


class PageLedger(Ledger):
    """Lets nothing through before an operation allows it."""

    def __init__(self) -> None:
        """Begin with nothing moved and nothing allowed."""
        super().__init__(0, 0)
        self._changing = RLock()
        self._in = self._out = 0
        self._most_in = self._most_out = 0
        self._told_in = self._told_out = 0
        self._just_ended: list[Entry] = []
        self._told: dict[Entry, tuple[int, int]] = {}

    def allow(self, most_in: int, most_out: int) -> None:
        """Let so many bytes in and out from now on, whatever was left of the operation before.

        What came after that had ended is told with this one, and counts as a part of it.
        """
        self._most_in, self._most_out = self._told_in + most_in, self._told_out + most_out

    @property
    def is_spent(self) -> bool:
        """Whether the next byte would be cut off."""
        return self._in >= self._most_in or self._out >= self._most_out

    def since(self) -> Network:
        """Return what was moved since this was last asked: by connections that ended, and by those that live on."""
        with self._changing:
            alive = tuple(entry for entry in self._open if entry.host)  # another has not said yet where it goes
            told, self._told = self._told, {entry: (entry.bytes_in, entry.bytes_out) for entry in alive}
            ended, self._just_ended = self._just_ended, []
        sums: dict[Destination, Destination] = {}
        for entry in (*ended, *alive):
            bytes_in, bytes_out = self._told.get(entry, (entry.bytes_in, entry.bytes_out))
            told_in, told_out = told.get(entry, (0, 0))
            if entry in told and (bytes_in, bytes_out) == (told_in, told_out):
                continue
            place = Destination(entry.host, entry.port, entry.decision, entry.reason, entry.method, entry.address)
            known = sums.get(place, place)
            sums[place] = replace(
                known,
                count=known.count + (entry not in told),
                bytes_in=known.bytes_in + bytes_in - told_in,
                bytes_out=known.bytes_out + bytes_out - told_out,
            )
        network = Network(tuple(sums.values()))
        self._told_in, self._told_out = self._told_in + network.bytes_in, self._told_out + network.bytes_out
        return network

    # --- in the proxy's thread ---

    def begin(self, entry: Entry) -> Entry:
        """Take note of a connection."""
        with self._changing:
            return super().begin(entry)

    def end(self, entry: Entry) -> None:
        """Add a connection that is over to those that were like it."""
        with self._changing:
            super().end(entry)
            self._just_ended.append(entry)

    def may_receive(self, size: int) -> int:
        """Return how many of `size` bytes may still come in."""
        return max(0, min(size, self._most_in - self._in))

    def may_send(self, size: int) -> int:
        """Return how many of `size` bytes may still go out."""
        return max(0, min(size, self._most_out - self._out))

    def received(self, entry: Entry, size: int) -> None:
        """Count what came in."""
        entry.bytes_in += size
        self._in += size

    def sent(self, entry: Entry, size: int) -> None:
        """Count what went out."""
        entry.bytes_out += size
        self._out += size
