"""The SQLite file of a home: one writer at a time, all of a transaction or nothing, and a refusal when it cannot.

Evidence and budgets are both in it, so that a run is begun in the very transaction that reserves for it.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
import threading
import time
import weakref
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self

from ringfence.database.leases import FileLeases
from ringfence.database.port import WAIT_SECONDS
from ringfence.errors import Unavailable

if TYPE_CHECKING:
    from sqlite3 import Connection, Error

    from ringfence.database.port import Cursor
    from ringfence.database.sqlite_cursor import SqliteCursor

DATABASE_NAME: Final = "ringfence.db"
_FIRST_PAUSE = 0.0002
_LONGEST_PAUSE = 0.01
_LONGEST_CLOSE = 60.0
_LONG_LIVED_AFTER = 64
_LOG_BYTES = 5 * 1024 * 1024  # a little more than what SQLite lets it grow to
_ZEROS_AT_ONCE = 1 << 18


class SqliteDatabase:
    """Implements `port.Database`: one connection that writes, opened on first use and never carried into a fork."""

    def __init__(self, path: Path, *, wait_seconds: float = WAIT_SECONDS) -> None:
        """Nothing is opened yet."""
        self._path = path
        self._wait_seconds = wait_seconds
        self._connection: Connection | None = None
        self._settings: tuple[int, bool] | None = None
        """What the connection was told last: how long to wait, and whether for the disk too."""
        self._paths = path, path.with_name(f"{path.name}-wal")
        self._files: tuple[tuple[int, int], ...] | None = None
        self._planted: tuple[str, ...] = ()
        self._lock_fd: int | None = None
        self._leases = FileLeases(path.with_name(f"{path.name}.leases"))
        # protects the connection: one transaction at a time
        self._turn = threading.Lock()
        self._log_fd: int | None = None
        self._lags = False
        """Whether a transaction was kept that the disk may not have."""
        # protects the log's descriptor, which is synced beside transactions
        self._syncing = threading.Lock()
        _IN_THIS_PROCESS.add(self)

    @classmethod
    def in_home(cls, home: Path, *, wait_seconds: float = WAIT_SECONDS) -> Self:
        """Return the database of the instance whose state lives in `home`."""
        return cls(home / DATABASE_NAME, wait_seconds=wait_seconds)

    def leave_to_parent(self) -> None:
        """Begin anew in a forked child; the parent's connection is never closed, for that could write to its log."""
        if self._connection is not None:
            # one reference too many, or the interpreter closes it when the child ends
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._connection))
            self._connection = None
        if self._lock_fd is not None:
            os.close(self._lock_fd)
            self._lock_fd = None
        self._leases.close()
        self._turn = threading.Lock()
        self._syncing = threading.Lock()
        self._close_log()

    @contextlib.contextmanager
    def transaction(self, wait_seconds: float | None = None, *, on_disk: bool = True) -> Iterator[Cursor]:
        """Yield a cursor in the only transaction there is now; see `Database.transaction`."""
        import sqlite3

        wait = self._wait_seconds if wait_seconds is None else wait_seconds
        with self._alone(wait):
            try:
                cursor = self._cursor(wait, on_disk=on_disk)
                self._refuse_planted()
                cursor.execute("BEGIN IMMEDIATE")
                with self._undone_on_error(cursor):
                    yield cursor
                    cursor.execute("COMMIT")
                self._transactions += 1
                self._lags = not on_disk
                if self._transactions == _LONG_LIVED_AFTER:
                    self._lengthen_log()
            except sqlite3.Error as error:
                # whatever else the connection has seen, the next transaction begins with a new one
                if _primary(error) not in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_FULL):
                    self._drop()
                raise self._unavailable(error, wait) from error

    def could_write(self) -> bool:
        """Whether a transaction can begin at once; whoever begins one is told why it cannot."""
        import sqlite3

        with contextlib.suppress(Unavailable, sqlite3.Error), self._alone(0):
            cursor = self._cursor(0, on_disk=False)
            cursor.execute("BEGIN IMMEDIATE")
            cursor.execute("ROLLBACK")
            return True
        return False

    def sync(self) -> None:
        """Have the disk take the write-ahead log; see `Database.sync`."""
        with self._syncing:
            if not self._lags:
                return
            self._lags = False  # before the disk is asked: what is kept meanwhile may come too late for it
            try:
                if self._log_fd is None:
                    self._log_fd = os.open(f"{self._path}-wal", os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
                os.fdatasync(self._log_fd)
            except FileNotFoundError:
                return  # whoever closed the file last put all of it into the database, on the disk
            except OSError as error:
                raise self._broken(f"the disk did not take it: {error.strerror}") from error

    @contextlib.contextmanager
    def reading(self) -> Iterator[Cursor]:
        """Yield a cursor that sees everything as it is now; see `Database.reading`."""
        import sqlite3

        from ringfence.database.sqlite_cursor import SqliteCursor

        with self._alone(self._wait_seconds):
            try:
                self._cursor(self._wait_seconds, on_disk=True)
                # a connection of its own: whoever reads for long must keep neither the turn nor the file
                reader = self._connect(self._wait_seconds)
            except sqlite3.Error as error:
                raise self._unavailable(error, self._wait_seconds) from error
        # a text that somebody damaged is read as another text, which has another hash, and is no error of ours
        reader.text_factory = partial(str, encoding="utf-8", errors="replace")
        try:
            cursor = reader.cursor(SqliteCursor)
            cursor.leases = self._leases
            cursor.execute("PRAGMA query_only=ON")
            cursor.execute("BEGIN")
            yield cursor
        except sqlite3.Error as error:
            raise self._unavailable(error, self._wait_seconds) from error
        finally:
            # alone, because closing the last connection writes the log back
            with self._alone(_LONGEST_CLOSE):
                reader.close()

    @contextlib.contextmanager
    def _undone_on_error(self, cursor: SqliteCursor) -> Iterator[None]:
        kept = self._leases.held()
        try:
            yield
        except BaseException:
            import sqlite3

            self._leases.end_all_but(kept)
            # a connection whose transaction cannot be ended is not used again
            try:
                if cursor.connection.in_transaction:
                    cursor.execute("ROLLBACK")
            except sqlite3.Error:
                self._drop()
            raise

    @contextlib.contextmanager
    def _alone(self, wait_seconds: float) -> Iterator[None]:
        """Keep every other thread and process from writing to the file, checkpointing or closing it.

        SQLite's own lock leaves a checkpoint and the next write apart; in every release before 3.51.3 the two can meet
        and lose pages for good (the WAL-reset bug).
        """
        deadline = time.monotonic() + wait_seconds
        if not self._turn.acquire(timeout=max(0.0, wait_seconds)):
            raise self._busy(wait_seconds)
        try:
            if self._lock_fd is None:
                self._lock_fd = self._open_lock()
            fd = self._lock_fd
            pause = _FIRST_PAUSE
            while True:
                try:
                    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if time.monotonic() >= deadline:
                        raise self._busy(wait_seconds) from None
                time.sleep(pause)
                pause = min(_LONGEST_PAUSE, pause * 2)
            try:
                yield
            finally:
                fcntl.flock(fd, fcntl.LOCK_UN)
        finally:
            self._turn.release()

    def _open_lock(self) -> int:
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            return os.open(f"{self._path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        except OSError as error:
            # such as an image of a disk: reading takes locks, and settles what killed processes left
            copied = "copy the home to where it may be written, and read that copy with --home COPY"
            raise self._broken(
                error.strerror or str(error), fix=copied if error.errno == errno.EROFS else self._let_write()
            ) from error

    def _cursor(self, wait_seconds: float, *, on_disk: bool) -> SqliteCursor:
        from ringfence.database.sqlite_cursor import SqliteCursor

        if self._connection is None:
            self._connection, self._settings, self._transactions = self._prepared(wait_seconds), None, 0
            self._files = self._files_now()
        elif self._files_now() != self._files:
            raise self._taken_away()
        cursor = self._connection.cursor(SqliteCursor)
        cursor.leases = self._leases
        settings = int(wait_seconds * 1000), on_disk
        if settings != self._settings:
            cursor.execute(f"PRAGMA busy_timeout={settings[0]}")
            cursor.execute(f"PRAGMA synchronous={'FULL' if on_disk else 'NORMAL'}")
            self._settings = settings
        return cursor

    def _prepared(self, wait_seconds: float) -> Connection:
        from ringfence.database.migrations import SQLITE, migrate
        from ringfence.database.sqlite_cursor import SqliteCursor

        # Made by us, so that nobody else on the machine reads what was run; and only when it is new, because closing
        # any descriptor of a file gives up all of SQLite's locks on it.
        with contextlib.suppress(OSError):
            os.close(os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
        # SQLite would make its log as read-only as the file, and so keep it when the file may be written again
        if self._path.exists() and not os.access(self._path, os.W_OK, effective_ids=True):
            raise self._broken("it may not be written", fix=self._let_write())
        connection = self._connect(wait_seconds)
        try:
            cursor = connection.cursor(SqliteCursor)
            (mode,) = cursor.execute("PRAGMA journal_mode=WAL").fetchone()
            if mode != "wal":
                raise self._broken(f"its file system gives journal mode {mode!r}, not 'wal'")
            cursor.execute("PRAGMA synchronous=FULL")
            # as Debian's build does anyway: what was pruned is not to be read from pages that are free
            cursor.execute("PRAGMA secure_delete=ON")
            cursor.execute("BEGIN IMMEDIATE")
            # a trigger would change what is written while it is written; who only reads says so instead
            self._planted = cursor.planted()
            if not self._planted:
                migrate(cursor, SQLITE, self._path.name)
            cursor.execute("COMMIT")
        except BaseException:
            connection.close()
            raise
        return connection

    def _files_now(self) -> tuple[tuple[int, int], ...] | None:
        """Return which files lie at our names: those we opened are written without complaint when they are gone."""
        try:
            found = [path.stat() for path in self._paths]
        except OSError:
            return None
        return tuple((each.st_dev, each.st_ino) for each in found)

    def _taken_away(self) -> Unavailable:
        return Unavailable(
            f"{self._path.name} was taken away or replaced in use, so nothing is recorded and nothing runs",
            reason="damaged",
            fix=f"put {self._path} and its '-wal' back, or end this process: the next one begins with what is there",
        )

    def _refuse_planted(self) -> None:
        if self._planted:
            self._drop()  # and look again, the next time
            raise Unavailable(
                f"somebody added {', '.join(self._planted)} to {self._path.name}, so nothing runs",
                reason="damaged",
                fix=f"find out who did, and drop it from {self._path} or restore a copy",
            )

    def _connect(self, wait_seconds: float) -> Connection:
        import sqlite3

        return sqlite3.connect(
            self._path, timeout=wait_seconds, isolation_level=None, check_same_thread=False, cached_statements=64
        )

    def _lengthen_log(self) -> None:
        """Write zeros behind the end of the write-ahead log, once, in a process that lives for long.

        A commit that makes the file longer waits for the file system's own journal too: measured, half as long again.
        SQLite reads its log up to the first frame that is not valid, and writes over what comes after. Nobody else
        writes to it now: the caller is alone.
        """
        with contextlib.suppress(OSError):
            fd = os.open(f"{self._path}-wal", os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
            try:
                size = os.fstat(fd).st_size
                while size < _LOG_BYTES:
                    size += os.pwrite(fd, bytes(min(_ZEROS_AT_ONCE, _LOG_BYTES - size)), size)
                os.fsync(fd)
            finally:
                os.close(fd)

    def _drop(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        with self._syncing:
            self._close_log()

    def _close_log(self) -> None:
        if self._log_fd is not None:
            os.close(self._log_fd)
            self._log_fd = None

    def close(self) -> None:
        """Let go of the file; a later transaction opens it again.

        Raises:
            Unavailable: Somebody else holds it for too long.
        """
        if self._connection is not None:
            with self._alone(self._wait_seconds):
                self._drop()
        with self._turn:
            self._leases.close()
            if self._lock_fd is not None:
                os.close(self._lock_fd)
                self._lock_fd = None

    def _unavailable(self, error: Error, wait_seconds: float) -> Unavailable:
        import sqlite3

        primary = _primary(error)
        if primary in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
            return self._busy(wait_seconds)
        if primary in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
            return self._broken(str(error), fix=f"restore {self._path} from a copy, or move it away to begin from zero")
        if primary == sqlite3.SQLITE_FULL:
            return self._broken(str(error), fix="free some disk space")
        if primary == sqlite3.SQLITE_READONLY:
            return self._broken(str(error), fix=self._let_write())
        return self._broken(str(error))

    def _let_write(self) -> str:
        return f"let this user write to {self._path} and its directory, or name another home in RINGFENCE_HOME"

    def _busy(self, wait_seconds: float) -> Unavailable:
        return Unavailable(f"{self._path.name} is held by somebody else for {wait_seconds:g} s", reason="busy")

    def _broken(self, why: str, fix: str | None = None) -> Unavailable:
        what = f"{self._path.name} cannot be used, so nothing is recorded, nothing is counted and nothing runs"
        return Unavailable(f"{what}: {why}", fix=fix)


def _primary(error: Error) -> int | None:
    """Return SQLite's own code without its details; what the Python module raises on its own has none."""
    code: int | None = getattr(error, "sqlite_errorcode", None)
    return None if code is None else code & 0xFF


_IN_THIS_PROCESS: weakref.WeakSet[SqliteDatabase] = weakref.WeakSet()


def _leave_to_parent() -> None:
    for database in tuple(_IN_THIS_PROCESS):
        database.leave_to_parent()


os.register_at_fork(after_in_child=_leave_to_parent)
