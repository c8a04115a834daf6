"""The contents that snapshots keep: every one once, many to a file, found by SHA-256 and checked by it when read.

A pack holds what one snapshot added: the contents one after another, then a table of (digest, offset, length), then
how long that table is and its own digest. A pack is written under a temporary name, never changed afterwards, and
shares no inode with anything a guest can write. What no snapshot needs any more is given back by punching holes.
"""

from __future__ import annotations

import ctypes
import fcntl
import hashlib
import os
import struct
import threading
from collections.abc import Callable, Collection, Iterable, Iterator
from queue import Queue
from typing import Final, NamedTuple

from ringfence.errors import CapabilityBlocked, QuotaExceeded
from ringfence.workspaces.free_space import require_free_space

PIECE_BYTES: Final = 1024 * 1024
_BATCH_BYTES = 1024 * 1024
_BATCHES = 4
_BLOCK_BYTES = 4096
_CHECK_EVERY = 16 * 1024 * 1024
_ROW = struct.Struct(">32sQQ")
_FOOTER = struct.Struct(">16sQ32s")
_MAGIC = b"ringfence-pack-1"
_KEEP_SIZE, _PUNCH_HOLE = 0x01, 0x02
_FICLONERANGE = 0x4020940D

_libc = ctypes.CDLL(None, use_errno=True)


class _Opened(NamedTuple):
    fd: int
    size: int
    offset: int


class Place(NamedTuple):
    """Where a content lies in its pack."""

    digest: bytes
    offset: int
    size: int


