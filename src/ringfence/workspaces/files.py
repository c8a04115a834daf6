"""What a broker does to the files of a workspace: each step by descriptor from the area's own, each size known first.

Nothing here trusts a name twice. A path becomes a descriptor in `beneath`, once; what is then done is done to that
descriptor, or to one name in the directory it holds. Other processes may rename, replace and unlink all the while.
"""

from __future__ import annotations

import heapq
import os
import secrets
import stat
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from enum import StrEnum

from ringfence.dataclass import dataclass
from ringfence.errors import CapabilityBlocked, InvalidRequest, QuotaExceeded
from ringfence.workspaces.acting import Owner, acting_as
from ringfence.workspaces.beneath import (
    make_parents,
    open_beneath,
    open_parent,
    open_regular,
    rename_in,
    require_plain,
)
from ringfence.workspaces.free_space import require_free_space
from ringfence.workspaces.tree import Walk

MAX_DEPTH = 64
_CHUNK = 1024 * 1024
_MOST_SURVEYED = 1_000_000
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY
_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL


@dataclass(frozen=True, slots=True)
class Area:
    """One directory of a workspace: how far it reaches, whose it is, and what it may grow to."""

    fd: int
    owner: Owner | None = None
    writable: bool = True
    in_tree_links: bool = False
    max_bytes: int | None = None
    max_files: int | None = None
    changing: Callable[[], AbstractContextManager[None]] | None = None
    """Held while the area is changed, so that a quota checked is a quota kept; acts as the owner."""
    using: Callable[[], AbstractContextManager[None]] | None = None
    """Held while `fd` is used for reading, where it may be closed by somebody else; acts as the owner."""


class Kind(StrEnum):
    """What is behind a name; everything else is `special` and only ever listed."""

    FILE = "file"
    DIRECTORY = "directory"
    LINK = "link"
    SPECIAL = "special"


@dataclass(frozen=True, slots=True)
class Found:
    """What a path is; times are the file system's and may have been set by a guest."""

    name: bytes
    kind: Kind
    size: int
    modified_ns: int


@dataclass(frozen=True, slots=True)
class Slice:
    """Some bytes of a file and how large it is in all."""

    content: bytes
    offset: int
    size: int

    @property
    def truncated(self) -> bool:
        """Whether the file goes on after these bytes."""
        return self.offset + len(self.content) < self.size


@dataclass(frozen=True, slots=True)
class Page:
    """Entries in byte order; `after` is where the next page starts, `None` when this is the last."""

    entries: tuple[Found, ...]
    after: bytes | None


def read(area: Area, path: str, *, offset: int, most: int) -> Slice:
    """Read at most `most` bytes of a regular file from `offset`.

    Raises:
        PathTraversalError: The path leads outside, or is or crosses a link that the area does not allow.
        CapabilityBlocked: It is a device, a fifo or a socket, none of which is opened.
    """
    with _using(area):
        fd = open_regular(area.fd, path, in_tree_links=area.in_tree_links)
    try:
        size = os.fstat(fd).st_size  # of what was opened; a hole counts, and is not read beyond `most`
        content = bytearray()
        while len(content) < most and (chunk := os.pread(fd, min(_CHUNK, most - len(content)), offset + len(content))):
            content += chunk
        return Slice(bytes(content), offset, max(size, offset + len(content)) if content else size)
    finally:
        os.close(fd)


def write(area: Area, path: str, content: bytes, *, overwrite: bool, max_files: int | None = None) -> bool:
    """Write a whole file in one step that no reader sees half done; return whether the name is new.

    The content goes to a new file beside it, which then takes the name. So nothing is written through a link, a second
    name of the same file keeps the old content, and a full disk leaves what was there. Missing directories are made.

    Raises:
        InvalidRequest: The name is taken and `overwrite` is false, or it is a directory's.
        PathTraversalError: As `read`.
        QuotaExceeded: The area would outgrow its quota; nothing was written.
    """
    with _changing(area):
        present = _look(area, path)
        if present is not None:
            require_plain(present.st_mode, path)
            if stat.S_ISDIR(present.st_mode):
                raise InvalidRequest("a directory has this name", reason="is_a_directory")
            if not overwrite:
                raise InvalidRequest("a file has this name", reason="exists")
        grows = len(content) - (present.st_size if present is not None else 0)
        made = 0 if present is not None else 1 + _missing_parents(area, path)
        _require_room(area, grows, made, max_files)
        parent, name = _parent_for(area, path)
        try:
            mode = 0o644 if present is None else stat.S_IMODE(present.st_mode) & 0o777
            _write_beside(parent, name, content, mode, overwrite=overwrite)
        finally:
            os.close(parent)
        return present is None


