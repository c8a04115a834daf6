"""Read a session's work directory into a snapshot: whoever filled it, however deep, odd or large it is."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Sequence

from ringfence.dataclass import dataclass, field
from ringfence.errors import CapabilityBlocked, PathTraversalError
from ringfence.workspaces.changes import MAX_DEPTH
from ringfence.workspaces.snapshot_index import MOST_ENTRIES, NO_DIGEST, Index, digest_if_same, key_of
from ringfence.workspaces.snapshot_pack import PIECE_BYTES, Packer, changed
from ringfence.workspaces.tree import Entry, Walk, open_readable

_PERMISSIONS = 0o777
_LOOK_EVERY = 512


@dataclass(slots=True)
class Tree:
    """What was read: a key for every path, and the digest of those that were not read again."""

    keys: list[bytes] = field(default_factory=list)
    paths: list[bytes] = field(default_factory=list)
    targets: list[bytes] = field(default_factory=list)
    files: int = 0
    size: int = 0
    skipped: int = 0
    known: list[bytes | None] = field(default_factory=list)

    def heads(self, read: Sequence[bytes]) -> list[bytes]:
        """Return the head of every path, given the digests of what was read, in order."""
        rest = iter(read)
        return [
            key + (next(rest) if digest is None else digest) for key, digest in zip(self.keys, self.known, strict=True)
        ]


def read_tree(
    work_fd: int,
    before: Index | None,
    packer: Packer,
    *,
    stored: Callable[[bytes], bool],
    look: Callable[[], None],
) -> Tree:
    """List everything below `work_fd`, and hand to `packer` the contents that `before` does not have already.

    `stored` says whether a content is still kept at all; `look` is called now and then, and may raise. Fifos, sockets
    and devices are counted and left out. Nothing but the permission bits of a mode is kept.

    Raises:
        CapabilityBlocked: There is more than a snapshot holds, or somebody changes it meanwhile.
    """
    tree = Tree()
    known = {} if before is None else before.known()
    began_ns = 0 if before is None else before.began_ns
    walk = Walk(work_fd, max_entries=MOST_ENTRIES, max_depth=MAX_DEPTH)
    for entry in walk:
        status = entry.status
        if len(tree.keys) % _LOOK_EVERY == 0:
            look()
        digest: bytes | None = NO_DIGEST
        if stat.S_ISREG(status.st_mode):
            key = key_of(status)
            digest = digest_if_same(known.get(entry.path), key, began_ns)
            if digest is None or not stored(digest):
                digest = None
                _hand_over(entry, packer)
            tree.files += 1
            tree.size += status.st_size
        elif stat.S_ISLNK(status.st_mode):
            key = key_of(status)
            tree.targets.append(os.readlink(entry.name, dir_fd=entry.parent_fd))
        elif stat.S_ISDIR(status.st_mode):
            key = key_of(status)
        else:
            tree.skipped += 1
            continue
        tree.keys.append(key)
        tree.paths.append(entry.path)
        tree.known.append(digest)
    if not walk.complete:
        raise CapabilityBlocked(
            f"a snapshot holds at most {MOST_ENTRIES} entries, {MAX_DEPTH} levels deep",
            reason="too_many_entries",
            limit=MOST_ENTRIES,
        )
    return tree


def _hand_over(entry: Entry, packer: Packer) -> None:
    fd = open_content(entry)
    size = entry.status.st_size
    if size > PIECE_BYTES:
        packer.add_file(fd, size)
        return
    try:
        content = os.read(fd, size + 1)
    finally:
        os.close(fd)
    if len(content) != size:
        raise changed()
    packer.add(content)


def open_content(entry: Entry) -> int:
    """Open a file that was listed, and nothing that has since taken its name.

    Raises:
        CapabilityBlocked: It is not the file that was listed.
    """
    try:
        fd = open_readable(entry.parent_fd, entry.name)
    except (FileNotFoundError, PathTraversalError) as error:
        raise changed() from error
    found = os.fstat(fd)
    if (found.st_ino, found.st_dev, found.st_size) != (
        entry.status.st_ino,
        entry.status.st_dev,
        entry.status.st_size,
    ) or not stat.S_ISREG(found.st_mode):
        os.close(fd)
        raise changed()
    if found.st_mode != entry.status.st_mode:  # it was opened for us against its own permissions
        os.fchmod(fd, stat.S_IMODE(entry.status.st_mode) & _PERMISSIONS)
    return fd
