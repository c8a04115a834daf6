"""The journal's tables on both engines: one writer per log, nothing in two places, everything found again."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from typing import Any

import pytest
from tests.conftest import Databases
from tests.unit.journal.entries import DEAD, checkpoint, row, run

from ringfence.budgets.owner import this_process
from ringfence.database.port import Cursor, Database
from ringfence.errors import InvalidRequest, Unavailable
from ringfence.journal import finding, store
from ringfence.journal.store import NO_HASH, Exec, LogState, LogTaken, OpenExec

ME = this_process()


@pytest.fixture
def database(databases: Databases) -> Database:
    return databases.open()


def take(database: Database, log_id: str = "lg-1") -> LogState:
    with database.transaction() as cursor:
        return store.take_log(cursor, ME, 77, log_id)


def test_the_first_log_is_empty(database: Database) -> None:
    log = take(database)
    assert log == LogState(1, 1, "lg-1", 0, NO_HASH, "", 0, (), was_dead=False)


def test_what_was_appended_is_read_back_in_order(database: Database) -> None:
    log = take(database)
    written = [row(seq, "exec.begin", f"ex{seq}", note="ä \U0001f600 \u0001 %s ? '") for seq in range(1203)]
    with database.transaction() as cursor:
        store.append(cursor, log, written[:700])
        store.append(cursor, log, written[700:])
    with database.reading() as cursor:
        assert list(store.rows(cursor, log.number)) == written
        assert list(store.rows(cursor, log.number, 499, 1001)) == written[499:1001]
        assert store.record(cursor, log.number, 1202) == written[1202]
        assert store.record(cursor, log.number, 1203) is None


def test_the_records_of_one_log_are_not_those_of_the_next(databases: Databases) -> None:
    first, second = take(databases.open(), "lg-1"), take(databases.open(), "lg-2")
    assert (first.number, second.number) == (1, 2)


def test_two_writers_of_one_process_have_two_logs(database: Database) -> None:
    logs = [take(database, f"lg-{i}") for i in range(3)]
    assert [log.number for log in logs] == [1, 2, 3]


def test_a_released_log_is_adopted_where_it_ended(databases: Databases) -> None:
    before = databases.open()
    log = take(before)
    written = [row(seq) for seq in range(5)]
    with before.transaction() as cursor:
        store.append(cursor, log, written[:3])
        store.add_checkpoint(cursor, log, checkpoint(3))
        store.append(cursor, log, written[3:])
        store.release_log(cursor, log)
    after = take(databases.open(), "lg-new")
    hashes = tuple(record.hash for record in written[3:])
    assert after == LogState(1, 2, "lg-1", 5, written[4].hash, "frontier-3", 3, hashes, was_dead=False)


DIE = """
import os, sys
from pathlib import Path
from tests.unit.journal.entries import row
from ringfence.budgets.owner import this_process
from ringfence.database.address import open_database
from ringfence.journal import store
database = open_database(Path(sys.argv[1]), sys.argv[2] or None)
with database.transaction() as cursor:
    log = store.take_log(cursor, this_process(), 1, "lg-dead")
    store.append(cursor, log, [row(0, "exec.begin", "ex-1")])
    store.open_exec(cursor, "ex-1", log.number, 0)
