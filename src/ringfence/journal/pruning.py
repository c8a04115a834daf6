"""Holds what is gone from a journal against what it says was taken away: a hole that nobody wrote down is damage.

Whoever prunes writes down beforehand how far, in an `admin.pruned` record that also says how far all before it went. So
the newest one explains every hole, though those before it may be in one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from ringfence.dataclass import dataclass, field

PRUNED: Final = "admin.pruned"
TEXTS: Final = "texts"
ROWS: Final = "rows"


@dataclass(frozen=True, slots=True)
class Bounds:
    """The last record of each log, by its `log_id`, up to which texts or whole rows may be gone."""

    texts: dict[str, int] = field(default_factory=dict)
    rows: dict[str, int] = field(default_factory=dict)

    def of(self, part: str) -> dict[str, int]:
        """Return the bounds of one part."""
        return self.texts if part == TEXTS else self.rows

    def widen(self, part: str, log_id: str, seq: int) -> None:
        """Let a part of a log go up to `seq`, if it could not go further already."""
        found = self.of(part)
        found[log_id] = max(seq, found.get(log_id, -1))

    def read(self, up_to: object) -> None:
        """Take over what a record says; what no release of ours writes explains nothing."""
        for each in up_to if isinstance(up_to, list) else ():
            if not isinstance(each, Mapping) or not isinstance(each.get("log_id"), str):
                continue
            for part in (TEXTS, ROWS):
                seq = each.get(part)
                if type(seq) is int:
                    self.widen(part, each["log_id"], seq)

    def to_members(self) -> list[dict[str, Any]]:
        """Return the bounds as a record says them."""
        parts = {TEXTS: self.texts, ROWS: self.rows}
        return [
            {"log_id": log_id} | {part: bounds[log_id] for part, bounds in parts.items() if log_id in bounds}
            for log_id in sorted(self.texts.keys() | self.rows.keys())
        ]


class Gone:
    """What is missing from the logs, of which one after the other is read; compared when all of them were."""

    def __init__(self) -> None:
        """No log was read yet."""
        self.bounds = Bounds()
        self._log_id = ""
        self._said: list[tuple[int, object]] = []
        self._last_text: dict[str, int] = {}
        self._first_row: dict[str, int] = {}

    def begin(self, log_id: str, first_seq: int) -> None:
        """Turn to the next log."""
        self._log_id, self._said = log_id, []
        if first_seq > 0:
            self._first_row[log_id] = first_seq

    def see(self, seq: int, members: Mapping[str, Any] | None) -> None:
        """Take the next record of the log, or that its text is gone."""
        if members is None:
            self._last_text[self._log_id] = seq
        elif members.get("type") == PRUNED:
            self._said.append((seq, members.get("up_to")))

    def end(self, signed_size: int) -> None:
        """Believe what the log says, as far as it is signed: anybody could have added a record behind that."""
        for seq, up_to in self._said:
            if seq < signed_size:
                self.bounds.read(up_to)

    def faults(self) -> Iterator[str]:
        """Yield what is gone without a record of it."""
        for log_id, seq in self._last_text.items():
            if seq > self.bounds.texts.get(log_id, -1):
                yield f"the text of record {seq} of {log_id} is gone, and nobody wrote down that it was taken away"
        for log_id, count in self._first_row.items():
            if count - 1 > self.bounds.rows.get(log_id, -1):
                yield f"the first {count} records of {log_id} were dropped, and nobody wrote that down"
