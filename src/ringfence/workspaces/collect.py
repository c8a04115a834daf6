"""Take a dead guest's artifacts over to the host: regular files only, within caps, under names that do no harm."""

from __future__ import annotations

import hashlib
import os
import stat

from ringfence.dataclass import dataclass
from ringfence.errors import PathTraversalError
from ringfence.outcome import Artifact
from ringfence.workspaces.names import harmless_path
from ringfence.workspaces.tree import Entry, Walk, open_readable

_CHUNK = 1024 * 1024
_SPECIAL = {
    stat.S_IFLNK: "symlink",
    stat.S_IFIFO: "fifo",
    stat.S_IFSOCK: "socket",
    stat.S_IFCHR: "device",
    stat.S_IFBLK: "device",
}


@dataclass(frozen=True, slots=True)
class Skipped:
    """Something that was found and not taken over, and why."""

    path: str
    reason: str


@dataclass(frozen=True, slots=True)
class Collection:
    """The artifacts of a run; `truncated` when a cap left out content or even names, `complete` when no name."""

    artifacts: tuple[Artifact, ...]
    skipped: tuple[Skipped, ...]
    truncated: bool
    complete: bool = True


def collect(root_fd: int, *, max_bytes: int, max_count: int, max_depth: int) -> Collection:
    """Read the files below `root_fd`, which nothing may change any more.

    Beyond a cap the name is still listed, in `skipped` with the reason `artifact_bytes` or `artifact_count`; at most
    twice `max_count` entries (and a few) are looked at in all.
    """
    artifacts: list[Artifact] = []
    skipped: list[Skipped] = []
    left = max_bytes
    walk = Walk(root_fd, max_entries=2 * max_count + 64, max_depth=max_depth)
    for entry in walk:
        if entry.is_directory:
            continue
        path = harmless_path(entry.path)
        if not entry.is_file:
            skipped.append(Skipped(path, _SPECIAL.get(stat.S_IFMT(entry.status.st_mode), "special")))
        elif len(artifacts) >= max_count:
            skipped.append(Skipped(path, "artifact_count"))
        else:
            taken = _read(entry, path, left)
            if isinstance(taken, Skipped):
                skipped.append(taken)
            else:
                artifacts.append(taken)
                left -= taken.size
    capped = any(item.reason in ("artifact_bytes", "artifact_count") for item in skipped)
    return Collection(
        tuple(sorted(artifacts, key=lambda artifact: artifact.path)),
        tuple(sorted(skipped, key=lambda item: item.path)),
        capped or not walk.complete,
        walk.complete,
    )


def _read(entry: Entry, path: str, most: int) -> Artifact | Skipped:
    try:
        fd = open_readable(entry.parent_fd, entry.name)
    except (OSError, PathTraversalError):
        return Skipped(path, "unreadable")
    try:
        status = os.fstat(fd)  # of what was opened: the listing is only hearsay
        if not stat.S_ISREG(status.st_mode):
            return Skipped(path, "special")
        if status.st_size > most:  # logical size: a sparse terabyte has no blocks
            return Skipped(path, "artifact_bytes")
        content = bytearray()
        digest = hashlib.sha256()
        while chunk := os.read(fd, min(_CHUNK, most + 1 - len(content))):
            content += chunk
            digest.update(chunk)
            if len(content) > most:
                return Skipped(path, "artifact_bytes")
        return Artifact(path=path, size=len(content), sha256=digest.hexdigest(), content=bytes(content))
    finally:
        os.close(fd)
