"""The one place where evidence records become numbers: live beside the writer, or read again from the journal."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from itertools import islice
from typing import Any, Final

from ringfence.metrics import families as known
from ringfence.metrics.families import Family
from ringfence.metrics.series import LONGEST_VALUE, MOST_SERIES, NONE, OTHER, UNKNOWN, Counter, Histogram, Key, Series

Record = Mapping[str, Any]
Reading = Mapping[str, int]  # a label's value → the number now; in the unit of the family, times in microseconds

MOST_OPEN: Final = 65_536  # begins, or approvals, whose end has not come; the oldest is given up first
_NO_LABELS: Key = ()
_ANSWERS = frozenset({"consent.granted", "consent.denied", "consent.expired"})


class Recorder:
    """Counts records, each once: one at or before the position of its log has been counted and is passed over.

    Records of one log must come in the order of their `seq`, and a begin before its end. A record without `log_id` and
    `seq` is counted as it comes. Thread-safe.
    """

    def __init__(self) -> None:
        # re-entrant, as in lanes: an engine that the garbage collector ends may record in the middle of a record
        self._lock = threading.RLock()
        self.executions = Counter(known.EXECUTIONS)
        self.duration = Histogram(known.DURATION)
        self.violations = Counter(known.VIOLATIONS)
        self.errors = Counter(known.ERRORS)
        self.cpu = Counter(known.CPU)
        self.gpu = Counter(known.GPU)
        self.bytes = Counter(known.BYTES)
        self.profile_build = Histogram(known.PROFILE_BUILD)
        self.guard = Histogram(known.GUARD)
        self.approval_wait = Histogram(known.APPROVAL_WAIT)
        self.orphans = Counter(known.ORPHANS)
        self.isolation_refused = Counter(known.ISOLATION_REFUSED)
        self.egress = Counter(known.EGRESS)
        self.position: dict[str, int] = {}
        self.open: dict[str, Key] = {}
        self.approvals: dict[str, int] = {}
        self.checkpoint_ms = 0
        self._readings: dict[str, Callable[[], Reading]] = {}
        self._count_as: dict[str, Callable[[Record], None]] = {
            "exec.end": self._ended,
            "exec.begin": self._begun,
            "decision.denied": self._denied,
            "consent.requested": self._asked,
            **dict.fromkeys(_ANSWERS, self._answered),
        }

    def record(self, record: Record) -> None:
        """Count one record; called by the writer after each commit, in order."""
        with self._lock:
            seq, log_id = record.get("seq"), record.get("log_id")
            if isinstance(seq, int) and isinstance(log_id, str):
                if seq <= self.position.get(log_id, -1):
                    return
                self.position[log_id] = seq
            count = self._count_as.get(record.get("type", ""))
            if count is not None:
                count(record)

    def catch_up(self, records: Iterable[Record]) -> None:
        """Count what a journal holds beyond the position; `position` says from where to read each log."""
        for record in records:
            self.record(record)

    def checkpointed(self, time_ms: int) -> None:
        """Note when a checkpoint was signed; checkpoints stand beside the log and are no records."""
        with self._lock:
            self.checkpoint_ms = max(self.checkpoint_ms, time_ms)

    def watch(self, family: Family, read: Callable[[], Reading]) -> None:
        """Have a gauge read at every look: nothing is kept, so the series of a sandbox ends with the sandbox.

        `read` returns the number for each value of the family's one label, or `{"": n}` for a family without labels.
        """
        if len(family.labels) > 1 or family.kind is not known.Kind.GAUGE:
            raise ValueError(f"{family.name} is not a gauge of at most one label")
        self._readings[family.name] = read

    def tables(self) -> tuple[Series, ...]:
        """Return every counter and histogram, in the order of the families."""
        return (
            self.executions,
            self.duration,
            self.violations,
            self.errors,
            self.cpu,
            self.gpu,
            self.bytes,
            self.profile_build,
            self.guard,
            self.approval_wait,
            self.orphans,
            self.isolation_refused,
            self.egress,
        )

    def cells(self) -> dict[str, dict[Key, Any]]:
        """Return a copy of each number by family and label set, gauges included, as of one moment but for readings."""
        with self._lock:
            found: dict[str, dict[Key, Any]] = {table.family.name: _copied(table.cells) for table in self.tables()}
            found[known.APPROVALS.name] = {_NO_LABELS: len(self.approvals)}
            if self.checkpoint_ms:
                found[known.CHECKPOINT.name] = {_NO_LABELS: self.checkpoint_ms * known.MILLISECOND}
        for family in known.FAMILIES:
            read = self._readings.get(family.name)
            if read is not None:
                found[family.name] = _taken(family, read)
        return found

    def held(self) -> dict[str, Any]:
        """Return what a snapshot must hold besides the tables, as one moment with them."""
        with self._lock:
            return {
                "position": dict(self.position),
                "open": {exec_id: list(labels) for exec_id, labels in self.open.items()},
                "approvals": dict(self.approvals),
                "checkpoint_ms": self.checkpoint_ms,
                "tables": {table.family.name: _copied(table.cells) for table in self.tables()},
                "values": {table.family.name: [sorted(known) for known in table.values] for table in self.tables()},
            }

    def _begun(self, record: Record) -> None:
        self._timed(record)
        exec_id = record.get("exec_id")
        if isinstance(exec_id, str):
            if len(self.open) >= MOST_OPEN:
                del self.open[next(iter(self.open))]
            # what is too long for a label need not be kept until the end comes
            self.open[exec_id] = tuple(value if len(value) <= LONGEST_VALUE else OTHER for value in _labels(record))

    def _ended(self, record: Record) -> None:
        begun = self.open.pop(record.get("exec_id", ""), None)
        if begun is None:  # pruned, or given up; what the end itself says is all there is
            begun = tuple(UNKNOWN if value is NONE else value for value in _labels(record))
        tool, language, domain, safety, side_effect, tenant = begun
        status = _text(record, "status")
        self.executions.add((tool, language, status, domain, safety, side_effect, tenant))
        used = record.get("budget_used")
        if not isinstance(used, dict):
            used = {}
        duration = _number(record, "duration_us", -1)
        self.duration.observe((tool, domain), duration if duration >= 0 else _number(record, "duration_ms") * 1_000)
        self.cpu.add(_NO_LABELS, _number(record, "cpu_ms") or _number(used, "cpu_ms"))
        self.gpu.add(_NO_LABELS, _number(used, "gpu_ms"))
        self.bytes.add(("in",), _number(used, "bytes_in"))
        self.bytes.add(("out",), _number(used, "bytes_out"))
        self._went_out(record)
        if status == "denied":
            self._violated(record, tool)
        elif status == "error" and "error_code" in record:
            retryable = "true" if record.get("retryable") is True else "false"
            self.errors.add((_text(record, "error_code"), retryable))
        self._refused(record)
        if record.get("reason") == "orphaned":
            self.orphans.add(_NO_LABELS)

    def _went_out(self, record: Record) -> None:
        network = record.get("network")
        for place in network.get("destinations", ()) if isinstance(network, dict) else ():
            if isinstance(place, dict) and "count" in place:  # of a box; what a broker asked for is an execution itself
                self.egress.add((_text(place, "decision"), _text(place, "reason")), _number(place, "count"))

    def _denied(self, record: Record) -> None:
        self._timed(record)
        self._violated(record, _text(record, "tool_name"))
        self._refused(record)

    def _violated(self, record: Record, tool: str) -> None:
        self.violations.add((tool, _text(record, "reason"), _text(record, "error_code")))

    def _refused(self, record: Record) -> None:
        if record.get("reason") == "isolation_unavailable":
            self.isolation_refused.add(_NO_LABELS)

    def _timed(self, record: Record) -> None:
        timings = record.get("timings")
        if isinstance(timings, dict):
            if "profile_build_us" in timings:
                self.profile_build.observe(_NO_LABELS, _number(timings, "profile_build_us"))
            if "guard_validate_us" in timings:
                self.guard.observe(_NO_LABELS, _number(timings, "guard_validate_us"))

    def _asked(self, record: Record) -> None:
        if len(self.approvals) >= MOST_OPEN:
            del self.approvals[next(iter(self.approvals))]
        self.approvals[_approval(record)] = _number(record, "time_ms")

    def _answered(self, record: Record) -> None:
        asked_ms = self.approvals.pop(_approval(record), None)
        if asked_ms is not None:  # else a standing consent, for which nobody waited
            waited_ms = max(0, _number(record, "time_ms") - asked_ms)  # the wall clock may have been set back meanwhile
            self.approval_wait.observe(_NO_LABELS, waited_ms * known.MILLISECOND)


def from_records(records: Iterable[Record]) -> Recorder:
    """Return the recorder that has counted these records, such as all of a journal."""
    recorder = Recorder()
    recorder.catch_up(records)
    return recorder


def _labels(record: Record) -> Key:
    return (
        _text(record, "tool_name"),
        _text(record, "language"),
        _text(record, "domain"),
        _text(record, "safety"),
        _text(record, "side_effect"),
        _text(record, "tenant"),
    )


def _approval(record: Record) -> str:
    consent = record.get("consent")
    found = record.get("approval_id") or (consent.get("id") if isinstance(consent, dict) else None)
    return str(found or record.get("envelope_id", ""))


def _text(record: Record, name: str) -> str:
    value = record.get(name)
    return value if isinstance(value, str) and value else NONE


def _number(record: Record, name: str, default: int = 0) -> int:
    """Return a count that is never negative; one above 2^53 is written in a record as decimal digits."""
    value = record.get(name)
    if type(value) is int:  # the usual case first: it is asked some six times an execution
        return max(0, value)
    if isinstance(value, str) and len(value) <= 30 and value.isascii() and value.isdigit():
        return int(value)
    return default


def _copied(cells: dict[Key, Any]) -> dict[Key, Any]:
    return {key: list(cell) if isinstance(cell, list) else cell for key, cell in cells.items()}


def _taken(family: Family, read: Callable[[], Reading]) -> dict[Key, Any]:
    try:
        reading = read()
    except Exception:  # noqa: BLE001  one part that cannot say its number must not hide all others
        return {}
    return {
        ((value,) if family.labels else _NO_LABELS): number for value, number in islice(reading.items(), MOST_SERIES)
    }
