"""Write the tree of a snapshot into a new directory; every content is checked, and what is not as written stops it."""

from __future__ import annotations

import errno
import hashlib
import os
import stat
from collections.abc import Callable

from ringfence.capability.limits import Limits
from ringfence.errors import InvalidRequest, PathTraversalError, QuotaExceeded
from ringfence.workspaces.beneath import open_beneath
from ringfence.workspaces.free_space import require_free_space
from ringfence.workspaces.snapshot_index import Index, Node, SnapshotInfo, damaged
from ringfence.workspaces.snapshot_pack import Place, read_content

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY
_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL
_PERMISSIONS = 0o777
_LOOK_EVERY = 512

Find = Callable[[bytes], tuple[int, Place] | None]


def check_fits(info: SnapshotInfo, limits: Limits, fd: int) -> None:
    """Refuse a snapshot that the session may not hold any more, or the disk has no room for.

    Raises:
        QuotaExceeded: It is too large.
    """
    if info.bytes > limits.disk_bytes or info.entries > limits.inodes:
        raise QuotaExceeded(
            "the snapshot is more than the session may hold now",
            reason="workspace_disk",
            bytes=info.bytes,
            max_bytes=limits.disk_bytes,
            inodes=info.entries,
            max_inodes=limits.inodes,
        )
    require_free_space(fd, info.bytes)


def write_tree(index: Index, find: Find, root_fd: int, *, look: Callable[[], None]) -> None:
    """Write every entry of `index` below `root_fd`, which is empty.

    Raises:
        Unavailable: A content is missing or not what was written, or a path is none.
        QuotaExceeded: The disk is full.
    """
    directories: list[Node] = []
    parent_path, parent_fd = b"", os.dup(root_fd)
    try:
        for number, node in enumerate(index.nodes()):
            if number % _LOOK_EVERY == 0:
                look()
            path, _, name = node.path.rpartition(b"/")
            if path != parent_path:
                os.close(parent_fd)
                parent_fd = -1
                parent_fd = open_beneath(root_fd, path, _DIRECTORY) if path else os.dup(root_fd)
                parent_path = path
            if node.is_directory:
                _make_directory(parent_fd, name)
                directories.append(node)
            elif node.is_file:
                _write_file(parent_fd, name, node, find, index.info.id)
            else:
                os.symlink(node.target, name, dir_fd=parent_fd)
                os.utime(name, ns=(node.mtime_ns, node.mtime_ns), dir_fd=parent_fd, follow_symlinks=False)
    except (PathTraversalError, InvalidRequest) as error:
        raise damaged(index.info.id) from error
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise QuotaExceeded("the disk is too full to restore this", reason="disk") from error
        raise
    finally:
        if parent_fd >= 0:
            os.close(parent_fd)
    for node in reversed(directories):  # last and from below: whatever is made in a directory changes its time
        fd = open_beneath(root_fd, node.path, _DIRECTORY)
        try:
            os.fchmod(fd, stat.S_IMODE(node.mode) & _PERMISSIONS | 0o700)  # ours to walk again
            os.utime(fd, ns=(node.mtime_ns, node.mtime_ns))
        finally:
            os.close(fd)


def _make_directory(parent_fd: int, name: bytes) -> None:
    # opened at once, and through the one place that knows what a name is
    os.mkdir(name, 0o700, dir_fd=parent_fd)
    os.close(open_beneath(parent_fd, name, _DIRECTORY))


def _write_file(parent_fd: int, name: bytes, node: Node, find: Find, snapshot_id: str) -> None:
    found = find(node.digest)
    if found is None or found[1].size != node.size:
        raise damaged(snapshot_id)
    fd = open_beneath(parent_fd, name, _NEW_FILE, 0o600)
    try:
        digest = hashlib.sha256()
        for piece in read_content(*found):
            digest.update(piece)
            rest = memoryview(piece)
            while rest:
                rest = rest[os.write(fd, rest) :]
        if digest.digest() != node.digest:
            raise damaged(snapshot_id)
        os.fchmod(fd, stat.S_IMODE(node.mode) & _PERMISSIONS)
        os.utime(fd, ns=(node.mtime_ns, node.mtime_ns))
    finally:
        os.close(fd)
