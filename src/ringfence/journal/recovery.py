"""Finds a log for this process to write, and ends what dead processes had begun: as orphaned, and with its budget.

Whoever died did so between two transactions, so its log is whole; what is missing are the ends, and nobody else will
write them. What its boxes left on the machine is swept by the backend before it starts the first box of its own.
"""

from __future__ import annotations

from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from ringfence.budgets.owner import this_process
from ringfence.errors import InvalidRequest, Unavailable
from ringfence.evidence import records
from ringfence.evidence.merkle import Frontier
from ringfence.evidence.sealing import Head, read_record
from ringfence.journal import store
from ringfence.journal.log import Begun, Draft, Log

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator

    from ringfence.database.port import Cursor
    from ringfence.journal.line import Entry
    from ringfence.journal.noted import Noted
    from ringfence.journal.signer import Signer
    from ringfence.ports import Identifiers


class Taken(NamedTuple):
    """The log this process writes from now on, and what taking it has written."""

    log: Log
    notes: tuple[str, ...]
    """The checkpoints of the logs that were set right."""


def take_log(
    cursor: Cursor, identifiers: Identifiers, now_ms: int, signer: Callable[[], Signer], noted: Noted | None = None
) -> Taken:
    """End what dead processes left open, in their own logs, and take a free log, or a new one.

    What they had `noted` and not filed had begun as well.

    Raises:
        Unavailable: What the tables say of a log can be true of none, so nothing is written after it.
    """
    key = signer()
    notes = settle_the_dead(cursor, now_ms, key, noted)
    with _damage_refused():
        is_ours = partial(_is_ours, key)
        log = _log_of(store.take_log(cursor, this_process(), now_ms, identifiers.new("lg"), is_ours))
        # a process that was closed while something ran left it open too
        note = _end_orphans(cursor, log, now_ms, key, noted)
    return Taken(log, notes if note is None else (*notes, note))


def settle_the_dead(cursor: Cursor, now_ms: int, key: Signer, noted: Noted | None) -> tuple[str, ...]:
    """File what dead processes noted, and end what they left open; return the checkpoints of their logs.

    Raises:
        Unavailable: What the tables say of a log can be true of none, so nothing is written after it.
    """
    notes = []
    with _damage_refused():
        for dead in store.dead_logs(cursor, partial(_is_ours, key)):
            log = _log_of(store.adopt(cursor, dead, this_process()))
            note = _end_orphans(cursor, log, now_ms, key, noted)
            if note is not None:
                notes.append(note)
            store.release_log(cursor, log.state)
    return tuple(notes)


@contextmanager
def _damage_refused() -> Iterator[None]:
    try:
        yield
    except (InvalidRequest, TypeError, ValueError, KeyError, OverflowError, MemoryError) as error:
        raise Unavailable(
            f"a log in the database is damaged, so nothing is recorded and nothing runs: {error}",
            reason="damaged",
            fix="`ringfence evidence verify` says which; restore a copy, or use another home",
        ) from error


def _is_ours(key: Signer, state: store.LogState) -> bool:
    # Whoever writes to the disk without the key can make a log that is whole and signed by nobody. Going on with
    # it, the next process would sign it for him: such a log is left alone, unproven, and another one is begun.
    # So is one that is shorter than what was signed of it: what is written after the cut would hide where it is.
    return state.size >= state.frontier_size and (state.size == 0 or key.wrote(state.last_hash, state.last_mac))


def resume(cursor: Cursor, log: Log, now_ms: int, signer: Signer, happened: Collection[str]) -> Log:
    """Return our own log as it really is, after a transaction of which nobody can tell whether it was kept.

    `happened` names the runs that began before they were filed, and whose ends are still to come.

    Raises:
        LogTaken: It is not ours any more.
    """
    state = store.state(cursor, log.state.number)
    if state.term != log.state.term:
        raise store.LogTaken(f"log {state.log_id} was taken over by another process")
    found = _log_of(state)
    draft = Draft(found, cursor, signer)
    for begun in store.open_execs(cursor, state.number):
        if begun.exec_id in log.begun:
            found.begun[begun.exec_id] = log.begun[begun.exec_id]
            continue
        begin = _begin_of(cursor, begun)
        found.begun[begun.exec_id] = Begun(begun.seq, begin["time_ms"])
        if begun.exec_id in happened:
            continue
        # its caller was told that it could not begin
        draft.add(records.end_of_unstarted(begin, now_ms=now_ms))
    draft.finish()
    found.became(draft)
    return found


def was_kept(entry: Entry, cursor: Cursor, log: Log, draft: Draft) -> bool:
    """Whether a transaction that failed left it behind all the same."""
    if entry.is_noted:
        return store.exec_by_id(cursor, entry.members["exec_id"]) is not None
    is_open = entry.members["exec_id"] in log.begun or entry.members["exec_id"] in draft.begun
    return entry.members["type"] == records.END and not is_open


def _end_orphans(cursor: Cursor, log: Log, now_ms: int, signer: Signer, noted: Noted | None) -> str | None:
    filed = _file_noted(cursor, log, signer, noted)
    left = store.open_execs(cursor, log.state.number)
    if not left and not filed and log.signed == log.head.size:
        return None
    from ringfence.budgets import tables  # not at the top: most processes find nobody dead
    from ringfence.budgets.reservation import NOT_MEASURED

    draft = Draft(log, cursor, signer)
    for begun in left:
        if not isinstance(store.exec_by_id(cursor, begun.exec_id), store.OpenExec):
            store.forget_open(cursor, begun)  # somebody put it there: it has ended, and ends once
            continue
        begin = _begin_of(cursor, begun)
        log.begun[begun.exec_id] = Begun(begun.seq, begin["time_ms"])
        draft.add(records.end_of_orphan(begin, now_ms=now_ms))
        tables.settle(cursor, begun.exec_id, NOT_MEASURED)
    note = draft.sign(now_ms)
    log.became(draft)
    return note


def _file_noted(cursor: Cursor, log: Log, signer: Signer, noted: Noted | None) -> int:
    """Write down what the dead process had only noted, and tell how much; what it had filed is known by its name."""
    if noted is None:
        return 0
    draft = Draft(log, cursor, signer)
    for left in noted.left_by(log.state, signer):
        found = store.exec_by_id(cursor, left.begin["exec_id"])
        if found is None:
            draft.add(left.begin)
        elif isinstance(found, store.OpenExec) and found.log == log.state.number:
            log.begun[found.exec_id] = Begun(found.seq, left.begin["time_ms"])
        else:
            continue  # it is over
        if left.end is not None:
            draft.add(left.end)  # somebody may have been told
    draft.finish()
    log.became(draft)
    return len(draft.written)


def _begin_of(cursor: Cursor, begun: store.OpenExec) -> records.Members:
    """Return the record that an exec began with, or the little that is sure where that was tampered with.

    Verifying says that it was; it must not stop everything.
    """
    row = store.record(cursor, begun.log, begun.seq)
    try:
        begin = {} if row is None or row.text is None else read_record(row.text)
    except InvalidRequest:
        begin = {}
    if begin.get("type") == records.BEGIN and begin.get("exec_id") == begun.exec_id and type(begin["time_ms"]) is int:
        return begin
    return {"exec_id": begun.exec_id, "time_ms": 0}


def _log_of(state: store.LogState) -> Log:
    frontier = Frontier.from_text(state.frontier) if state.frontier else Frontier()
    head = Head(state.log_id, state.size, state.last_hash, frontier.extend(state.hashes))
    return Log(state, head, signed=state.frontier_size)
