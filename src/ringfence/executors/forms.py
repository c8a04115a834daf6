"""What the brokers that run no code are asked, and the digest-and-handle view they answer with."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, ClassVar

from ringfence.outcome import Budget


@dataclass(frozen=True, slots=True)
class FsRead:
    """Read a file, or `len` bytes of it from `offset`."""

    path: str
    offset: int | None = None
    len: int | None = None

    kind: ClassVar[str] = "fs_read"


@dataclass(frozen=True, slots=True)
class FsWrite:
    """Write a file; an existing one only with `overwrite`."""

    path: str
    content: bytes = field(repr=False, default=b"")
    overwrite: bool = False

    kind: ClassVar[str] = "fs_write"


@dataclass(frozen=True, slots=True)
class FsList:
    """List a directory, from where the page before this one ended."""

    path: str
    cursor: str | None = None
    limit: int | None = None

    kind: ClassVar[str] = "fs_list"


@dataclass(frozen=True, slots=True)
class FsStat:
    """Say what a path is, without reading it."""

    path: str

    kind: ClassVar[str] = "fs_stat"


@dataclass(frozen=True, slots=True)
class FsMkdir:
    """Make a directory."""

    path: str

    kind: ClassVar[str] = "fs_mkdir"


@dataclass(frozen=True, slots=True)
class FsDelete:
    """Delete a file or an empty directory."""

    path: str

    kind: ClassVar[str] = "fs_delete"


@dataclass(frozen=True, slots=True)
class TmpAlloc:
    """Take temporary space of at most this size."""

    size_bytes: int

    kind: ClassVar[str] = "tmp_alloc"


@dataclass(frozen=True, slots=True)
class TmpFree:
    """Give temporary space back."""

    handle: str

    kind: ClassVar[str] = "tmp_free"


FsOperation = FsRead | FsWrite | FsList | FsStat | FsMkdir | FsDelete
TmpOperation = TmpAlloc | TmpFree


@dataclass(frozen=True, slots=True)
class Digest:
    """What stands for content in every record: enough to compare it, nothing of it."""

    algo: str
    b64: str
    size: int

    @classmethod
    def of(cls, content: bytes) -> Digest:
        """Return the digest of `content`."""
        return cls("sha256", base64.b64encode(hashlib.sha256(content).digest()).decode(), len(content))

    def to_dict(self) -> dict[str, str | int]:
        """Return the digest as plain JSON values."""
        return {"algo": self.algo, "b64": self.b64, "size": self.size}


@dataclass(frozen=True, slots=True)
class Effect:
    """One thing that was touched: where, and how much; never the content."""

    kind: str
    meta: Mapping[str, str | int]


@dataclass(frozen=True, slots=True)
class BrokerOutcome:
    """What came of one brokered operation; `out` may go into any record, `content` only where policy allows."""

    operation: str
    out: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    content: bytes | None = field(repr=False, default=None)
    used: Budget = field(default_factory=Budget)
    effects: tuple[Effect, ...] = ()
