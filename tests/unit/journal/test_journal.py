"""Who writes to the journal gets what was written, in order, once, and never a word about what was not."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
from tests.journal_checks import verified

from ringfence.capability.canonical import digest_of
from ringfence.clock import SystemClock
from ringfence.database.port import Cursor
from ringfence.database.sqlite import SqliteDatabase
from ringfence.errors import InvalidRequest, Unavailable
from ringfence.evidence import records
from ringfence.identifiers import TimeOrdered
from ringfence.journal import store
from ringfence.journal.journal import Checkpoints, Journal
from ringfence.journal.signer import Signer

NAMES = TimeOrdered()


def begun(**members: Any) -> records.Members:
    """Return the least that a beginning must say."""
    named = {"exec_id": NAMES.new("ex"), "envelope_id": NAMES.new("ev"), "tool_name": "code_run", "tenant": "local"}
    return {"type": records.BEGIN, "time_ms": 1, "produced_at_ms": 1, **named, **members}


def ended(begin: records.Members) -> records.Members:
    return records.end_by_cancelling(begin, now_ms=2)


class Counting:
    """A database that counts its transactions, and fails those it is told to."""

    def __init__(self, database: SqliteDatabase) -> None:
        self.database = database
        self.transactions = 0
        self.fail: Callable[[], AbstractContextManager[None]] = contextlib.nullcontext

    @contextlib.contextmanager
    def transaction(self, wait_seconds: float | None = None) -> Iterator[Cursor]:
        with self.fail(), self.database.transaction(wait_seconds) as cursor:
            yield cursor
        self.transactions += 1

    def reading(self) -> AbstractContextManager[Cursor]:
        return self.database.reading()

    def close(self) -> None:
        self.database.close()


def journal_in(home: Path, **options: Any) -> tuple[Journal, Counting]:
    database = Counting(SqliteDatabase.in_home(home))
    return Journal(database, lambda: Signer.in_home(home), SystemClock(), NAMES, **options), database


def kept(home: Path) -> list[dict[str, Any]]:
    """Return every record, log by log."""
    database = SqliteDatabase.in_home(home)
    with database.reading() as cursor:
        found = [row for log in store.logs(cursor) for row in store.rows(cursor, log.number)]
    database.close()
    return [json.loads(row.text or "{}") for row in found]


def test_a_run_is_two_records_one_after_the_other(tmp_path: Path) -> None:
    journal, _ = journal_in(tmp_path)

    async def write() -> None:
        begin = begun()
        await journal.begin(begin)
        assert [record["type"] for record in kept(tmp_path)] == [records.BEGIN]
        await journal.end(ended(begin))

    asyncio.run(write())
    journal.close()
    assert [(record["seq"], record["type"]) for record in kept(tmp_path)] == [(0, records.BEGIN), (1, records.END)]
    assert verified(tmp_path).is_proven


def test_records_that_come_together_share_a_transaction(tmp_path: Path) -> None:
    journal, database = journal_in(tmp_path)
    runs = [begun() for _ in range(100)]

    async def write() -> None:
        for begin in runs[:2]:
            await journal.begin(begin)
        before = database.transactions
        await asyncio.gather(*(journal.begin(begin) for begin in runs[2:]))
        assert database.transactions - before <= 2
        await asyncio.gather(*(journal.end(ended(begin)) for begin in runs))

    asyncio.run(write())
    journal.close()
    assert len(kept(tmp_path)) == 200
    verified(tmp_path)


def test_what_is_written_with_an_end_is_there_with_it_or_not_at_all(tmp_path: Path) -> None:
    journal, _ = journal_in(tmp_path)
    begin = begun()
    digest = digest_of(b"text")

    def fail(cursor: Cursor) -> None:
        store.keep_document(cursor, "sha256:1", "policy", "text")
        raise InvalidRequest("no")

    async def write() -> None:
        await journal.begin(begin)
        with pytest.raises(InvalidRequest):
            await journal.end(ended(begin), also=fail)
        await journal.end(ended(begin), also=lambda cursor: store.keep_document(cursor, digest, "policy", "text"))

    asyncio.run(write())
    journal.close()
    database = SqliteDatabase.in_home(tmp_path)
    with database.reading() as cursor:
        assert store.document(cursor, "sha256:1") is None
        assert store.document(cursor, digest) is not None
    database.close()
    assert len(kept(tmp_path)) == 2
    verified(tmp_path)


def test_one_that_cannot_be_written_does_not_harm_those_beside_it(tmp_path: Path) -> None:
    journal, _ = journal_in(tmp_path)
    good = [begun() for _ in range(6)]
    bad = begun(number=0.5)

    async def write() -> list[BaseException | None]:
        for begin in good[:2]:
            await journal.begin(begin)
        return await asyncio.gather(
            *(journal.begin(begin) for begin in (*good[2:4], bad, *good[4:])), return_exceptions=True
        )

    told = asyncio.run(write())
    assert [type(each) for each in told] == [type(None), type(None), InvalidRequest, type(None), type(None)]
    journal.close()
    assert len(kept(tmp_path)) == 6
    verified(tmp_path)


def test_a_begin_that_cannot_be_written_is_told_and_the_next_one_is_written(tmp_path: Path) -> None:
    journal, database = journal_in(tmp_path)

    async def write() -> None:
        await journal.begin(begun())
        database.fail = full
        with pytest.raises(Unavailable):
            await journal.begin(begun())
        database.fail = contextlib.nullcontext
        await journal.begin(begun())

    asyncio.run(write())
    journal.close()
    assert len(kept(tmp_path)) == 2
    verified(tmp_path)


def test_an_end_that_could_not_be_written_is_written_with_what_comes_next(tmp_path: Path) -> None:
    journal, database = journal_in(tmp_path)
    begin, other = begun(), begun()

    async def write() -> None:
        await journal.begin(begin)
        database.fail = full
        with pytest.raises(Unavailable):
            await journal.end(ended(begin))
        database.fail = contextlib.nullcontext
        await journal.begin(other)

    asyncio.run(write())
    assert [(record["type"], record["exec_id"]) for record in kept(tmp_path)] == [
        (records.BEGIN, begin["exec_id"]),
        (records.END, begin["exec_id"]),
        (records.BEGIN, other["exec_id"]),
    ]
    journal.close()
    verified(tmp_path)


def test_a_begin_that_was_kept_though_its_caller_heard_otherwise_is_ended_as_not_started(tmp_path: Path) -> None:
    journal, database = journal_in(tmp_path)
    first, lost, after = begun(), begun(), begun()

    async def write() -> None:
        await journal.begin(first)
        database.fail = lost_answer
        with pytest.raises(Unavailable):
            await journal.begin(lost)
        with pytest.raises(Unavailable):
            await journal.end(ended(first))
        database.fail = contextlib.nullcontext
        await journal.begin(after)
        await journal.end(ended(after))

    asyncio.run(write())
    journal.close()
    found = [(record["type"], record["exec_id"]) for record in kept(tmp_path)]
    assert sorted(found) == sorted(
        (kind, begin["exec_id"]) for begin in (first, lost, after) for kind in (records.BEGIN, records.END)
    )
    (told,) = [each for each in kept(tmp_path) if each["exec_id"] == lost["exec_id"] and each["type"] == records.END]
    assert told["reason"] == "not_started"
    verified(tmp_path)


def test_a_file_that_another_process_holds_keeps_no_event_loop_waiting(tmp_path: Path) -> None:
    journal, _ = journal_in(tmp_path)
    other = SqliteDatabase.in_home(tmp_path)
    turns = 0

    async def write() -> None:
        nonlocal turns
        await journal.begin(begun())
        held, let_go = threading.Event(), threading.Event()

        def hold() -> None:
            with other.transaction():
                held.set()
                let_go.wait(30)

        holding = asyncio.create_task(asyncio.to_thread(hold))
        await asyncio.to_thread(held.wait, 30)
        writing = asyncio.create_task(journal.begin(begun()))
        while turns < 100:  # the loop goes on
            await asyncio.sleep(0)
            turns += 1
        assert not writing.done()
        let_go.set()
        await writing
        await holding

    asyncio.run(write())
    other.close()
    journal.close()
    assert len(kept(tmp_path)) == 2


def test_a_caller_who_is_cancelled_is_written_down_all_the_same(tmp_path: Path) -> None:
    journal, _ = journal_in(tmp_path)
    runs = [begun() for _ in range(4)]

    async def write() -> None:
        for begin in runs[:3]:
            await journal.begin(begin)
        task = asyncio.create_task(journal.begin(runs[3]))
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await asyncio.sleep(0)

    asyncio.run(write())
    journal.close()
    assert [record["exec_id"] for record in kept(tmp_path)] == [begin["exec_id"] for begin in runs]


def test_a_log_is_signed_every_so_many_records_and_when_it_is_closed(tmp_path: Path) -> None:
    notes: list[str] = []
    journal, _ = journal_in(tmp_path, checkpoints=Checkpoints(every=10), on_checkpoint=notes.append)

    async def write() -> None:
        for _ in range(25):
            await journal.begin(begun())

    asyncio.run(write())
    assert [note.splitlines()[1] for note in notes] == ["10", "20"]
    journal.close()
    assert [note.splitlines()[1] for note in notes] == ["10", "20", "25"]
    assert verified(tmp_path).is_proven


def test_a_log_is_signed_some_time_after_a_record_that_no_checkpoint_covers(tmp_path: Path) -> None:
    signed = threading.Event()
    journal, _ = journal_in(tmp_path, checkpoints=Checkpoints(seconds=0.01), on_checkpoint=lambda _: signed.set())
    asyncio.run(journal.begin(begun()))
    assert signed.wait(30)
    journal.close()


def test_one_process_after_another_writes_the_same_log(tmp_path: Path) -> None:
    for _ in range(3):
        journal, _ = journal_in(tmp_path)
        asyncio.run(journal.record(begun(type=records.DENIED, outcome="denied")))
        journal.close()
    assert {record["log_id"] for record in kept(tmp_path)} == {kept(tmp_path)[0]["log_id"]}
    assert [record["seq"] for record in kept(tmp_path)] == [0, 1, 2]
    verified(tmp_path)


def test_two_processes_at_once_have_a_log_each(tmp_path: Path) -> None:
    first, _ = journal_in(tmp_path)
    second, _ = journal_in(tmp_path)
    for journal in (first, second, first):
        asyncio.run(journal.record(begun(type=records.DENIED, outcome="denied")))
    first.close()
    second.close()
    assert [(record["seq"]) for record in kept(tmp_path)] == [0, 1, 0]
    verified(tmp_path)


def test_what_a_dead_process_had_begun_is_ended_as_orphaned(tmp_path: Path) -> None:
    dead, database = journal_in(tmp_path)
    begin = begun(session_id="s1", user_id="u1")
    asyncio.run(dead.begin(begin))
    with database.transaction() as cursor:  # as after a power failure
        cursor.execute("UPDATE journal_log SET boot_id = 'another'")
    database.close()

    journal, _ = journal_in(tmp_path)
    asyncio.run(journal.record(begun(type=records.DENIED, outcome="denied")))
    journal.close()
    found = kept(tmp_path)
    assert [(record["type"], record.get("reason")) for record in found] == [
        (records.BEGIN, None),
        (records.END, "orphaned"),
        (records.DENIED, None),
    ]
    assert (found[1]["status"], found[1]["session_id"], found[1]["user_id"]) == ("error", "s1", "u1")
    assert verified(tmp_path).is_proven


def test_what_runs_in_a_living_process_is_left_alone(tmp_path: Path) -> None:
    alive, _ = journal_in(tmp_path)
    begin = begun()
    asyncio.run(alive.begin(begin))
    other, _ = journal_in(tmp_path)
    asyncio.run(other.record(begun(type=records.DENIED, outcome="denied")))
    asyncio.run(alive.end(ended(begin)))
    alive.close()
    other.close()
    assert [record["type"] for record in kept(tmp_path)] == [records.BEGIN, records.END, records.DENIED]


def test_a_closed_journal_writes_nothing(tmp_path: Path) -> None:
    journal, _ = journal_in(tmp_path)
    asyncio.run(journal.begin(begun()))
    journal.close()
    with pytest.raises(Unavailable) as refused:
        asyncio.run(journal.begin(begun()))
    assert refused.value.reason == "closed"
    assert len(kept(tmp_path)) == 1


class full(contextlib.AbstractContextManager[None]):  # noqa: N801 stands where a function does
    """Let no transaction begin."""

    def __enter__(self) -> None:
        raise Unavailable("the disk is full", reason="disk_full")

    def __exit__(self, *_: object) -> None:
        raise AssertionError("nothing was entered")


@contextlib.contextmanager
def lost_answer() -> Iterator[None]:
    """Let the transaction be kept, and tell nobody."""
    yield
    raise Unavailable("no answer")
