"""The metrics of both documents: each fact once under its canonical name, the older names as views of it (A7.9)."""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from ringfence.dataclass import dataclass

MICROSECOND: Final = 1
MILLISECOND: Final = 1_000
SECOND: Final = 1_000_000


class Kind(StrEnum):
    """How a scraper must read the numbers of a family."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True)
class Family:
    """One fact that is counted; times are kept in whole microseconds and shown in `scale` of them."""

    name: str
    kind: Kind
    help: str
    labels: tuple[str, ...] = ()
    scale: int = 1
    buckets: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Alias:
    """Another name of a family, summed over the labels that it does not have; nothing is recorded under it."""

    name: str
    of: Family
    help: str
    labels: tuple[str, ...] = ()
    scale: int = 1


def _times(unit: int, *values: float) -> tuple[int, ...]:
    return tuple(round(value * unit) for value in values)


_RUNS = _times(
    SECOND, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1800
)
_DECISIONS = _times(MILLISECOND, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 50, 100, 250, 1000)
_PEOPLE = _times(SECOND, 1, 5, 15, 30, 60, 120, 300, 900, 3600, 14_400, 86_400)

EXECUTIONS: Final = Family(
    "sandbox_executions_total",
    Kind.COUNTER,
    "Executions that ended, by what came of them.",
    ("tool", "language", "status", "domain", "safety", "side_effect", "tenant"),
)
DURATION: Final = Family(
    "sandbox_execution_duration_seconds",
    Kind.HISTOGRAM,
    "How long an execution took, from its first step to its end.",
    ("tool", "domain"),
    SECOND,
    _RUNS,
)
VIOLATIONS: Final = Family(
    "sandbox_policy_violations_total", Kind.COUNTER, "Calls that a rule denied.", ("tool", "reason", "code")
)
ERRORS: Final = Family(
    "sandbox_errors_total",
    Kind.COUNTER,
    "Executions that ended in an error, by its code.",
    ("code", "retryable"),
)
MEMORY: Final = Family(
    "sandbox_memory_usage_bytes", Kind.GAUGE, "Memory of a sandbox that is there now.", ("sandbox_id",)
)
CPU_OF_SANDBOX: Final = Family(
    "sandbox_cpu_usage_seconds",
    Kind.GAUGE,
    "Processor time of a sandbox that is there now.",
    ("sandbox_id",),
    SECOND,
)
CPU: Final = Family("sandbox_cpu_ms", Kind.COUNTER, "Processor time that executions used, in milliseconds.")
GPU: Final = Family("sandbox_gpu_ms", Kind.COUNTER, "Graphics processor time that executions used, in milliseconds.")
BYTES: Final = Family(
    "sandbox_budget_used_bytes", Kind.COUNTER, "Bytes that executions took in and gave out.", ("direction",)
)
POOL: Final = Family("sandbox_pool_size", Kind.GAUGE, "Workers of the pool, by what they are doing.", ("status",))
PROFILE_BUILD: Final = Family(
    "sandbox_profile_build_ms",
    Kind.HISTOGRAM,
    "How long it took to resolve grant, manifest and policy into a profile, in milliseconds.",
    (),
    MILLISECOND,
    _DECISIONS,
)
GUARD: Final = Family(
    "sandbox_guard_validate_ms",
    Kind.HISTOGRAM,
    "How long the guard took to judge an operation, in milliseconds.",
    (),
    MILLISECOND,
    _DECISIONS,
)
BACKLOG: Final = Family(
    "sandbox_evidence_backlog", Kind.GAUGE, "Records in the journal that an observer has not been sent yet."
)
CHECKPOINT: Final = Family(
    "sandbox_evidence_last_checkpoint_timestamp_seconds",
    Kind.GAUGE,
    "When the newest checkpoint was signed, as Unix time.",
    (),
    SECOND,
)
APPROVALS: Final = Family("sandbox_approvals_pending", Kind.GAUGE, "Approvals that were asked for and not answered.")
APPROVAL_WAIT: Final = Family(
    "sandbox_approval_wait_seconds",
    Kind.HISTOGRAM,
    "How long an approval was waited for, whatever the answer.",
    (),
    SECOND,
    _PEOPLE,
)
ORPHANS: Final = Family(
    "sandbox_orphans_total", Kind.COUNTER, "Executions whose process ended first, closed by a later start."
)
ISOLATION_REFUSED: Final = Family(
    "sandbox_isolation_refused_total", Kind.COUNTER, "Calls refused because the required isolation could not be had."
)
EGRESS: Final = Family(
    "sandbox_egress_total",
    Kind.COUNTER,
    "Connections that code in boxes asked the egress proxy for, by what became of them.",
    ("decision", "reason"),
)

FAMILIES: Final = (
    EXECUTIONS,
    DURATION,
    VIOLATIONS,
    ERRORS,
    MEMORY,
    CPU_OF_SANDBOX,
    CPU,
    GPU,
    BYTES,
    POOL,
    PROFILE_BUILD,
    GUARD,
    BACKLOG,
    CHECKPOINT,
    APPROVALS,
    APPROVAL_WAIT,
    ORPHANS,
    ISOLATION_REFUSED,
    EGRESS,
)

ALIASES: Final = (
    Alias(
        "sandbox_exec_total",
        EXECUTIONS,
        "Executions that ended (also sandbox_executions_total).",
        ("domain", "tool", "safety", "side_effect", "tenant"),
    ),
    Alias(
        "sandbox_latency_ms",
        DURATION,
        "How long an execution took, in milliseconds (also sandbox_execution_duration_seconds).",
        ("domain",),
        MILLISECOND,
    ),
    Alias(
        "sandbox_denied_total",
        VIOLATIONS,
        "Calls that a rule denied (also sandbox_policy_violations_total).",
        ("code",),
    ),
)
