"""The files of a container, as its init writes them before the guest lives and reads them when it is dead.

While it writes there is nobody who could put a link in its way, and while it reads nobody is left; but what it reads is
whatever the guest made, so it goes from descriptor to descriptor, opens nothing but regular files, and stops at bounds.
The host believes none of it.
"""

from __future__ import annotations

import errno
import os
import stat
from itertools import islice

from ringfence.isolation.protocol import Kind
from ringfence.isolation.stream import wire

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from ringfence.isolation.stream.inside_relay import Stream

_UNSENT = 1 << 18
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_WRITABLE = (wire.WORK, wire.ARTIFACTS)
_KINDS = {
    stat.S_IFREG: wire.FILE,
    stat.S_IFDIR: wire.DIRECTORY,
    stat.S_IFLNK: wire.LINK,
    stat.S_IFSOCK: wire.SOCKET,
}


class Trees:
    """What was put into the areas, and so what of it has changed."""

    def __init__(self) -> None:
        """Open the areas that there are."""
        self._roots = {area: os.open(path, _DIRECTORY) for area, path in enumerate(wire.AREAS) if os.path.isdir(path)}
        self._empty = {area: _changed(self._roots[area]) for area in _WRITABLE if not _has_entries(self._roots[area])}
        """When the areas in which there was nothing were last changed."""
        self._base: dict[bytes, tuple[Any, ...]] = {}
        """Of the work directory: how each was when it was written."""
        self._of_session: set[bytes] = set()
        self._placed: set[bytes] = set()
        self._from_session = False
        self._file: tuple[int, wire.Entry] | None = None
        self._left = 0
        self._error = 0

    # --- before ---

    def receive(self, stream: Stream, *, from_session: bool) -> None:
        """Take files until the host says that these were all."""
        self._from_session = from_session
        kind = Kind.ENTRY
        while kind is not Kind.PLACED:
            kind, payload = stream.next()
            self.take(stream, kind, payload)
        self._from_session = False

    def take(self, stream: Stream, kind: Kind, payload: bytes) -> None:
        """Take one word about files; what fails is told when all of them were sent."""
        if kind is Kind.PLACED:
            stream.say(Kind.PLACED, b"%d" % self._error)
            return
        if self._error:
            return
        try:
            if kind is Kind.ENTRY:
                self._begin(wire.unpack(payload))
            elif kind is Kind.PIECE and self._file is not None:
                self._go_on(payload)
        except OSError as error:
            self._error = error.errno or errno.EIO

    def _begin(self, entry: wire.Entry) -> None:
        parent, name = _open_parent(self._roots[entry.area], entry.path)
        try:
            _remove(parent, name, unless_directory=entry.kind == wire.DIRECTORY)
            if entry.kind == wire.DIRECTORY:
                if not _is_there(parent, name):
                    os.mkdir(name, dir_fd=parent)
                os.chmod(name, entry.mode & 0o777 | 0o700, dir_fd=parent)
            elif entry.kind == wire.LINK:
                os.symlink(entry.target, name, dir_fd=parent)
            else:
                flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
                self._file = os.open(name, flags, 0o600, dir_fd=parent), entry
                self._left = entry.size
                self._finish_if_done()
                return
            self._remember(entry, os.stat(name, dir_fd=parent, follow_symlinks=False), entry.target)
        finally:
            os.close(parent)

    def _go_on(self, data: bytes) -> None:
        if self._file is None:
            return
        rest = memoryview(data)[: self._left]
        while rest:
            count = os.write(self._file[0], rest)
            rest = rest[count:]
            self._left -= count
        self._finish_if_done()

    def _finish_if_done(self) -> None:
        if self._file is None or self._left:
            return
        fd, entry = self._file
        self._file = None
        os.fchmod(fd, entry.mode & 0o777)
        if entry.mtime_ns:
            os.utime(fd, ns=(entry.mtime_ns, entry.mtime_ns))
        self._remember(entry, os.fstat(fd), b"")
        os.close(fd)

    def _remember(self, entry: wire.Entry, status: os.stat_result, target: bytes) -> None:
        if entry.area == wire.WORK:
            self._base[entry.path] = _signature(status, target)
            (self._of_session if self._from_session else self._placed).add(entry.path)

    # --- after ---

    def has_files(self) -> bool:
        """Whether there is anything the host may want to hear of; a session's files may all have been removed."""
        return bool(self._of_session) or any(
            # first the question that costs one call: in gVisor each is dear
            self._empty.get(area) != _changed(self._roots[area]) and _has_entries(self._roots[area])
            for area in _WRITABLE
        )

    def send(self, stream: Stream, bounds: dict[str, Any]) -> None:
        """Send what the guest left, in the order in which the host will walk over it."""
        complete = self._send_artifacts(stream, bounds["artifacts"])
        complete = self._send_work(stream, bounds["work"], with_session=bool(bounds["session"]["kept"])) and complete
        stream.say(Kind.HARVEST, b"%d" % complete)
        stream.flush()

    def _send_artifacts(self, stream: Stream, bounds: dict[str, int]) -> bool:
        left, taken = bounds["bytes"], 0
        walk = _Walk(self._roots[wire.ARTIFACTS], bounds["entries"], bounds["depth"])
        for path, name, parent, status in walk:
            wanted = stat.S_ISREG(status.st_mode) and taken < bounds["count"] and status.st_size <= left
            if wanted:
                left -= status.st_size
                taken += 1
            _send(stream, wire.ARTIFACTS, path, name, parent, status, wire.HAS_CONTENT if wanted else 0)
        return walk.complete

    def _send_work(self, stream: Stream, bounds: dict[str, int], *, with_session: bool) -> bool:
        left = bounds["bytes"] if with_session else 0
        are_directories: dict[bytes, bool] = {}
        untold: dict[bytes, os.stat_result] = {}
        """Directories that are as they were: told of when something in them is not."""
        walk = _Walk(self._roots[wire.WORK], bounds["entries"], bounds["depth"])
        for path, name, parent, status in walk:
            are_directories[path] = stat.S_ISDIR(status.st_mode)
            target = os.readlink(name, dir_fd=parent) if stat.S_ISLNK(status.st_mode) else b""
            same = self._base.get(path) == _signature(status, target)
            if same and not (with_session and path in self._placed):
                if are_directories[path]:
                    untold[path] = status
                continue
            _tell_above(stream, path, untold)
            flags = wire.UNTOUCHED if same else 0
            if with_session and stat.S_ISREG(status.st_mode) and status.st_size <= left:
                left -= status.st_size
                flags |= wire.HAS_CONTENT
            _send(stream, wire.WORK, path, name, parent, status, flags)
        if walk.complete and with_session:
            self._tell_gone(stream, are_directories, untold)
        return walk.complete

    def _tell_gone(
        self, stream: Stream, are_directories: dict[bytes, bool], untold: dict[bytes, os.stat_result]
    ) -> None:
        for path in sorted(self._of_session):
            parent = path.rpartition(b"/")[0]
            # what went with its directory, or gave way to a file in its place, is told by that
            if path not in are_directories and (not parent or are_directories.get(parent)):
                _tell_above(stream, path, untold)
                stream.say(Kind.GONE, path)
                stream.flush(_UNSENT)


