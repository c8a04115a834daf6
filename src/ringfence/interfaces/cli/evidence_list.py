"""`ringfence evidence list`: executions newest first, each row held against the hash of its records as it is shown."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from ringfence.dataclass import dataclass
from ringfence.interfaces.cli.evidence_desk import (
    ALTERED,
    INTACT,
    MISSING,
    PRUNED,
    Desk,
    Read,
    open_desk,
    parser,
    read_place,
    say,
    shown_time,
)
from ringfence.interfaces.cli.evidence_selection import (
    Selection,
    add_selection,
    from_cursor,
    page,
    read_selection,
    to_cursor,
)
from ringfence.interfaces.cli.options import positive_count
from ringfence.journal.reader import Place

if TYPE_CHECKING:
    from ringfence.journal.reader import Reader
    from ringfence.journal.store import Exec

ORPHANED = "orphaned (not yet closed)"
_SHOWN_IDS = (
    "tenant",
    "subject_id",
    "user_id",
    "space_id",
    "session_id",
    "conversation_id",
    "turn_id",
    "task_id",
    "project_id",
    "skill_id",
    "tool_name",
    "call_id",
)
_WORST_FIRST = (ALTERED, MISSING, PRUNED, INTACT)


@dataclass(frozen=True, slots=True)
class Listed:
    """One execution as it is listed: what its records say, and whether they are what was written."""

    exec_id: str
    evidence_id: str
    started_ms: int
    outcome: str
    integrity: str
    begin: Read
    end: Read | None
    row: Exec | None = None

    def told(self, name: str) -> Any:
        """Return what the end says, or the begin where it says nothing; of pruned records the index alone is left."""
        for read in (self.end, self.begin):
            if read is not None and name in read.members:
                return read.members[name]
        return getattr(self.row, name, None) if self.integrity == PRUNED else None

    def to_json(self) -> dict[str, Any]:
        """Return it as one object; what is not known is left out."""
        fields = {
            "exec_id": self.exec_id,
            "evidence_id": self.evidence_id,
            "started": shown_time(self.started_ms),
            "started_ms": self.started_ms,
            "outcome": self.outcome,
            "integrity": self.integrity,
            "log_id": self.begin.place.log_id,
            "begin_seq": self.begin.place.seq,
            "end_seq": None if self.end is None else self.end.place.seq,
        }
        names = (*_SHOWN_IDS, "status", "capability", "duration_ms", "exit_code", "error_code", "reason")
        fields.update((name, self.told(name)) for name in names)
        return {name: value for name, value in fields.items() if value is not None}


def list_command(words: Sequence[str]) -> int:
    """Carry out `ringfence evidence list` and return the exit code: 3 when a listed row is not what was written."""
    taken = parser("list")
    add_selection(taken)
    taken.add_argument("--limit", type=positive_count, default=20)
    taken.add_argument("--cursor")
    options = taken.parse_args(list(words))
    desk = open_desk(options.home)
    selection = read_selection(options, desk.now_ms)
    before = None if options.cursor is None else from_cursor(options.cursor)
    limit = min(options.limit, 1000)
    with desk.reading() as reader:
        rows = [*running(desk, reader, selection)] if before is None and selection.is_running else []
        found, more = page(reader, selection, before, limit)
        rows += [listed(reader, each) for each in found]
    cursor = to_cursor(found[-1]) if more else None
    if options.json:
        from ringfence.interfaces.cli.policy import print_json

        broken = sum(row.integrity in (ALTERED, MISSING) for row in rows)
        print_json({"success": not broken, "execs": [row.to_json() for row in rows], "cursor": cursor})
    else:
        _show(rows, cursor, selection)
    return 3 if any(row.integrity in (ALTERED, MISSING) for row in rows) else 0


def listed(reader: Reader, row: Exec) -> Listed:
    """Return an execution that is over, as its records tell it; the index they are found by proves nothing."""
    try:
        execution = reader.execution(row.exec_id)
    except (TypeError, ValueError, LookupError):  # the index leads to where no record can be
        execution = None
    if execution is None:
        nowhere = Read(Place(0, "?", 0, b"", None), {}, MISSING)
        return Listed(row.exec_id, row.envelope_id or "", row.started_ms, str(row.outcome), MISSING, nowhere, None)
    begin = read_place(execution.begin)
    end = begin if execution.end is None or execution.end == execution.begin else read_place(execution.end)
    states = {begin.state, end.state}
    integrity = next(state for state in _WORST_FIRST if state in states)
    outcome = end.members.get("outcome", row.outcome)
    if integrity == INTACT and not _is_of(row, begin, outcome):
        integrity = ALTERED  # the records are whole, and the index says something else about them
    return Listed(row.exec_id, row.envelope_id or "", row.started_ms, str(outcome), integrity, begin, end, row)


def running(desk: Desk, reader: Reader, selection: Selection) -> Iterator[Listed]:
    """Yield what has not ended, newest first, and say of what never will that its owner is gone."""
    open_now = reader.running()
    numbers = {begun.log for begun in open_now}
    dead = desk.dead_logs(log for log in reader.logs() if log.number in numbers)
    for begun in reversed(open_now):
        execution = reader.execution(begun.exec_id)
        if execution is None:
            continue
        begin = read_place(execution.begin)
        said = begin.members
        at = said["time_ms"] if type(said.get("time_ms")) is int else 0
        is_wanted = all(said.get(field) == value for field, value in selection.filters.items())
        is_within = (selection.since_ms or 0) <= at and (selection.until_ms is None or at < selection.until_ms)
        if is_wanted and is_within:
            outcome = ORPHANED if begun.log in dead else "running"
            yield Listed(begun.exec_id, str(said.get("envelope_id", "")), at, outcome, begin.state, begin, None)


def _is_of(row: Exec, begin: Read, outcome: Any) -> bool:
    said = begin.members
    is_found_by = all(said.get(name) == getattr(row, name) for name in _SHOWN_IDS)
    return (
        said.get("exec_id") == row.exec_id
        and is_found_by
        and (outcome, said["time_ms"])
        == (
            row.outcome,
            row.started_ms,
        )
    )


def _show(rows: Sequence[Listed], cursor: str | None, selection: Selection) -> None:
    if not rows:
        say("there is no execution" if selection.is_everything else "no execution is like that")
        return
    widths = [max(len(cell) for cell in column) for column in zip(*map(_cells, rows), strict=True)]
    for row in rows:
        cells = "  ".join(cell.ljust(width) for cell, width in zip(_cells(row), widths, strict=True))
        mark = {ALTERED: "  ALTERED", MISSING: "  RECORD MISSING", PRUNED: "  (pruned)"}.get(row.integrity, "")
        why = _why(row)
        say(f"{shown_time(row.started_ms)}  {cells}{mark}{'  ' + why if why else ''}".rstrip())
    broken = sum(row.integrity in (ALTERED, MISSING) for row in rows)
    if broken:
        say(
            f"{broken} of these {'is' if broken == 1 else 'are'} not as written: 'ringfence evidence verify' says where"
        )
    if cursor is not None:
        sys.stdout.flush()
        sys.stderr.write(f"ringfence: there are more; go on with --cursor {cursor}\n")


def _why(row: Listed) -> str:
    if row.told("reason") == "exit_code":
        return f"exit code {row.told('exit_code')}"
    return " ".join(str(word) for word in (row.told("error_code"), row.told("reason")) if word)


def _cells(row: Listed) -> tuple[str, ...]:
    duration = row.told("duration_ms")
    return (
        row.exec_id,
        row.outcome,
        str(row.told("tool_name") or "?"),
        "" if duration is None else f"{duration} ms".rjust(9),
    )
