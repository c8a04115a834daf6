"""Who writes to the journal gets what was written, in order, once, and never a word about what was not."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from types import SimpleNamespace
from typing import Any

import pytest
from tests.conftest import Databases
from tests.journal_checks import verified

from ringfence.capability.canonical import digest_of
from ringfence.clock import SystemClock
from ringfence.database.port import Cursor, Database
from ringfence.errors import InvalidRequest, Unavailable
from ringfence.evidence import records
from ringfence.identifiers import TimeOrdered
from ringfence.journal import store
from ringfence.journal.journal import Journal
from ringfence.journal.log import Checkpoints
from ringfence.journal.signer import Signer

NAMES = TimeOrdered()


@pytest.fixture(autouse=True)
def no_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Close at once what leaves runs open, as many of these do on purpose."""
    monkeypatch.setattr("ringfence.journal.journal._PATIENCE_WITH_ENDS", 0.0)


def begun(**members: Any) -> records.Members:
    """Return the least that a beginning must say."""
    named = {"exec_id": NAMES.new("ex"), "envelope_id": NAMES.new("ev"), "tool_name": "code_run", "tenant": "local"}
    return {"type": records.BEGIN, "time_ms": 1, "produced_at_ms": 1, **named, **members}


def ended(begin: records.Members) -> records.Members:
    return records.end_by_cancelling(begin, now_ms=2)


