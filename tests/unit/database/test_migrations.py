"""One schema on both engines: made once however many come at the same time, and taken over from older homes."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from tests.conftest import Databases
from tests.unit.budgets.accounts import TENANT, chain_of, used

from ringfence.budgets.decide import Standing
from ringfence.budgets.sqlite import SqliteMeter
from ringfence.capability.budget import Budget
from ringfence.database import migrations
from ringfence.database.migrations import VERSION
from ringfence.database.sqlite import DATABASE_NAME
from ringfence.errors import Unavailable


def version(databases: Databases) -> list[tuple[int]]:
    with databases.open().transaction() as cursor:
        return cursor.execute("SELECT version FROM schema_version").fetchall()


def test_a_new_database_has_the_newest_version_and_keeps_it(databases: Databases) -> None:
    assert [version(databases), version(databases)] == [[(VERSION,)]] * 2


def test_a_database_of_a_newer_release_is_refused_and_left_as_it_is(databases: Databases) -> None:
    before = databases.open()
    with before.transaction() as cursor:
        cursor.execute("UPDATE schema_version SET version = ?", (VERSION + 1,))
    before.close()
    with pytest.raises(Unavailable, match="newer release") as refused, databases.open().transaction():
        pytest.fail("it was opened")
    assert (refused.value.reason, refused.value.fix is not None) == ("newer_schema", True)


def test_a_step_that_fails_leaves_nothing_of_itself(databases: Databases, monkeypatch: pytest.MonkeyPatch) -> None:
    steps = migrations._STEPS
    broken = (*steps, lambda _: ("CREATE TABLE half (a INTEGER)", "CREATE TABLE nonsense ("))
    monkeypatch.setattr(migrations, "_STEPS", broken)
    monkeypatch.setattr(migrations, "VERSION", VERSION + 1)
    with pytest.raises(Unavailable), databases.open().transaction():
        pytest.fail("it was opened")
    monkeypatch.setattr(migrations, "_STEPS", steps)
    monkeypatch.setattr(migrations, "VERSION", VERSION)
    with databases.open().transaction() as cursor:
        cursor.execute("CREATE TABLE half (b INTEGER)")


def test_a_later_step_is_taken_by_a_database_that_is_in_use(
    databases: Databases, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert version(databases) == [(VERSION,)]
    monkeypatch.setattr(migrations, "_STEPS", (*migrations._STEPS, lambda _: ("CREATE TABLE later (a INTEGER)",)))
    monkeypatch.setattr(migrations, "VERSION", VERSION + 1)
    assert version(databases) == [(VERSION + 1,)]
    with databases.open().transaction() as cursor:
        assert cursor.execute("SELECT count(*) FROM later").fetchone() == (0,)


def test_a_home_from_before_there_were_versions_keeps_its_budgets(tmp_path: Path) -> None:
    old = sqlite3.connect(tmp_path / DATABASE_NAME, isolation_level=None)
    old.execute("PRAGMA journal_mode=WAL")
    old.executescript(
        """
        CREATE TABLE budget_account (
            scope TEXT NOT NULL, tenant TEXT NOT NULL, name TEXT NOT NULL, kind TEXT NOT NULL,
            settled INTEGER NOT NULL CHECK (typeof(settled) = 'integer' AND settled >= 0),
            held INTEGER NOT NULL CHECK (typeof(held) = 'integer' AND held >= 0),
            PRIMARY KEY (scope, tenant, name, kind)
        ) WITHOUT ROWID;
        CREATE TABLE budget_reservation (
            exec_id TEXT NOT NULL PRIMARY KEY, amounts TEXT NOT NULL, holds TEXT NOT NULL,
            boot_id TEXT NOT NULL, pid_namespace TEXT NOT NULL, pid INTEGER NOT NULL, started INTEGER NOT NULL
        ) WITHOUT ROWID;
        INSERT INTO budget_account VALUES ('tenant', 'acme', 'acme', 'calls', 3, 0);
        """
    )
    old.close()
    meter = SqliteMeter.in_home(tmp_path)
    assert meter.standing(TENANT, "calls") == Standing(3, 0)
    meter.settle(meter.reserve(chain_of(Budget(calls=9)), Budget(calls=1), "ex"), used(calls=1))
    assert meter.standing(TENANT, "calls") == Standing(4, 0)
    meter.close()


OPEN = """
import sys
from pathlib import Path
from ringfence.database.address import open_database
sys.stdin.read(1)
database = open_database(Path(sys.argv[1]), sys.argv[2] or None, wait_seconds=30)
with database.transaction() as cursor:
    print(cursor.execute("SELECT count(*), max(version) FROM schema_version").fetchone())
database.close()
"""


def test_many_processes_may_be_the_first_at_the_same_time(databases: Databases) -> None:
    command = [sys.executable, "-c", OPEN, str(databases.home), databases.url or ""]
    running = [subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) for _ in range(6)]
    for process in running:
        assert process.stdin is not None
        process.stdin.write(b"!")
        process.stdin.flush()
    assert {process.communicate()[0].decode() for process in running} == {f"(1, {VERSION})\n"}
