"""Leases that end with their holder, whatever ends it: locks on single bytes of a file beside the database.

A pid says nothing in another container, and can be given again; a lock of the kernel is gone when the last descriptor
of whoever took it is, and every process that shares the home sees it.
"""

from __future__ import annotations

import errno
import fcntl
import os
import struct
from pathlib import Path
from typing import Final

from ringfence.errors import Unavailable

# `struct flock`: type, whence, start, length, pid
_LOCK: Final = struct.Struct("hhqqi4x")
_BELOW_NOTHING: Final = 1 << 40
"""Where the leases with negative numbers begin: those of processes, not of logs."""


class FileLeases:
    """Those of one open database; two of one process exclude each other like two processes."""

    def __init__(self, path: Path) -> None:
        """Nothing is opened yet."""
        self._path = path
        self._fd: int | None = None
        self._held: set[int] = set()

    def take(self, number: int) -> bool:
        """Take the lease `number`; False when anybody has it, be it another part of this very process."""
        if number in self._held:
            return False
        try:
            self._lock(number, fcntl.F_WRLCK)
        except OSError as error:
            if error.errno in (errno.EAGAIN, errno.EACCES):
                return False
            raise self._unusable(error) from error
        self._held.add(number)
        return True

    def keeps(self, number: int) -> bool:
        """Whether the lease is ours; one that nobody has is taken."""
        return number in self._held or self.take(number)

    def end(self, number: int) -> None:
        """Give the lease back, if it is ours."""
        if number in self._held:
            self._lock(number, fcntl.F_UNLCK)
            self._held.discard(number)

    def held(self) -> frozenset[int]:
        """Return those that are ours now."""
        return frozenset(self._held)

    def end_all_but(self, kept: frozenset[int]) -> None:
        """Give back what was taken since `kept` were ours."""
        for number in self._held - kept:
            self.end(number)

    def close(self) -> None:
        """Give all of them back; in a forked child only the child's part in them."""
        if self._fd is not None:
            os.close(self._fd)
        self._fd = None
        self._held.clear()

    def _lock(self, number: int, kind: int) -> None:
        if self._fd is None:
            self._fd = self._opened()
        # of the open file, not of the process: closing another descriptor of it must not give them up
        byte = number if number >= 0 else _BELOW_NOTHING - number
        fcntl.fcntl(self._fd, fcntl.F_OFD_SETLK, _LOCK.pack(kind, os.SEEK_SET, byte, 1, 0))

    def _opened(self) -> int:
        try:
            return os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        except OSError as error:
            raise self._unusable(error) from error

    def _unusable(self, error: OSError) -> Unavailable:
        what = f"{self._path.name} cannot be used, so nobody can tell who writes to the journal, and nothing runs"
        return Unavailable(f"{what}: {error.strerror}", fix=f"remove {self._path}, or let this user write to it")
