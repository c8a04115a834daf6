"""Headers by which some servers take a request for another one than the one that was judged."""

from __future__ import annotations

import re
from typing import Final

_SIGN: Final = re.compile(r"[^a-z0-9]")
_OVERRIDES: Final = frozenset(
    {
        "x-http-method-override", "x-http-method", "x-method-override", "x-original-method", "x-forwarded-method",
        "x-original-url", "x-rewrite-url", "x-original-uri", "x-forwarded-uri",
    }
)  # fmt: skip


def as_servers_read(name: str) -> str:
    """Return the one spelling of a header's name for servers that hand it on as a variable: to them all signs are `_`.

    Whoever looks for `X-Original-URL` alone lets `X_Original_URL` through, which such a server takes for the same.
    """
    return _SIGN.sub("-", name.lower())


def is_override(name: str) -> bool:
    """Whether some server takes the value of this header for the method or the path."""
    return as_servers_read(name) in _OVERRIDES
