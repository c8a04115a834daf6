"""API keys of a service: made once, shown once, kept as a hash, void at once when revoked."""

from __future__ import annotations

from typing import Protocol

from ringfence.service.callers import Principal


class Keys(Protocol):
    """What the gate asks: whom a key speaks for."""

    async def find(self, key: str) -> Principal | None:
        """Return the principal of a key that is valid now; None for every other text."""
        ...
