"""A database that is held, full, damaged or out of reach refuses every run, and says what to do."""

from __future__ import annotations

import contextlib
import fcntl
import os
import sqlite3
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.unit.budgets.accounts import TENANT, chain_of, used

from ringfence.budgets import tables
from ringfence.budgets.decide import Standing
from ringfence.budgets.owner import this_process
from ringfence.budgets.reservation import NOT_MEASURED
from ringfence.budgets.sqlite import SqliteMeter
from ringfence.capability.budget import Budget
from ringfence.database.sqlite import DATABASE_NAME, SqliteDatabase
from ringfence.errors import QuotaExceeded, Unavailable
from ringfence.journal import store

CHAIN = chain_of(Budget(calls=1000, cpu_ms=10**6))
ONE = Budget(calls=1, cpu_ms=10)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A home whose database has been used before."""
    meter = SqliteMeter.in_home(tmp_path)
    meter.settle(meter.reserve(CHAIN, ONE, "before"), NOT_MEASURED)
    meter.close()
    return tmp_path


def refused(home: Path, match: str | None = None) -> Unavailable:
    meter = SqliteMeter.in_home(home, wait_seconds=0.05)
    with pytest.raises(Unavailable, match=match) as error:
        meter.reserve(CHAIN, ONE, "ex")
    with contextlib.suppress(Unavailable):
        meter.close()
    return error.value


def test_the_file_is_its_owners_alone(home: Path) -> None:
    assert {stat.S_IMODE(path.stat().st_mode) for path in home.iterdir()} == {0o600}


def test_a_database_held_by_another_program_refuses_and_can_be_tried_again(home: Path) -> None:
    other = sqlite3.connect(home / DATABASE_NAME, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    error = refused(home)
    assert (error.reason, error.retryable) == ("busy", True)
    other.execute("ROLLBACK")
    other.close()
    meter = SqliteMeter.in_home(home, wait_seconds=0.05)
    assert meter.reserve(CHAIN, ONE, "ex").amounts == ONE
    meter.close()


def test_a_database_held_by_another_of_our_processes_refuses(home: Path) -> None:
    fd = os.open(home / f"{DATABASE_NAME}.lock", os.O_RDWR)
    fcntl.flock(fd, fcntl.LOCK_EX)
    assert refused(home).reason == "busy"
    os.close(fd)


def test_a_file_that_is_no_database_refuses_and_is_not_replaced(home: Path) -> None:
    (home / DATABASE_NAME).write_bytes(b"these are not the budgets you are looking for" * 100)
    assert refused(home, "not a database").fix is not None
    assert (home / DATABASE_NAME).read_bytes().startswith(b"these are")


def test_a_damaged_database_refuses(home: Path) -> None:
    path = home / DATABASE_NAME
    content = bytearray(path.read_bytes())
    # every page but the first, which says that it is a database
    content[4096:] = os.urandom(len(content) - 4096)
    path.write_bytes(content)
    assert "malformed" in str(refused(home))


@pytest.mark.parametrize("damage", ["settled = 'x'", "settled = 0.5", "settled = -7", "held = x'00'"])
def test_an_account_that_is_no_amount_refuses(home: Path, damage: str) -> None:
    other = sqlite3.connect(home / DATABASE_NAME, isolation_level=None)
    other.execute("PRAGMA ignore_check_constraints = ON")
    other.execute(f"UPDATE budget_account SET {damage}")
    other.close()
    refused(home)


def test_a_reservation_that_cannot_be_read_is_neither_freed_nor_charged(home: Path) -> None:
    meter = SqliteMeter.in_home(home)
    held = meter.reserve(CHAIN, ONE, "ex")
    for damage in (
        "[",
        "[[1]]",
        '[["tenant", "acme", "acme", "calls", 10, "x"]]',
        '[["nobody", "", "", "calls", 1, 1]]',
    ):
        other = sqlite3.connect(home / DATABASE_NAME, isolation_level=None)
        other.execute("UPDATE budget_reservation SET holds = ?", (damage,))
        other.close()
        with pytest.raises(Unavailable):
            meter.settle(held, used(calls=1))
    assert meter.standing(TENANT, "calls") == Standing(1, 1)
    meter.close()


def test_a_home_that_cannot_be_made_refuses(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    refused(tmp_path / "file" / "home")


def test_a_directory_in_the_files_place_refuses(tmp_path: Path) -> None:
    (tmp_path / DATABASE_NAME).mkdir()
    refused(tmp_path)


def test_a_link_in_the_locks_place_refuses(home: Path) -> None:
    (home / f"{DATABASE_NAME}.lock").unlink()
    (home / f"{DATABASE_NAME}.lock").symlink_to(home / "elsewhere")
    refused(home)
    assert not (home / "elsewhere").exists()


FILL = """
import resource, sys
from pathlib import Path
from ringfence.budgets.scope import *
from ringfence.budgets.sqlite import SqliteMeter
from ringfence.capability.budget import Budget
from ringfence.database.sqlite import DATABASE_NAME, SqliteDatabase
from ringfence.errors import Unavailable
if sys.argv[2] != "0":
    resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]),) * 2)
