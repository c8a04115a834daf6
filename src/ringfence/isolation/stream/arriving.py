"""What a container says its guest left, written down on the host: every word of it may be the guest's own invention.

Names are plain or refused, nothing is written twice or through a link, and every count and size is held to its bound
while it is read. The result is a directory such as a native run leaves behind, and is judged by the same code.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager

from ringfence.dataclass import dataclass, field
from ringfence.errors import RingfenceError
from ringfence.isolation.protocol import Kind, ProtocolError
from ringfence.isolation.stream import wire
from ringfence.workspaces.beneath import open_beneath

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY
_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL
_MOST_NAME = 255
_MOST_SIZE = 1 << 40  # of a file without content: more than any run may write, and less than file systems refuse
_WHITEOUT = stat.S_IFCHR


@dataclass(slots=True)
class Area:
    """One directory that fills, and how much more may come into it."""

    fd: int
    entries: int
    depth: int
    bytes: int
    least_size: int
    """What a file without content is at least said to hold, so that nobody takes its holes for what was in it."""
    contents: bool
    """Whether files come with their contents here."""


@dataclass(slots=True)
class Arrival:
    """Takes the messages of one harvest."""

    areas: dict[int, Area]
    with_session: bool
    untouched: list[bytes] = field(default_factory=list, init=False)
    """Files of the work directory that the caller placed, and that the guest left as they were."""
    complete: bool = field(default=False, init=False)
    _file: int = field(default=-1, init=False)
    _entry: wire.Entry | None = field(default=None, init=False)
    _left: int = field(default=0, init=False)

    def hear(self, kind: Kind, payload: bytes) -> bool:
        """Take one message; True when it was the last.

        Raises:
            ProtocolError: It is nothing that an init of ours would say.
            OSError: The host has no room for it.
        """
        if (kind is Kind.PIECE) != (self._file >= 0):
            raise ProtocolError(f"{kind.name} out of turn")
        if kind is Kind.PIECE:
            self._go_on(payload)
        elif kind is Kind.ENTRY:
            self._begin(payload)
        elif kind is Kind.GONE and self.with_session:
            with self._parent(self.areas[wire.WORK], payload) as (parent, name):
                os.mknod(name, _WHITEOUT, os.makedev(0, 0), dir_fd=parent)
        elif kind is Kind.HARVEST and payload in (b"0", b"1"):
            self.complete = payload == b"1"
            return True
        else:
            raise ProtocolError(f"{kind.name} in a harvest")
        return False

    def close(self) -> None:
        """Let go of a file that never became whole."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _begin(self, payload: bytes) -> None:
        try:
            entry = wire.unpack(payload)
            area = self.areas[entry.area]
        except (ValueError, KeyError) as error:
            raise ProtocolError(f"an entry of a harvest: {error}") from None
        with self._parent(area, entry.path) as (parent, name):
            match entry.kind:
                case wire.FILE:
                    self._file = open_beneath(parent, name, _NEW_FILE, 0o600)
                    self._entry = entry
                    self._size(area, entry)
                case wire.DIRECTORY:
                    os.mkdir(name, 0o700, dir_fd=parent)
                    os.chmod(name, entry.mode & 0o777 | 0o700, dir_fd=parent)
                case wire.LINK:
                    os.symlink(entry.target, name, dir_fd=parent)
                case wire.FIFO:
                    os.mkfifo(name, 0o600, dir_fd=parent)
                case _:
                    os.mknod(name, stat.S_IFSOCK | 0o600, dir_fd=parent)
        if entry.flags & wire.UNTOUCHED and entry.area == wire.WORK and entry.kind in (wire.FILE, wire.LINK):
            self.untouched.append(entry.path)

    def _size(self, area: Area, entry: wire.Entry) -> None:
        if entry.flags & wire.HAS_CONTENT:
            if not area.contents or entry.size > area.bytes:
                raise ProtocolError("more content than was asked for")
            area.bytes -= entry.size
            self._left = entry.size
        else:
            os.truncate(self._file, min(max(entry.size, area.least_size), _MOST_SIZE))
            self._left = 0
        self._finish_if_done()

    def _go_on(self, data: bytes) -> None:
        if not 0 < len(data) <= self._left:
            raise ProtocolError("a piece of nothing, or of more than the file")
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(self._file, rest) :]
        self._left -= len(data)
        self._finish_if_done()

    def _finish_if_done(self) -> None:
        if self._left or self._entry is None:
            return
        os.fchmod(self._file, self._entry.mode & 0o777)
        with contextlib.suppress(OSError, OverflowError):  # a time that is none: the file has come, whenever it was
            os.utime(self._file, ns=(self._entry.mtime_ns, self._entry.mtime_ns))
        self.close()
        self._entry = None

    @contextmanager
    def _parent(self, area: Area, path: bytes) -> Iterator[tuple[int, bytes]]:
        """Open the directory that `path` lies in, which must have come before; count one more entry."""
        parts = path.split(b"/")
        area.entries -= 1
        if area.entries < 0 or len(parts) > area.depth or not all(map(_is_plain, parts)):
            raise ProtocolError("a path that no file here can have, or too many of them")
        *parents, name = parts
        try:
            fd = open_beneath(area.fd, b"/".join(parents), _DIRECTORY) if parents else os.dup(area.fd)
        except (OSError, RingfenceError) as error:
            raise ProtocolError("an entry whose directory has not come") from error
        try:
            yield fd, name
        except (FileExistsError, ValueError, RingfenceError) as error:
            raise ProtocolError("an entry that has come before, or cannot be") from error
        finally:
            os.close(fd)


def _is_plain(name: bytes) -> bool:
    return 0 < len(name) <= _MOST_NAME and name not in (b".", b"..") and b"\0" not in name