os.kill(os.getpid(), 9)
"""


def test_the_log_of_a_killed_process_is_adopted_with_its_open_begins(databases: Databases) -> None:
    there = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    subprocess.run([sys.executable, "-c", DIE, databases.home, databases.url or ""], env=there)
    database = databases.open()
    # a server takes a moment to see that a session is over
    while (log := take(database)).log_id != "lg-dead":
        with database.transaction() as cursor:
            store.release_log(cursor, log)
            cursor.execute("DELETE FROM journal_log WHERE number = ?", (log.number,))
    assert (log.was_dead, log.size, log.term) == (True, 1, 2)
    with database.transaction() as cursor:
        assert store.open_execs(cursor, log.number) == (OpenExec("ex-1", 1, 0),)
        assert store.open_execs(cursor, 2) == ()


def test_a_living_processes_log_is_left_to_it(databases: Databases) -> None:
    one, other = databases.open(), databases.open()
    mine, theirs = take(one, "lg-1"), take(other, "lg-2")
    for database, log in ((one, mine), (other, theirs)):
        with database.transaction() as cursor:
            store.append(cursor, log, [row(0)])
    with one.reading() as cursor:
        assert [(log.log_id, log.held) for log in store.logs(cursor)] == [("lg-1", True), ("lg-2", True)]


def taken_over(databases: Databases) -> tuple[Database, LogState, Database, LogState]:
    """Return a writer that believes it has a log, and the one that took it over meanwhile."""
    slow, quick = databases.open(), databases.open()
    stale = take(slow)
    with slow.transaction() as cursor:
        store.append(cursor, stale, [row(0)])
        # what a wrong takeover looks like: the owner is thought dead, its lease is free
        cursor.execute("UPDATE journal_log SET boot_id = ?", (DEAD.boot_id,))
        cursor.end_lease(stale.number)
    fresh = take(quick)
    assert (fresh.number, fresh.term) == (stale.number, stale.term + 1)
    return slow, stale, quick, fresh


@pytest.mark.parametrize("who_first", ["the stale one", "the new one"])
def test_two_writers_after_a_wrong_takeover_never_fork_a_log(databases: Databases, who_first: str) -> None:
    slow, stale, quick, fresh = taken_over(databases)
    if who_first == "the new one":
        with quick.transaction() as cursor:
            store.append(cursor, fresh, [row(1)])
    with pytest.raises(LogTaken), slow.transaction() as cursor:
        store.append(cursor, stale, [row(1, note="fork")])
    with quick.transaction() as cursor:
        store.append(cursor, fresh, [row(1 if who_first == "the stale one" else 2)])
        assert [record.text for record in store.rows(cursor, 1) if "fork" in str(record.text)] == []


def test_a_stale_writer_cannot_release_the_log_of_its_successor(databases: Databases) -> None:
    slow, stale, quick, fresh = taken_over(databases)
    with slow.transaction() as cursor:
        store.release_log(cursor, stale)
    with quick.transaction() as cursor:
        store.append(cursor, fresh, [row(1)])
        assert [log.held for log in store.logs(cursor)] == [True]


@pytest.mark.parametrize("seqs", [[0], [2], [1, 3], [1, 1], [2, 1]])
def test_a_record_that_is_not_the_next_one_is_refused_and_nothing_of_it_stays(
    database: Database, seqs: list[int]
) -> None:
    log = take(database)
    with database.transaction() as cursor:
        store.append(cursor, log, [row(0)])
    with pytest.raises(LogTaken), database.transaction() as cursor:
        store.append(cursor, log, [row(seq) for seq in seqs])
    with database.reading() as cursor:
        assert [record.seq for record in store.rows(cursor, log.number)] == [0]


def test_even_without_asking_no_engine_keeps_two_records_in_one_place_or_one_in_anothers(database: Database) -> None:
    log = take(database)
    with database.transaction() as cursor:
        store.append(cursor, log, [row(0)])

    def insert(place: int, number: int, seq: int) -> None:
        with database.transaction() as cursor:
            cursor.execute(
                "INSERT INTO journal_record VALUES (?, ?, ?, 1, 'x', NULL, ?, NULL)", (place, number, seq, NO_HASH)
            )

    for place, number, seq in ((1 << 40, 1, 0), ((1 << 40) + 7, 1, 8), (2 << 40, 1, 1 << 40), (5, 0, -1)):
        with pytest.raises(Unavailable):
            insert(place, number, seq)


def test_a_released_log_takes_no_more_records(database: Database) -> None:
    log = take(database)
    with database.transaction() as cursor:
        store.release_log(cursor, log)
    with pytest.raises(LogTaken), database.transaction() as cursor:
        store.append(cursor, log, [row(0)])


def test_an_exec_is_begun_once_and_ended_once(database: Database) -> None:
    log = take(database)
    with database.transaction() as cursor:
        ended = run(cursor, log, 0, "ex-1")
        store.open_exec(cursor, "ex-2", 1, 2)
        with pytest.raises(InvalidRequest, match="begun already"):
            store.open_exec(cursor, "ex-2", 1, 9)
        with pytest.raises(InvalidRequest, match="ended already"):
            store.close_exec(cursor, replace(ended, end_seq=7))
        assert store.exec_by_id(cursor, "ex-1") == ended
        assert store.exec_by_id(cursor, "ex-2") == OpenExec("ex-2", 1, 2)
        assert store.exec_by_id(cursor, "ex-3") is None


def test_a_denied_exec_was_never_open(database: Database) -> None:
    with database.transaction() as cursor:
        store.close_exec(cursor, Exec("ex", 1, 4, 4, 10, "denied"))
        assert store.open_execs(cursor) == ()


IDS = {field: f"the {field}" for field in store.ID_FIELDS}


@pytest.fixture
def listed(database: Database) -> tuple[Database, dict[str, Exec]]:
    log = take(database)
    execs: dict[str, Exec] = {}
    with database.transaction() as cursor:
        for number in range(40):
            ids = {field: f"{field}-{number % 3}" for field in store.ID_FIELDS} if number % 2 else {}
            ids["tenant"] = ids["subject_id"] = "local" if number % 4 < 2 else "acme"
            outcome = "failed" if number % 5 == 0 else "succeeded"
            execs[f"ex-{number:02}"] = run(cursor, log, 2 * number, f"ex-{number:02}", outcome, **ids)
    return database, execs


def names(found: tuple[Exec, ...]) -> list[str]:
    return [each.exec_id for each in found]


@pytest.mark.parametrize("field", [*store.ID_FIELDS, "outcome"])
def test_execs_are_found_by_every_field_newest_first(listed: tuple[Database, dict[str, Exec]], field: str) -> None:
    database, execs = listed
    values = {getattr(each, field) for each in execs.values()} - {None}
    with database.reading() as cursor:
        for value in (*values, "nobody"):
            wanted = [name for name, each in sorted(execs.items(), reverse=True) if getattr(each, field) == value]
            assert names(finding.list_execs(cursor, {field: value})) == wanted


def test_filters_and_times_are_taken_together(listed: tuple[Database, dict[str, Exec]]) -> None:
    database, execs = listed
    filters = {"tool_name": "tool_name-1", "tenant": "acme", "subject_id": "acme", "outcome": "succeeded"}
    since, until = execs["ex-10"].started_ms, execs["ex-31"].started_ms
    wanted = [
        name
        for name, each in sorted(execs.items(), reverse=True)
        if all(getattr(each, field) == value for field, value in filters.items()) and since <= each.started_ms < until
    ]
    assert 0 < len(wanted) < 20
    with database.reading() as cursor:
        assert names(finding.list_execs(cursor, filters, since_ms=since, until_ms=until)) == wanted


def test_pages_follow_each_other_without_gap_or_repetition_also_where_times_are_equal(database: Database) -> None:
    with database.transaction() as cursor:
        for number in range(25):
            store.close_exec(cursor, Exec(f"ex-{number:02}", 1, number, number, 100 + number // 7, "denied"))
    seen: list[str] = []
    with database.reading() as cursor:
        page = finding.list_execs(cursor, {}, limit=4)
        while page:
            seen += names(page)
            page = finding.list_execs(cursor, {}, before=(page[-1].started_ms, page[-1].exec_id), limit=4)
    assert seen == [f"ex-{number:02}" for number in reversed(range(25))]


def test_a_filter_that_nobody_knows_is_refused_and_never_becomes_part_of_a_statement(database: Database) -> None:
    with database.transaction() as cursor:
        for name in ("exec_id = '' OR 1", "colour", "log"):
            with pytest.raises(InvalidRequest):
                finding.list_execs(cursor, {name: "x"})
        hostile = "' OR 1 = 1; DROP TABLE journal_exec; -- %s ?"
        assert finding.list_execs(cursor, {"session_id": hostile, "tool_name": hostile}) == ()


@pytest.mark.parametrize("field", [*store.ID_FIELDS, "outcome"])
def test_a_list_by_any_field_can_be_read_off_its_index_without_sorting(databases: Databases, field: str) -> None:
    seen: list[str] = []
    with databases.open().transaction() as cursor:
        if databases.url is None:
            explain = "EXPLAIN QUERY PLAN"
        else:
            explain = "EXPLAIN"
            # an empty table is read faster in any other way
            for way in ("seqscan", "bitmapscan", "sort"):
                cursor.execute(f"SET LOCAL enable_{way} = off")

        class Spy:
            def execute(self, statement: str, values: tuple[str | int, ...] = (), /) -> Cursor:
                seen.extend(str(line) for line in cursor.execute(f"{explain} {statement}", values).fetchall())
                return cursor.execute(statement, values)

        filters = {field: "x", "tool_name": "y"}
        finding.list_execs(Spy(), filters, since_ms=1, before=(9, "z"))  # type: ignore[arg-type]
    plan = " ".join(seen)
    assert f"journal_exec_{field}" in plan
    assert not any(word in plan for word in ("TEMP B-TREE", "Sort"))


@pytest.mark.parametrize("field", ["task_id", "project_id", "skill_id", "outcome"])
def test_a_tenant_finds_its_own_without_passing_others_by(databases: Databases, field: str) -> None:
    database = databases.open()
    with database.transaction() as cursor:
        for number in range(40):
            tenant = "acme" if number % 8 else "other"
            each = Exec(f"ex-{number:02}", 1, number, number, number, "failed", tenant=tenant)
            named: dict[str, Any] = {field: "x"}
            store.close_exec(cursor, replace(each, **named))
        filters = {"tenant": "other", field: "x", "tool_name": "y"}
        plan: list[str] = []

        class Spy:
            def execute(self, statement: str, values: tuple[str | int, ...] = (), /) -> Cursor:
                explain = "EXPLAIN QUERY PLAN" if databases.url is None else "EXPLAIN"
                plan.extend(str(line) for line in cursor.execute(f"{explain} {statement}", values).fetchall())
                return cursor.execute(statement, values)

        if databases.url is not None:
            for way in ("seqscan", "bitmapscan", "sort"):
                cursor.execute(f"SET LOCAL enable_{way} = off")
        finding.list_execs(Spy(), filters, before=(9, "z"))  # type: ignore[arg-type]
        assert f"journal_exec_own_{field}" in " ".join(plan)
        assert not any(word in " ".join(plan) for word in ("TEMP B-TREE", "Sort"))
        del filters["tool_name"]
        assert names(finding.list_execs(cursor, filters)) == [f"ex-{number:02}" for number in range(32, -1, -8)]


def test_checkpoints_are_kept_once_and_in_order(database: Database) -> None:
    log = take(database)
    with database.transaction() as cursor:
        for size in (3, 7, 7, 9):
            store.add_checkpoint(cursor, log, checkpoint(size))
        assert [each.size for each in store.checkpoints(cursor, log.number)] == [3, 7, 9]
        assert [each.size for each in store.checkpoints(cursor, log.number, after_size=3)] == [7, 9]
        assert store.last_checkpoint(cursor, log.number) == checkpoint(9)
        assert store.last_checkpoint(cursor, 2) is None


def test_documents_are_kept_once_by_their_digest(database: Database) -> None:
    with database.transaction() as cursor:
        store.keep_document(cursor, "sha256:1", "policy", '{"a":1}')
        store.keep_document(cursor, "sha256:1", "policy", "other")
        assert store.document(cursor, "sha256:1") == ("policy", '{"a":1}')
        assert store.document(cursor, "sha256:2") is None


def test_a_reader_sees_one_moment_changes_nothing_and_keeps_nobody_from_writing(database: Database) -> None:
    log = take(database)
    with database.reading() as reader:
        assert list(store.rows(reader, log.number)) == []
        with database.transaction(wait_seconds=0) as cursor:
            store.append(cursor, log, [row(0)])
        assert list(store.rows(reader, log.number)) == []
    with pytest.raises(Unavailable), database.reading() as reader:
        reader.execute("DELETE FROM journal_record")
    with database.reading() as reader:
        assert len(list(store.rows(reader, log.number))) == 1


def test_a_log_taken_in_a_transaction_that_was_undone_is_free(databases: Databases) -> None:
    first = databases.open()

    def interrupted() -> None:
        with first.transaction() as cursor:
            store.take_log(cursor, ME, 1, "lg-x")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert take(databases.open(), "lg-y").number == 1
