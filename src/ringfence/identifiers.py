"""New names: the time, then 68 bits of randomness, so that they sort by age and cannot be guessed."""

from __future__ import annotations

import os
import time


class TimeOrdered:
    """Implements `ports.Identifiers`."""

    def new(self, prefix: str) -> str:
        """Return a name like `ex_019a…`."""
        now_ms, rest_ns = divmod(max(0, time.time_ns()), 1_000_000)  # a machine without a battery may begin before 1970
        # a quarter of a microsecond: several runs begin in one millisecond, and lists tell which came first
        return f"{prefix}_{now_ms:012x}{(rest_ns << 12) // 1_000_000:03x}{os.urandom(9).hex()[1:]}"
