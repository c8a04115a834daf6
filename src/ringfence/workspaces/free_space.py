"""Leaves some of the disk free whatever guests write: the journal is on it, and must be able to say how they ended."""

from __future__ import annotations

import os
from typing import Final

from ringfence.errors import QuotaExceeded

KEEP_FREE_BYTES: Final = 64 * 1024 * 1024


def require_free_space(fd: int, size: int, *, keep: int = KEEP_FREE_BYTES) -> None:
    """Pass when `size` bytes more leave enough of the disk that `fd` is on.

    Raises:
        QuotaExceeded: They would not.
    """
    disk = os.fstatvfs(fd)
    if size > 0 and disk.f_bavail * disk.f_frsize < size + keep:
        raise QuotaExceeded("the disk is too full", reason="disk", asked=size)
