"""What one run's network came to: every decision with its bytes, added up where they are alike, and what is left."""

from __future__ import annotations

from typing import Final

from ringfence.dataclass import dataclass, replace
from ringfence.outcome import Destination, Network

MOST_DESTINATIONS: Final = 256
MOST_IN_ALL: Final = 20_000
"""Of one run: a program that only ever connects must not make this host knock at a granted one without end."""


@dataclass(slots=True, eq=False)
class Entry:
    """One connection while it lives; two that look alike are still two."""

    host: str
    port: int
    method: str = ""
    address: str = ""
    decision: str = "allowed"
    reason: str = ""
    bytes_in: int = 0
    bytes_out: int = 0
    secret: str = ""
    """The name of what a request carried, or was not let carry."""


class Ledger:
    """Counts for one run, in the proxy's own thread; what is spent is spent for all its connections together."""

    def __init__(self, most_in: int, most_out: int) -> None:
        """Let so many bytes in and out, in all."""
        self._left_in, self._left_out = most_in, most_out
        self._ended: dict[Destination, Destination] = {}
        self._open: list[Entry] = []
        self._not_shown = 0
        self.begun = 0
        """How many there were: connections, and where those are looked into, requests."""

    def begin(self, entry: Entry) -> Entry:
        """Take note of a connection."""
        self.begun += 1
        self._open.append(entry)
        return entry

    def end(self, entry: Entry) -> None:
        """Add a connection that is over to those that were like it."""
        self._open.remove(entry)
        self._add(entry)

    def may_receive(self, size: int) -> int:
        """Return how many of `size` bytes may still come in."""
        return min(size, self._left_in)

    def may_send(self, size: int) -> int:
        """Return how many of `size` bytes may still go out."""
        return min(size, self._left_out)

    def received(self, entry: Entry, size: int) -> None:
        """Count what came in."""
        entry.bytes_in += size
        self._left_in -= size

    def sent(self, entry: Entry, size: int) -> None:
        """Count what went out."""
        entry.bytes_out += size
        self._left_out -= size

    def total(self, *, complete: bool = True) -> Network:
        """Return all there is to tell."""
        while self._open:
            self.end(self._open[0])
        return Network(tuple(self._ended.values()), self._not_shown, complete)

    def _add(self, entry: Entry) -> None:
        if not entry.host and entry.decision == "allowed":  # it was cut off before it said where it goes
            entry.decision, entry.reason = "failed", "unsaid"
        alike = Destination(
            entry.host, entry.port, entry.decision, entry.reason, entry.method, entry.address, secret=entry.secret
        )
        known = self._ended.get(alike)
        if known is None and len(self._ended) >= MOST_DESTINATIONS:
            # a guest that asks for ever new names fills no record; what it moved is still counted in the last line
            self._not_shown += 1
            alike = Destination("", 0, entry.decision, "left_out")
            known = self._ended.get(alike)
        before = known or alike
        self._ended[alike] = replace(
            before,
            count=before.count + 1,
            bytes_in=before.bytes_in + entry.bytes_in,
            bytes_out=before.bytes_out + entry.bytes_out,
        )
