"""Counts over a journal of any length in memory that does not grow with it: names come from callers, who may invent."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, TypeVar

from ringfence.dataclass import dataclass

_Key = TypeVar("_Key", bound=Hashable)
CAPACITY = 2048


@dataclass(frozen=True, slots=True)
class Count(Generic[_Key]):
    """How often something was seen: at most `count` times, and at least `count - over` times."""

    key: _Key
    count: int
    over: int = 0


class Top(Generic[_Key]):
    """Counts the most frequent; exact as long as there are no more different keys than it may hold."""

    def __init__(self, capacity: int = CAPACITY) -> None:
        """Hold `capacity` keys, and twice as many between two clearings."""
        self._capacity = capacity
        self._seen: dict[_Key, tuple[int, int]] = {}
        self._floor = 0

    def add(self, key: _Key, amount: int = 1) -> None:
        """Count `key`; one that was forgotten may have been seen as often as any that was, and is counted so."""
        count, over = self._seen.get(key, (self._floor, self._floor))
        self._seen[key] = count + amount, over
        if len(self._seen) > 2 * self._capacity:
            kept = sorted(self._seen.items(), key=lambda entry: -entry[1][0])
            self._floor = max(self._floor, kept[self._capacity][1][0])
            self._seen = dict(kept[: self._capacity])

    def most(self, number: int) -> tuple[Count[_Key], ...]:
        """Return the most frequent, the first seen first among equals."""
        ordered = sorted(self._seen.items(), key=lambda entry: -entry[1][0])[:number]
        return tuple(Count(key, count, over) for key, (count, over) in ordered)

    def __len__(self) -> int:
        return len(self._seen)