def list_page(area: Area, path: str, *, after: bytes, most: int, most_scanned: int) -> Page:
    """List a directory: the first `most` names after `after`, however many there are and whoever changes them.

    Raises:
        CapabilityBlocked: More than `most_scanned` entries would have to be looked at.
    """
    with _using(area):
        fd = _open_directory(area, path)
        try:
            names = heapq.nsmallest(most + 1, _names(fd, after, most_scanned))
            entries = [found for name in names[:most] if (found := _found(fd, name)) is not None]
        finally:
            os.close(fd)
    return Page(tuple(entries), names[most - 1] if len(names) > most else None)


def status(area: Area, path: str) -> Found:
    """Say what `path` is, without opening it.

    Raises:
        PathTraversalError: As `read`.
    """
    with _using(area):
        if not path:
            return _described(b"", os.fstat(area.fd))
        fd = open_beneath(area.fd, path, os.O_PATH, in_tree_links=area.in_tree_links)
    try:
        found = os.fstat(fd)
    finally:
        os.close(fd)
    if stat.S_ISLNK(found.st_mode):
        require_plain(found.st_mode, path)
    return _described(os.fsencode(path.rpartition("/")[2]), found)


def make_directory(area: Area, path: str, *, max_files: int | None = None) -> bool:
    """Make a directory and those above it; return whether it is new.

    Raises:
        InvalidRequest: Something else has the name.
    """
    with _changing(area):
        present = _look(area, path) if path else os.fstat(area.fd)
        if present is not None:
            if stat.S_ISLNK(present.st_mode):
                require_plain(present.st_mode, path)
            if not stat.S_ISDIR(present.st_mode):
                raise InvalidRequest("something else has this name", reason="exists")
            return False
        _require_room(area, 0, 1 + _missing_parents(area, path), max_files)
        parent, name = _parent_for(area, path)
        try:
            os.close(make_parents(parent, name + b"/-"))  # of a name that is never made: only its parent is
        finally:
            os.close(parent)
        return True


def delete(area: Area, path: str) -> Kind:
    """Remove one name: a file's, a link's own or an empty directory's; return what it was.

    Raises:
        OSError: As the kernel says; `ENOTEMPTY` for a directory with entries.
    """
    with _changing(area):
        parent, name = open_parent(area.fd, path, in_tree_links=area.in_tree_links)
        try:
            kind = _kind(os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode)
            if kind is Kind.DIRECTORY:
                os.rmdir(name, dir_fd=parent)
            else:
                os.unlink(name, dir_fd=parent)
        finally:
            os.close(parent)
        return kind


def usage(area: Area, *, most_files: int = _MOST_SURVEYED) -> tuple[int, int]:
    """Return the bytes and the entries in the area; the count stops just above `most_files`."""
    size = count = 0
    walk = Walk(area.fd, max_entries=most_files + 1, max_depth=MAX_DEPTH)
    for entry in walk:
        count += 1
        size += entry.status.st_size if entry.is_file else 0
    return size, count if walk.complete else max(count, most_files + 1)


@contextmanager
def _using(area: Area) -> Iterator[None]:
    with area.using() if area.using is not None else acting_as(area.owner):
        yield


@contextmanager
def _changing(area: Area) -> Iterator[None]:
    if not area.writable:
        raise CapabilityBlocked("this part of the workspace is for reading", reason="read_only")
    with area.changing() if area.changing is not None else acting_as(area.owner):
        yield


