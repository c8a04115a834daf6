"""The journal as tables; every function works inside a transaction that its caller has begun and will end.

Nothing is hashed here: what a record says and how it is sealed is decided before it comes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Final, NamedTuple

from ringfence.budgets.owner import Owner
from ringfence.database.migrations import OF_AN_EXEC, RECORDS_PER_LOG
from ringfence.dataclass import dataclass, fields
from ringfence.errors import InvalidRequest, Unavailable

if TYPE_CHECKING:
    from ringfence.database.port import Cursor

NO_HASH: Final = bytes(32)
_ROWS_AT_ONCE = 500


class LogTaken(Unavailable):
    """Another writer has this log now, or wrote to it; whoever sees this takes a log anew before writing again."""

    default_reason = "log_taken"


class Row(NamedTuple):
    """One record as it is kept; a pruned one has no `text`."""

    seq: int
    time_ms: int
    type: str
    exec_id: str | None
    hash: bytes
    text: str | None
    mac: bytes = b""
    """By which a later process of the same home knows that this one wrote it; never part of what is exported."""


class Log(NamedTuple):
    """A log as everybody sees it; records before `first_seq` were dropped."""

    number: int
    log_id: str
    created_ms: int
    owner: Owner
    held: bool
    first_seq: int
    first_prev: bytes
    first_frontier: str


class Checkpoint(NamedTuple):
    """What was signed when a log had `size` records."""

    size: int
    time_ms: int
    root: bytes
    frontier: str
    note: str


@dataclass(frozen=True, slots=True)
class LogState:
    """A log as its new writer finds it; `term` is what tells this writer from the ones before it."""

    number: int
    term: int
    log_id: str
    size: int
    last_hash: bytes
    frontier: str
    """As of `frontier_size` records; empty for none."""
    frontier_size: int
    hashes: tuple[bytes, ...]
    """Of the records since."""
    was_dead: bool
    """Whether its last writer ended without releasing it, so that begins may be left open."""
    last_mac: bytes = b""


@dataclass(frozen=True, slots=True)
class Exec:
    """Where the two records of an exec are that is over (one and the same for a denial), and what it is found by."""

    exec_id: str
    log: int
    begin_seq: int
    end_seq: int
    started_ms: int
    outcome: str
    tenant: str | None = None
    space_id: str | None = None
    user_id: str | None = None
    subject_id: str | None = None
    session_id: str | None = None
    conversation_id: str | None = None
    turn_id: str | None = None
    task_id: str | None = None
    project_id: str | None = None
    skill_id: str | None = None
    tool_name: str | None = None
    call_id: str | None = None
    envelope_id: str | None = None


class OpenExec(NamedTuple):
    """A begin that has no end yet."""

    exec_id: str
    log: int
    seq: int


ID_FIELDS: Final = (
    "envelope_id",
    "call_id",
    "turn_id",
    "task_id",
    "conversation_id",
    "session_id",
    "project_id",
    "skill_id",
    "user_id",
    "space_id",
    "subject_id",
    "tenant",
    "tool_name",
)
"""What execs are found by, beside their outcome: those that fewest execs share come first."""

# --- logs: who writes where ---


def take_log(
    cursor: Cursor, owner: Owner, now_ms: int, new_log_id: str, accept: Callable[[LogState], bool] = lambda _: True
) -> LogState:
    """Adopt the lowest log that nobody writes and `accept` takes for ours, or begin a new one, named `new_log_id`."""
    highest = 0
    for log in logs(cursor):
        highest = log.number
        if _is_free(cursor, log, accept):
            return adopt(cursor, log, owner)
    number = highest + 1
    if not cursor.lease(number):
        raise LogTaken(f"log {number} is not there yet, and another has its lease")
    cursor.execute(
        "INSERT INTO journal_log VALUES (?, ?, ?, ?, ?, ?, ?, 1, 1, 0, ?, ?)",
        (number, new_log_id, now_ms, *_flat(owner), NO_HASH, ""),
    )
    return state(cursor, number)


def dead_logs(cursor: Cursor, accept: Callable[[LogState], bool] = lambda _: True) -> Iterator[Log]:
    """Yield the logs whose writer ended without releasing them; each is to be adopted at once."""
    for log in logs(cursor):
        if log.held and _is_free(cursor, log, accept):
            yield log


def adopt(cursor: Cursor, log: Log, owner: Owner) -> LogState:
    """Make `owner` the writer of a log that is free."""
    cursor.execute(
        "UPDATE journal_log SET boot_id = ?, pid_namespace = ?, pid = ?, started = ?, held = 1, "
        "term = term + 1 WHERE number = ?",
        (*_flat(owner), log.number),
    )
    return state(cursor, log.number, was_dead=log.held)


def _is_free(cursor: Cursor, log: Log, accept: Callable[[LogState], bool]) -> bool:
    if not cursor.lease(log.number):
        return False
    if accept(state(cursor, log.number)):
        return True
    cursor.end_lease(log.number)
    return False


def state(cursor: Cursor, number: int, *, was_dead: bool = False) -> LogState:
    """Return where a log stands, for who has just taken it or cannot tell whether his last transaction was kept."""
    row = cursor.execute(
        "SELECT term, log_id, first_seq, first_prev, first_frontier FROM journal_log WHERE number = ?", (number,)
    ).fetchone()
    if row is None:
        raise LogTaken(f"there is no log {number}")
    term, log_id, first_seq, first_prev, frontier = row
    last = _last(cursor, number)
    if last is None:
        size, last_hash, mac = first_seq, bytes(first_prev), b""
    else:
        size, last_hash, mac = last[0] + 1, bytes(last[1]), _bytes(last[2])
    checkpoint = last_checkpoint(cursor, number)
    frontier_size = first_seq
    if checkpoint is not None:
        frontier, frontier_size = checkpoint.frontier, checkpoint.size
    hashes = cursor.execute(
        "SELECT hash FROM journal_record WHERE place >= ? AND place < ? ORDER BY place",
        (place(number, frontier_size), place(number, size)),
    ).fetchall()
    after = tuple(bytes(hash_) for (hash_,) in hashes)
    return LogState(number, term, log_id, size, last_hash, frontier, frontier_size, after, was_dead, mac)


def release_log(cursor: Cursor, log: LogState) -> None:
    """Leave the log to the next process; one that was taken over meanwhile is left alone."""
    cursor.execute("UPDATE journal_log SET held = 0 WHERE number = ? AND term = ?", (log.number, log.term))
    cursor.end_lease(log.number)


def logs(cursor: Cursor) -> tuple[Log, ...]:
    """Return all logs, in the order they were begun."""
    rows = cursor.execute(
        "SELECT number, log_id, created_ms, boot_id, pid_namespace, pid, started, held, first_seq, first_prev, "
        "first_frontier FROM journal_log ORDER BY number"
    ).fetchall()
    return tuple(
        Log(row[0], str(row[1]), row[2], Owner(*row[3:7]), bool(row[7]), row[8], _bytes(row[9]), str(row[10]))
        for row in rows
    )


# --- records ---


def append(cursor: Cursor, log: LogState, rows: Sequence[Row]) -> None:
    """Write the next records of a log that is still this writer's.

    Raises:
        LogTaken: It was taken over, or holds other records than this writer believes: two writers never fork a log.
    """
    mine = cursor.execute("SELECT term, held, first_seq FROM journal_log WHERE number = ?", (log.number,)).fetchone()
    if mine is None or mine[:2] != (log.term, 1) or not cursor.keeps_lease(log.number):
        raise LogTaken(f"log {log.log_id} was taken over by another process")
    last = _last(cursor, log.number)
    following = mine[2] if last is None else last[0] + 1
    if [row.seq for row in rows] != list(range(following, following + len(rows))):
        raise LogTaken(f"log {log.log_id} goes on at {following}, which its writer does not know")
    cursor.executemany(
        "INSERT INTO journal_record (place, log, seq, time_ms, type, exec_id, hash, body, mac) "
        "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
        [(place(log.number, row.seq), log.number, *row) for row in rows],
    )


def record(cursor: Cursor, log: int, seq: int) -> Row | None:
    """Return one record."""
    found = cursor.execute(f"{_SELECT_ROW} WHERE place = ?", (place(log, seq),)).fetchone()
    return None if found is None else _row(found)


def rows(cursor: Cursor, log: int, first: int = 0, end: int | None = None) -> Iterator[Row]:
    """Yield the records of a log from `first` up to and without `end`, some at a time."""
    at, stop = place(log, first), place(log, RECORDS_PER_LOG if end is None else end)
    while True:
        some = cursor.execute(
            f"{_SELECT_ROW} WHERE place >= ? AND place < ? ORDER BY place LIMIT {_ROWS_AT_ONCE}", (at, stop)
        ).fetchall()
        for found in some:
            yield _row(found)
        if len(some) < _ROWS_AT_ONCE:
            return
        at = some[-1][-1] + 1  # by its key: whoever wrote to the table by hand cannot send us round and round


def last_before(cursor: Cursor, log: int, before_ms: int) -> int | None:
    """Return the last record of a log that is from before a moment."""
    found = cursor.execute(
        "SELECT seq FROM journal_record WHERE place >= ? AND place < ? AND time_ms < ? ORDER BY place DESC LIMIT 1",
        (place(log, 0), place(log + 1, 0), before_ms),
    ).fetchone()
    return None if found is None else int(found[0])


# --- execs ---


def open_exec(cursor: Cursor, exec_id: str, log: int, seq: int) -> None:
    """Remember that the record at `seq` begins an exec; one of that name which is over is found when this one ends.

    Raises:
        InvalidRequest: There is an open exec of this name.
    """
    opened = "INSERT INTO journal_open (exec_id, log, seq) VALUES (?, ?, ?) ON CONFLICT DO NOTHING"
    if not cursor.execute(opened, (exec_id, log, seq)).rowcount:
        raise InvalidRequest(f"{exec_id} was begun already")


def close_exec(cursor: Cursor, ended: Exec, *, was_open: bool = True) -> None:
    """Remember that an exec ended; one that was denied, or began in this very transaction, never was open.

    Raises:
        InvalidRequest: It had ended already; undo the transaction, or there are two ends.
    """
    if was_open:
        cursor.execute("DELETE FROM journal_open WHERE exec_id = ?", (ended.exec_id,))
    if not cursor.execute(_INSERT_EXEC, _exec_values(ended)).rowcount:
        raise InvalidRequest(f"{ended.exec_id} has ended already")


def open_execs(cursor: Cursor, log: int | None = None) -> tuple[OpenExec, ...]:
    """Return the execs of a log, or of all, that have begun and not ended, in their order."""
    found = cursor.execute("SELECT exec_id, log, seq FROM journal_open ORDER BY log, seq").fetchall()
    return tuple(OpenExec(*row) for row in found if log is None or row[1] == log)


def forget_open(cursor: Cursor, begun: OpenExec) -> None:
    """Take out of the open execs what never was one, or has ended."""
    cursor.execute("DELETE FROM journal_open WHERE exec_id = ?", (begun.exec_id,))


def exec_by_id(cursor: Cursor, exec_id: str) -> Exec | OpenExec | None:
    """Return an exec that is over, or one that is open."""
    ended = cursor.execute(f"SELECT {EXEC_COLUMNS} FROM journal_exec WHERE exec_id = ?", (exec_id,)).fetchone()
    if ended is not None:
        return Exec(*ended)
    begun = cursor.execute("SELECT exec_id, log, seq FROM journal_open WHERE exec_id = ?", (exec_id,)).fetchone()
    return None if begun is None else OpenExec(*begun)


def others_of(cursor: Cursor, exec_id: str) -> tuple[tuple[int, Row], ...]:
    """Return what else was written of an execution, in whatever log, by the log's number."""
    found = cursor.execute(f"{_SELECT_ROW} WHERE exec_id = ? AND {OF_AN_EXEC} ORDER BY place", (exec_id,)).fetchall()
    return tuple((int(each[-1]) // RECORDS_PER_LOG, _row(each)) for each in found)


# --- checkpoints and documents ---


def add_checkpoint(cursor: Cursor, log: LogState, checkpoint: Checkpoint) -> None:
    """Keep a signed note beside its log; the same size is signed once."""
    cursor.execute(
        "INSERT INTO journal_checkpoint (log, size, time_ms, root, frontier, note) VALUES (?, ?, ?, ?, ?, ?) "
        "ON CONFLICT DO NOTHING",
        (log.number, *checkpoint),
    )


def last_checkpoint(cursor: Cursor, log: int, up_to: int = RECORDS_PER_LOG) -> Checkpoint | None:
    """Return the newest signed note of a log, or the newest that covers no more than `up_to` records."""
    found = cursor.execute(
        f"{_SELECT_CHECKPOINT} WHERE log = ? AND size <= ? ORDER BY size DESC LIMIT 1", (log, up_to)
    ).fetchone()
    return None if found is None else _checkpoint(found)


def checkpoints(cursor: Cursor, log: int, after_size: int = -1) -> Iterator[Checkpoint]:
    """Yield the signed notes of a log from the oldest, some at a time."""
    while True:
        some = cursor.execute(
            f"{_SELECT_CHECKPOINT} WHERE log = ? AND size > ? ORDER BY size LIMIT {_ROWS_AT_ONCE}", (log, after_size)
        ).fetchall()
        for found in some:
            yield _checkpoint(found)
        if len(some) < _ROWS_AT_ONCE:
            return
        after_size = some[-1][0]


def keep_document(cursor: Cursor, digest: str, kind: str, body: str) -> None:
    """Keep what records refer to by its digest; it is kept once."""
    cursor.execute(
        "INSERT INTO journal_document (digest, kind, body) VALUES (?, ?, ?) ON CONFLICT DO NOTHING",
        (digest, kind, body),
    )


def document(cursor: Cursor, digest: str) -> tuple[str, str] | None:
    """Return the kind and the text of a document."""
    found = cursor.execute("SELECT kind, body FROM journal_document WHERE digest = ?", (digest,)).fetchone()
    return None if found is None else (found[0], found[1])


# a record that says it is elsewhere than it stands is in no place at all
_SELECT_ROW = (
    f"SELECT CASE WHEN log * {RECORDS_PER_LOG} + seq = place THEN seq ELSE -1 END, "
    "time_ms, type, exec_id, hash, body, place FROM journal_record"
)
_SELECT_CHECKPOINT = "SELECT size, time_ms, root, frontier, note FROM journal_checkpoint"
_EXEC_FIELDS = tuple(field.name for field in fields(Exec))
_exec_values = attrgetter(*_EXEC_FIELDS)
EXEC_COLUMNS = ", ".join(_EXEC_FIELDS)
_INSERT_EXEC = (
    f"INSERT INTO journal_exec ({EXEC_COLUMNS}) VALUES ({', '.join('?' for _ in _EXEC_FIELDS)}) ON CONFLICT DO NOTHING"
)


def place(log: int, seq: int) -> int:
    """Return the number that orders a record among those of all logs."""
    return log * RECORDS_PER_LOG + seq


def _last(cursor: Cursor, log: int) -> tuple[int, bytes, bytes] | None:
    found: tuple[int, bytes, bytes] | None = cursor.execute(
        "SELECT seq, hash, mac FROM journal_record WHERE place >= ? AND place < ? ORDER BY place DESC LIMIT 1",
        (place(log, 0), place(log + 1, 0)),
    ).fetchone()
    return found


def _row(found: tuple[int, int, str, str | None, bytes, str | None, int]) -> Row:
    seq, time_ms, type_, exec_id, hash_, text, _ = found
    return Row(seq, time_ms, type_, exec_id, _bytes(hash_), text if text is None else str(text))


def _checkpoint(found: tuple[int, int, bytes, str, str]) -> Checkpoint:
    size, time_ms, root, frontier, note = found
    return Checkpoint(size, time_ms, _bytes(root), str(frontier), str(note))


def _bytes(value: object) -> bytes:
    """Return a hash as it was stored; what is none, for a file keeps whatever somebody puts there, is nobody's."""
    return bytes(value) if isinstance(value, bytes | bytearray | memoryview) else b""


def _flat(owner: Owner) -> tuple[str, str, int, int]:
    return owner.boot_id, owner.pid_namespace, owner.pid, owner.started
