"""Answers in rising order: of several, the highest counts."""

from __future__ import annotations

from enum import Enum
from functools import total_ordering


@total_ordering
class Ladder(Enum):
    """Values in rising order; comparing two different ladders is a `TypeError`.

    Not a `StrEnum`: text would compare by the alphabet, where "critical" comes before "safe".
    """

    rank: int

    def __init__(self, _value: str) -> None:
        """Take the next rung: members are made in the order they are written."""
        self.rank = len(type(self).__members__)

    def __lt__(self, other: object) -> bool:
        return self.rank < other.rank if isinstance(other, type(self)) else NotImplemented

    def __str__(self) -> str:
        return str(self.value)
