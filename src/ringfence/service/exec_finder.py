"""Finds executions in the journal for a caller: one by its name, or pages of them; another tenant's are not there."""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from ringfence.budgets.owner import is_gone
from ringfence.dataclass import dataclass
from ringfence.errors import InvalidRequest, RingfenceError
from ringfence.evidence.records import end_of_orphan
from ringfence.evidence.sealing import read_record
from ringfence.journal import finding, store
from ringfence.outcome import Status
from ringfence.service import exec_views
from ringfence.service.exec_views import View
from ringfence.workspaces.exec_files import ExecFiles, read_artifact, read_exec_files

if TYPE_CHECKING:
    from ringfence.database.port import Cursor, Database

FILTERS: Final = ("task_id", "project_id", "conversation_id", "skill_id", "user_id", "space_id", "turn_id")
MOST_PER_PAGE: Final = 200
LIVE: Final = (str(Status.QUEUED), str(Status.RUNNING))
_EXEC_ID = re.compile(r"ex_[A-Za-z0-9_]{1,64}\Z")
_LONGEST_CURSOR: Final = 200


class Position(NamedTuple):
    """Where a page ended: what follows is older, or of the same moment and smaller name."""

    started_ms: int
    exec_id: str


class Page(NamedTuple):
    """Some executions, newest first, and where the next page begins."""

    items: tuple[View, ...]
    next: Position | None


@dataclass(frozen=True, slots=True)
class Question:
    """Which executions are meant."""

    tenant: str | None
    """None asks for every tenant's."""
    filters: Mapping[str, str]
    status: str | None = None
    limit: int = 50
    before: Position | None = None

    def fits(self, names: Mapping[str, Any]) -> bool:
        """Whether what goes by these names is meant; its status and its place are looked at elsewhere."""
        if self.tenant is not None and names.get("tenant") != self.tenant:
            return False
        return all(names.get(name) == value for name, value in self.filters.items())


class Found(NamedTuple):
    """One execution in the journal."""

    tenant: str
    project_id: str | None
    begin: Mapping[str, Any] | None
    """None where its records were pruned."""
    end: Mapping[str, Any] | None
    row: store.Exec | None


def no_such_exec() -> InvalidRequest:
    """Return the one answer for names that nobody has and for names that are another tenant's."""
    return InvalidRequest("there is no such execution", reason="not_found")


def write_cursor(position: Position) -> str:
    """Return a position as a caller carries it."""
    return base64.urlsafe_b64encode(json.dumps(position, separators=(",", ":")).encode()).decode().rstrip("=")


def read_cursor(text: str) -> Position:
    """Read what `write_cursor` wrote.

    Raises:
        InvalidRequest: It is no cursor.
    """
    try:
        if len(text) > _LONGEST_CURSOR:
            raise ValueError
        raw = base64.b64decode(text.encode("ascii") + b"=" * (-len(text) % 4), altchars=b"-_", validate=True)
        started_ms, exec_id = json.loads(raw)
        if type(started_ms) is not int or not 0 <= started_ms < 2**53 or not isinstance(exec_id, str):
            raise ValueError
    except (ValueError, TypeError, RecursionError, binascii.Error):
        raise InvalidRequest(
            "cursor is none that a page of this list ended with", reason="invalid_range", field="cursor"
        ) from None
    return Position(started_ms, exec_id)


