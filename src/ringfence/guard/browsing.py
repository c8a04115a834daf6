"""What the guard says of a page that is already open: how far it may be led, and how often it may be pictured.

The other rules judge an operation by itself. These two need to know what the session did before, so whoever keeps its
page asks them, before the browser is touched.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ringfence.authority.profile import Profile
from ringfence.dataclass import dataclass
from ringfence.errors import CapabilityBlocked

if TYPE_CHECKING:
    from ringfence.operation.brokered import Browsing

MOST_PICTURES: Final = 10
WINDOW_MS: Final = 60_000
_LEADING: Final = ("browser_nav", "browser_click")


@dataclass(frozen=True, slots=True)
class History:
    """What a session's browser did before this operation."""

    steps: int | None = None
    """How often its page was led to another; None where none is open, and the next one is the first."""
    pictures: int = 0
    """How many were taken in the last `WINDOW_MS`."""


def depth(profile: Profile, operation: Browsing, history: History) -> CapabilityBlocked | None:
    """A page is led on no further than `max_depth`: by its address, or by a click, which may lead anywhere."""
    most = profile.limits.max_depth
    if operation.kind not in _LEADING or history.steps is None or history.steps < most:
        return None
    return CapabilityBlocked(
        f"this page was led on {most} times, which is max_depth",
        reason="depth",
        fix="close it (browser_close) and open another",
        max_depth=most,
    )


def rate(_profile: Profile, operation: Browsing, history: History) -> CapabilityBlocked | None:
    """A session takes no more pictures than somebody could look at."""
    if operation.kind != "browser_screenshot" or history.pictures < MOST_PICTURES:
        return None
    return CapabilityBlocked(
        f"{MOST_PICTURES} pictures were taken within {WINDOW_MS // 1000} s", reason="rate", fix="wait a minute"
    )


def require(profile: Profile, operation: Browsing, history: History) -> None:
    """Refuse what one of the rules forbids.

    Raises:
        CapabilityBlocked: What the rule says.
    """
    for rule in (depth, rate):
        refusal = rule(profile, operation, history)
        if refusal is not None:
            raise refusal
