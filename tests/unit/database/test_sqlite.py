"""A file that is held, full, read-only or damaged: a clear refusal, nothing half written, and then it works again."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.unit.journal.entries import row, run

from ringfence.budgets.owner import this_process
from ringfence.database.sqlite import DATABASE_NAME, SqliteDatabase
from ringfence.errors import Unavailable
from ringfence.journal import finding, store
from ringfence.journal.store import LogState

ME = this_process()


@pytest.fixture
def database(tmp_path: Path) -> Iterator[SqliteDatabase]:
    opened = SqliteDatabase.in_home(tmp_path, wait_seconds=0.2)
    yield opened
    opened.close()


def take(database: SqliteDatabase) -> LogState:
    with database.transaction() as cursor:
        return store.take_log(cursor, ME, 1, "lg-1")


def append(database: SqliteDatabase, log: LogState, seq: int) -> None:
    with database.transaction() as cursor:
        run(cursor, log, 2 * seq, f"ex-{seq}", session_id="s" * 500)


def fill(database: SqliteDatabase, log: LogState) -> tuple[int, Unavailable]:
    """Write execs until one is refused; return how many were not."""
    for written in range(20_000):
        try:
            append(database, log, written)
        except Unavailable as refused:
            return written, refused
    raise AssertionError("it was never full")


def is_whole(home: Path) -> bool:
    reader = sqlite3.connect(home / DATABASE_NAME)
    found = reader.execute("PRAGMA integrity_check").fetchall()
    reader.close()
    return bool(found == [("ok",)])


def goes_on(database: SqliteDatabase, log: LogState, written: int) -> None:
    """Assert that all of what was acknowledged is there, none of what was refused, and that there is room for more."""
    with database.transaction() as cursor:
        assert store.state(cursor, log.number).size == 2 * written
        assert store.open_execs(cursor) == ()
        assert len(finding.list_execs(cursor, {}, limit=100_000)) == written
    append(database, log, written)


@pytest.mark.needs("root")
def test_a_full_disk_refuses_keeps_what_was_acknowledged_and_works_again_when_there_is_room(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", home], check=True)
    try:
        database = SqliteDatabase.in_home(home)
        log = take(database)
        written, refused = fill(database, log)
        assert written > 0
        assert (refused.code, refused.fix) == ("PROVIDER.UNAVAILABLE", "free some disk space")
        assert "nothing is recorded" in str(refused)
        subprocess.run(["mount", "-o", "remount,size=16m", home], check=True)
        goes_on(database, log, written)
        database.close()
        assert is_whole(home)
    finally:
        subprocess.run(["umount", "-l", home], check=True)


LIMITED = """
import resource, sys
from pathlib import Path
from ringfence.database.sqlite import SqliteDatabase
from tests.unit.database.test_sqlite import fill, goes_on, take
_, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
resource.setrlimit(resource.RLIMIT_FSIZE, (400_000, hard))
database = SqliteDatabase.in_home(Path(sys.argv[1]))
log = take(database)
written, refused = fill(database, log)
resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
goes_on(database, log, written)
database.close()
print(written > 0, refused.code)
"""


def test_a_file_that_may_not_grow_refuses_and_works_again_when_it_may(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run([sys.executable, "-c", LIMITED, tmp_path], capture_output=True, text=True, env=environment)
    assert (done.stdout, done.stderr) == ("True PROVIDER.UNAVAILABLE\n", "")
    assert is_whole(tmp_path)


@pytest.mark.needs("root")
def test_a_read_only_home_refuses_and_works_again_when_it_may_be_written(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", home], check=True)
    try:
        database = SqliteDatabase.in_home(home)
        log = take(database)
        append(database, log, 0)
        database.close()
        subprocess.run(["mount", "-o", "remount,ro", home], check=True)
        for _ in range(2):
            with pytest.raises(Unavailable, match="nothing runs"):
                append(database, log, 1)
        subprocess.run(["mount", "-o", "remount,rw", home], check=True)
        goes_on(database, log, 1)
        database.close()
    finally:
        subprocess.run(["umount", "-l", home], check=True)


@pytest.mark.needs("user")
def test_a_read_only_file_refuses_and_works_again_when_it_may_be_written(
    database: SqliteDatabase, tmp_path: Path
) -> None:
    log = take(database)
    append(database, log, 0)
    database.close()
    (tmp_path / DATABASE_NAME).chmod(0o400)
    with pytest.raises(Unavailable) as refused:
        append(database, log, 1)
    assert refused.value.fix is not None
    (tmp_path / DATABASE_NAME).chmod(0o600)
    goes_on(database, log, 1)


def test_a_file_held_by_another_program_refuses_and_works_again_when_it_is_free(
    database: SqliteDatabase, tmp_path: Path
) -> None:
    log = take(database)
    other = sqlite3.connect(tmp_path / DATABASE_NAME, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    for wait in (0, 0.05):
        with pytest.raises(Unavailable) as refused, database.transaction(wait_seconds=wait):
            pytest.fail("two at a time")
        assert refused.value.reason == "busy"
    other.execute("ROLLBACK")
    other.close()
    append(database, log, 0)


def test_who_must_not_wait_is_told_at_once_by_another_thread_and_another_process(
    database: SqliteDatabase, tmp_path: Path
) -> None:
    beside = SqliteDatabase.in_home(tmp_path, wait_seconds=60)
    refusals: list[str] = []

    def attempt(which: SqliteDatabase) -> None:
        try:
            with which.transaction(wait_seconds=0):
                refusals.append("none")
        except Unavailable as refused:
            refusals.append(refused.reason)

    with database.transaction():
        for which in (database, beside):
            thread = threading.Thread(target=attempt, args=(which,))
            thread.start()
            thread.join()
    assert refusals == ["busy", "busy"]
    attempt(beside)
    assert refusals[2:] == ["none"]
    beside.close()


def test_a_damaged_file_refuses_and_a_restored_one_goes_on(database: SqliteDatabase, tmp_path: Path) -> None:
    log = take(database)
    for seq in range(50):
        append(database, log, seq)
    database.close()
    path = tmp_path / DATABASE_NAME
    shutil.copy(path, tmp_path / "copy")
    content = bytearray(path.read_bytes())
    content[4096:] = os.urandom(len(content) - 4096)
    path.write_bytes(content)
    with pytest.raises(Unavailable) as refused:
        append(database, log, 50)
    assert "restore" in str(refused.value.fix)
    database.close()
    for left in tmp_path.glob(f"{DATABASE_NAME}-*"):
        left.unlink()
    shutil.copy(tmp_path / "copy", path)
    goes_on(database, log, 50)


def descriptors_of(path: Path) -> int:
    found = 0
    for fd in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):
            found += os.readlink(f"/proc/self/fd/{fd}") == str(path)
    return found


def test_readers_at_the_same_time_do_not_meet_and_none_is_left_open(database: SqliteDatabase, tmp_path: Path) -> None:
    log = take(database)
    with database.transaction() as cursor:
        store.append(cursor, log, [row(seq) for seq in range(50)])
    seen: list[int] = []

    def read() -> None:
        for _ in range(5):
            with database.reading() as cursor:
                seen.append(sum(1 for _ in store.rows(cursor, log.number)))

    threads = [threading.Thread(target=read) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == [50] * 20
    assert descriptors_of(tmp_path / DATABASE_NAME) > 0
    database.close()
    assert descriptors_of(tmp_path / DATABASE_NAME) == 0


def test_a_home_that_lies_on_a_read_only_disk_says_how_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> int:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr("ringfence.database.sqlite.os.open", refuse)
    with (
        pytest.raises(Unavailable, match="Read-only file system") as caught,
        SqliteDatabase.in_home(tmp_path).reading(),
    ):
        pass
    assert caught.value.fix is not None
    assert "--home" in caught.value.fix
