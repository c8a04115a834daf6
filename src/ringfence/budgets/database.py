"""The SQLite file of an instance: one writer at a time, all of a transaction or nothing, and a refusal when it cannot.

Budgets live in it; whoever records runs can begin and end them in the very transaction that reserves and settles.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ringfence.errors import Unavailable

if TYPE_CHECKING:
    from sqlite3 import Connection, Cursor, Error

WAIT_SECONDS: Final = 5.0
_FIRST_PAUSE = 0.0002
_LONGEST_PAUSE = 0.01

Schema = Callable[["Cursor"], None]
"""Creates the tables of one part, where they are not there yet."""


class Database:
    """One connection of this process, opened on first use and never carried into a fork."""

    def __init__(self, path: Path, *schemas: Schema, wait_seconds: float = WAIT_SECONDS) -> None:
        """Nothing is opened yet."""
        self._path = path
        self._schemas = schemas
        self._wait_seconds = wait_seconds
        self._connection: Connection | None = None
        self._lock_fd: int | None = None
        # protects the connection: one transaction at a time
        self._turn = threading.Lock()
        _IN_THIS_PROCESS.add(self)

    def leave_to_parent(self) -> None:
        """Begin anew in a forked child; the parent's connection is never closed, for that could write to its log."""
        if self._connection is not None:
            # one reference too many, or the interpreter closes it when the child ends
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._connection))
            self._connection = None
        if self._lock_fd is not None:
            os.close(self._lock_fd)
            self._lock_fd = None
        self._turn = threading.Lock()

    @contextlib.contextmanager
    def transaction(self) -> Iterator[Cursor]:
        """Yield a cursor inside a transaction that is durable when the block ends, and undone when it raises.

        Raises:
            Unavailable: The file is held by somebody else for too long, full, unreadable or damaged.
        """
        import sqlite3

        deadline = time.monotonic() + self._wait_seconds
        if not self._turn.acquire(timeout=self._wait_seconds):
            raise self._busy()
        try:
            with self._alone(deadline):
                try:
                    cursor = self._opened().cursor()
                    cursor.execute("BEGIN IMMEDIATE")
                    with self._undone_on_error(cursor):
                        yield cursor
                        cursor.execute("COMMIT")
                except sqlite3.Error as error:
                    raise self._unavailable(error) from error
        finally:
            self._turn.release()

    @contextlib.contextmanager
    def _undone_on_error(self, cursor: Cursor) -> Iterator[None]:
        try:
            yield
        except BaseException:
            import sqlite3

            # a connection whose transaction cannot be ended is not used again
            try:
                if cursor.connection.in_transaction:
                    cursor.execute("ROLLBACK")
            except sqlite3.Error:
                self._drop()
            raise

    @contextlib.contextmanager
    def _alone(self, deadline: float) -> Iterator[None]:
        """Keep every other process from writing to the file, checkpointing or closing it.

        SQLite's own lock leaves a checkpoint and the next write apart; in every release before 3.51.3 the two can meet
        and lose pages for good (the WAL-reset bug).
        """
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
                    raise self._busy() from None
            time.sleep(pause)
            pause = min(_LONGEST_PAUSE, pause * 2)
        try:
            yield
        finally:
            fcntl.flock(fd, fcntl.LOCK_UN)

    def _open_lock(self) -> int:
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            return os.open(f"{self._path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        except OSError as error:
            raise self._broken(error.strerror or str(error)) from error

    def _opened(self) -> Connection:
        if self._connection is not None:
            return self._connection
        import sqlite3

        # Made by us, so that nobody else on the machine reads whose budgets there are; and only when it is new, because
        # closing any descriptor of a file gives up all of SQLite's locks on it.
        with contextlib.suppress(OSError):
            os.close(os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
        connection = sqlite3.connect(
            self._path, timeout=self._wait_seconds, isolation_level=None, check_same_thread=False, cached_statements=64
        )
        try:
            cursor = connection.cursor()
            (mode,) = cursor.execute("PRAGMA journal_mode=WAL").fetchone()
            if mode != "wal":
                raise self._broken(f"its file system gives journal mode {mode!r}, not 'wal'")
            cursor.execute("PRAGMA synchronous=FULL")
            cursor.execute("BEGIN IMMEDIATE")
            for schema in self._schemas:
                schema(cursor)
            cursor.execute("COMMIT")
        except BaseException:
            connection.close()
            raise
        self._connection = connection
        return connection

    def _drop(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def close(self) -> None:
        """Let go of the file; a later transaction opens it again.

        Raises:
            Unavailable: Somebody else holds it for too long.
        """
        with self._turn:
            if self._connection is not None:
                with self._alone(time.monotonic() + self._wait_seconds):
                    self._drop()
            if self._lock_fd is not None:
                os.close(self._lock_fd)
                self._lock_fd = None

    def _unavailable(self, error: Error) -> Unavailable:
        import sqlite3

        code = getattr(error, "sqlite_errorcode", None)
        primary = None if code is None else code & 0xFF
        if primary in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
            return self._busy()
        if primary in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
            self._drop()
            return self._broken(str(error), fix=f"restore {self._path} from a copy, or move it away to begin from zero")
        if primary == sqlite3.SQLITE_FULL:
            return self._broken(str(error), fix="free some disk space")
        # whatever else the connection has seen, the next transaction begins with a new one
        self._drop()
        return self._broken(str(error))

    def _busy(self) -> Unavailable:
        return Unavailable(f"{self._path.name} is held by somebody else for {self._wait_seconds:g} s", reason="busy")

    def _broken(self, why: str, fix: str | None = None) -> Unavailable:
        return Unavailable(f"{self._path.name} cannot be used, so nothing is counted and nothing runs: {why}", fix=fix)


_IN_THIS_PROCESS: weakref.WeakSet[Database] = weakref.WeakSet()


def _leave_to_parent() -> None:
    for database in tuple(_IN_THIS_PROCESS):
        database.leave_to_parent()


os.register_at_fork(after_in_child=_leave_to_parent)
