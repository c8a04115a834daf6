"""Keeps enough of the disk free that whatever has begun can still be written to its end."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from ringfence.errors import Unavailable

RESERVE_BYTES: Final = 16 * 1024 * 1024


def require_room(home: Path) -> None:
    """Pass while the disk under `home` has more left than the reserve.

    Raises:
        Unavailable: It is nearly full, so that nothing may begin whose end could not be written.
    """
    try:
        found = os.statvfs(home)
    except FileNotFoundError:  # nothing was ever written here; whoever makes it finds out
        return
    left = found.f_bavail * found.f_frsize
    if left < RESERVE_BYTES:
        raise Unavailable(
            f"the disk of {home.name} has {left} bytes left, too little to write down how a run ends",
            reason="disk_full",
            fix="free some disk space",
        )