class _Walk:
    """The same walk as `workspaces.tree.Walk`: parents first, siblings in byte order, bounded, following nothing."""

    def __init__(self, root: int, most_entries: int, most_depth: int) -> None:
        self._root = root
        self._left = most_entries
        self._depth = most_depth
        self.complete = True

    def __iter__(self) -> Iterator[tuple[bytes, bytes, int, os.stat_result]]:
        pending = [b""]
        while pending:
            path = pending.pop()
            if path.count(b"/") + bool(path) >= self._depth:
                self.complete = False
                continue
            fd = _open_directory(self._root, path)
            deeper = []
            try:
                with os.scandir(fd) as listing:
                    names = [os.fsencode(found.name) for found in islice(listing, self._left + 1)]
                if len(names) > self._left:
                    self.complete = False
                    names = names[: self._left]
                self._left -= len(names)
                for name in sorted(names):
                    status = os.stat(name, dir_fd=fd, follow_symlinks=False)
                    below = path + b"/" + name if path else name
                    if len(below) > 4095:  # no path of the host's could be as long
                        self.complete = False
                        continue
                    yield below, name, fd, status
                    if stat.S_ISDIR(status.st_mode):
                        deeper.append(below)
            finally:
                os.close(fd)
            pending.extend(reversed(deeper))


def _send(stream: Stream, area: int, path: bytes, name: bytes, parent: int, status: os.stat_result, flags: int) -> None:
    kind = _KINDS.get(stat.S_IFMT(status.st_mode), wire.FIFO)
    target = os.readlink(name, dir_fd=parent) if kind == wire.LINK else b""
    size = status.st_size if kind in (wire.FILE, wire.LINK) else 0
    mode = stat.S_IMODE(status.st_mode)
    stream.say(Kind.ENTRY, wire.pack(wire.Entry(area, kind, flags, mode, status.st_mtime_ns, size, path, target)))
    if kind == wire.FILE and flags & wire.HAS_CONTENT:
        _send_content(stream, parent, name, mode, size)
    stream.flush(_UNSENT)


