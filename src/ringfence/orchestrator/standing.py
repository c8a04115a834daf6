"""Where one call stands between what strangers wrote and what leaves; most calls are under policies that never ask."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from ringfence.dataclass import dataclass

if TYPE_CHECKING:
    from ringfence.authority.taint import Tainted


@dataclass(frozen=True, slots=True)
class Standing:
    """What a call comes after, and what it will have reached for when it is over."""

    told: Tainted | None = None
    """What its result says: what it comes after, or else what it reaches for itself."""
    own: Tainted | None = None
    """The mark it leaves, where it reaches for untrusted content."""
    judged_by: Tainted | None = None
    """What the guard is told: of what stays open and can be fed later, that it may come after anything."""
    unmarked: tuple[str, ...] = ()
    """The names that its own mark is not on yet."""
    recorded: Mapping[str, str | int] | None = None
    """What its record says, from which it can be judged again; empty where nobody was marked."""


NOT_ASKED: Final = Standing()