class Counting:
    """A database that counts its transactions, and fails those it is told to."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self.transactions = 0
        self.fail: Callable[[], AbstractContextManager[None]] = contextlib.nullcontext

    @contextlib.contextmanager
    def transaction(self, wait_seconds: float | None = None, *, on_disk: bool = True) -> Iterator[Cursor]:
        with self.fail(), self.database.transaction(wait_seconds, on_disk=on_disk) as cursor:
            yield cursor
        self.transactions += 1

    def sync(self) -> None:
        self.database.sync()

    def reading(self) -> AbstractContextManager[Cursor]:
        return self.database.reading()

    def close(self) -> None:
        self.database.close()


def journal_in(databases: Databases, **options: Any) -> tuple[Journal, Counting]:
    database = Counting(databases.open())
    return Journal(database, lambda: Signer.in_home(databases.home), SystemClock(), NAMES, **options), database


def kept(databases: Databases) -> list[dict[str, Any]]:
    """Return every record, log by log."""
    with databases.open().reading() as cursor:
        found = [row for log in store.logs(cursor) for row in store.rows(cursor, log.number)]
    return [json.loads(row.text or "{}") for row in found]


def test_a_run_is_two_records_one_after_the_other(databases: Databases) -> None:
    journal, _ = journal_in(databases)

    async def write() -> None:
        begin = begun()
        await journal.begin(begin)
        assert [record["type"] for record in kept(databases)] == [records.BEGIN]
        await journal.end(ended(begin))

    asyncio.run(write())
    journal.close()
    assert [(record["seq"], record["type"]) for record in kept(databases)] == [(0, records.BEGIN), (1, records.END)]
    assert verified(databases.home, databases.url).is_proven


def test_records_that_come_together_share_a_transaction(databases: Databases) -> None:
    journal, database = journal_in(databases)
    runs = [begun() for _ in range(100)]

    async def write() -> None:
        for begin in runs[:2]:
            await journal.begin(begin)
        before = database.transactions
        await asyncio.gather(*(journal.begin(begin) for begin in runs[2:]))
        assert database.transactions - before < 49  # whoever is at it takes all that came meanwhile
        await asyncio.gather(*(journal.end(ended(begin)) for begin in runs))

    asyncio.run(write())
    journal.close()
    assert len(kept(databases)) == 200
    verified(databases.home, databases.url)


def test_in_a_crowd_a_record_waits_for_the_next_one(databases: Databases, monkeypatch: pytest.MonkeyPatch) -> None:
    journal, database = journal_in(databases)
    runs = [begun() for _ in range(10)]
    waits, may_go_on = threading.Event(), threading.Event()

    def wait(_: float) -> None:
        waits.set()
        may_go_on.wait()

    async def write() -> None:
        # on a slow machine, too, they came just now
        monkeypatch.setattr(
            "ringfence.journal.journal.time", SimpleNamespace(sleep=lambda _: None, monotonic=lambda: 0.0)
        )
        for begin in runs[:8]:
            await journal.begin(begin)
        monkeypatch.setattr("ringfence.journal.journal.time", SimpleNamespace(sleep=wait, monotonic=lambda: 0.0))
        before = database.transactions
        first = asyncio.create_task(journal.begin(runs[8]))
        await asyncio.to_thread(waits.wait)
        second = asyncio.create_task(journal.begin(runs[9]))
        await asyncio.sleep(0)
        may_go_on.set()
        await asyncio.gather(first, second)
        assert database.transactions - before == 1

    asyncio.run(write())
    journal.close()
    assert len(kept(databases)) == 10


def test_beside_processes_that_stay_a_record_waits_for_nobody(
    databases: Databases, monkeypatch: pytest.MonkeyPatch
) -> None:
    seconds = itertools.count()
    # a second lies between any two looks at the clock, and whoever waits does so for good
    hours = SimpleNamespace(sleep=lambda _: time.sleep(3600), monotonic=lambda: float(next(seconds)))
    monkeypatch.setattr("ringfence.journal.journal.time", hours)
    journal, _ = journal_in(databases)
    staying = [begun() for _ in range(20)]

    async def write() -> None:
        for begin in staying:
            await journal.begin(begin)
        run = begun()
        await journal.begin(run)
        await journal.end(ended(run))

    asyncio.run(write())
    journal.close()
    assert len(kept(databases)) == 22


def test_what_is_written_with_an_end_is_there_with_it_or_not_at_all(databases: Databases) -> None:
    journal, _ = journal_in(databases)
    begin = begun()

    def fail(cursor: Cursor) -> None:
        store.keep_document(cursor, digest_of(b"one"), "policy", "one")
        raise InvalidRequest("no")

    async def write() -> None:
        await journal.begin(begin)
        with pytest.raises(InvalidRequest):
            await journal.end(ended(begin), also=fail)
        await journal.end(
            ended(begin), also=lambda cursor: store.keep_document(cursor, digest_of(b"two"), "policy", "two")
        )

    asyncio.run(write())
    journal.close()
    with databases.open().reading() as cursor:
        assert store.document(cursor, digest_of(b"one")) is None
        assert store.document(cursor, digest_of(b"two")) is not None
    assert len(kept(databases)) == 2
    verified(databases.home, databases.url)


def test_one_that_cannot_be_written_does_not_harm_those_beside_it(databases: Databases) -> None:
    journal, _ = journal_in(databases)
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
    assert len(kept(databases)) == 6
    verified(databases.home, databases.url)


def test_a_begin_that_cannot_be_written_is_told_and_the_next_one_is_written(databases: Databases) -> None:
    journal, database = journal_in(databases)

    async def write() -> None:
        await journal.begin(begun())
        database.fail = full
        with pytest.raises(Unavailable):
            await journal.begin(begun())
        database.fail = contextlib.nullcontext
        await journal.begin(begun())

    asyncio.run(write())
    journal.close()
    assert len(kept(databases)) == 2
    verified(databases.home, databases.url)


def test_an_end_that_could_not_be_written_is_written_with_what_comes_next(databases: Databases) -> None:
    journal, database = journal_in(databases)
    begin, other = begun(), begun()

    async def write() -> None:
        await journal.begin(begin)
        database.fail = full
        with pytest.raises(Unavailable):
            await journal.end(ended(begin))
        database.fail = contextlib.nullcontext
        await journal.begin(other)

    asyncio.run(write())
    assert [(record["type"], record["exec_id"]) for record in kept(databases)] == [
        (records.BEGIN, begin["exec_id"]),
        (records.END, begin["exec_id"]),
        (records.BEGIN, other["exec_id"]),
    ]
    journal.close()
    verified(databases.home, databases.url)


def test_a_begin_that_was_kept_though_its_caller_heard_otherwise_is_ended_as_not_started(databases: Databases) -> None:
    journal, database = journal_in(databases)
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
    found = [(record["type"], record["exec_id"]) for record in kept(databases)]
    assert sorted(found) == sorted(
        (kind, begin["exec_id"]) for begin in (first, lost, after) for kind in (records.BEGIN, records.END)
    )
    (told,) = [each for each in kept(databases) if each["exec_id"] == lost["exec_id"] and each["type"] == records.END]
    assert told["reason"] == "not_started"
    verified(databases.home, databases.url)


def test_a_file_that_another_process_holds_keeps_no_event_loop_waiting(databases: Databases) -> None:
    journal, _ = journal_in(databases)
    other = databases.open()
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
    assert len(kept(databases)) == 2


def test_a_caller_who_is_cancelled_is_written_down_all_the_same(databases: Databases) -> None:
    journal, _ = journal_in(databases)
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
    assert [record["exec_id"] for record in kept(databases)] == [begin["exec_id"] for begin in runs]


def test_a_log_is_signed_every_so_many_records_and_when_it_is_closed(databases: Databases) -> None:
    notes: list[str] = []
    journal, _ = journal_in(databases, checkpoints=Checkpoints(every=10), on_checkpoint=notes.append)

    async def write() -> None:
        for _ in range(25):
            await journal.begin(begun())

    asyncio.run(write())
    assert [note.splitlines()[1] for note in notes] == ["10", "20"]
    journal.close()
    assert [note.splitlines()[1] for note in notes] == ["10", "20", "25"]
    assert verified(databases.home, databases.url).is_proven


def test_a_log_is_signed_some_time_after_a_record_that_no_checkpoint_covers(databases: Databases) -> None:
    signed = threading.Event()
    journal, _ = journal_in(databases, checkpoints=Checkpoints(seconds=0.01), on_checkpoint=lambda _: signed.set())
    asyncio.run(journal.begin(begun()))
    assert signed.wait(30)
    journal.close()


def test_one_process_after_another_writes_the_same_log(databases: Databases) -> None:
    for _ in range(3):
        journal, _ = journal_in(databases)
        asyncio.run(journal.record(begun(type=records.DENIED, outcome="denied")))
        journal.close()
    assert {record["log_id"] for record in kept(databases)} == {kept(databases)[0]["log_id"]}
    assert [record["seq"] for record in kept(databases)] == [0, 1, 2]
    verified(databases.home, databases.url)


def test_two_processes_at_once_have_a_log_each(databases: Databases) -> None:
    first, _ = journal_in(databases)
    second, _ = journal_in(databases)
    for journal in (first, second, first):
        asyncio.run(journal.record(begun(type=records.DENIED, outcome="denied")))
    first.close()
    second.close()
    assert [(record["seq"]) for record in kept(databases)] == [0, 1, 0]
    verified(databases.home, databases.url)


def test_what_a_dead_process_had_begun_is_ended_as_orphaned(databases: Databases) -> None:
    dead, database = journal_in(databases)
    begin = begun(session_id="s1", user_id="u1")
    asyncio.run(dead.begin(begin))
    database.close()  # as whatever ends a process does
    assert dead._timer is not None
    dead._timer.cancel()  # of which it has no threads either
    wait_until_the_server_has_noticed(databases)

    journal, _ = journal_in(databases)
    asyncio.run(journal.record(begun(type=records.DENIED, outcome="denied")))
    journal.close()
    found = kept(databases)
    assert [(record["type"], record.get("reason")) for record in found] == [
        (records.BEGIN, None),
        (records.END, "orphaned"),
        (records.DENIED, None),
    ]
    assert (found[1]["status"], found[1]["session_id"], found[1]["user_id"]) == ("error", "s1", "u1")
    assert verified(databases.home, databases.url).is_proven


def wait_until_the_server_has_noticed(databases: Databases) -> None:
    """Wait for the lease of a connection that was closed to be given up."""
    held = 1 if databases.url else 0
    while held:
        with databases.open().reading() as cursor:
            ((held,),) = cursor.execute("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'").fetchall()


def test_what_runs_in_a_living_process_is_left_alone(databases: Databases) -> None:
    alive, _ = journal_in(databases)
    begin = begun()
    asyncio.run(alive.begin(begin))
    other, _ = journal_in(databases)
    asyncio.run(other.record(begun(type=records.DENIED, outcome="denied")))
    asyncio.run(alive.end(ended(begin)))
    alive.close()
    other.close()
    assert [record["type"] for record in kept(databases)] == [records.BEGIN, records.END, records.DENIED]


def test_a_closed_journal_writes_nothing(databases: Databases) -> None:
    journal, _ = journal_in(databases)
    asyncio.run(journal.begin(begun()))
    journal.close()
    with pytest.raises(Unavailable) as refused:
        asyncio.run(journal.begin(begun()))
    assert refused.value.reason == "closed"
    assert len(kept(databases)) == 1


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


def test_without_room_nothing_begins_and_everything_ends(databases: Databases) -> None:
    is_full = False

    def room() -> None:
        if is_full:
            raise Unavailable("the disk is nearly full", reason="disk_full")

    journal, _ = journal_in(databases, room=room)
    runs = [begun() for _ in range(3)]

    async def write() -> list[BaseException | None]:
        nonlocal is_full
        for begin in runs[:2]:
            await journal.begin(begin)
        is_full = True
        writing = (journal.end(ended(runs[0])), journal.begin(runs[2]), journal.end(ended(runs[1])))
        return list(await asyncio.gather(*writing, return_exceptions=True))

    told = asyncio.run(write())
    assert [type(each) for each in told] == [type(None), Unavailable, type(None)]
    journal.close()
    assert [record["type"] for record in kept(databases)] == [records.BEGIN] * 2 + [records.END] * 2
