"""Takes a secret out of the files of a dead guest before anybody keeps them: masked in contents, gone from names."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from ringfence.masking import PIECE_BYTES
from ringfence.private_files import write_all
from ringfence.workspaces.commit import parent_of, remove
from ringfence.workspaces.tree import Entry, Walk

if TYPE_CHECKING:
    from ringfence.masking import Masks

_MOST_ENTRIES: Final = 200_000
_MOST_DEPTH: Final = 128
_READ: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


def mask_files(root_fd: int, masks: Masks) -> tuple[str, ...]:
    """Mask every file below a directory; return what to say about it.

    A name or a link that holds a secret is removed with all below it, and so is a file that there is no room to mask.
    Where there is more than is looked at, nothing is kept.

    Raises:
        OSError: Something can neither be masked nor removed. It may name a file, and a guest names files after secrets.
    """
    removed = masked = 0
    walk = Walk(root_fd, max_entries=_MOST_ENTRIES, max_depth=_MOST_DEPTH)
    doomed: list[bytes] = []
    below: set[bytes] = set()  # as many as the guest likes: nothing may be compared with all of them
    for entry in walk:
        if entry.path.rpartition(b"/")[0] in below:
            below.add(entry.path)
            _permit_change(entry.parent_fd)
        elif _tells(entry, masks):
            doomed.append(entry.path)
            below.add(entry.path)
            _permit_change(entry.parent_fd)
        elif entry.is_file and _holds(entry, masks):
            _permit_change(entry.parent_fd)
            try:
                _rewrite(entry, masks)
                masked += 1
            except OSError as error:
                if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                    raise
                doomed.append(entry.path)
    if not walk.complete:
        doomed = [os.fsencode(name) for name in os.listdir(root_fd)]
    for path in doomed:
        with parent_of(root_fd, path) as (parent, name):
            remove(parent, name)
        removed += 1
    notes = []
    if masked:
        notes.append(f"secrets were masked in {masked} file{'s' if masked > 1 else ''}")
    if removed:
        notes.append(f"{removed} file{'s' if removed > 1 else ''} could not be kept without a secret in them")
    return tuple(notes)


def _permit_change(directory: int) -> None:
    """Let a directory be changed, from which its guest took that right away before it died."""
    mode = stat.S_IMODE(os.fstat(directory).st_mode)
    if mode & 0o700 != 0o700:
        os.fchmod(directory, mode | 0o700)


def _tells(entry: Entry, masks: Masks) -> bool:
    if masks.mask(entry.path) != entry.path:  # a value with a slash in it makes two names of one
        return True
    if not entry.is_link:
        return False
    target = os.readlink(entry.name, dir_fd=entry.parent_fd)
    return masks.mask(target) != target


def _holds(entry: Entry, masks: Masks) -> bool:
    masker = masks.stream()
    if entry.status.st_mode & 0o400 == 0:
        os.chmod(entry.name, stat.S_IMODE(entry.status.st_mode) | 0o400, dir_fd=entry.parent_fd)
    fd = os.open(entry.name, _READ, dir_fd=entry.parent_fd)
    try:
        for chunk in _contents(fd):
            masker.add(chunk)
        masker.finish()
    finally:
        os.close(fd)
    return masker.found


def _contents(fd: int) -> Iterator[bytes]:
    """Yield what was written into a file, and one zero for each hole: a guest makes a terabyte of those at no cost."""
    position = 0
    while True:
        try:
            start = os.lseek(fd, position, os.SEEK_DATA)
        except OSError as error:
            if error.errno != errno.ENXIO:
                raise
            return
        if start > position:
            yield b"\0"
        position = os.lseek(fd, start, os.SEEK_HOLE)
        os.lseek(fd, start, os.SEEK_SET)
        left = position - start
        while left and (chunk := os.read(fd, min(PIECE_BYTES, left))):
            left -= len(chunk)
            yield chunk


def _rewrite(entry: Entry, masks: Masks) -> None:
    """Put a masked copy in the place of the file, with its mode."""
    draft = b".masked-" + os.urandom(8).hex().encode()
    fd = os.open(entry.name, _READ, dir_fd=entry.parent_fd)
    try:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        copy = os.open(draft, flags, 0o600, dir_fd=entry.parent_fd)
        try:
            masker = masks.stream()
            while chunk := os.read(fd, PIECE_BYTES):
                write_all(copy, masker.add(chunk))
            write_all(copy, masker.finish())
            os.fchmod(copy, stat.S_IMODE(entry.status.st_mode))
        finally:
            os.close(copy)
        os.rename(draft, entry.name, src_dir_fd=entry.parent_fd, dst_dir_fd=entry.parent_fd)
    except BaseException:
        remove(entry.parent_fd, draft)
        raise
    finally:
        os.close(fd)
