"""When to ask the service again: only what cannot happen twice, only for so long, never sooner than it says."""

from __future__ import annotations

from typing import Final

from ringfence.dataclass import dataclass

FIRST_PAUSE: Final = 0.05
LONGEST_PAUSE: Final = 2.0
LONGEST_RETRY_AFTER: Final = 3600.0


@dataclass(frozen=True, slots=True)
class Retrying:
    """How often one request was tried, and how long all the waiting may still take."""

    left_seconds: float = 30.0
    pause: float = FIRST_PAUSE

    def after_drop(self, *, repeatable: bool, known: bool) -> float | None:
        """Return how long to wait after a lost connection, or None if it is the caller's to know.

        A service that was there before may be starting again; one that never answered is probably not there.
        """
        return min(self.pause, self.left_seconds) if repeatable and known and self.left_seconds > 0 else None

    def after_refusal(self, status: int, retry_after: str | None) -> float | None:
        """Return how long the service asks to wait, or None if it does not, or for longer than there is."""
        if status not in (429, 503) or retry_after is None or not retry_after.isdecimal():
            return None
        seconds = min(float(retry_after), LONGEST_RETRY_AFTER)
        return max(seconds, self.pause) if seconds <= self.left_seconds and self.left_seconds > 0 else None

    def waited(self, seconds: float) -> Retrying:
        """Return what is left after waiting."""
        return Retrying(self.left_seconds - seconds, min(self.pause * 2, LONGEST_PAUSE))
