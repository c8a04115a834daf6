"""Series of measured times and the few numbers that are promised about them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ringfence.dataclass import dataclass


@dataclass(frozen=True, slots=True)
class Series:
    """Times of one kind of call, in seconds, in the order they were taken."""

    name: str
    seconds: tuple[float, ...]

    def quantile(self, share: float) -> float:
        """Return the value below which `share` of the times lie."""
        return quantile(self.seconds, share)

    @property
    def p50(self) -> float:
        """The median."""
        return self.quantile(0.50)

    @property
    def p99(self) -> float:
        """The time that one call in a hundred exceeds."""
        return self.quantile(0.99)

    def to_dict(self) -> dict[str, Any]:
        """Return count, mean and every hundredth of the distribution, in milliseconds."""
        ordered = sorted(self.seconds)
        return {
            "name": self.name,
            "count": len(ordered),
            "mean_ms": _ms(sum(ordered) / len(ordered)),
            "p50_ms": _ms(self.p50),
            "p90_ms": _ms(self.quantile(0.90)),
            "p99_ms": _ms(self.p99),
            "quantiles_ms": [_ms(_interpolate(ordered, step / 100)) for step in range(101)],
        }


def quantile(values: Sequence[float], share: float) -> float:
    """Return the `share` quantile of `values`, between two of them by straight line.

    Raises:
        ValueError: There are no values, or `share` is not between 0 and 1.
    """
    if not values:
        raise ValueError("a quantile of nothing")
    if not 0 <= share <= 1:
        raise ValueError(f"share {share} is not between 0 and 1")
    return _interpolate(sorted(values), share)


def _interpolate(ordered: Sequence[float], share: float) -> float:
    position = share * (len(ordered) - 1)
    below = int(position)
    above = min(below + 1, len(ordered) - 1)
    low, high = ordered[below], ordered[above]
    # Clamped: rounding may otherwise step a hair outside two equal neighbours.
    return min(max(low + (high - low) * (position - below), low), high)


def _ms(seconds: float) -> float:
    return round(seconds * 1000, 4)