def _look(area: Area, path: str) -> os.stat_result | None:
    """Return what has the name now, a link as itself; `None` when nothing has."""
    try:
        parent, name = open_parent(area.fd, path, in_tree_links=area.in_tree_links)
    except FileNotFoundError:
        return None
    try:
        return os.stat(name, dir_fd=parent, follow_symlinks=False)
    except FileNotFoundError:
        return None
    finally:
        os.close(parent)


def _missing_parents(area: Area, path: str) -> int:
    parts = path.split("/")
    for depth in range(len(parts) - 1, 0, -1):
        try:
            os.close(open_beneath(area.fd, "/".join(parts[:depth]), _DIRECTORY, in_tree_links=area.in_tree_links))
        except FileNotFoundError:
            continue
        return len(parts) - 1 - depth
    return len(parts) - 1


def _parent_for(area: Area, path: str) -> tuple[int, bytes]:
    try:
        return open_parent(area.fd, path, in_tree_links=area.in_tree_links)
    except FileNotFoundError:
        return make_parents(area.fd, path), os.fsencode(path.rpartition("/")[2])


def _require_room(area: Area, grows: int, made: int, max_files: int | None) -> None:
    """Refuse what would not fit, before a byte of it is written."""
    require_free_space(area.fd, grows)
    most_files = min((each for each in (area.max_files, max_files) if each is not None), default=None)
    if (area.max_bytes is None or grows <= 0) and (most_files is None or not made):
        return
    size, count = usage(area, most_files=_MOST_SURVEYED if most_files is None else most_files)
    if most_files is not None and made and count + made > most_files:
        raise CapabilityBlocked(f"there are {most_files} files already", reason="max_files", limit=most_files)
    if area.max_bytes is not None and (size + grows > area.max_bytes or count > _MOST_SURVEYED):
        raise QuotaExceeded(
            "the files would not fit into this space", reason="disk", limit=area.max_bytes, observed=size + grows
        )


def _write_beside(parent: int, name: bytes, content: bytes, mode: int, *, overwrite: bool) -> None:
    beside = b".ringfence-%s" % secrets.token_hex(8).encode()
    fd = open_beneath(parent, beside, _NEW_FILE, 0o600)
    try:
        try:
            rest = memoryview(content)
            while rest:
                rest = rest[os.write(fd, rest[:_CHUNK]) :]
            os.fchmod(fd, mode)  # last: until then nobody else may read it
        finally:
            os.close(fd)
        rename_in(parent, beside, name, replace=overwrite)
    except BaseException:
        with suppress(FileNotFoundError):
            os.unlink(beside, dir_fd=parent)
        raise


def _open_directory(area: Area, path: str) -> int:
    if not path:
        return os.open(".", _DIRECTORY | os.O_CLOEXEC, dir_fd=area.fd)
    return open_beneath(area.fd, path, _DIRECTORY, in_tree_links=area.in_tree_links)


def _names(fd: int, after: bytes, most_scanned: int) -> Iterator[bytes]:
    with os.scandir(fd) as listing:
        for count, entry in enumerate(listing):
            if count >= most_scanned:
                raise CapabilityBlocked(
                    f"the directory has more than {most_scanned} entries", reason="too_many_entries", limit=most_scanned
                )
            name = os.fsencode(entry.name)
            if name > after:
                yield name


def _found(fd: int, name: bytes) -> Found | None:
    try:
        return _described(name, os.stat(name, dir_fd=fd, follow_symlinks=False))
    except FileNotFoundError:  # gone since it was listed
        return None


def _described(name: bytes, found: os.stat_result) -> Found:
    kind = _kind(found.st_mode)
    return Found(name, kind, found.st_size if kind is Kind.FILE else 0, found.st_mtime_ns)


def _kind(mode: int) -> Kind:
    known = {stat.S_IFREG: Kind.FILE, stat.S_IFDIR: Kind.DIRECTORY, stat.S_IFLNK: Kind.LINK}
    return known.get(stat.S_IFMT(mode), Kind.SPECIAL)