class Packer:
    """Takes contents in order and keeps those that are new, hashing and writing beside the thread that reads them.

    `held` says of a digest and a size whether an older pack holds it, having looked; `most_bytes` is what may be added.
    """

    def __init__(self, fd: int, *, held: Callable[[bytes, int], bool], most_bytes: int) -> None:
        self._fd = fd
        self._held = held
        self._most = most_bytes
        self._places: dict[bytes, Place] = {}
        self._digests: list[bytes] = []
        self._batch: list[bytes | _Opened] = []
        self._batched = 0
        self._queue: Queue[list[bytes | _Opened] | None] = Queue(_BATCHES)
        self._failure: BaseException | None = None
        self._end = 0
        self._waiting: list[bytes] = []
        self._waiting_bytes = 0
        self._checked = 0
        self._can_clone = True
        self.kept_bytes = 0
        self._thread = threading.Thread(target=self._work, name="ringfence-snapshot", daemon=True)
        self._thread.start()

    def add(self, content: bytes) -> None:
        """Take the next content, which is small.

        Raises:
            QuotaExceeded: It is more than may be added, or than the disk has room for.
        """
        self._put(content, len(content))

    def add_file(self, fd: int, size: int, offset: int = 0) -> None:
        """Take over an open file as the next content: shared block by block where the file system can, else copied.

        Raises:
            QuotaExceeded: As `add`.
        """
        self._put(_Opened(fd, size, offset), _BATCH_BYTES)

    def finish(self) -> list[bytes]:
        """Write the table and return the digest of every content in order.

        Raises:
            QuotaExceeded: As `add`.
            CapabilityBlocked: A file was changed while it was read.
        """
        self.stop()
        if self._failure is not None:
            raise self._failure
        table = b"".join(_ROW.pack(*place) for place in self._places.values())
        footer = _FOOTER.pack(_MAGIC, len(self._places), hashlib.sha256(table).digest())
        os.ftruncate(self._fd, self._end)  # of what was taken back, nothing is left
        _write_at(self._fd, self._end, [table, footer])
        return self._digests

    def stop(self) -> None:
        """Wait for the thread; safe to call twice."""
        if self._thread.is_alive():
            self._queue.put(self._batch)
            self._queue.put(None)
            self._thread.join()
            self._batch = []

    @property
    def is_empty(self) -> bool:
        """Whether nothing new was kept; known once it is finished."""
        return not self._places

    def _put(self, content: bytes | _Opened, size: int) -> None:
        self._batch.append(content)
        self._batched += size
        if self._batched >= _BATCH_BYTES:
            self._queue.put(self._batch)
            self._batch, self._batched = [], 0
            if self._failure is not None:
                raise self._failure

    def _work(self) -> None:
        while (batch := self._queue.get()) is not None:
            for content in batch:
                try:
                    # after a failure the queue is still emptied: whoever puts must not wait for ever
                    if self._failure is None:
                        self._take(content)
                except BaseException as error:  # noqa: BLE001  raised again in the thread that reads
                    self._failure = error
                finally:
                    if isinstance(content, _Opened):
                        os.close(content.fd)
            try:
                if self._failure is None:
                    self._flush()
            except BaseException as error:  # noqa: BLE001  as above
                self._failure = error

    def _take(self, content: bytes | _Opened) -> None:
        if isinstance(content, _Opened):
            digest = self._take_file(content)
        else:
            digest = hashlib.sha256(content).digest()
            if not self._is_known(digest, len(content)):
                self._require_room(len(content))
                self._keep(digest, self._end + self._waiting_bytes, len(content))
                self._waiting.append(content)
                self._waiting_bytes += len(content)
        self._digests.append(digest)

    def _take_file(self, source: _Opened) -> bytes:
        self._flush()
        begun = self._end
        start = -(-begun // _BLOCK_BYTES) * _BLOCK_BYTES  # shared blocks lie on block boundaries
        self._require_room(start - begun + source.size)
        require_free_space(self._fd, source.size)
        found = hashlib.sha256()
        if self._can_clone and self._clone(source, start):
            for piece in _pieces(self._fd, start, source.size):  # of what is kept, whatever becomes of the original
                found.update(piece)
        else:
            at = 0
            while at < source.size and (
                piece := os.pread(source.fd, min(PIECE_BYTES, source.size - at), source.offset + at)
            ):
                found.update(piece)
                _write_at(self._fd, start + at, [piece])
                at += len(piece)
            if at != source.size:
                raise changed()
        digest = found.digest()
        if not self._is_known(digest, source.size):
            self._keep(digest, start, source.size)
            self._end = start + source.size
        return digest  # otherwise what was written is written over, or cut off

    def _clone(self, source: _Opened, start: int) -> bool:
        """Share the blocks of the file with the pack; a later write to either copies them first."""
        # to the end of the original, or whole blocks from the middle of it
        length = 0 if source.offset == 0 else -(-source.size // _BLOCK_BYTES) * _BLOCK_BYTES
        request = struct.pack("qQQQ", source.fd, source.offset, length, start)
        try:
            fcntl.ioctl(self._fd, _FICLONERANGE, request)
        except OSError:
            self._can_clone = False
            return False
        if os.fstat(self._fd).st_size < start + source.size:
            raise changed()
        return True

    def _is_known(self, digest: bytes, size: int) -> bool:
        return digest in self._places or self._held(digest, size)

    def _keep(self, digest: bytes, offset: int, size: int) -> None:
        self._places[digest] = Place(digest, offset, size)
        self.kept_bytes += size

    def _require_room(self, size: int) -> None:
        if self._end + self._waiting_bytes + size > self._most:
            raise QuotaExceeded(
                "the snapshots of this project would outgrow their quota",
                reason="snapshots",
                fix="delete a snapshot that nobody needs",
            )

    def _flush(self) -> None:
        if not self._waiting:
            return
        if self._end + self._waiting_bytes > self._checked:
            require_free_space(self._fd, _CHECK_EVERY)
            self._checked = self._end + _CHECK_EVERY
        _write_at(self._fd, self._end, self._waiting)
        self._end += self._waiting_bytes
        self._waiting, self._waiting_bytes = [], 0


def changed() -> CapabilityBlocked:
    """Return the answer to a file that somebody writes to while it is read."""
    return CapabilityBlocked("a file changed while it was read", reason="changed", fix="try again")


def read_table(fd: int) -> list[Place] | None:
    """Return what a pack holds, or nothing where it is not what was written."""
    size = os.fstat(fd).st_size
    footer = os.pread(fd, _FOOTER.size, max(0, size - _FOOTER.size))
    if len(footer) != _FOOTER.size:
        return None
    magic, count, digest = _FOOTER.unpack(footer)
    length = count * _ROW.size
    start = size - _FOOTER.size - length
    if magic != _MAGIC or start < 0:
        return None
    table = b"".join(_pieces(fd, start, length))
    if len(table) != length or hashlib.sha256(table).digest() != digest:
        return None
    return [Place(*row) for row in _ROW.iter_unpack(table)]


def read_content(fd: int, place: Place) -> Iterator[bytes]:
    """Give a content piece by piece; whoever reads it checks the digest, and then only believes it."""
    return _pieces(fd, place.offset, place.size)


def is_whole(fd: int, place: Place) -> bool:
    """Whether the content is what its digest says."""
    found = hashlib.sha256()
    for piece in read_content(fd, place):
        found.update(piece)
    return found.digest() == place.digest


def punch(fd: int, dead: Iterable[Place]) -> None:
    """Give back the room of contents that nobody needs; where a file system cannot, it stays taken."""
    ranges: list[list[int]] = []
    for place in sorted(dead, key=lambda place: place.offset):
        if ranges and ranges[-1][1] == place.offset:
            ranges[-1][1] += place.size
        else:
            ranges.append([place.offset, place.offset + place.size])
    for start, end in ranges:
        if end > start:
            _libc.fallocate(fd, _KEEP_SIZE | _PUNCH_HOLE, ctypes.c_int64(start), ctypes.c_int64(end - start))


def dead_places(table: Iterable[Place], needed: Collection[bytes]) -> list[Place]:
    """Return what of a pack no snapshot needs."""
    return [place for place in table if place.digest not in needed]


def _pieces(fd: int, offset: int, size: int) -> Iterator[bytes]:
    end = offset + size
    while offset < end and (piece := os.pread(fd, min(PIECE_BYTES, end - offset), offset)):
        offset += len(piece)
        yield piece


def _write_at(fd: int, offset: int, pieces: list[bytes]) -> None:
    for at in range(0, len(pieces), 512):  # no more than the kernel takes at once
        some = pieces[at : at + 512]
        size = sum(map(len, some))
        written = os.pwritev(fd, some, offset)
        if written < size:  # a full disk says so at the next attempt
            rest = memoryview(b"".join(some))[written:]
            while rest:
                count = os.pwrite(fd, rest, offset + size - len(rest))
                rest = rest[count:]
        offset += size