def _send_content(stream: Stream, parent: int, name: bytes, mode: int, size: int) -> None:
    if mode & 0o400 == 0:
        os.chmod(name, 0o600, dir_fd=parent)  # known to be no link, and nobody is left to make it one
    fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=parent)
    try:
        if mode & 0o400 == 0:
            os.fchmod(fd, mode)  # it may have other names, which are told with their mode later
        while size:
            data = os.read(fd, min(wire.PIECE_BYTES, size)) or bytes(min(wire.PIECE_BYTES, size))
            size -= len(data)
            stream.say(Kind.PIECE, data)
            stream.flush(_UNSENT)
    finally:
        os.close(fd)


def _tell_above(stream: Stream, path: bytes, untold: dict[bytes, os.stat_result]) -> None:
    """Tell of the directories that lead to `path`, if nobody has yet."""
    parts = path.split(b"/")
    for count in range(1, len(parts)):
        above = b"/".join(parts[:count])
        status = untold.pop(above, None)
        if status is not None:
            mode = stat.S_IMODE(status.st_mode)
            entry = wire.Entry(wire.WORK, wire.DIRECTORY, 0, mode, status.st_mtime_ns, 0, above)
            stream.say(Kind.ENTRY, wire.pack(entry))


def _signature(status: os.stat_result, target: bytes) -> tuple[Any, ...]:
    """Return what differs after any change; the time of change is the kernel's, and no guest can set it."""
    kind, mode = stat.S_IFMT(status.st_mode), stat.S_IMODE(status.st_mode)
    if kind == stat.S_IFREG:
        return kind, mode, status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino
    return (kind, target) if kind == stat.S_IFLNK else (kind, mode)


def _open_directory(root: int, path: bytes) -> int:
    """Open a directory of the guest's, whatever it allowed itself in it."""
    if os.fstat(root).st_mode & 0o500 != 0o500:
        os.fchmod(root, 0o700)
    fd = os.open(".", _DIRECTORY, dir_fd=root)
    for name in path.split(b"/") if path else ():
        try:
            if os.stat(name, dir_fd=fd, follow_symlinks=False).st_mode & 0o500 != 0o500:
                os.chmod(name, 0o700, dir_fd=fd)
            deeper = os.open(name, _DIRECTORY, dir_fd=fd)
        finally:
            os.close(fd)
        fd = deeper
    return fd


def _open_parent(root: int, path: bytes) -> tuple[int, bytes]:
    """Open the directory that `path` is to lie in, in place of whatever else lies there."""
    *parents, name = path.split(b"/")
    fd = os.open(".", _DIRECTORY, dir_fd=root)
    for part in parents:
        try:
            _remove(fd, part, unless_directory=True)
            if not _is_there(fd, part):
                os.mkdir(part, 0o755, dir_fd=fd)
                os.chmod(part, 0o755, dir_fd=fd)  # noqa: S103  of the guest's own, whatever the umask here
            deeper = os.open(part, _DIRECTORY, dir_fd=fd)
        finally:
            os.close(fd)
        fd = deeper
    return fd, name


def _changed(directory: int) -> tuple[int, int]:
    """Return what differs after any change to what is in a directory; no guest can set the second."""
    status = os.fstat(directory)
    return status.st_mtime_ns, status.st_ctime_ns


def _has_entries(directory: int) -> bool:
    with os.scandir(directory) as entries:
        return next(entries, None) is not None


def _is_there(parent: int, name: bytes) -> bool:
    try:
        os.stat(name, dir_fd=parent, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True


def _remove(parent: int, name: bytes, *, unless_directory: bool = False) -> None:
    try:
        status = os.stat(name, dir_fd=parent, follow_symlinks=False)
    except FileNotFoundError:
        return
    if not stat.S_ISDIR(status.st_mode):
        os.unlink(name, dir_fd=parent)
    elif not unless_directory:
        fd = os.open(name, _DIRECTORY, dir_fd=parent)
        try:
            for found in os.listdir(fd):
                _remove(fd, os.fsencode(found))
        finally:
            os.close(fd)
        os.rmdir(name, dir_fd=parent)
