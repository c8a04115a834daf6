"""The two records a process adds to those of its run: that it was started, and how it ended; ids and sizes only."""

from __future__ import annotations

from typing import Any

from ringfence.dataclass import dataclass
from ringfence.evidence.correlation import UNKNOWN, Correlation

STARTED = "process.started"
ENDED = "process.ended"


@dataclass(frozen=True, slots=True)
class Started:
    """What is known of a process when it starts, and never changes."""

    process_id: str
    exec_id: str
    tenant: str
    subject_id: str
    language: str
    session_id: str | None = None
    terminal: tuple[int, int] | None = None
    idle_seconds: float | None = None
    wall_seconds: float = 0.0
    ports: tuple[int, ...] = ()
    correlation: Correlation = UNKNOWN


@dataclass(frozen=True, slots=True)
class Ended:
    """What is known of a process when it is over: numbers of bytes, none of the bytes."""

    outcome: str
    exit_code: int | None
    killed_by: str | None
    stdin_bytes: int
    stdout_bytes: int
    stderr_bytes: int


def started(process: Started, envelope_id: str, *, now_ms: int) -> dict[str, Any]:
    """Return the record that is durable before anything of the process happens."""
    members = {
        **_common(process, envelope_id, now_ms),
        "type": STARTED,
        "language": process.language,
        "terminal": process.terminal is not None,
        "wall_ms": round(process.wall_seconds * 1000),
    }
    if process.idle_seconds is not None:
        members["idle_ms"] = round(process.idle_seconds * 1000)
    if process.ports:
        members["ports"] = sorted(process.ports)
    return members


def ended(process: Started, end: Ended, envelope_id: str, *, now_ms: int) -> dict[str, Any]:
    """Return the record of how it ended; a process whose host died has none, and its run's end says so."""
    members = {
        **_common(process, envelope_id, now_ms),
        "type": ENDED,
        "outcome": end.outcome,
        "stdin_bytes": end.stdin_bytes,
        "stdout_bytes": end.stdout_bytes,
        "stderr_bytes": end.stderr_bytes,
    }
    optional = {"exit_code": end.exit_code, "killed_by": end.killed_by}
    members.update((name, value) for name, value in optional.items() if value is not None)
    return members


def _common(process: Started, envelope_id: str, now_ms: int) -> dict[str, Any]:
    members = {
        **process.correlation.members(),
        "envelope_id": envelope_id,
        "process_id": process.process_id,
        "exec_id": process.exec_id,
        "tenant": process.tenant,
        "subject_id": process.subject_id,
        "time_ms": now_ms,
    }
    if process.session_id is not None:
        members["session_id"] = process.session_id
    return members
