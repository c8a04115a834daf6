"""A period of evidence on one page: how often, by whom, how it ended, why it was refused, what it cost (S1-151)."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, Final

from ringfence.dataclass import dataclass, field
from ringfence.evidence.counting import Count, Top
from ringfence.evidence.described import Record

MOST_SHOWN: Final = 10
_HOUR_MS: Final = 3_600_000
_SPENT: Final = ("calls", "bytes_in", "bytes_out", "cpu_ms", "gpu_ms", "file_count", "wall_ms", "disk_bytes")
_LONGEST_NAME: Final = 200

Rows = tuple[Count[str], ...]


@dataclass(frozen=True, slots=True)
class Slow:
    """One run that took long."""

    duration_us: int
    exec_id: str
    tool: str
    outcome: str


@dataclass(frozen=True, slots=True)
class Report:
    """What a period looks like; the rows hold the most frequent, and are exact unless they say by how much not."""

    since_ms: int | None
    until_ms: int | None
    records: int
    calls: int
    """Decisions: what was begun, and what was refused."""
    denied: int
    orphaned: int
    by_tool: Rows
    by_outcome: Rows
    by_denial: Rows
    subjects: Rows
    busiest_hours: Rows
    slowest: tuple[Slow, ...]
    spent: Mapping[str, int]
    memory_peak_bytes: int

    def lines(self) -> Iterator[str]:
        """Say it as a person reads it."""
        since, until = _moment(self.since_ms, "the beginning"), _moment(self.until_ms, "now")
        yield f"{self.records} records from {since} to {until}"
        yield f"{self.calls} calls, {self.denied} of them refused; {self.orphaned} runs that nobody saw end"
        for title, rows in (
            ("by tool", self.by_tool),
            ("by outcome", self.by_outcome),
            ("by reason of refusal", self.by_denial),
            ("by subject", self.subjects),
            ("busiest hours (UTC)", self.busiest_hours),
        ):
            if rows:
                yield title
                yield from (
                    f"  {row.count:>8}  {row.key}{f' (at most {row.over} less)' if row.over else ''}" for row in rows
                )
        if self.slowest:
            yield "slowest"
            yield from (
                f"  {run.duration_us / 1000:>8.0f} ms  {run.exec_id} {run.tool} {run.outcome}" for run in self.slowest
            )
        if any(self.spent.values()):
            yield "spent: " + ", ".join(f"{name} {amount}" for name, amount in self.spent.items() if amount)
        if self.memory_peak_bytes:
            yield f"largest memory of one run: {self.memory_peak_bytes} bytes"

    def to_json(self) -> dict[str, Any]:
        """Return it as one object."""
        rows = {
            name: getattr(self, name) for name in ("by_tool", "by_outcome", "by_denial", "subjects", "busiest_hours")
        }
        return {
            "since_ms": self.since_ms,
            "until_ms": self.until_ms,
            "records": self.records,
            "calls": self.calls,
            "denied": self.denied,
            "orphaned": self.orphaned,
            **{
                name: [{"name": row.key, "count": row.count, "over": row.over} for row in counted]
                for name, counted in rows.items()
            },
            "slowest": [
                {"duration_us": run.duration_us, "exec_id": run.exec_id, "tool_name": run.tool, "outcome": run.outcome}
                for run in self.slowest
            ],
            "spent": dict(self.spent),
            "memory_peak_bytes": self.memory_peak_bytes,
        }


def report(records: Iterable[Record], since: int | None = None, until: int | None = None) -> Report:
    """Sum up the records whose time is from `since` until before `until`, in milliseconds; of any number of them."""
    so_far = _Running()
    for record in records:
        at = record.get("time_ms")
        if type(at) is int and (since is None or at >= since) and (until is None or at < until):
            so_far.see(record, at)
    return Report(
        since,
        until,
        so_far.records,
        so_far.calls,
        so_far.denied,
        so_far.orphaned,
        so_far.tools.most(MOST_SHOWN),
        so_far.outcomes.most(MOST_SHOWN),
        so_far.denials.most(MOST_SHOWN),
        so_far.subjects.most(MOST_SHOWN),
        tuple(Count(_moment(row.key * _HOUR_MS, ""), row.count, row.over) for row in so_far.hours.most(MOST_SHOWN)),
        tuple(Slow(-negative, *rest) for negative, *rest in sorted((-run[0], *run[1:]) for run in so_far.slowest)),
        so_far.spent,
        so_far.memory_peak_bytes,
    )


@dataclass
class _Running:
    records: int = 0
    calls: int = 0
    denied: int = 0
    orphaned: int = 0
    tools: Top[str] = field(default_factory=Top)
    outcomes: Top[str] = field(default_factory=Top)
    denials: Top[str] = field(default_factory=Top)
    subjects: Top[str] = field(default_factory=Top)
    hours: Top[int] = field(default_factory=Top)
    slowest: list[tuple[int, str, str, str]] = field(default_factory=list)
    spent: dict[str, int] = field(default_factory=lambda: dict.fromkeys(_SPENT, 0))
    memory_peak_bytes: int = 0

    def see(self, record: Record, at: int) -> None:
        self.records += 1
        kind = record.get("type")
        if kind in ("exec.begin", "decision.denied"):
            self.calls += 1
            self.tools.add(_name(record, "tool_name"))
            self.subjects.add(_name(record, "subject_id"))
            self.hours.add(at // _HOUR_MS)
        if kind == "decision.denied":
            self._denied(record)
        elif kind == "exec.end":
            self._ended(record)

    def _denied(self, record: Record) -> None:
        self.denied += 1
        self.outcomes.add("denied")
        rule = _name(record, "rule", "")
        self.denials.add(f"{_name(record, 'error_code')} {_name(record, 'reason')}{f' ({rule})' if rule else ''}")

    def _ended(self, record: Record) -> None:
        outcome = _name(record, "outcome")
        self.outcomes.add(outcome)
        self.orphaned += record.get("reason") == "orphaned"
        if outcome == "denied":
            self.denied += 1
            self.denials.add(f"{_name(record, 'error_code')} {_name(record, 'reason')}")
        run = (_amount(record.get("duration_us")), _name(record, "exec_id"), _name(record, "tool_name"), outcome)
        if len(self.slowest) < MOST_SHOWN:
            heapq.heappush(self.slowest, run)
        else:
            heapq.heappushpop(self.slowest, run)
        used = record.get("budget_used")
        if isinstance(used, Mapping):
            for name in _SPENT:
                self.spent[name] += _amount(used.get(name))
        self.memory_peak_bytes = max(self.memory_peak_bytes, _amount(record.get("memory_used_bytes")))


def _name(record: Record, member: str, default: str = "(none)") -> str:
    value = record.get(member, default)
    return value[:_LONGEST_NAME] if isinstance(value, str) else default


def _amount(value: object) -> int:
    """Read a count; one beyond what JSON holds exactly is written as decimal text."""
    if isinstance(value, str) and value.isdecimal() and value.isascii() and len(value) <= 40:
        return int(value)
    return value if type(value) is int and value > 0 else 0


def _moment(at_ms: int | None, otherwise: str) -> str:
    if at_ms is None:
        return otherwise
    try:
        return datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%Y-%m-%dT%H:%MZ")
    except (OverflowError, ValueError, OSError):
        return str(at_ms)
