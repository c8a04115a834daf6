"""Operations on a session's files as a whole: their history, what changed since a point of it, and starting over.

Each is judged as what it does to the work directory: to look at all of it, or to write all of it.
"""

from __future__ import annotations

from typing import ClassVar

from ringfence.dataclass import dataclass

WORK = "work"


@dataclass(frozen=True, slots=True)
class WsSnapshot:
    """Keep the session's files as they are now, under a label for people."""

    label: str = ""

    kind: ClassVar[str] = "ws_snapshot"
    domain: ClassVar[str] = "workspace"
    path: ClassVar[str] = WORK


@dataclass(frozen=True, slots=True)
class WsSnapshots:
    """List what was kept, with sizes."""

    kind: ClassVar[str] = "ws_snapshots"
    domain: ClassVar[str] = "workspace"
    path: ClassVar[str] = WORK


@dataclass(frozen=True, slots=True)
class WsRestore:
    """Put the files back as they were; `snapshot_before` keeps those of now first."""

    snapshot_id: str
    snapshot_before: bool = False

    kind: ClassVar[str] = "ws_restore"
    domain: ClassVar[str] = "workspace"
    path: ClassVar[str] = WORK


@dataclass(frozen=True, slots=True)
class WsReset:
    """Start over with no files; `snapshot_before` keeps those of now first."""

    snapshot_before: bool = False

    kind: ClassVar[str] = "ws_reset"
    domain: ClassVar[str] = "workspace"
    path: ClassVar[str] = WORK


@dataclass(frozen=True, slots=True)
class WsDiff:
    """Say what was added, modified and deleted since a snapshot, or since there was nothing."""

    since: str | None = None

    kind: ClassVar[str] = "ws_diff"
    domain: ClassVar[str] = "workspace"
    path: ClassVar[str] = WORK


@dataclass(frozen=True, slots=True)
class WsSnapshotDelete:
    """Forget a snapshot, and give back the room that no other needs."""

    snapshot_id: str

    kind: ClassVar[str] = "ws_snapshot_delete"
    domain: ClassVar[str] = "workspace"
    path: ClassVar[str] = WORK


@dataclass(frozen=True, slots=True)
class WsCheckout:
    """Fill an empty work directory with a copy of a repository that the operator registered under this name."""

    repository: str

    kind: ClassVar[str] = "ws_checkout"
    domain: ClassVar[str] = "workspace"
    path: ClassVar[str] = WORK


WorkspaceOperation = WsSnapshot | WsSnapshots | WsRestore | WsReset | WsDiff | WsSnapshotDelete | WsCheckout
