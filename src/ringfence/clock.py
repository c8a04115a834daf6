"""Wall time, which grants, keys and consents expire by."""

from __future__ import annotations

import time


class SystemClock:
    """Implements `ports.Clock`."""

    def now_ms(self) -> int:
        """Return the machine's idea of the time."""
        return time.time_ns() // 1_000_000
