"""Fill a project's work directory with a copy of a repository that the operator registered.

The copy shares no inode with what was copied: where the file system can, it shares blocks until one side is written.
The repository is read as ourselves and never written, not even a permission or a time of access that we could spare;
the copy is made as the project's own user. No link is followed, no other mount is entered.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable
from contextlib import AbstractContextManager

from ringfence.capability.limits import Limits
from ringfence.dataclass import dataclass, field
from ringfence.errors import CapabilityBlocked, InvalidRequest, QuotaExceeded
from ringfence.workspaces import git_directory as git
from ringfence.workspaces.acting import acting_as
from ringfence.workspaces.beneath import MAX_PATH_BYTES, open_beneath, open_regular
from ringfence.workspaces.changes import MAX_DEPTH
from ringfence.workspaces.free_space import require_free_space
from ringfence.workspaces.git_directory import Place
from ringfence.workspaces.session import SessionWorkspace

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY
_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL
_PIECE = 1024 * 1024
_LOOK_EVERY = 128
# what a kernel or a file system says that cannot copy between these two files by itself
_NOT_BY_ITSELF = frozenset({errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EPERM})


@dataclass(slots=True)
class Copied:
    """What was copied, and what was not: special files are skipped, what git would act on is left out."""

    entries: int = 0
    files: int = 0
    bytes: int = 0
    skipped: int = 0
    left_out: int = 0


@dataclass(frozen=True, slots=True)
class _Pending:
    path: bytes
    place: Place = Place.PLAIN
    git_root: bytes = b""


@dataclass(slots=True)
class _Copying:
    """One copy under way; see `check_out`."""

    source_fd: int
    work_fd: int
    limits: Limits
    look: Callable[[], None]
    done: Copied = field(default_factory=Copied)
    directories: list[tuple[bytes, os.stat_result]] = field(default_factory=list)

    def run(self) -> None:
        pending = [_Pending(b"")]
        while pending:
            pending.extend(self._copy_directory(pending.pop()))
        for path, status in reversed(self.directories):  # last and from below: what is made in one changes its time
            fd = open_beneath(self.work_fd, path, _DIRECTORY)
            try:
                os.fchmod(fd, stat.S_IMODE(status.st_mode) & 0o777 | 0o700)
                os.utime(fd, ns=(status.st_mtime_ns, status.st_mtime_ns))
            finally:
                os.close(fd)

    def _copy_directory(self, here: _Pending) -> list[_Pending]:
        with _ourselves():
            source = _opened(self.source_fd, here.path)
        try:
            with _ourselves():
                names = os.listdir(source)
            entries = frozenset(map(os.fsencode, names))
            if not here.path and git.is_bare(entries):
                raise InvalidRequest(
                    "the repository is a bare one and has no files", reason="not_a_directory",
                    fix="register a directory in which it is checked out",
                )  # fmt: skip
            name = here.path.rpartition(b"/")[2]
            place = git.place_of(name, here.place, entries) if here.path else Place.PLAIN
            root = here.path if place is Place.GIT else here.git_root
            target = _opened(self.work_fd, here.path)
            try:
                return [
                    _Pending(path, place, root)
                    for each in sorted(entries)
                    if (path := self._copy_entry(here.path, each, source, target, place, root)) is not None
                ]
            finally:
                os.close(target)
        finally:
            os.close(source)

    def _copy_entry(
        self, above: bytes, name: bytes, source: int, target: int, place: Place, git_root: bytes
    ) -> bytes | None:
        """Copy one entry; return its path where it is a directory, which is made and not yet filled."""
        path = above + b"/" + name if above else name
        if path == git_root + b"/" + git.ALTERNATES and place is Place.INSIDE:
            raise InvalidRequest(
                "the repository borrows objects of another", reason="conflict", fix="run `git repack -a -d` in it"
            )
        with _ourselves():
            try:
                status = os.stat(name, dir_fd=source, follow_symlinks=False)
            except FileNotFoundError:  # gone since it was listed
                return None
        is_git = name == b".git" and place is Place.PLAIN and not stat.S_ISDIR(status.st_mode)
        if not git.goes_along(name, place) or (is_git and not self._leads_inside(status, source, above)):
            self.done.left_out += 1
            return None
        if stat.S_ISDIR(status.st_mode):
            self._count(path)
            os.mkdir(name, 0o700, dir_fd=target)
            self.directories.append((path, status))
            return path
        if stat.S_ISREG(status.st_mode):
            self._count(path)
            self._copy_file(name, source, target, rewrites=name == b"config" and place is Place.GIT)
        elif stat.S_ISLNK(status.st_mode):
            self._count(path)
            with _ourselves():
                leads = os.readlink(name, dir_fd=source)
            os.symlink(leads, name, dir_fd=target)
            os.utime(name, ns=(status.st_mtime_ns,) * 2, dir_fd=target, follow_symlinks=False)
        else:
            self.done.skipped += 1
        return None

    def _leads_inside(self, status: os.stat_result, source: int, above: bytes) -> bool:
        if not stat.S_ISREG(status.st_mode) or status.st_size > git.MOST_LINK_BYTES:
            return False
        return git.leads_inside(_read(source, b".git", git.MOST_LINK_BYTES), above)

    def _copy_file(self, name: bytes, source: int, target: int, *, rewrites: bool) -> None:
        with _ourselves():
            found = open_regular(source, name)
        try:
            status = os.fstat(found)
            require_free_space(target, status.st_size)
            made = open_beneath(target, name, _NEW_FILE, 0o600)
            try:
                if rewrites:
                    text = git.configuration(_read(source, name, git.MOST_CONFIG_BYTES))
                    size = os.write(made, text)
                else:
                    size = self._copy_bytes(found, made)
                os.fchmod(made, stat.S_IMODE(status.st_mode) & 0o777 | 0o400)
                os.utime(made, ns=(status.st_mtime_ns, status.st_mtime_ns))
            finally:
                os.close(made)
        finally:
            os.close(found)
        self.done.files += 1
        self.done.bytes += size

    def _copy_bytes(self, source: int, target: int) -> int:
        """Copy a file to its end, and refuse it once it is more than there is room for; return its size."""
        most, copied, by_itself = self.limits.disk_bytes - self.done.bytes, 0, True
        while True:
            self.look()
            wanted = min(64 * _PIECE, most - copied + 1)
            try:
                moved = os.copy_file_range(source, target, wanted) if by_itself else _copy_piece(source, target, wanted)
            except OSError as error:
                if not by_itself or error.errno not in _NOT_BY_ITSELF:
                    raise
                by_itself = False
                continue
            if not moved:
                return copied
            copied += moved
            if copied > most:
                raise _too_much(self.limits)

    def _count(self, path: bytes) -> None:
        if self.done.entries % _LOOK_EVERY == 0:
            self.look()
        self.done.entries += 1
        if self.done.entries > self.limits.inodes:
            raise _too_much(self.limits)
        if path.count(b"/") >= MAX_DEPTH or len(path) > MAX_PATH_BYTES:
            raise CapabilityBlocked(f"the repository is deeper than {MAX_DEPTH} levels", reason="too_many_entries")


def check_out(session: SessionWorkspace, path: str, limits: Limits, *, look: Callable[[], None]) -> Copied:
    """Put a copy of the directory `path` of the host in the place of an empty work directory, in one step.

    Raises:
        InvalidRequest: The work directory has files, or the repository is none that can be copied.
        QuotaExceeded: It is more than the project may hold, or than the disk has room for; nothing was changed.
        CapabilityBlocked: It is deeper than a project may be, or changed while it was read.
    """
    copied = Copied()
    source_fd = os.open(path, _DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:

        def fill(work_fd: int) -> None:
            if os.listdir(session.work_fd):
                raise InvalidRequest(
                    "the project has files already", reason="not_empty", fix="reset it, or take another project"
                )
            _Copying(source_fd, work_fd, limits, look, copied).run()

        session.replace_work(fill)
    finally:
        os.close(source_fd)
    return copied


def _too_much(limits: Limits) -> QuotaExceeded:
    return QuotaExceeded(
        "the repository is more than the project may hold",
        reason="workspace_disk",
        max_bytes=limits.disk_bytes,
        max_inodes=limits.inodes,
    )


def _ourselves() -> AbstractContextManager[None]:
    """Act as the service again: the operator's files need not be open to the project's user."""
    return acting_as((os.geteuid(), os.getegid()))


def _opened(root_fd: int, path: bytes) -> int:
    return open_beneath(root_fd, path, _DIRECTORY) if path else os.open(".", _DIRECTORY | os.O_CLOEXEC, dir_fd=root_fd)


def _read(directory_fd: int, name: bytes, most: int) -> bytes:
    with _ourselves():
        fd = open_regular(directory_fd, name)
    try:
        return os.read(fd, most)
    finally:
        os.close(fd)


def _copy_piece(source: int, target: int, most: int) -> int:
    piece = os.read(source, min(_PIECE, most))
    rest = memoryview(piece)
    while rest:
        rest = rest[os.write(target, rest) :]
    return len(piece)
