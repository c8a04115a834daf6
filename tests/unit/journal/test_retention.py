"""Evidence that grew old goes up to a checkpoint and no further; what is held or still open stays, text and row."""

from __future__ import annotations

import pytest
from tests.conftest import Databases
from tests.unit.journal.entries import checkpoint, row, run

from ringfence.budgets.owner import this_process
from ringfence.database.port import Cursor, Database
from ringfence.errors import InvalidRequest
from ringfence.journal import retention, store
from ringfence.journal.retention import AT_ONCE, Hold, Pruned
from ringfence.journal.store import LogState

FOR_EVER = 10**15
ALL = {1: 10**9}


@pytest.fixture
def database(databases: Databases) -> Database:
    return databases.open()


@pytest.fixture
def log(database: Database) -> LogState:
    """A log of ten execs in twenty records, with checkpoints after 4, 10 and 16 of them."""
    with database.transaction() as cursor:
        taken = store.take_log(cursor, this_process(), 1, "lg-1")
        for number in range(10):
            run(cursor, taken, 2 * number, f"ex-{number}", session_id=f"s{number}")
        for size in (4, 10, 16):
            store.add_checkpoint(cursor, taken, checkpoint(size))
    return taken


def put(cursor: Cursor, field: str, value: str) -> None:
    retention.hold(cursor, Hold("h-1", 1, "a lawsuit", field, value))


def kept(cursor: Cursor) -> list[int]:
    return [each.seq for each in store.rows(cursor, 1)]


def texts(cursor: Cursor) -> list[int]:
    return [each.seq for each in store.rows(cursor, 1) if each.text is not None]


def drop(cursor: Cursor, before_ms: int = FOR_EVER, up_to: int = 10**9) -> int:
    (log,) = store.logs(cursor)
    return retention.drop_rows(cursor, log, before_ms, up_to)


def test_old_texts_are_pruned_and_their_hashes_stay(database: Database, log: LogState) -> None:
    with database.transaction() as cursor:
        hashes = [each.hash for each in store.rows(cursor, 1)]
        assert retention.prune_bodies(cursor, 1005, ALL) == Pruned(5, None)
        assert texts(cursor) == list(range(5, 20))
        assert [each.hash for each in store.rows(cursor, 1)] == hashes
        assert retention.prune_bodies(cursor, 1005, ALL) == Pruned(0, None)


def test_pruning_goes_on_where_it_stopped(database: Database) -> None:
    with database.transaction() as cursor:
        log = store.take_log(cursor, this_process(), 1, "lg-1")
        store.append(cursor, log, [row(seq) for seq in range(AT_ONCE + 10)])
    total, start = 0, 0
    while True:
        with database.transaction() as cursor:
            pruned = retention.prune_bodies(cursor, FOR_EVER, ALL, start)
        total += pruned.texts
        if pruned.following is None:
            break
        start = pruned.following
    assert total == AT_ONCE + 10


def test_nothing_goes_that_was_not_written_down(database: Database, log: LogState) -> None:
    with database.transaction() as cursor:
        assert retention.prune_bodies(cursor, FOR_EVER, {2: 10**9}) == Pruned(0, None)
        assert retention.prune_bodies(cursor, FOR_EVER, {1: 4}) == Pruned(5, None)
        assert texts(cursor) == list(range(5, 20))
        assert drop(cursor, up_to=-1) == 0
        assert drop(cursor, up_to=8) == 4
        assert drop(cursor, up_to=9) == 6
        assert kept(cursor) == list(range(10, 20))


def test_how_far_a_log_is_old_is_its_last_old_record(database: Database, log: LogState) -> None:
    with database.transaction() as cursor:
        cursor.execute("UPDATE journal_record SET time_ms = 1 WHERE seq = 12")  # a clock that jumped
        assert store.last_before(cursor, 1, 1005) == 12
        assert store.last_before(cursor, 1, 1) is None
        assert store.last_before(cursor, 2, FOR_EVER) is None


@pytest.mark.parametrize(("field", "value"), [("session_id", "s3"), ("exec_id", "ex-3")])
def test_what_is_held_keeps_its_text_and_its_row(database: Database, log: LogState, field: str, value: str) -> None:
    with database.transaction() as cursor:
        put(cursor, field, value)
        retention.prune_bodies(cursor, FOR_EVER, ALL)
        assert texts(cursor) == [6, 7]
        assert [drop(cursor), drop(cursor)] == [4, 0]
        assert kept(cursor) == list(range(4, 20))
        assert retention.release_hold(cursor, "h-1")
        assert not retention.release_hold(cursor, "h-1")
        assert [drop(cursor), drop(cursor)] == [12, 0]
        assert retention.prune_bodies(cursor, FOR_EVER, ALL).texts == 0


