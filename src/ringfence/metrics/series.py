"""The numbers of one family by label set, of which a caller who invents names cannot make more than a fixed number."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from typing import Any, Final

from ringfence.metrics.families import Family

OTHER: Final = "other"
NONE: Final = "none"
UNKNOWN: Final = "unknown"

MOST_SERIES: Final = 2_000
LONGEST_VALUE: Final = 100
# Of each label that a caller can choose, and of those that only our code chooses: a fault there is bounded as well.
MOST_VALUES: Final = {
    "tool": 200,
    "tenant": 200,
    "language": 40,
    "reason": 200,
    "code": 60,
    "domain": 20,
    "status": 8,
    "safety": 10,
    "side_effect": 20,
    "decision": 4,
    "retryable": 2,
    "direction": 2,
}
_CHOSEN_BY_CALLERS = ("tool", "tenant", "language")

Key = tuple[str, ...]


class Series:
    """The cells of one family; a label set beyond the cap is counted under `other`, so sums stay true.

    Values are admitted a family at a time: names invented in calls that are denied use up the room of the denials and
    leave that of the executions alone.
    """

    def __init__(self, family: Family) -> None:
        self.family = family
        self.cells: dict[Key, Any] = {}
        self.values: tuple[set[str], ...] = tuple(set() for _ in family.labels)
        self._caps = tuple(MOST_VALUES[label] for label in family.labels)

    def key(self, values: Key) -> Key:
        """Return the label set under which these values, which have no cell of their own, are counted."""
        key = tuple(map(self._admit, self.values, self._caps, values))
        if key in self.cells or len(self.cells) < MOST_SERIES:
            return key
        # what only our code chooses is kept as long as it can be: a total by error code stays right under a flood
        key = tuple(
            OTHER if label in _CHOSEN_BY_CALLERS else value
            for label, value in zip(self.family.labels, key, strict=True)
        )
        if key in self.cells or len(self.cells) < 2 * MOST_SERIES:
            return key
        return (OTHER,) * len(key)

    @staticmethod
    def _admit(known: set[str], cap: int, value: str) -> str:
        if value in known:
            return value
        if len(known) >= cap or len(value) > LONGEST_VALUE:
            return OTHER
        known.add(value)
        return value


class Counter(Series):
    """Numbers that only rise."""

    def add(self, values: Key, amount: int = 1) -> None:
        """Count `amount` under these label values."""
        cells = self.cells
        if values in cells:
            cells[values] += amount
        else:
            key = self.key(values)
            cells[key] = cells.get(key, 0) + amount


class Histogram(Series):
    """How often a time fell between which bounds; a cell holds one number a bucket, one above all, and the sum."""

    def observe(self, values: Key, microseconds: int) -> None:
        """Count one time under these label values."""
        cell = self.cells.get(values)
        if cell is None:
            cell = self.cells.setdefault(self.key(values), [0] * (len(self.family.buckets) + 2))
        cell[bisect_left(self.family.buckets, microseconds)] += 1
        cell[-1] += microseconds


def summed(cells: Iterable[tuple[Key, Any]], labels: Key, wanted: Key) -> dict[Key, Any]:
    """Return cells added up over every label that is not wanted."""
    places = [labels.index(label) for label in wanted]
    totals: dict[Key, Any] = {}
    for key, cell in cells:
        short = tuple(key[place] for place in places)
        if short not in totals:
            totals[short] = cell
        elif isinstance(cell, list):
            totals[short] = [a + b for a, b in zip(totals[short], cell, strict=True)]
        else:
            totals[short] += cell
    return totals
