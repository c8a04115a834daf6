"""New names: the time in milliseconds, then randomness, so that they sort by age and cannot be guessed."""

from __future__ import annotations

import os
import time


class TimeOrdered:
    """Implements `ports.Identifiers`."""

    def new(self, prefix: str) -> str:
        """Return a name like `ex_019a…`."""
        now_ms = max(0, time.time_ns() // 1_000_000)  # a machine without a battery may begin before 1970
        return f"{prefix}_{now_ms:012x}{os.urandom(10).hex()}"
