"""How large a picture may be: decided from what the page says of its size, before a single pixel is drawn."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

from ringfence.dataclass import dataclass
from ringfence.errors import CapabilityBlocked, InvalidRequest

LONGEST: Final = 16_384
"""The most pixels of one side: beyond that, Chromium repeats or leaves out parts."""
_PNG: Final = b"\x89PNG\r\n\x1a\n"


@dataclass(frozen=True, slots=True)
class Clip:
    """A part of a page, in whole pixels."""

    x: int
    y: int
    width: int
    height: int

    def to_message(self) -> dict[str, int]:
        """Return it as the browser is told; a page that grows meanwhile makes no larger picture."""
        return {"x": self.x, "y": self.y, "width": self.width, "height": self.height, "scale": 1}


def clip(rectangle: Mapping[str, Any], pixels: int) -> Clip:
    """Return the whole pixels of `rectangle`.

    Raises:
        InvalidRequest: There is nothing to see.
        CapabilityBlocked: It has more than `pixels`, or is too long.
    """
    x, y, width, height = (_number(rectangle.get(name)) for name in ("x", "y", "width", "height"))
    left, top = math.floor(max(0.0, x)), math.floor(max(0.0, y))
    wide, high = math.ceil(x + width) - left, math.ceil(y + height) - top
    if wide <= 0 or high <= 0:
        raise InvalidRequest("what is to be pictured has no size", reason="invalid_selector")
    if wide * high > pixels or max(wide, high) > LONGEST:
        raise CapabilityBlocked(
            f"the picture would have {wide} by {high} pixels, more than {pixels} or {LONGEST} on a side",
            reason="too_large",
            fix="picture an element of the page, or what fits the window",
        )
    return Clip(left, top, wide, high)


def checked_png(data: bytes, wanted: Clip) -> bytes:
    """Return `data` if it is a PNG of no more than the size that was asked for.

    Raises:
        InvalidRequest: It is not.
    """
    wide, high = int.from_bytes(data[16:20], "big"), int.from_bytes(data[20:24], "big")
    if not data.startswith(_PNG) or wide > wanted.width or high > wanted.height:
        raise InvalidRequest("the browser gave another picture than was asked for", reason="invalid_selector")
    return data


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or abs(value) > 1e9:
        raise InvalidRequest("the page gives itself no size that could be pictured", reason="invalid_selector")
    return float(value)
