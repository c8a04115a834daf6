"""How evidence grows old: texts are pruned and rows dropped so that the rest still verifies, and holds stop both."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from ringfence.database.migrations import RECORDS_PER_LOG
from ringfence.errors import InvalidRequest
from ringfence.journal.store import ID_FIELDS, Log

if TYPE_CHECKING:
    from ringfence.database.port import Cursor

HOLD_FIELDS: Final = ("exec_id", "log_id", *ID_FIELDS)
"""What a legal hold can be put on."""
AT_ONCE: Final = 2000
"""How many records one transaction looks at, so that nobody who runs waits for long."""


class Hold(NamedTuple):
    """A legal hold: every record whose `field` is `value` keeps its text and its row."""

    hold_id: str
    created_ms: int
    reason: str
    field: str
    value: str


class Pruned(NamedTuple):
    """How many texts went, and where to go on; nowhere when all was looked at."""

    texts: int
    following: int | None


def hold(cursor: Cursor, placed: Hold) -> None:
    """Put a hold on records that are there and that will come.

    Raises:
        InvalidRequest: No record has such a field, or there is a hold of this name.
    """
    if placed.field not in HOLD_FIELDS:
        raise InvalidRequest(f"no hold on {placed.field!r}; known: {', '.join(HOLD_FIELDS)}")
    put = (
        "INSERT INTO journal_hold (hold_id, created_ms, reason, field, value) VALUES (?, ?, ?, ?, ?) "
        "ON CONFLICT DO NOTHING"
    )
    if not cursor.execute(put, placed).rowcount:
        raise InvalidRequest(f"there is a hold {placed.hold_id} already")


def release_hold(cursor: Cursor, hold_id: str) -> bool:
    """Lift a hold; False when there was none of this name."""
    return bool(cursor.execute("DELETE FROM journal_hold WHERE hold_id = ?", (hold_id,)).rowcount)


def holds(cursor: Cursor) -> tuple[Hold, ...]:
    """Return every hold, oldest first."""
    rows = cursor.execute(
        "SELECT hold_id, created_ms, reason, field, value FROM journal_hold ORDER BY created_ms, hold_id"
    ).fetchall()
    return tuple(Hold(*row) for row in rows)


def prune_bodies(cursor: Cursor, before_ms: int, up_to: Mapping[int, int], start: int = 0) -> Pruned:
    """Take away the texts of old records that nobody holds and that are not of an open exec; their hashes stay.

    Looks at some records from `start` on; the caller goes on at what is returned, in another transaction. `up_to` is
    how far it was written down that texts may go: by the number of each log, the last record.
    """
    placed = holds(cursor)
    rows = cursor.execute(
        f"{_WITH_EXEC} WHERE r.place >= ? ORDER BY r.place LIMIT {AT_ONCE}",
        (start,),
    ).fetchall()
    still_open = {exec_id for (exec_id,) in cursor.execute("SELECT exec_id FROM journal_open").fetchall()}
    old = [
        place
        for place, time_ms, exec_id, body, *ids in rows
        if body is not None
        and time_ms < before_ms
        and place % RECORDS_PER_LOG <= up_to.get(place // RECORDS_PER_LOG, -1)
        and exec_id not in still_open
        and not _is_held(body, ids, placed)
    ]
    cursor.executemany("UPDATE journal_record SET body = NULL WHERE place = ?", [(place,) for place in old])
    return Pruned(len(old), rows[-1][0] + 1 if len(rows) == AT_ONCE else None)


def drop_rows(cursor: Cursor, log: Log, before_ms: int, up_to: int) -> int:
    """Drop the oldest records of a log up to a checkpoint, which vouches for them from then on; return how many.

    Drops some of them: the caller asks again, in another transaction, until there is nothing to drop. A record that is
    young, held or of an open exec stops it, and so do all that come after; none goes after `up_to`, which was written
    down.
    """
    last = min(_first_to_keep(cursor, log, before_ms), up_to + 1)
    row = cursor.execute(
        "SELECT size, frontier FROM journal_checkpoint WHERE log = ? AND size > ? AND size <= ? "
        "ORDER BY size DESC LIMIT 1",
        (log.number, log.first_seq, last),
    ).fetchone()
    if row is None:
        return 0
    cut, frontier = row
    base = log.number * RECORDS_PER_LOG
    found = cursor.execute("SELECT hash FROM journal_record WHERE place = ?", (base + cut - 1,)).fetchone()
    if found is None:
        return 0
    cursor.execute(
        "UPDATE journal_log SET first_seq = ?, first_prev = ?, first_frontier = ? WHERE number = ?",
        (cut, bytes(found[0]), frontier, log.number),
    )
    gone = (base, base + cut)
    ended = "SELECT exec_id FROM journal_record WHERE place >= ? AND place < ? AND exec_id IS NOT NULL"
    cursor.execute(
        f"DELETE FROM journal_exec WHERE exec_id IN ({ended}) AND log = ? AND end_seq < ?", (*gone, log.number, cut)
    )
    cursor.execute("DELETE FROM journal_record WHERE place >= ? AND place < ?", gone)
    cursor.execute("DELETE FROM journal_checkpoint WHERE log = ? AND size < ?", (log.number, cut))
    return int(cut - log.first_seq)


def _first_to_keep(cursor: Cursor, log: Log, before_ms: int) -> int:
    """Return the first record from the log's beginning that must stay, or how far it was looked."""
    placed = holds(cursor)
    still_open = {exec_id for (exec_id,) in cursor.execute("SELECT exec_id FROM journal_open").fetchall()}
    base = log.number * RECORDS_PER_LOG
    at = log.first_seq
    while True:
        rows = cursor.execute(
            f"{_WITH_EXEC} WHERE r.place >= ? AND r.place < ? ORDER BY r.place LIMIT {AT_ONCE}",
            (base + at, base + RECORDS_PER_LOG),
        ).fetchall()
        for place, time_ms, exec_id, body, *ids in rows:
            if time_ms >= before_ms or exec_id in still_open:
                return int(place) - base
            known = {"exec_id": exec_id, "log_id": log.log_id}
            if _is_held(body, ids, placed) or any(known.get(on.field) == on.value for on in placed):
                return int(place) - base
        if rows:
            at = rows[-1][0] - base + 1
        # one checkpoint at least, however far apart they are
        first = cursor.execute(
            "SELECT min(size) FROM journal_checkpoint WHERE log = ? AND size > ?", (log.number, log.first_seq)
        ).fetchone()[0]
        if len(rows) < AT_ONCE or first is None or first <= at:
            return at


def _is_held(body: str | None, ids: Sequence[str | None], placed: Sequence[Hold]) -> bool:
    """Whether a record says itself what is held, or is of an execution that does: not every one names all of it."""
    if not placed:
        return False
    known = dict(zip(ID_FIELDS, ids, strict=True))
    members = json.loads(body) if body is not None else {}
    return any(on.value in (members.get(on.field), known.get(on.field)) for on in placed)


_WITH_EXEC: Final = (
    "SELECT r.place, r.time_ms, r.exec_id, r.body, "
    + ", ".join(f"e.{field}" for field in ID_FIELDS)
    + " FROM journal_record r LEFT JOIN journal_exec e ON e.exec_id = r.exec_id"
)
