"""What a snapshot says of a tree: every path with its kind, mode, times and the digest of its content; pure.

On disk it is one line with the digest of all that follows, one line of JSON with what a list shows, then columns: a
head of fixed size for every entry, the paths, and the targets of the links. Ten thousand entries are read in a few
milliseconds, and a single changed byte is noticed.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
import struct
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from ringfence.dataclass import dataclass
from ringfence.errors import Unavailable

MOST_ENTRIES: Final = 262_144
MOST_INDEX_BYTES: Final = 256 * 1024 * 1024
NO_DIGEST: Final = b"\0" * 32

_MAGIC = b"ringfence-snapshot-1 "
_FIRST_LINE = len(_MAGIC) + 64 + 1
_MOST_HEADER_BYTES = 8192
_KEY = struct.Struct(">IQQQqq")
_DIGEST_BYTES = 32
HEAD_BYTES: Final = _KEY.size + _DIGEST_BYTES
# A clock that ticks every 10 ms at worst may show the same time before and after a change; of a file system that
# keeps whole seconds only, the last two cannot be told apart.
_TICK_NS = 20_000_000
_SECOND_NS = 1_000_000_000


@dataclass(frozen=True, slots=True)
class SnapshotInfo:
    """What a list shows of a snapshot; `bytes` is what restoring it writes, `added_bytes` what keeping it took."""

    id: str
    label: str
    created_ms: int
    entries: int
    files: int
    bytes: int
    added_bytes: int

    def to_dict(self) -> dict[str, str | int]:
        """Return it as plain JSON values."""
        return {
            "snapshot_id": self.id,
            "label": self.label,
            "created_at_ms": self.created_ms,
            "entries": self.entries,
            "files": self.files,
            "bytes": self.bytes,
            "added_bytes": self.added_bytes,
        }


class Node(NamedTuple):
    """One entry of a tree; `target` is a link's, `digest` the SHA-256 of a file's content."""

    path: bytes
    mode: int
    size: int
    mtime_ns: int
    digest: bytes
    target: bytes

    @property
    def is_file(self) -> bool:
        """Whether it is a regular file."""
        return stat.S_ISREG(self.mode)

    @property
    def is_directory(self) -> bool:
        """Whether it is a directory."""
        return stat.S_ISDIR(self.mode)


@dataclass(frozen=True, slots=True)
class Index:
    """One snapshot, whole: parents come before what is in them."""

    info: SnapshotInfo
    began_ns: int
    heads: Sequence[bytes]
    paths: Sequence[bytes]
    targets: Sequence[bytes]

    def nodes(self) -> Iterator[Node]:
        """Give every entry in order."""
        targets = iter(self.targets)
        for path, head in zip(self.paths, self.heads, strict=True):
            mode, _, _, size, mtime_ns, _ = _KEY.unpack(head[: _KEY.size])
            target = next(targets) if stat.S_ISLNK(mode) else b""
            yield Node(path, mode, size, mtime_ns, head[_KEY.size :], target)

    def digests(self) -> set[bytes]:
        """Return the digest of every file's content."""
        return {head[_KEY.size :] for head in self.heads} - {NO_DIGEST}

    def known(self) -> Mapping[bytes, bytes]:
        """Return the head of every path."""
        return dict(zip(self.paths, self.heads, strict=True))


def key_of(status: os.stat_result) -> bytes:
    """Return what tells whether a file is still the one that was seen: kind, mode, inode, size and both times."""
    mtime, ctime = _clamped(status.st_mtime_ns), _clamped(status.st_ctime_ns)
    return _KEY.pack(status.st_mode, status.st_dev, status.st_ino, status.st_size, mtime, ctime)


def digest_if_same(head: bytes | None, key: bytes, began_ns: int) -> bytes | None:
    """Return the digest of a file that has not changed since the snapshot that began at `began_ns`; None if unsure.

    A file that changed while its time was still that of the snapshot looks the same before and after (git calls it
    racy): only one that was older then is believed. Nobody but the kernel sets a change time.
    """
    if head is None or head[: _KEY.size] != key:
        return None
    _, _, _, _, mtime_ns, ctime_ns = _KEY.unpack(key)
    coarse = ctime_ns % _SECOND_NS == 0
    latest = began_ns - (2 * _SECOND_NS if coarse else _TICK_NS)
    return head[_KEY.size :] if ctime_ns < latest and mtime_ns < latest else None


