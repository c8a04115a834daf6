"""The directory that holds a session's snapshots: its files by name, what is in its packs, and what is garbage.

`<id>.index` is a snapshot, `<id>.pack` what it added, and `<id>.….draft` what has not become either. Only the host can
reach them. Everything that changes them is called while the session is held.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from types import TracebackType
from typing import Final, Self

from ringfence.errors import InvalidRequest, QuotaExceeded, Unavailable
from ringfence.operation.form import is_snapshot_id
from ringfence.workspaces import snapshot_pack as packs
from ringfence.workspaces.beneath import open_beneath, open_regular
from ringfence.workspaces.session import SessionWorkspace
from ringfence.workspaces.snapshot_index import (
    BEGINNING_BYTES,
    MOST_INDEX_BYTES,
    Index,
    SnapshotInfo,
    damaged,
    decode,
    decode_info,
)
from ringfence.workspaces.snapshot_pack import Packer, Place

INDEX, PACK, DRAFT = ".index", ".pack", ".draft"
MOST_PACKS: Final = 96
"""More than this are merged into one: every pack that is in use takes a descriptor."""

_NEW_FILE = os.O_RDWR | os.O_CREAT | os.O_EXCL


def new_id(store: int) -> str:
    """Return an id that no snapshot ever had; it sorts after those there are, however fast they follow each other."""
    now_ms = time.time_ns() // 1_000_000
    earlier = ids(store)
    if earlier:
        now_ms = max(now_ms, int(earlier[-1].removeprefix("snap_")[:12], 16) + 1)
    return f"snap_{now_ms:012x}{os.urandom(10).hex()}"


@contextmanager
def opened(session: SessionWorkspace, *, make: bool = False) -> Iterator[int]:
    """Open the store.

    Raises:
        InvalidRequest: There never was a snapshot, and it was not to be made.
    """
    fd = session.open_snapshots(make=make)
    if fd is None:
        raise unknown()
    try:
        yield fd
    finally:
        os.close(fd)


def ids(store: int) -> list[str]:
    """Return the snapshots there are, oldest first."""
    names = (name.removesuffix(INDEX) for name in os.listdir(store) if name.endswith(INDEX))
    return sorted(filter(is_snapshot_id, names))


def infos(store: int) -> list[SnapshotInfo]:
    """Return what a list shows, oldest first, without those whose index cannot be read."""
    found = []
    for snapshot_id in ids(store):
        with suppress(Unavailable, InvalidRequest):
            found.append(info(store, snapshot_id))
    return found


def info(store: int, snapshot_id: str) -> SnapshotInfo:
    """Return what a list shows of one snapshot."""
    return decode_info(_read(store, snapshot_id, BEGINNING_BYTES), snapshot_id)


def load(store: int, snapshot_id: str) -> Index:
    """Return a snapshot's index, every byte of it checked.

    Raises:
        InvalidRequest: There is no such snapshot.
        Unavailable: It is not what was written.
    """
    return decode(_read(store, snapshot_id, MOST_INDEX_BYTES), snapshot_id)


def newest(store: int) -> Index | None:
    """Return the last snapshot that can be read."""
    for snapshot_id in reversed(ids(store)):
        with suppress(Unavailable, InvalidRequest):
            return load(store, snapshot_id)
    return None


def taken_bytes(store: int) -> int:
    """Return what the store takes on the disk; what was given back by punching does not count."""
    size = 0
    for name in os.listdir(store):
        with suppress(FileNotFoundError):
            size += os.stat(name, dir_fd=store, follow_symlinks=False).st_blocks * 512
    return size


def unknown() -> InvalidRequest:
    """Return the one answer to every id that is no snapshot of this session, whatever it may be elsewhere."""
    return InvalidRequest("there is no such snapshot", reason="not_found", fix="list those there are")


class Contents:
    """The contents of all packs, by digest; the packs stay open until this is closed."""

    def __init__(self, store: int) -> None:
        """Open every pack that is what was written; another holds nothing that could be believed."""
        self._places: dict[bytes, tuple[int, Place]] = {}
        self._good: set[bytes] = set()
        with ExitStack() as opening:
            for name in _packs(store):
                fd = open_regular(store, name)
                opening.callback(os.close, fd)
                for place in packs.read_table(fd) or ():
                    self._places[place.digest] = (fd, place)
            self._closing = opening.pop_all()

    def find(self, digest: bytes) -> tuple[int, Place] | None:
        """Return the pack and the place of a content; whoever reads it checks it."""
        return self._places.get(digest)

    def knows(self, digest: bytes) -> bool:
        """Whether a pack says that it holds the content."""
        return digest in self._places

    def has(self, digest: bytes, size: int) -> bool:
        """Whether a pack holds the content, as reading it shows: its room may have been given back since."""
        found = self._places.get(digest)
        if found is None or found[1].size != size:
            return False
        if digest not in self._good:
            if not packs.is_whole(*found):
                return False
            self._good.add(digest)
        return True

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._closing.close()


@contextmanager
def pack_draft(store: int, snapshot_id: str) -> Iterator[int]:
    """Make the file that is to become a snapshot's pack; it is gone again unless it was published."""
    name = snapshot_id + PACK + DRAFT
    fd = open_beneath(store, name, _NEW_FILE, 0o600)
    try:
        yield fd
    finally:
        os.close(fd)
        with suppress(FileNotFoundError):
            os.unlink(name, dir_fd=store)


