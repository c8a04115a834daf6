"""What a run has to reserve before it starts, of whom, and the limits it then runs under."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TypeVar

from ringfence.authority.caller import LOCAL
from ringfence.authority.policy import Policy
from ringfence.authority.profile import Profile
from ringfence.budgets.reservation import MB, MeterSource, Reservation, Usage, usage_of_run
from ringfence.budgets.scope import Chain, ScopeKind, chain
from ringfence.capability.budget import Amount, Budget
from ringfence.capability.limits import MIB, SYSTEM_FLOOR, Limits
from ringfence.dataclass import replace
from ringfence.operation.brokered import (
    BrowserClick,
    BrowserExtract,
    BrowserNav,
    BrowserScreenshot,
    BrowserType,
    FsMkdir,
    FsRead,
    FsWrite,
    NetHttp,
    TmpAlloc,
)
from ringfence.operation.code import IN_A_BOX, CodeRun
from ringfence.operation.form import Operation
from ringfence.operation.workspace import WsCheckout, WsRestore, WsSnapshot
from ringfence.outcome import BrokerOutcome, Layers, Outcome

_N = TypeVar("_N", int, float)
NOBODY_TOLD: Mapping[str, str] = MappingProxyType({})
# not without a file or a byte of disk: a box that has none left for them would have as many as it likes
_LEAST = Budget(calls=1, concurrent=1, cpu_ms=1, wall_ms=1, bytes_out=1, file_count=1, memory_mb_s=1, disk_bytes=1)
_USUAL_MEMORY = 128 * MIB  # what most programs need
_REQUEST_HEAD = 512  # what a request says beside what its caller brings


def chain_of(profile: Profile, session_id: str | None, known: Mapping[str, str] = NOBODY_TOLD) -> Chain:
    """Return whom the call draws on: the instance, its tenant, its space, its user, its session, and itself.

    `known` is what the caller says of itself. A door that knows its subject charges that one, whatever a request calls
    its user: nobody gets out of a budget by another name. Who uses the library directly is trusted to name users.
    """
    told = known.get("user_id", "")
    names = {
        ScopeKind.TENANT: profile.tenant,
        ScopeKind.SPACE: known.get("space_id", ""),
        ScopeKind.USER: told if told and profile.subject_id in (LOCAL, "") else profile.subject_id,
        ScopeKind.SESSION: session_id or "",
        ScopeKind.PROFILE: "" if profile.concurrency is None else f"{profile.role or ''}/{profile.tool_name}",
        ScopeKind.CALL: profile.call_id,
    }
    own = {ScopeKind.PROFILE: Budget(concurrent=profile.concurrency), ScopeKind.CALL: profile.budget}
    return chain(names, Policy(budgets=profile.scope_budgets).budget_of, own)


def amounts_for(operation: Operation, limits: Limits) -> tuple[Budget, Budget]:
    """Return the most `operation` can use under these limits, and the least it can start with."""
    wall_ms = round(limits.wall_seconds * 1000)
    if operation.domain not in IN_A_BOX:
        moved, least_moved = _moved_by(operation, limits)
        most = replace(moved, calls=1, concurrent=1, wall_ms=wall_ms)
        return most, replace(least_moved, calls=1, concurrent=1, wall_ms=1)
    most = Budget(
        calls=1,
        concurrent=1,
        cpu_ms=round(limits.cpu_seconds * 1000),
        wall_ms=wall_ms,
        bytes_out=max(limits.max_bytes_out, limits.stdout_bytes + limits.stderr_bytes),
        file_count=limits.artifact_count,
        memory_mb_s=-(-limits.memory_bytes * wall_ms // (MB * 1000)),
        disk_bytes=limits.disk_bytes,
    )
    if isinstance(operation, CodeRun) and operation.domains:
        sent = limits.stdout_bytes + limits.stderr_bytes + limits.max_bytes_out
        return replace(most, bytes_in=limits.max_bytes_in, bytes_out=sent), replace(_LEAST, bytes_in=1)
    return most, _LEAST


def _moved_by(operation: Operation, limits: Limits) -> tuple[Budget, Budget]:
    """Return what a broker would move for `operation` at most, and what it must be given to do it as written."""
    match operation:
        case FsRead(len=None):
            # to the end of the file, wherever that is: with less left, the read brings less and says so
            return Budget(bytes_in=limits.max_bytes_in), Budget(bytes_in=1)
        case FsRead(len=int(length)):
            moved = Budget(bytes_in=min(length, limits.max_bytes_in))
        case FsWrite(content=content):
            moved = Budget(bytes_out=len(content), file_count=1, disk_bytes=len(content))
        case FsMkdir():
            moved = Budget(file_count=1)
        case NetHttp():
            # what is left of the budget is the most that may come; what a request without a body says is counted too
            brought = sum(map(len, (operation.url, *operation.headers.keys(), *operation.headers.values())))
            sent = len(operation.body or b"") + brought + _REQUEST_HEAD
            return Budget(bytes_in=limits.max_bytes_in, bytes_out=sent), Budget(bytes_in=1, bytes_out=sent)
        case BrowserNav() | BrowserExtract() | BrowserScreenshot() | BrowserClick() | BrowserType():
            # a page loads on while it is looked at; it is cut off at what is left
            return Budget(bytes_in=limits.max_bytes_in, bytes_out=limits.max_bytes_out), Budget(bytes_in=1, bytes_out=1)
        case TmpAlloc(size_bytes=size):
            moved = Budget(disk_bytes=size)
        case WsSnapshot() | WsRestore() | WsCheckout():
            # all of the work directory at most; what it took is known afterwards
            return Budget(disk_bytes=limits.disk_bytes), Budget(disk_bytes=0)
        case _:
            moved = Budget()
    return moved, moved


def within(profile: Profile, reservation: Reservation) -> Profile:
    """Return the profile with its limits lowered to what was reserved, where that is less."""
    held, limits = reservation.amounts, profile.limits
    narrowed = replace(
        limits,
        cpu_seconds=_lower(limits.cpu_seconds, held.cpu_ms, 1 / 1000),
        wall_seconds=_lower(limits.wall_seconds, held.wall_ms, 1 / 1000),
        max_bytes_in=_lower(limits.max_bytes_in, held.bytes_in),
    )
    bound = {hold.kind for hold in reservation.holds}
    if "disk_bytes" in bound and held.cpu_ms is not None:  # of a box, which has all that it writes in one place
        narrowed = replace(
            narrowed,
            disk_bytes=_lower(limits.disk_bytes, held.disk_bytes),
            artifact_bytes=_lower(limits.artifact_bytes, held.disk_bytes),
        )
    if "file_count" in bound and held.cpu_ms is not None:
        narrowed = replace(
            narrowed,
            artifact_count=_lower(limits.artifact_count, held.file_count),
            # some are the box's own: as many as are left may be made beside them
            inodes=min(limits.inodes, _lower(limits.inodes, held.file_count) + SYSTEM_FLOOR["inodes"]),
        )
    if isinstance(held.memory_mb_s, int):
        narrowed = _within_memory_time(narrowed, held.memory_mb_s * MB)
    return profile if narrowed == limits else replace(profile, limits=narrowed)


def _within_memory_time(limits: Limits, byte_seconds: int) -> Limits:
    """Lower the memory, and where too little of it would be left the time, until both together are what is held."""
    if limits.memory_bytes * limits.wall_seconds <= byte_seconds:
        return limits
    memory = min(limits.memory_bytes, max(_USUAL_MEMORY, int(byte_seconds / limits.wall_seconds)))
    return replace(limits, memory_bytes=memory, wall_seconds=min(limits.wall_seconds, byte_seconds / memory))


def _lower(limit: _N, held: Amount | None, unit: float = 1) -> _N:
    """Return a limit, or what is held where that is less; of what nobody bounds, the limit."""
    return limit if not isinstance(held, int) else min(limit, type(limit)(held * unit))


def most_output(reservation: Reservation) -> int | None:
    """Return how much a run may say in all before it is ended; without a budget for it, what is too much is cut."""
    held = reservation.amounts.bytes_out
    is_bound = any(hold.kind == "bytes_out" for hold in reservation.holds)
    return held if is_bound and isinstance(held, int) else None


def usage_of(outcome: Outcome) -> Usage:
    """Return what was used, and who counted."""
    if isinstance(outcome, BrokerOutcome):
        disk = outcome.used.disk_bytes
        return usage_of_run(outcome.used, MeterSource.COUNTED, disk_bytes=disk if isinstance(disk, int) else 0)
    left = sum(outcome.changes.sizes) + sum(artifact.size for artifact in outcome.artifacts)
    return usage_of_run(outcome.used, _source(outcome.isolation), disk_bytes=left)


def _source(layers: Layers) -> MeterSource:
    return MeterSource.CGROUP if layers.cgroup != "none" else MeterSource.SAMPLED
