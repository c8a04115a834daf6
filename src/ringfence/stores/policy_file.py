"""A policy file on disk, looked at with one `stat` per call, so that a change counts from the next call on."""

from __future__ import annotations

import time
from collections.abc import Hashable
from pathlib import Path

from ringfence.authority.yaml_tree import MAX_BYTES

# A file that was changed twice within one tick of its file system's clock looks the same both times; until its last
# change is older than this, its very bytes are compared.
_SETTLED_NS = 2_000_000_000


class PolicyFile:
    """Implements `authority.policy_source.PolicyText`."""

    def __init__(self, path: Path | str) -> None:
        """Nothing is opened yet."""
        self._path = Path(path)
        self.name = str(path)

    def stamp(self) -> Hashable:
        """Return what the file system says about the file, and for a moment after a change its bytes."""
        seen = self._path.stat()
        stamp = (seen.st_dev, seen.st_ino, seen.st_size, seen.st_mtime_ns, seen.st_ctime_ns)
        newest = max(seen.st_mtime_ns, seen.st_ctime_ns)
        if abs(time.time_ns() - newest) < _SETTLED_NS:
            return (*stamp, self.read())
        return stamp

    def read(self) -> bytes:
        """Return the content, and no more of it than a policy may have."""
        with self._path.open("rb") as file:
            return file.read(MAX_BYTES + 1)