class Finder:
    """Reads the journal and the files beside it; every method may block."""

    def __init__(self, database: Database, files_home: Path) -> None:
        """`files_home` is the directory whose `workspace` holds the projects."""
        self._database = database
        self._files_home = files_home

    def find(self, exec_id: str) -> Found | None:
        """Return an execution that has begun or was denied, whoever's it is."""
        if _EXEC_ID.match(exec_id) is None:
            return None
        with self._database.reading() as cursor:
            found = store.exec_by_id(cursor, exec_id)
            if found is None:
                return None
            if isinstance(found, store.OpenExec):
                return _open(cursor, found, {log.number: log for log in store.logs(cursor)})
            begin = _record(cursor, found.log, found.begin_seq)
            end = None if found.end_seq == found.begin_seq else _record(cursor, found.log, found.end_seq)
            if found.end_seq != found.begin_seq and end is None:
                begin = None
        return Found(found.tenant or "", found.project_id, begin, end, found)

    def view(self, found: Found, exec_id: str) -> View:
        """Return all that is known of an execution, its output among it."""
        if found.begin is None:
            if found.row is None:
                raise no_such_exec()
            return exec_views.from_index(found.row)
        return exec_views.from_records(found.begin, found.end, self.files(found, exec_id))

    def files(self, found: Found, exec_id: str) -> ExecFiles | None:
        """Return what was kept of an execution beside its records; what is damaged counts as not kept."""
        if found.project_id is None:
            return None
        try:
            return read_exec_files(self._files_home, found.project_id, exec_id, tenant=found.tenant)
        except RingfenceError:
            return None

    def artifact(self, found: Found, exec_id: str, path: str) -> bytes | None:
        """Return an artifact by the path its guest gave it.

        Raises:
            Unavailable: It is not what was written.
        """
        if found.project_id is None:
            return None
        try:
            return read_artifact(self._files_home, found.project_id, exec_id, path, tenant=found.tenant)
        except (InvalidRequest, ValueError):  # no path an artifact could have
            return None

    def page(self, question: Question, live: Iterable[tuple[Position, View]]) -> Page:
        """Return a page of what runs and what is over; `live` is what this service itself has under way."""
        candidates = {position.exec_id: (position, view) for position, view in live}
        with self._database.reading() as cursor:
            if question.status in (None, str(Status.RUNNING)):
                for position, view in _running(cursor, question):
                    candidates[position.exec_id] = (position, view)
            if question.status is None or question.status not in LIVE:
                for position, view in _over(cursor, question):
                    candidates[position.exec_id] = (position, view)
        ordered = sorted(candidates.values(), key=lambda each: each[0], reverse=True)
        if question.before is not None:
            ordered = [each for each in ordered if each[0] < question.before]
        shown = ordered[: question.limit]
        following = shown[-1][0] if len(ordered) > len(shown) and shown else None
        return Page(tuple(view for _, view in shown), following)


def _running(cursor: Cursor, question: Question) -> Iterable[tuple[Position, View]]:
    logs = {log.number: log for log in store.logs(cursor)}
    for begun in store.open_execs(cursor):
        found = _open(cursor, begun, logs)
        if found is None or found.begin is None or found.end is not None or not question.fits(found.begin):
            continue
        yield Position(int(found.begin["time_ms"]), begun.exec_id), exec_views.row_of(found.begin, None)


def _over(cursor: Cursor, question: Question) -> Iterable[tuple[Position, View]]:
    filters = dict(question.filters)
    if question.tenant is not None:
        filters["tenant"] = question.tenant
    if question.status is not None:
        filters["outcome"] = question.status
    # one more than asked for, to know whether there is a next page
    rows = finding.list_execs(cursor, filters, before=question.before, limit=question.limit + 1)
    for row in rows:
        begin = _record(cursor, row.log, row.begin_seq)
        end = None if row.end_seq == row.begin_seq else _record(cursor, row.log, row.end_seq)
        view = exec_views.from_index_row(row) if begin is None else exec_views.row_of(begin, end)
        yield Position(row.started_ms, row.exec_id), view


def _open(cursor: Cursor, begun: store.OpenExec, logs: Mapping[int, store.Log]) -> Found | None:
    """Return an execution that has no end yet; whose process is gone will get none but that of an orphan."""
    begin = _record(cursor, begun.log, begun.seq)
    if begin is None:
        return None
    end = None
    log = logs.get(begun.log)
    if log is not None and is_gone(log.owner):
        end = end_of_orphan(begin, now_ms=int(begin["time_ms"]))
    return Found(str(begin.get("tenant", "")), begin.get("project_id"), begin, end, None)


def _record(cursor: Cursor, log: int, seq: int) -> Mapping[str, Any] | None:
    row = store.record(cursor, log, seq)
    if row is None or row.text is None:
        return None
    try:
        return read_record(row.text)
    except InvalidRequest:
        return None
