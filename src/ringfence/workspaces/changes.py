"""What a run wrote, read off its private upper directory: no snapshot before and no comparison after."""

from __future__ import annotations

import os
from collections.abc import Callable

from ringfence.dataclass import dataclass, field
from ringfence.workspaces.names import harmless_path
from ringfence.workspaces.tree import Entry, Walk, open_readable

MAX_DEPTH = 64

_OPAQUE = ("user.overlay.opaque", "trusted.overlay.opaque")


@dataclass(frozen=True, slots=True)
class Changes:
    """Paths relative to `/workspace/work`, made harmless; a deleted directory's own path stands for all below it."""

    files: tuple[str, ...]
    deleted: tuple[str, ...]
    complete: bool
    sizes: tuple[int, ...] = field(default=(), compare=False)
    """Of `files`, in the same order."""
    directories: bool = field(default=False, compare=False)
    """Whether there are directories too; one that was only looked into is none."""

    def __bool__(self) -> bool:
        """Whether there is anything to keep."""
        return bool(self.files or self.deleted or self.directories)


def written(upper_fd: int, *, max_entries: int, layered: bool, hides: Callable[[bytes], bool] | None = None) -> Changes:
    """Tell which files and links a dead run wrote, and what of its session it deleted.

    `layered` says that `upper_fd` is the upper of an overlay. Without a session it is the guest's plain directory, in
    which the guest can make anything that looks like an overlay's mark, so none is believed. A directory that was
    replaced is listed as deleted; what was written into the new one is in `files`. Of a fifo, socket or device, which
    no session keeps, `hides` tells whether it stands where the session has something: that is then deleted, too.
    """
    files: list[tuple[str, int]] = []
    deleted: list[str] = []
    directories = False
    walk = Walk(upper_fd, max_entries=max_entries, max_depth=MAX_DEPTH)
    for entry in walk:
        if entry.is_file or entry.is_link:
            files.append((harmless_path(entry.path), entry.status.st_size))
        elif layered and _takes_away(entry, hides):
            deleted.append(harmless_path(entry.path))
        directories = directories or entry.is_directory
    files.sort()
    names, sizes = tuple(name for name, _ in files), tuple(size for _, size in files)
    return Changes(names, tuple(sorted(deleted)), walk.complete, sizes, directories)


def _takes_away(entry: Entry, hides: Callable[[bytes], bool] | None) -> bool:
    if entry.is_directory:
        return is_opaque(entry)
    return entry.is_whiteout or (hides is not None and hides(entry.path))


def is_opaque(entry: Entry) -> bool:
    """Whether this directory of an upper hides everything its session had there."""
    fd = open_readable(entry.parent_fd, entry.name, os.O_RDONLY | os.O_DIRECTORY)
    try:
        return any(_attribute(fd, name) == b"y" for name in _OPAQUE)
    finally:
        os.close(fd)


def _attribute(fd: int, name: str) -> bytes | None:
    try:
        return os.getxattr(fd, name)
    except OSError:  # absent, or a filesystem without such attributes
        return None