def publish(store: int, snapshot_id: str, index: bytes, pack_fd: int | None) -> None:
    """Make a snapshot exist: everything of it is there before its name is; on the disk it is once `settle` was called.

    The draft of the index is there before the pack has its name: whoever finds one knows that a pack may be garbage.
    """
    draft = snapshot_id + INDEX + DRAFT
    try:
        fd = open_beneath(store, draft, _NEW_FILE, 0o600)
        try:
            rest = memoryview(index)
            while rest:
                rest = rest[os.write(fd, rest) :]
        finally:
            os.close(fd)
        if pack_fd is not None:
            name = snapshot_id + PACK
            os.rename(name + DRAFT, name, src_dir_fd=store, dst_dir_fd=store)
        os.rename(draft, snapshot_id + INDEX, src_dir_fd=store, dst_dir_fd=store)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise QuotaExceeded("the disk is too full for a snapshot", reason="disk") from error
        raise


def settle(store: int, snapshot_id: str) -> None:
    """Wait until a snapshot is on the disk, unless it has been deleted."""
    for name in (snapshot_id + PACK, snapshot_id + INDEX):
        with suppress(FileNotFoundError):
            fd = open_regular(store, name)
            try:
                os.fdatasync(fd)
            finally:
                os.close(fd)
    os.fsync(store)


def remove(store: int, snapshot_id: str) -> None:
    """Make a snapshot not exist, and give back what no other needs.

    Raises:
        InvalidRequest: There is no such snapshot.
    """
    if not is_snapshot_id(snapshot_id):
        raise unknown()
    try:
        os.unlink(snapshot_id + INDEX, dir_fd=store)
    except FileNotFoundError:
        raise unknown() from None
    os.fsync(store)
    collect(store)


def tidy_after_a_kill(store: int) -> None:
    """Remove what a host left that died while it took a snapshot."""
    if any(name.endswith(DRAFT) for name in os.listdir(store)):
        collect(store)


def collect(store: int) -> None:
    """Remove drafts, packs that no snapshot needs, and what is not needed inside the others.

    An index that cannot be read says nothing about what it needs: then only drafts are removed.
    """
    for name in os.listdir(store):
        if name.endswith(DRAFT):
            with suppress(FileNotFoundError):
                os.unlink(name, dir_fd=store)
    needed: set[bytes] = set()
    try:
        for snapshot_id in ids(store):
            needed |= load(store, snapshot_id).digests()
    except Unavailable:
        return
    for name in _packs(store):
        fd = open_beneath(store, name, os.O_RDWR)
        try:
            table = packs.read_table(fd)
            if table is None:
                continue  # damaged: the snapshots that need it are refused, and it goes with the last of them
            dead = packs.dead_places(table, needed)
            if len(dead) < len(table):
                packs.punch(fd, dead)
                continue
        finally:
            os.close(fd)
        os.unlink(name, dir_fd=store)
    if not ids(store):
        for name in _packs(store):
            os.unlink(name, dir_fd=store)
    elif len(_packs(store)) > MOST_PACKS:
        _merge(store, needed)


def _merge(store: int, needed: set[bytes]) -> None:
    """Write what all packs hold into one, and remove them; a content that is damaged stops it before that."""
    old = _packs(store)
    snapshot_id = new_id(store)
    with Contents(store) as contents, pack_draft(store, snapshot_id) as fd:
        wanted = [digest for digest in sorted(needed) if contents.knows(digest)]
        packer = Packer(fd, held=lambda _digest, _size: False, most_bytes=2**62)
        try:
            for digest in wanted:
                found = contents.find(digest)
                if found is not None:
                    packer.add_file(os.dup(found[0]), found[1].size, found[1].offset)
        finally:
            packer.stop()
        if packer.finish() != wanted:
            return
        os.fdatasync(fd)
        name = snapshot_id + PACK
        os.rename(name + DRAFT, name, src_dir_fd=store, dst_dir_fd=store)
        os.fsync(store)
    for name in old:
        os.unlink(name, dir_fd=store)


def _packs(store: int) -> list[str]:
    return sorted(name for name in os.listdir(store) if name.endswith(PACK))


def _read(store: int, snapshot_id: str, most: int) -> bytes:
    if not is_snapshot_id(snapshot_id):
        raise unknown()
    try:
        fd = open_regular(store, snapshot_id + INDEX)
    except FileNotFoundError:
        raise unknown() from None
    try:
        size = os.fstat(fd).st_size
        if size > MOST_INDEX_BYTES:
            raise damaged(snapshot_id)
        content = bytearray()
        while len(content) < most and (piece := os.read(fd, min(packs.PIECE_BYTES, most - len(content)))):
            content += piece
        return bytes(content)
    finally:
        os.close(fd)