def encode(index: Index) -> bytes:
    """Return the index as it is kept."""
    info = index.info
    header: dict[str, Any] = {**info.to_dict(), "began_ns": index.began_ns, "format": 1}
    columns = (
        b"".join(index.heads),
        b"\0".join(index.paths),
        b"\0".join(index.targets),
    )
    header["columns"] = [len(column) for column in columns]
    body = json.dumps(header, sort_keys=True).encode() + b"\n" + b"".join(columns)
    return _MAGIC + hashlib.sha256(body).hexdigest().encode() + b"\n" + body


def decode(content: bytes, snapshot_id: str) -> Index:
    """Read an index, every byte of it checked.

    Raises:
        Unavailable: It is not what was written.
    """
    body = content[_FIRST_LINE:]
    said = content[len(_MAGIC) : _FIRST_LINE - 1]
    if not content.startswith(_MAGIC) or hashlib.sha256(body).hexdigest().encode() != said:
        raise damaged(snapshot_id)
    line, _, columns = body.partition(b"\n")
    header = _read_header(line, snapshot_id)
    try:
        heads_size, paths_size, targets_size = header["columns"]
        began_ns = int(header["began_ns"])
    except (KeyError, TypeError, ValueError) as error:
        raise damaged(snapshot_id) from error
    if heads_size + paths_size + targets_size != len(columns) or heads_size % HEAD_BYTES:
        raise damaged(snapshot_id)
    heads = [columns[at : at + HEAD_BYTES] for at in range(0, heads_size, HEAD_BYTES)]
    paths = columns[heads_size : heads_size + paths_size].split(b"\0") if heads else []
    links = sum(stat.S_ISLNK(int.from_bytes(head[:4], "big")) for head in heads)
    targets = columns[heads_size + paths_size :].split(b"\0") if links else []
    if len(paths) != len(heads) or len(targets) != links:
        raise damaged(snapshot_id)
    return Index(_info_of(header, snapshot_id), began_ns, heads, paths, targets)


def decode_info(beginning: bytes, snapshot_id: str) -> SnapshotInfo:
    """Read what a list shows off the first bytes of an index; the rest is not looked at.

    Raises:
        Unavailable: They are not what was written.
    """
    if not beginning.startswith(_MAGIC):
        raise damaged(snapshot_id)
    return _info_of(_read_header(beginning[_FIRST_LINE:].partition(b"\n")[0], snapshot_id), snapshot_id)


BEGINNING_BYTES: Final = _FIRST_LINE + _MOST_HEADER_BYTES
"""As many as `decode_info` needs."""


def damaged(snapshot_id: str) -> Unavailable:
    """Return the one answer to a snapshot that is not what was written."""
    return Unavailable(
        f"snapshot {snapshot_id} is not what was written; nothing was changed", reason="damaged", fix="delete it"
    )


def _clamped(time_ns: int) -> int:
    # a guest may set a year that 64 bits of nanoseconds do not reach
    return max(-(2**63), min(time_ns, 2**63 - 1))


def _read_header(line: bytes, snapshot_id: str) -> dict[str, Any]:
    try:
        header = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise damaged(snapshot_id) from error
    if not isinstance(header, dict) or header.get("format") != 1 or header.get("snapshot_id") != snapshot_id:
        raise damaged(snapshot_id)
    return header


def _info_of(header: Mapping[str, Any], snapshot_id: str) -> SnapshotInfo:
    try:
        numbers = [int(header[name]) for name in ("created_at_ms", "entries", "files", "bytes", "added_bytes")]
        return SnapshotInfo(snapshot_id, str(header["label"]), *numbers)
    except (KeyError, TypeError, ValueError) as error:
        raise damaged(snapshot_id) from error
