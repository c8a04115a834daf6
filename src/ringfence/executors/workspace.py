"""The broker of a session's history: snapshots, what changed since one, going back to it, starting over."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from ringfence.errors import InvalidRequest, RingfenceError, TimedOut
from ringfence.executors.beside import in_a_thread
from ringfence.operation.workspace import (
    WorkspaceOperation,
    WsCheckout,
    WsDiff,
    WsReset,
    WsRestore,
    WsSnapshot,
    WsSnapshotDelete,
    WsSnapshots,
)
from ringfence.outcome import BrokerOutcome, Budget, Effect
from ringfence.ports import Clock, ExecCtx, Identifiers
from ringfence.workspaces import snapshots
from ringfence.workspaces.checkout import check_out
from ringfence.workspaces.diff import diff
from ringfence.workspaces.refusals import refusals
from ringfence.workspaces.registered import Repository, repository
from ringfence.workspaces.session import SessionWorkspace

_WORK = "/workspace/work"
Find = Callable[[str], Repository]
_RECORD_OF = {
    WsSnapshot.kind: "workspace.snapshot",
    WsRestore.kind: "workspace.restored",
    WsReset.kind: "workspace.reset",
    WsSnapshotDelete.kind: "workspace.snapshot_deleted",
    WsCheckout.kind: "workspace.checked_out",
}


class WorkspaceExecutor:
    """Implements `ports.Executor` for a session's files as a whole; what it changes has a record of its own."""

    def __init__(self, home: Path, identifiers: Identifiers, clock: Clock, *, config_home: Path | None = None) -> None:
        """Find the sessions of `home`; what the operator registered is written in `config_home`."""
        self._home = home
        self._config_home = config_home or home
        self._identifiers = identifiers
        self._clock = clock

    def capability_domain(self) -> str:
        """Return the domain whose operations are carried out here."""
        return "workspace"

    async def execute(self, ctx: ExecCtx, operation: WorkspaceOperation) -> BrokerOutcome:
        """Carry out `operation` beside the event loop, in no more time than the profile gives.

        Raises:
            InvalidRequest: There is no session, or no such snapshot.
            QuotaExceeded: There is no room for it.
            CapabilityBlocked: The tree is more than a snapshot holds.
            Unavailable: The snapshot is not what was written; nothing was changed.
        """
        session_id = ctx.session()
        look = _time_keeper(ctx.profile.limits.wall_seconds, operation.kind)
        find: Find = partial(repository, self._config_home, tenant=ctx.profile.tenant)

        def perform() -> BrokerOutcome:
            if isinstance(operation, WsCheckout):
                find(operation.repository)  # first: no project is made for a repository that is not there
            with (
                refusals(_WORK),
                SessionWorkspace.create(self._home, session_id, tenant=ctx.profile.tenant) as session,
            ):
                return _carry_out(session, operation, ctx, look, find)

        outcome = await in_a_thread(ctx.profile.tenant, perform)
        await self._record(ctx, session_id, outcome)
        if outcome.operation == WsSnapshot.kind:
            ctx.afterwards(partial(self._settle, ctx, session_id, str(outcome.out["snapshot_id"])))
        return outcome

    def _settle(self, ctx: ExecCtx, session_id: str, snapshot_id: str) -> None:
        """Have the snapshot brought to the disk by a thread that nobody waits for but the end of the process."""

        def settle() -> None:
            with (
                suppress(OSError, RingfenceError),
                SessionWorkspace.create(self._home, session_id, tenant=ctx.profile.tenant) as session,
            ):
                snapshots.settle(session, snapshot_id)

        threading.Thread(target=settle, name="ringfence-settle").start()

    async def _record(self, ctx: ExecCtx, session_id: str, outcome: BrokerOutcome) -> None:
        kind = _RECORD_OF.get(outcome.operation)
        if kind is None or ctx.evidence is None:
            return
        now_ms = self._clock.now_ms()
        known = {
            "envelope_id": self._identifiers.new("ev"),
            "exec_id": ctx.exec_id,
            "tenant": ctx.profile.tenant,
            "subject_id": ctx.profile.subject_id,
            "session_id": session_id,
            "project_id": session_id,
            "time_ms": now_ms,
        }
        await ctx.evidence.record({"type": kind, **known, **_recorded(outcome.out)})