meter = SqliteMeter.in_home(Path(sys.argv[1]))
for i in range(20000):
    scope = Scope(ScopeKind.TENANT, f"t{i}" * 30)
    chain = Chain((Account(INSTANCE, SYSTEM_BUDGET), Account(scope, Budget(calls=5))))
    try:
        meter.reserve(chain, Budget(calls=1), f"ex{i}")
    except Unavailable as error:
        print(i, error.code, flush=True)
        break
"""


def fill(home: Path, most_bytes: int) -> int:
    """Reserve until a reservation is refused; return how many were given."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, "-c", FILL, str(home), str(most_bytes)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    given, code = done.stdout.split()
    assert code == "PROVIDER.UNAVAILABLE"
    return int(given)


def test_a_file_that_may_not_grow_refuses_and_keeps_what_was_given(tmp_path: Path) -> None:
    given = fill(tmp_path, 300_000)
    assert given > 0
    meter = SqliteMeter.in_home(tmp_path)
    assert len(meter.recover()) == given
    meter.close()


@pytest.mark.needs("root")
def test_a_full_disk_refuses_and_keeps_what_was_given(tmp_path: Path) -> None:
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=512k", "tmpfs", tmp_path], check=True)
    try:
        given = fill(tmp_path, 0)
        assert given > 0
        with sqlite3.connect(f"file:{tmp_path / DATABASE_NAME}?mode=ro", uri=True) as other:
            assert other.execute("SELECT count(*) FROM budget_reservation").fetchone() == (given,)
            assert other.execute("SELECT sum(held) FROM budget_account").fetchone() == (given,)
        other.close()
    finally:
        subprocess.run(["umount", tmp_path], check=True)


def test_a_record_of_the_run_and_its_reservation_are_one_transaction(tmp_path: Path) -> None:
    database = SqliteDatabase.in_home(tmp_path)
    meter = SqliteMeter(database)

    def interrupted() -> None:
        with database.transaction() as cursor:
            store.open_exec(cursor, "ex", 1, 0)
            tables.reserve(cursor, CHAIN, ONE, "ex", this_process())
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert meter.standing(TENANT, "calls") == Standing()
    with database.transaction() as cursor:
        store.open_exec(cursor, "ex", 1, 0)
        tables.reserve(cursor, CHAIN, ONE, "ex", this_process())
    with database.transaction() as cursor:
        assert [begun.exec_id for begun in store.open_execs(cursor)] == ["ex"]
        assert tables.settle(cursor, "ex", used(calls=1, cpu_ms=1)).was_open
    assert meter.standing(TENANT, "cpu_ms") == Standing(1, 0)
    meter.close()


def test_a_denial_can_be_recorded_in_the_transaction_that_was_refused(tmp_path: Path) -> None:
    database = SqliteDatabase.in_home(tmp_path)
    with database.transaction() as cursor:
        with pytest.raises(QuotaExceeded):
            tables.reserve(cursor, chain_of(Budget(calls=0)), ONE, "ex", this_process())
        cursor.execute("CREATE TABLE denials (exec_id TEXT)")
    with database.transaction() as cursor:
        assert cursor.execute("SELECT count(*) FROM denials").fetchone() == (0,)
    database.close()


def test_a_closed_database_opens_again(home: Path, count: Callable[[int], int]) -> None:
    meter = SqliteMeter.in_home(home)
    for i in range(count(100)):
        meter.settle(meter.reserve(CHAIN, ONE, f"ex{i}"), used(calls=1, cpu_ms=0))
        meter.close()
    assert meter.standing(TENANT, "calls") == Standing(1 + count(100), 0)
    meter.close()
