"""Walk what a dead guest left behind: bounded in entries and depth, one open descriptor, no link followed."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from ringfence.dataclass import dataclass
from ringfence.workspaces.beneath import MAX_PATH_BYTES, open_beneath

_READ_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry; `parent_fd` is open only until the next entry is asked for."""

    path: bytes
    name: bytes
    parent_fd: int
    status: os.stat_result

    @property
    def is_file(self) -> bool:
        """Whether it is a regular file."""
        return stat.S_ISREG(self.status.st_mode)

    @property
    def is_directory(self) -> bool:
        """Whether it is a directory."""
        return stat.S_ISDIR(self.status.st_mode)

    @property
    def is_link(self) -> bool:
        """Whether it is a symbolic link."""
        return stat.S_ISLNK(self.status.st_mode)

    @property
    def is_whiteout(self) -> bool:
        """Whether an overlay uses it to mark something deleted below."""
        return stat.S_ISCHR(self.status.st_mode) and self.status.st_rdev == 0


class Walk:
    """Iterate over the entries below a directory, parents first, siblings in byte order.

    `complete` is false once entries were left out because there were too many or they lay too deep.
    """

    def __init__(self, root_fd: int, *, max_entries: int, max_depth: int) -> None:
        """Walk below `root_fd`, which stays the caller's."""
        self._root_fd = root_fd
        self._left = max_entries
        self._max_depth = max_depth
        self.complete = True

    def __iter__(self) -> Iterator[Entry]:
        pending = [b""]
        while pending:
            # Each directory is opened from the root again: however deep the guest dug, one descriptor is in use.
            path = pending.pop()
            fd = _open_directory(self._root_fd, path)
            try:
                deeper = []
                for entry in self._list(fd, path):
                    yield entry
                    if entry.is_directory and len(entry.path) <= MAX_PATH_BYTES:
                        deeper.append(entry.path)
                    elif entry.is_directory:
                        self.complete = False
            finally:
                os.close(fd)
            pending.extend(reversed(deeper))

    def _list(self, fd: int, path: bytes) -> Iterator[Entry]:
        if path.count(b"/") + bool(path) >= self._max_depth:
            self.complete = self.complete and not _has_entries(fd)
            return
        # A directory of a million entries is neither held in memory nor read to its end.
        with os.scandir(fd) as listing:
            names = [os.fsencode(found.name) for found in islice(listing, self._left + 1)]
        if len(names) > self._left:
            self.complete = False
            names = names[: self._left]
        self._left -= len(names)
        for name in sorted(names):
            status = os.stat(name, dir_fd=fd, follow_symlinks=False)
            yield Entry(path + b"/" + name if path else name, name, fd, status)


def open_readable(parent_fd: int, name: bytes, flags: int = os.O_RDONLY) -> int:
    """Open `name` in `parent_fd` for reading, also when the guest took its own permissions away.

    Raises:
        PathTraversalError: It is a symlink or a mount.
    """
    try:
        return open_beneath(parent_fd, name, flags)
    except PermissionError:
        handle = open_beneath(parent_fd, name, os.O_PATH)
        try:
            status = os.fstat(handle)
            if not (stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode)):
                raise
            # Through the descriptor: a name could have become a link to a file of ours.
            Path(f"/proc/self/fd/{handle}").chmod(stat.S_IMODE(status.st_mode) & 0o777 | 0o700)
        finally:
            os.close(handle)
        return open_beneath(parent_fd, name, flags)


def _open_directory(root_fd: int, path: bytes) -> int:
    if not path:
        permit_search(root_fd)
        return os.open(".", _READ_DIRECTORY | os.O_CLOEXEC, dir_fd=root_fd)
    parent, _, name = path.rpartition(b"/")
    parent_fd = open_beneath(root_fd, parent, os.O_PATH | os.O_DIRECTORY) if parent else os.dup(root_fd)
    try:
        fd = open_readable(parent_fd, name, _READ_DIRECTORY)
    finally:
        os.close(parent_fd)
    permit_search(fd)
    return fd


def permit_search(fd: int) -> None:
    """Let its owner find names in an open directory, also when the guest took that away."""
    mode = stat.S_IMODE(os.fstat(fd).st_mode)
    if mode & 0o500 != 0o500:  # readable but not searchable: names without files
        os.fchmod(fd, mode & 0o777 | 0o700)


def _has_entries(fd: int) -> bool:
    with os.scandir(fd) as listing:
        return next(listing, None) is not None
