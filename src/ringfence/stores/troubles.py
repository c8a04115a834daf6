"""What went wrong with boxes that nobody had asked for yet, or that somebody waited for: the first of it is on record.

A box that cannot be built, or that the host did not see sealed, is thrown away and runs nothing. Whoever waited for it
is told, and the end of his run says so. That it happened at all is told here, also where nobody waited.
"""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Final

from ringfence.errors import InvalidRequest, RingfenceError
from ringfence.evidence.effects import harmless_text

if TYPE_CHECKING:
    from ringfence.ports import Clock, EvidenceSink, Identifiers

_SILENT_MS: Final = 60_000
_UNKNOWN: Final = "start_failed"


class Troubles:
    """Writes `pool.failed`: once a minute for each kind of box and reason, with how often it came in between."""

    def __init__(self, evidence: EvidenceSink, identifiers: Identifiers, clock: Clock) -> None:
        """Nothing has gone wrong yet."""
        self._evidence = evidence
        self._identifiers = identifiers
        self._clock = clock
        self._counting = threading.Lock()
        self._told: dict[tuple[str, str], tuple[int, int]] = {}
        """When each was last on record, and how often it has happened since."""

    def failed(self, kind: str, error: Exception) -> None:
        """Write down that a box of `kind` could not be had; for a thread of the pool's, which waits for it."""
        if isinstance(error, InvalidRequest):  # what was asked for cannot be built, which is the asker's
            return
        reason = error.reason if isinstance(error, RingfenceError) else _UNKNOWN
        now_ms = self._clock.now_ms()
        with self._counting:
            last_ms, unsaid = self._told.get((kind, reason), (None, 0))
            if last_ms is not None and 0 <= now_ms - last_ms < _SILENT_MS:
                self._told[kind, reason] = last_ms, unsaid + 1
                return
            self._told[kind, reason] = now_ms, 0
        record = {
            "type": "pool.failed",
            "envelope_id": self._identifiers.new("ev"),
            "time_ms": now_ms,
            "tenant": "local",
            "isolation": kind,
            "reason": reason,
            "error_reason": harmless_text(str(error)),
            "unsaid": unsaid,
        }
        asyncio.run(self._evidence.record(record))
