"""Holds what executions are found by against the records: a list that hides a run is as bad as a lost record."""

from __future__ import annotations

from hashlib import sha256
from typing import TYPE_CHECKING, Any, Final

from ringfence.evidence.records import BEGIN, DENIED, END
from ringfence.evidence.verify import Row
from ringfence.journal import store

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping

    from ringfence.database.port import Cursor

MOST_LOGS: Final = 1 << 22
"""Beyond which no log is numbered: its records would have no place."""
_AT_ONCE = 200


class Index:
    """The tables beside one log's records; each record is seen once, in order, and what is over is soon forgotten."""

    def __init__(self, cursor: Cursor, log: int) -> None:
        """Nothing was seen yet."""
        self._cursor = cursor
        self._log = log
        self._begun: dict[str, tuple[int, Any]] = {}
        self._unseen = 0
        self._ended: dict[str, tuple[tuple[int, Any] | None, int, Mapping[str, Any]]] = {}
        self._over = 0
        self._row: store.Row | None = None
        self.fault: str | None = None

    def rows(self, first: int) -> Iterator[Row]:
        """Yield the records of the log from `first` on, each to be seen before the next is asked for."""
        for row in store.rows(self._cursor, self._log, first):
            self._row = row
            yield Row(row.seq, row.hash, row.text)

    def see(self, seq: int, members: Mapping[str, Any] | None) -> None:
        """Take the next record, or the next whose text was pruned."""
        if members is None:
            self._unseen += 1
            return
        kind, exec_id = members.get("type"), members.get("exec_id")
        # retention goes by the columns, and must not be led to take away what is young or still open
        if self._row is not None and self._row[1:4] != (members.get("time_ms"), kind, exec_id) and self.fault is None:
            self.fault = f"record {seq} of log {self._log} is filed under another time, type or run than its text says"
        if kind == BEGIN:
            self._begun[str(exec_id)] = (seq, members.get("time_ms"))
        elif kind in (END, DENIED):
            begun = (seq, members.get("time_ms")) if kind == DENIED else self._begun.pop(str(exec_id), None)
            self._ended[str(exec_id)] = (begun, seq, members)
            if len(self._ended) >= _AT_ONCE:
                self._compare()

    def finish(self) -> None:
        """Compare what is left, and what is listed without a record."""
        self._compare()
        if self.fault is not None or self._unseen:
            return  # a record without its text cannot say what should be listed
        listed = self._cursor.execute("SELECT count(*) FROM journal_exec WHERE log = ?", (self._log,)).fetchone()[0]
        if listed > self._over:
            self.fault = f"{listed - self._over} executions are listed that no record of log {self._log} ends"
        open_now = {begun.exec_id: begun.seq for begun in store.open_execs(self._cursor, self._log)}
        if self.fault is None and open_now != {exec_id: seq for exec_id, (seq, _) in self._begun.items()}:
            self.fault = f"the list of what has not ended is not that of the records of log {self._log}"

    def _compare(self) -> None:
        wanted, self._ended = self._ended, {}
        self._over += len(wanted)
        if self.fault is not None or not wanted:
            return
        found = _execs_by_id(self._cursor, wanted)
        for exec_id, (begun, end_seq, members) in wanted.items():
            listed = found.get(exec_id)
            if listed is None:
                self.fault = f"execution {exec_id} is not listed, and record {end_seq} ends it"
                return
            said = {name: members.get(name) for name in (*store.ID_FIELDS, "outcome")}
            shown = {name: getattr(listed, name) for name in said}
            began = (listed.begin_seq, listed.started_ms)
            if said != shown or (begun or began) != began or (self._log, end_seq) != (listed.log, listed.end_seq):
                self.fault = f"execution {exec_id} is listed as what record {end_seq} does not say"
                return


def damaged_documents(cursor: Cursor) -> Iterator[str]:
    """Yield the digests of documents that have another one."""
    after = ""
    while True:
        some = cursor.execute(
            f"SELECT digest, body FROM journal_document WHERE digest > ? ORDER BY digest LIMIT {_AT_ONCE}", (after,)
        ).fetchall()
        for digest, body in some:
            if digest != f"sha256:{sha256(str(body).encode('utf-8', 'surrogatepass')).hexdigest()}":
                yield str(digest)
        if len(some) < _AT_ONCE:
            return
        after = some[-1][0]


def strays(cursor: Cursor, known: Iterable[int]) -> Iterator[int]:
    """Yield, for each gap between the `known` logs, the first log in it that has records or checkpoints."""
    first = -MOST_LOGS
    for stop in (*sorted(known), MOST_LOGS):
        record = cursor.execute(
            "SELECT log FROM journal_record WHERE place >= ? AND place < ? ORDER BY place LIMIT 1",
            (store.place(first, 0), store.place(stop, 0)),
        ).fetchone()
        checkpoint = cursor.execute(
            "SELECT log FROM journal_checkpoint WHERE log >= ? AND log < ? ORDER BY log LIMIT 1", (first, stop)
        ).fetchone()
        yield from sorted({found[0] for found in (record, checkpoint) if found is not None})
        first = stop + 1


def _execs_by_id(cursor: Cursor, names: Collection[str]) -> dict[str, store.Exec]:
    """Return those of some execs that are over."""
    some = ", ".join("?" for _ in names)
    found = cursor.execute(
        f"SELECT {store.EXEC_COLUMNS} FROM journal_exec WHERE exec_id IN ({some})", (*names,)
    ).fetchall()
    return {row[0]: store.Exec(*row) for row in found}
