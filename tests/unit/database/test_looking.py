"""Looking at a database makes nothing, brings nothing up to date and writes nothing."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.conftest import Databases

from ringfence.budgets.owner import this_process
from ringfence.database.looking import looking
from ringfence.errors import InvalidRequest, Unavailable
from ringfence.journal import store


def test_what_was_never_made_is_not_made(databases: Databases) -> None:
    with looking(databases.home, databases.url) as view:
        assert view is None or view.is_older
    with looking(databases.home, databases.url) as view:
        assert view is None or view.is_older
    assert list(databases.home.iterdir()) == []


def test_a_journal_is_read_while_its_writer_has_it_open_and_after(databases: Databases) -> None:
    database = databases.open()
    with database.transaction() as cursor:
        store.take_log(cursor, this_process(), 1, "lg-1")
    for _ in range(2):
        with looking(databases.home, databases.url) as view:
            assert view is not None
            assert not view.is_older
            assert [log.log_id for log in store.logs(view.cursor)] == ["lg-1"]
        database.close()


def delete_through(databases: Databases) -> None:
    with looking(databases.home, databases.url) as view:
        assert view is not None
        view.cursor.execute("DELETE FROM journal_log")


def test_nothing_can_be_written_through_it(databases: Databases) -> None:
    database = databases.open()
    with database.transaction() as cursor:
        store.take_log(cursor, this_process(), 1, "lg-1")
    for _ in range(2):
        with pytest.raises(Unavailable):
            delete_through(databases)
        database.close()
    with database.reading() as cursor:
        assert len(store.logs(cursor)) == 1


def test_a_newer_schema_is_refused(databases: Databases) -> None:
    with databases.open().transaction() as cursor:
        cursor.execute("UPDATE schema_version SET version = 999")
    with pytest.raises(Unavailable) as refused, looking(databases.home, databases.url):
        pass
    assert refused.value.reason == "newer_schema"


def test_an_address_of_no_server_we_know_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest), looking(tmp_path, "mysql://nowhere"):
        pass


@pytest.mark.needs("postgres")
def test_a_server_that_does_not_answer_is_told_without_its_password(tmp_path: Path) -> None:
    with (
        pytest.raises(Unavailable) as refused,
        looking(tmp_path, f"postgresql://u:hunter2@/x?host={tmp_path}&connect_timeout=2"),
    ):
        pass
    assert "hunter2" not in str(refused.value)


@pytest.mark.needs("user")
def test_a_file_that_may_not_be_written_is_refused_as_a_run_would_be(tmp_path: Path) -> None:
    (tmp_path / "ringfence.db").touch(mode=0o400)
    with pytest.raises(Unavailable, match="may not be written"), looking(tmp_path):
        pass