@pytest.mark.parametrize(("field", "value"), [("session_id", "s9"), ("tool_name", "code_run"), ("exec_id", "ex-9")])
def test_a_hold_on_an_execution_keeps_what_else_was_written_of_it(
    database: Database, log: LogState, field: str, value: str
) -> None:
    with (
        database.transaction() as cursor
    ):  # a secret that was lent, or a process, names its execution and not all of it
        store.append(cursor, log, [row(20, "secret.leased", "ex-9"), row(21, "secret.leased")])
        cursor.execute("UPDATE journal_exec SET tool_name = 'code_run' WHERE exec_id = 'ex-9'")
        put(cursor, field, value)
        retention.prune_bodies(cursor, FOR_EVER, ALL)
        assert 20 in texts(cursor)
        assert 21 not in texts(cursor)
        retention.release_hold(cursor, "h-1")
        assert retention.prune_bodies(cursor, FOR_EVER, ALL).texts >= 1
        assert texts(cursor) == []


def test_a_hold_put_on_after_the_texts_went_still_keeps_the_rows(database: Database, log: LogState) -> None:
    with database.transaction() as cursor:
        retention.prune_bodies(cursor, FOR_EVER, ALL)
        put(cursor, "session_id", "s7")
        drop(cursor)
        assert kept(cursor)[0] == 10


def test_a_hold_on_a_log_keeps_all_of_it(database: Database, log: LogState) -> None:
    with database.transaction() as cursor:
        put(cursor, "log_id", "lg-1")
        assert drop(cursor) == 0


def test_rows_go_up_to_a_checkpoint_that_vouches_for_them(database: Database, log: LogState) -> None:
    with database.transaction() as cursor:
        before = list(store.rows(cursor, 1))
        assert drop(cursor, before_ms=1013) == 10
        assert kept(cursor) == list(range(10, 20))
        (left,) = store.logs(cursor)
        assert (left.first_seq, left.first_prev, left.first_frontier) == (10, before[9].hash, "frontier-10")
        assert [each.size for each in store.checkpoints(cursor, 1)] == [10, 16]
        assert store.exec_by_id(cursor, "ex-4") is None
        assert store.exec_by_id(cursor, "ex-5") is not None
        assert drop(cursor, before_ms=1013) == 0
        store.append(cursor, log, [row(20)])


def test_an_exec_whose_end_is_still_there_is_still_found(database: Database) -> None:
    with database.transaction() as cursor:
        log = store.take_log(cursor, this_process(), 1, "lg-1")
        run(cursor, log, 0, "ex-1")
        store.add_checkpoint(cursor, log, checkpoint(1))
        assert drop(cursor) == 1
        assert store.exec_by_id(cursor, "ex-1") is not None


def test_an_open_exec_keeps_its_begin(database: Database, log: LogState) -> None:
    with database.transaction() as cursor:
        store.append(cursor, log, [row(20, "exec.begin", "ex-open"), row(21)])
        store.open_exec(cursor, "ex-open", 1, 20)
        store.add_checkpoint(cursor, log, checkpoint(22))
        retention.prune_bodies(cursor, FOR_EVER, ALL)
        assert texts(cursor) == [20]
        assert [drop(cursor), drop(cursor)] == [16, 0]


def test_a_log_whose_every_row_was_dropped_goes_on_where_it_was(databases: Databases, log: LogState) -> None:
    database = databases.open()
    with database.transaction() as cursor:
        last = store.record(cursor, 1, 19)
        assert last is not None
        store.add_checkpoint(cursor, log, checkpoint(20))
        assert drop(cursor) == 20
        state = store.state(cursor, 1)
    assert (state.size, state.last_hash, state.frontier, state.frontier_size) == (20, last.hash, "frontier-20", 20)


def test_checkpoints_far_apart_are_reached_all_the_same(database: Database) -> None:
    size = 2 * AT_ONCE + 5
    with database.transaction() as cursor:
        log = store.take_log(cursor, this_process(), 1, "lg-1")
        store.append(cursor, log, [row(seq) for seq in range(size + 3)])
        store.add_checkpoint(cursor, log, checkpoint(size))
        assert drop(cursor) == size


def test_a_hold_on_what_no_record_has_is_refused_and_so_is_a_second_one_of_the_same_name(database: Database) -> None:
    with database.transaction() as cursor:
        for field in ("colour", "outcome", "1 = 1 OR session_id"):
            with pytest.raises(InvalidRequest):
                put(cursor, field, "x")
        put(cursor, "task_id", "t")
        with pytest.raises(InvalidRequest):
            put(cursor, "task_id", "t")
        assert retention.holds(cursor) == (Hold("h-1", 1, "a lawsuit", "task_id", "t"),)