def _carry_out(
    session: SessionWorkspace, operation: WorkspaceOperation, ctx: ExecCtx, look: Callable[[], None], find: Find
) -> BrokerOutcome:
    limits = ctx.profile.limits
    match operation:
        case WsSnapshot(label=label):
            taken = snapshots.take(session, label, limits, look=look)
            return _outcome(operation, {**taken.info.to_dict(), "skipped": taken.skipped}, disk=taken.info.added_bytes)
        case WsSnapshots():
            return _outcome(operation, {"snapshots": [info.to_dict() for info in snapshots.infos(session)]})
        case WsRestore(snapshot_id=snapshot_id, snapshot_before=first):
            before = _before(session, "before restore", ctx, look, wanted=first)
            info = snapshots.restore(session, snapshot_id, limits, denials=ctx.profile.denials, look=look)
            return _outcome(operation, {**info.to_dict(), **before}, disk=info.bytes)
        case WsReset(snapshot_before=first):
            before = _before(session, "before reset", ctx, look, wanted=first)
            snapshots.reset(session, denials=ctx.profile.denials, look=look)
            return _outcome(operation, before)
        case WsSnapshotDelete(snapshot_id=snapshot_id):
            freed = snapshots.delete(session, snapshot_id)
            return _outcome(operation, {"snapshot_id": snapshot_id, "freed_bytes": freed})
        case WsDiff(since=since):
            return _diff(session, operation, since, ctx, look)
        case WsCheckout(repository=name):
            copied = check_out(session, find(name).path, limits, look=look)
            return _outcome(operation, {"repository": name, **asdict(copied)}, disk=copied.bytes)
    raise InvalidRequest("the broker of workspaces has no such operation", reason="unknown_operation")


def _diff(
    session: SessionWorkspace, operation: WsDiff, since: str | None, ctx: ExecCtx, look: Callable[[], None]
) -> BrokerOutcome:
    found = diff(session, since, look=look, hidden=ctx.profile.denials.denies_path)
    out = {
        "since": since,
        "added": found.added,
        "modified": found.modified,
        "deleted": found.deleted,
        "changes": [change.to_dict() for change in found.changes],
        "complete": found.complete,
    }
    patch = found.patch.encode() if ctx.profile.output_inline else None
    effect = Effect("read", {"path": _WORK, "entries": found.added + found.modified + found.deleted})
    return BrokerOutcome(operation.kind, out, patch, Budget(bytes_in=len(found.patch)), (effect,))


def _before(
    session: SessionWorkspace, label: str, ctx: ExecCtx, look: Callable[[], None], *, wanted: bool
) -> dict[str, str]:
    if not wanted:
        return {}
    taken = snapshots.take(session, label, ctx.profile.limits, look=look)
    snapshots.settle(session, taken.info.id)  # what it is of is about to go
    return {"snapshot_before": taken.info.id}


def _outcome(operation: WorkspaceOperation, out: Mapping[str, Any], *, disk: int = 0) -> BrokerOutcome:
    writes = not isinstance(operation, WsSnapshots | WsSnapshot)
    effect = Effect("write" if writes else "read", {"path": _WORK})
    return BrokerOutcome(operation.kind, out, None, Budget(disk_bytes=disk), (effect,))


def _recorded(out: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in out.items() if isinstance(value, str | int)}


def _time_keeper(most_seconds: float, kind: str) -> Callable[[], None]:
    """Return what stops work in a thread when its time is over: a thread cannot be cancelled."""
    end = time.monotonic() + most_seconds

    def look() -> None:
        if time.monotonic() > end:
            raise TimedOut(f"{kind} took longer than {most_seconds:g} s; nothing was changed", reason="wall_timeout")

    return look
