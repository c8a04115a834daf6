"""What a run was promised of its budgets, and what it turned out to have used of them."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

from ringfence.budgets.scope import Scope
from ringfence.capability.budget import Budget
from ringfence.dataclass import dataclass
from ringfence.outcome import Budget as RunFigures

MB = 1_000_000


class MeterSource(StrEnum):
    """Who counted what a run used, the most trustworthy first."""

    CGROUP = "cgroup"
    """The kernel, for every process of the run."""
    COUNTED = "counted"
    """A broker, which did the work itself."""
    RUSAGE = "rusage"
    """The kernel, for the processes that were waited for; it misses the others."""
    SAMPLED = "sampled"
    """A look at /proc every so often."""
    RESERVED = "reserved"
    """Nobody: what was reserved counts as used."""


@dataclass(frozen=True, slots=True)
class Usage:
    """What a run used; a kind that is absent was measured by nobody, and is settled at what was reserved."""

    amounts: Budget
    source: MeterSource


NOT_MEASURED = Usage(Budget(), MeterSource.RESERVED)
NOTHING_USED = Usage(Budget(*(0 for _ in Budget.__dataclass_fields__)), MeterSource.COUNTED)


def usage_of_run(used: RunFigures, source: MeterSource, *, disk_bytes: int | None = None) -> Usage:
    """Return what a result reports as `used`, in the kinds that budgets are written in.

    Memory is the peak for the whole time, rounded up: never less than what was held.
    """
    peak = used.memory_peak_bytes
    return Usage(
        Budget(
            calls=used.calls,
            bytes_out=used.bytes_out,
            bytes_in=used.bytes_in,
            cpu_ms=used.cpu_ms,
            file_count=used.file_count,
            wall_ms=used.wall_ms,
            memory_mb_s=None if peak is None else -(-peak * used.wall_ms // (MB * 1000)),
            disk_bytes=disk_bytes,
        ),
        source,
    )


class Hold(NamedTuple):
    """What one reservation keeps of one bound."""

    scope: Scope
    kind: str
    limit: int
    amount: int


@dataclass(frozen=True, slots=True)
class Reservation:
    """What one run may use; its caps are `amounts`, and an absent kind is one that no budget bounds."""

    exec_id: str
    amounts: Budget
    holds: tuple[Hold, ...] = ()


class Overrun(NamedTuple):
    """What a run used beyond all that its scope had left; it could not be charged there."""

    scope: Scope
    kind: str
    amount: int


@dataclass(frozen=True, slots=True)
class Settlement:
    """What came of a reservation: what it was charged, kind by kind, and by whose count."""

    exec_id: str
    charged: Budget
    source: MeterSource
    overruns: tuple[Overrun, ...] = ()
    was_open: bool = True
    """False when it had been settled before; then nothing was charged."""


def already_closed(exec_id: str, usage: Usage) -> Settlement:
    """Return the settlement of a reservation that is not there any more."""
    return Settlement(exec_id, Budget(), usage.source, was_open=False)
