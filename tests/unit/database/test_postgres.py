"""A server that goes away, is busy or full or says no: a clear refusal, nothing half done, and then it works again."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests import postgres_server
from tests.postgres_server import PostgresServer
from tests.unit.journal.entries import row

from ringfence.budgets.owner import this_process
from ringfence.database.address import open_database
from ringfence.database.postgres import PostgresDatabase
from ringfence.database.postgres_cursor import translated
from ringfence.errors import InvalidRequest, Unavailable
from ringfence.journal import store
from ringfence.journal.store import LogTaken

ME = this_process()
needs_postgres = pytest.mark.needs("postgres")


@pytest.fixture
def url(postgres: PostgresServer) -> str:
    return postgres.new_database()


@pytest.fixture
def database(url: str) -> Iterator[PostgresDatabase]:
    opened = PostgresDatabase(url, wait_seconds=2)
    yield opened
    opened.close()


def cut_off(url: str) -> None:
    """End every session of the database but this one, as an administrator or a network does."""
    import psycopg

    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(
            "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity "
            "WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )


def test_question_marks_are_values_only_outside_texts_and_percent_signs_are_never() -> None:
    assert translated("a = ? AND b LIKE '50%?' AND c = ?") == "a = %s AND b LIKE '50%%?' AND c = %s"
    assert translated("x = 'it''s ?' AND y % 2 = ?") == "x = 'it''s ?' AND y %% 2 = %s"


def test_an_address_of_something_else_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest):
        open_database(tmp_path, "mysql://somewhere/x")


@needs_postgres
def test_a_password_is_in_no_message() -> None:
    database = PostgresDatabase("postgresql://me:hunter2@127.0.0.1:1/x?password=hunter3")
    with pytest.raises(Unavailable) as refused, database.transaction():
        pytest.fail("nobody listens there")
    assert "hunter" not in f"{refused.value} {refused.value.fix}"
    assert refused.value.fix == "check that the server runs and can be reached"


@needs_postgres
def test_no_message_quotes_the_row_that_was_refused(database: PostgresDatabase) -> None:
    with pytest.raises(Unavailable) as refused, database.transaction() as cursor:
        cursor.execute("INSERT INTO journal_record VALUES (5, 1, 7, 1, 'x', NULL, ?, ?)", (b"", "what nobody may see"))
    assert "nobody may see" not in str(refused.value)


@needs_postgres
def test_a_commit_is_on_the_servers_disk_whatever_its_default(url: str, database: PostgresDatabase) -> None:
    import psycopg

    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(f"ALTER DATABASE {url.split('/')[3].partition('?')[0]} SET synchronous_commit = off")
    with database.transaction() as cursor:
        assert cursor.execute("SHOW synchronous_commit").fetchone() == ("on",)


@needs_postgres
def test_a_lost_connection_refuses_undoes_and_is_made_anew(url: str, database: PostgresDatabase) -> None:
    with database.transaction() as cursor:
        log = store.take_log(cursor, ME, 1, "lg-1")

    def interrupted() -> None:
        with database.transaction() as cursor:
            store.append(cursor, log, [row(0)])
            cut_off(url)

    with pytest.raises(Unavailable, match="nothing is recorded") as refused:
        interrupted()
    assert refused.value.fix is not None
    with database.transaction() as cursor:
        assert store.state(cursor, log.number).size == 0
        # nobody had taken it meanwhile
        store.append(cursor, log, [row(0)])


@needs_postgres
def test_a_log_whose_lease_was_lost_with_the_connection_and_taken_is_lost(url: str, database: PostgresDatabase) -> None:
    with database.transaction() as cursor:
        log = store.take_log(cursor, ME, 1, "lg-1")
    cut_off(url)
    other = PostgresDatabase(url)
    with other.transaction() as cursor:
        adopted = store.take_log(cursor, ME, 1, "lg-2")
    assert (adopted.number, adopted.was_dead) == (log.number, True)
    with pytest.raises(Unavailable), database.transaction() as cursor:
        store.append(cursor, log, [row(0)])
    with pytest.raises(LogTaken), database.transaction() as cursor:
        store.append(cursor, log, [row(0)])
    with other.transaction() as cursor:
        store.append(cursor, adopted, [row(0)])
    other.close()


@needs_postgres
def test_a_writer_on_another_host_is_not_dead_because_its_boot_is_another(url: str, database: PostgresDatabase) -> None:
    from tests.unit.journal.entries import DEAD

    with database.transaction() as cursor:
        mine = store.take_log(cursor, DEAD, 1, "lg-1")
    other = PostgresDatabase(url)
    with other.transaction() as cursor:
        assert store.take_log(cursor, ME, 1, "lg-2").number == mine.number + 1
    other.close()


@needs_postgres
def test_who_must_not_wait_is_told_at_once_and_who_may_is_told_in_time(url: str, database: PostgresDatabase) -> None:
    with pytest.raises(Unavailable) as refused, database.transaction(wait_seconds=0):
        pytest.fail("it connected")
    assert refused.value.reason == "busy"
    with database.transaction():
        pass
    other = PostgresDatabase(url)
    with other.transaction():
        for wait in (0, 0.05):
            with pytest.raises(Unavailable) as refused, database.transaction(wait_seconds=wait):
                pytest.fail("two at a time")
            assert (refused.value.reason, refused.value.retryable) == ("busy", True)
    with database.transaction(wait_seconds=0) as cursor:
        assert cursor.execute("SELECT 1").fetchone() == (1,)
    other.close()


@needs_postgres
def test_a_reader_that_was_cut_off_meanwhile_is_replaced(url: str, database: PostgresDatabase) -> None:
    for _ in range(2):
        with database.reading() as cursor:
            assert store.logs(cursor) == ()
        cut_off(url)
    with pytest.raises(Unavailable), database.transaction():
        pytest.fail("it was cut off")


@needs_postgres
def test_a_server_that_may_only_be_read_refuses(url: str, database: PostgresDatabase) -> None:
    with database.transaction() as cursor:
        log = store.take_log(cursor, ME, 1, "lg-1")
    with database.transaction() as cursor:
        cursor.execute("SET default_transaction_read_only = on")
    with pytest.raises(Unavailable) as refused, database.transaction() as cursor:
        store.append(cursor, log, [row(0)])
    assert "written to" in str(refused.value.fix)


@needs_postgres
def test_a_forked_child_connects_for_itself_and_the_parents_lease_ends_with_the_parent(
    url: str, database: PostgresDatabase
) -> None:
    with database.transaction() as cursor:
        log = store.take_log(cursor, ME, 1, "lg-1")
    there, here = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            with database.transaction() as cursor:
                os.write(here, str(store.take_log(cursor, ME, 1, "lg-child").number).encode())
            database.close()
        finally:
            os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert os.read(there, 9) == b"2"
    with database.transaction() as cursor:
        store.append(cursor, log, [row(0)])


@needs_postgres
def test_a_child_that_outlives_its_parent_keeps_no_lease_of_it(url: str) -> None:
    """The parent is a fork as well, so that it can be killed while its own child lives on."""
    ready, told = os.pipe()
    parent = os.fork()
    if parent == 0:
        database = PostgresDatabase(url)
        with database.transaction() as cursor:
            store.take_log(cursor, ME, 1, "lg-1")
        if os.fork() == 0:
            os.write(told, str(os.getpid()).encode())
            signal.pause()
        signal.pause()
    grandchild = int(os.read(ready, 20))
    os.kill(parent, signal.SIGKILL)
    os.waitpid(parent, 0)
    other = PostgresDatabase(url)
    try:
        number = 0
        while number != 1:  # until the server has seen it; the test's time limit is the other end
            with other.transaction() as cursor:
                log = store.take_log(cursor, ME, 1, f"lg-{os.urandom(4).hex()}")
                number = log.number
                if number != 1:
                    store.release_log(cursor, log)
        assert log.was_dead
    finally:
        os.kill(grandchild, signal.SIGKILL)
        other.close()


@needs_postgres
@pytest.mark.needs("root")
def test_a_server_with_a_full_disk_refuses_and_works_again_when_there_is_room() -> None:
    with postgres_server.running() as server:
        small = server.directory / "small"
        small.mkdir()
        shutil.chown(small, server.directory.stat().st_uid)
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=12m", "tmpfs", small], check=True)
        try:
            shutil.chown(small, server.directory.stat().st_uid)
            server.command(f"CREATE TABLESPACE small LOCATION '{small}'")
            server.command("CREATE DATABASE small TABLESPACE small")
            database = PostgresDatabase(server.url("small"))
            with database.transaction() as cursor:
                log = store.take_log(cursor, ME, 1, "lg-1")
            written, refused = fill(database, log)
            assert refused.fix == "free disk space, memory or connections on the server"
            subprocess.run(["mount", "-o", "remount,size=64m", small], check=True)
            with database.transaction() as cursor:
                assert store.state(cursor, log.number).size == written
                store.append(cursor, log, [row(written)])
            database.close()
        finally:
            subprocess.run(["umount", "-l", small], check=True)


def fill(database: PostgresDatabase, log: store.LogState) -> tuple[int, Unavailable]:
    for written in range(10_000):
        try:
            with database.transaction() as cursor:
                store.append(cursor, log, [row(written, note=os.urandom(3000).hex())])
        except Unavailable as refused:
            return written, refused
    raise AssertionError("it was never full")
