"""What a run has to reserve before it starts, of whom, and the limits it then runs under."""

from __future__ import annotations

from dataclasses import replace

from ringfence.authority.policy import Policy
from ringfence.authority.profile import Profile
from ringfence.budgets.reservation import MeterSource, Reservation, Usage, usage_of_run
from ringfence.budgets.scope import Chain, ScopeKind, chain
from ringfence.capability.budget import Budget
from ringfence.capability.limits import MIB, Limits
from ringfence.outcome import ExecutionResult, Layers

_LEAST = Budget(calls=1, concurrent=1, cpu_ms=1, wall_ms=1, bytes_out=0, file_count=0, memory_mb_s=1, disk_bytes=0)


def chain_of(profile: Profile, session_id: str | None) -> Chain:
    """Return whom the call draws on: the instance, its tenant, its subject, its session, and itself."""
    names = {
        ScopeKind.TENANT: profile.tenant,
        ScopeKind.USER: profile.subject_id,
        ScopeKind.SESSION: session_id or "",
        ScopeKind.CALL: profile.call_id,
    }
    return chain(names, Policy(budgets=profile.scope_budgets).budget_of, {ScopeKind.CALL: profile.budget})


def amounts_for(limits: Limits) -> tuple[Budget, Budget]:
    """Return the most a run under these limits can use, and the least it can start with."""
    wall_ms = round(limits.wall_seconds * 1000)
    most = Budget(
        calls=1,
        concurrent=1,
        cpu_ms=round(limits.cpu_seconds * 1000),
        wall_ms=wall_ms,
        bytes_out=limits.stdout_bytes + limits.stderr_bytes,
        file_count=limits.artifact_count,
        memory_mb_s=-(-limits.memory_bytes * wall_ms // (MIB * 1000)),
        disk_bytes=limits.disk_bytes,
    )
    return most, _LEAST


def within(profile: Profile, reservation: Reservation) -> Profile:
    """Return the profile with its limits lowered to what was reserved, where that is less."""
    held, limits = reservation.amounts, profile.limits
    cpu, wall = held.cpu_ms, held.wall_ms
    narrowed = replace(
        limits,
        cpu_seconds=min(limits.cpu_seconds, cpu / 1000) if isinstance(cpu, int) else limits.cpu_seconds,
        wall_seconds=min(limits.wall_seconds, wall / 1000) if isinstance(wall, int) else limits.wall_seconds,
    )
    return profile if narrowed == limits else replace(profile, limits=narrowed)


def usage_of(result: ExecutionResult) -> Usage:
    """Return what a run used, and who counted."""
    return usage_of_run(result.used, _source(result.isolation))


def _source(layers: Layers) -> MeterSource:
    return MeterSource.CGROUP if layers.cgroup != "none" else MeterSource.SAMPLED
