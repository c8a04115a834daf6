"""Which host ids a box runs under: never 0, and as root a range that belongs to nobody."""

from __future__ import annotations

import zlib

RANGE = 65_536
_PREFERRED_BASE = 0x7246_0000


def choose_base(uid_map: str) -> int | None:
    """Return the first id of an unprivileged range that is mapped here, given the text of `/proc/self/uid_map`."""
    mapped = [tuple(map(int, line.split())) for line in uid_map.splitlines() if line.strip()]
    for inside, _, count in mapped:
        if inside <= _PREFERRED_BASE and _PREFERRED_BASE + RANGE <= inside + count:
            return _PREFERRED_BASE
    fitting = [inside + count - RANGE for inside, _, count in mapped if count >= 2 * RANGE]
    return max(fitting, default=None)


def session_offset(session_id: str) -> int:
    """Return the id, inside the range, that all runs of one session share, so that they own each other's files."""
    return 1 + zlib.crc32(session_id.encode()) % (RANGE // 2 - 1)


def run_offset(counter: int) -> int:
    """Return the id of a run without a session; apart from every session's."""
    return RANGE // 2 + counter % (RANGE // 2 - 1)
