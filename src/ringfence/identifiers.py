"""New names: the time in milliseconds, then randomness, so that they sort by age and cannot be guessed."""

from __future__ import annotations

import os
import time

_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"


class TimeOrdered:
    """Implements `ports.Identifiers` in the shape of a ULID with a prefix."""

    def new(self, prefix: str) -> str:
        """Return a name like `ex_01jb…`."""
        number = (time.time_ns() // 1_000_000) << 80 | int.from_bytes(os.urandom(10))
        return f"{prefix}_{''.join(_ALPHABET[number >> shift & 31] for shift in range(125, -1, -5))}"
