"""How old an image may get: Debian's security updates come about weekly, and only a new build has them."""

from __future__ import annotations

from ringfence.images.archive import Archive

OLD_DAYS = 30
_DAY_SECONDS = 24 * 3600


def age_in_days(archive: Archive, now: int) -> int:
    """Return how many whole days ago `archive` was built; a clock that went back makes it new, not negative."""
    return max(0, now - archive.built_at) // _DAY_SECONDS
