"""How old an image may get: Debian's security updates come about weekly, and only a new build has them."""

from __future__ import annotations

from ringfence.images.archive import Archive

OLD_DAYS = 30
_DAY_SECONDS = 24 * 3600


def age_in_days(archive: Archive, now: int) -> int:
    """Return how many whole days ago `archive` was built."""
    return days_since(archive.built_at, now)


def days_since(then: int, now: int) -> int:
    """Return whole days between two times; a clock that went back makes something new, not negative."""
    return max(0, now - then) // _DAY_SECONDS
