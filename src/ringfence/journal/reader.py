"""Reads the journal of a home: executions with their two records, documents, proofs, and whether all of it is whole."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from ringfence.dataclass import dataclass
from ringfence.errors import InvalidRequest
from ringfence.evidence.merkle import Frontier, inclusion_proof, roots_in
from ringfence.evidence.note import Checkpoint, log_origin, read_note
from ringfence.evidence.verify import Report, Start, Trust, verify_log
from ringfence.journal import finding, store
from ringfence.journal.index import MOST_LOGS, Index, damaged_documents, strays
from ringfence.journal.pruning import Bounds, Gone

if TYPE_CHECKING:
    from ringfence.database.port import Cursor, Database


class Place(NamedTuple):
    """A record with where it stands; its members are gone when it was pruned."""

    log: int
    log_id: str
    seq: int
    hash: bytes
    text: str | None


@dataclass(frozen=True, slots=True)
class Execution:
    """One execution: its beginning, and its end when it has one; a denial is both in one record."""

    exec_id: str
    begin: Place
    end: Place | None


class Proof(NamedTuple):
    """That a record is in the log that a signed checkpoint stands for."""

    note: str
    size: int
    hashes: tuple[bytes, ...]


class Verified(NamedTuple):
    """What verifying a whole journal found."""

    reports: tuple[Report, ...]
    missing_logs: tuple[str, ...]
    """Logs that are not there, though their numbers or a checkpoint from outside say that they were."""
    misled: tuple[str, ...]
    """Where what executions are found by, what records refer to, or what is gone, is not what the records say."""
    pruned: Bounds
    """How far the records say that texts and rows were taken away."""

    @property
    def is_whole(self) -> bool:
        """Whether nothing is wrong with anything that is there, and nothing is known to be missing."""
        return not self.missing_logs and not self.misled and all(report.is_whole for report in self.reports)

    @property
    def is_proven(self) -> bool:
        """Whether it is whole, and every log was signed by whoever the trust names; of no log nothing is proven."""
        return self.is_whole and bool(self.reports) and all(report.is_proven for report in self.reports)


class Reader:
    """Sees the journal as it is when it is opened; whoever writes is not kept waiting."""

    def __init__(self, cursor: Cursor) -> None:
        """Made by `reading`."""
        self._cursor = cursor
        self._logs = {log.number: log for log in store.logs(cursor)}

    def logs(self) -> tuple[store.Log, ...]:
        """Return all logs, in the order they were begun."""
        return tuple(self._logs.values())

    def executions(
        self,
        filters: Mapping[str, str],
        *,
        since_ms: int | None = None,
        until_ms: int | None = None,
        before: tuple[int, str] | None = None,
        limit: int = 50,
    ) -> tuple[store.Exec, ...]:
        """Return a page of what is over, newest first; see `finding.list_execs`."""
        return finding.list_execs(
            self._cursor, filters, since_ms=since_ms, until_ms=until_ms, before=before, limit=limit
        )

    def running(self) -> tuple[store.OpenExec, ...]:
        """Return what has begun and not ended, or whose end nobody wrote yet."""
        return store.open_execs(self._cursor)

    def execution(self, name: str) -> Execution | None:
        """Return an execution by its `exec_id`, or by its `evidence_id`."""
        found = store.exec_by_id(self._cursor, name)
        if found is None:
            named = finding.list_execs(self._cursor, {"envelope_id": name}, limit=1)
            if not named:
                return None
            found = named[0]
        if isinstance(found, store.OpenExec):
            return Execution(found.exec_id, self._place(found.log, found.seq), None)
        begin = self._place(found.log, found.begin_seq)
        return Execution(found.exec_id, begin, self._place(found.log, found.end_seq))

    def others(self, exec_id: str) -> tuple[Place, ...]:
        """Return what else was written of an execution, such as the secrets it was lent; its hash speaks for each."""
        found = store.others_of(self._cursor, exec_id)
        return tuple(
            Place(log, self._logs[log].log_id, row.seq, row.hash, row.text) for log, row in found if log in self._logs
        )

    def document(self, digest: str) -> str | None:
        """Return the text of a document that records name by its digest."""
        found = store.document(self._cursor, digest)
        return None if found is None else found[1]

    def records(self, log: int, first: int = 0) -> Iterator[Place]:
        """Yield the records of a log in their order, some at a time."""
        log_id = self._logs[log].log_id
        for row in store.rows(self._cursor, log, first):
            yield Place(log, log_id, row.seq, row.hash, row.text)

    def checkpoints(self, log: int) -> Iterator[store.Checkpoint]:
        """Yield the signed notes of a log, oldest first."""
        return store.checkpoints(self._cursor, log)

    def start(self, log: int) -> Start:
        """Return where what is kept of a log begins."""
        found = self._logs[log]
        frontier = Frontier.from_text(found.first_frontier) if found.first_frontier else Frontier()
        return Start(found.log_id, found.first_seq, found.first_prev, frontier)

    def proof(self, log: int, seq: int) -> Proof | None:
        """Return the proof that a record is in its log, or nothing while no checkpoint covers it."""
        checkpoint = next((each for each in store.checkpoints(self._cursor, log, seq)), None)
        if checkpoint is None:
            return None

        def entries(first: int, end: int) -> Iterable[bytes]:
            return (row.hash for row in store.rows(self._cursor, log, first, end))

        # the tree up to the checkpoint before stands for all of its records, so that only those since are read
        before = store.last_checkpoint(self._cursor, log, seq)
        start = self.start(log).frontier if before is None else Frontier.from_text(before.frontier)
        path = inclusion_proof(seq, checkpoint.size, roots_in(entries, start))
        return Proof(checkpoint.note, checkpoint.size, path)

    def verify(self, trust: Trust, progress: Callable[[int], None] | None = None) -> Verified:
        """Read every log once, and say what is wrong first in each, and what is missing altogether.

        Raises:
            InvalidRequest: A checkpoint given from outside is none.
        """
        origins = {log_origin(log.log_id): log for log in self._logs.values()}
        numbers = sorted(number for number in self._logs if _is_number(number))
        missing = list(_gaps(numbers))
        missing += [f"the row of log {number}, which has records" for number in strays(self._cursor, numbers)]
        missing += [f"the number of log {log.log_id}" for number, log in self._logs.items() if number not in numbers]
        for note in trust.checkpoints:
            origin = Checkpoint.parse(read_note(note)[0]).origin
            if origin not in origins:
                missing.append(origin)
        reports: list[Report] = []
        gone = Gone()
        misled = [f"somebody added {what} to the database" for what in self._cursor.planted()]
        misled += [f"document {digest} has another text" for digest in damaged_documents(self._cursor)]
        for number in numbers:
            start, index = self._start(number), Index(self._cursor, number)
            gone.begin(start.log_id, start.first_seq)

            def see(seq: int, members: Mapping[str, Any] | None, index: Index = index) -> None:
                index.see(seq, members)
                gone.see(seq, members)

            report = verify_log(
                start,
                index.rows(start.first_seq),
                (checkpoint.note for checkpoint in store.checkpoints(self._cursor, number)),
                trust,
                progress,
                see,
            )
            reports.append(report)
            gone.end(report.signed_size)
            misled += self._frontier_faults(number)
            if report.is_whole:  # or else it is known already, and what is listed is held against what was altered
                index.finish()
                misled += [] if index.fault is None else [index.fault]
        return Verified(tuple(reports), tuple(missing), (*gone.faults(), *misled), gone.bounds)

    def last_before(self, before_ms: int) -> dict[str, int]:
        """Return, by its `log_id`, the last record of each log that has one from before a moment."""
        found = {log.log_id: store.last_before(self._cursor, log.number, before_ms) for log in self._logs.values()}
        return {log_id: seq for log_id, seq in found.items() if seq is not None}

    def _frontier_faults(self, log: int) -> Iterator[str]:
        """Yield what keeps a log from being written on: what its writer begins from is not what was signed."""
        last = store.last_checkpoint(self._cursor, log)
        if last is None:
            return
        try:
            signed = Checkpoint.parse(read_note(last.note)[0])
            frontier = Frontier.from_text(last.frontier)
            if (frontier.size, frontier.root()) == (signed.size, signed.root) == (last.size, last.root):
                return
        except InvalidRequest:
            pass
        yield f"what is kept beside the checkpoint at size {last.size} of log {log} is not what it signs"

    def _start(self, log: int) -> Start:
        """Return where a log begins, and what fits no log where that cannot be read any more."""
        try:
            found = self.start(log)
        except InvalidRequest:
            return Start(self._logs[log].log_id, -1)
        return found if type(found.first_seq) is int else Start(found.log_id, -1)

    def _place(self, log: int, seq: int) -> Place:
        row = store.record(self._cursor, log, seq)
        log_id = self._logs[log].log_id
        # a row that is not there any more is to be shown as one that was pruned, never to be an error of ours
        return Place(log, log_id, seq, b"", None) if row is None else Place(log, log_id, seq, row.hash, row.text)


def _is_number(number: object) -> bool:
    return type(number) is int and 0 < number < MOST_LOGS


def _gaps(numbers: Iterable[int]) -> Iterator[str]:
    before = 0
    for number in numbers:
        if number == before + 2:
            yield f"log {before + 1}"
        elif number > before + 2:
            yield f"logs {before + 1} to {number - 1}"
        before = number


@contextmanager
def reading(database: Database) -> Iterator[Reader]:
    """Open the journal for reading.

    Raises:
        Unavailable: It cannot be read.
    """
    with database.reading() as cursor:
        yield Reader(cursor)
