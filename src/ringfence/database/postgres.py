"""A PostgreSQL server that instances on many hosts share: the same schema, one transaction at a time, leases it ends.

A lease is an advisory lock of the session: a process that dies or is cut off loses it, which no process table on this
host could tell the others.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import threading
import time
import weakref
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from ringfence.database.port import WAIT_SECONDS
from ringfence.errors import Unavailable

if TYPE_CHECKING:
    from psycopg import Connection, Error

    from ringfence.database.port import Cursor
    from ringfence.database.postgres_cursor import PostgresCursor

_CLASS: Final = 0x52494E47
"""What our advisory locks are named after, so that they meet no other program's."""
_TURN: Final = 0
_CONNECTING: Final = {
    "connect_timeout": 10,
    # a server that vanished without a word is noticed within these
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 15_000,
    "application_name": "ringfence",
}


class PostgresDatabase:
    """Implements `port.Database`: one connection that writes, made on first use and never carried into a fork."""

    def __init__(self, url: str, *, wait_seconds: float = WAIT_SECONDS) -> None:
        """Nothing is connected yet; `url` begins with `postgresql://`."""
        self._url = url
        self._name = _without_secrets(url)
        self._wait_seconds = wait_seconds
        self._connection: Connection[Any] | None = None
        self._idle: Connection[Any] | None = None
        """One that reads, while nobody does."""
        self._leases: set[int] = set()
        self._has_schema = False
        self._closings = 0
        # protects the connection: one transaction at a time
        self._turn = threading.Lock()
        # protects the idle one: whoever reads does not wait for who writes
        self._idle_turn = threading.Lock()
        _IN_THIS_PROCESS.add(self)

    def leave_to_parent(self) -> None:
        """Begin anew in a forked child; the parent's session goes on, and ends with the parent alone."""
        for connection in filter(None, (self._connection, self._idle)):
            # one reference too many, or the interpreter says goodbye to the server in the parent's name
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(connection))
            # or the parent's leases outlive it for as long as this child keeps the socket open
            if not connection.closed:
                os.close(connection.fileno())
        self._connection = self._idle = None
        self._leases = set()
        self._turn = threading.Lock()
        self._idle_turn = threading.Lock()

    @contextlib.contextmanager
    def transaction(self, wait_seconds: float | None = None, *, on_disk: bool = True) -> Iterator[Cursor]:  # noqa: ARG002 the server always waits for its disk
        """Yield a cursor in the only transaction there is now; see `Database.transaction`.

        Without a connection, one that must not wait is refused as `busy`: making it takes a while.
        """
        psycopg = _library()
        wait = self._wait_seconds if wait_seconds is None else wait_seconds
        deadline = time.monotonic() + wait
        if not self._turn.acquire(timeout=max(0.0, wait)):
            raise self._busy(wait)
        try:
            if self._connection is None and wait <= 0:
                raise self._busy(wait)
            try:
                cursor = self._cursor()
                with self._undone_on_error(cursor):
                    self._begin(cursor, wait, deadline)
                    yield cursor
                    cursor.command("COMMIT")
            except psycopg.Error as error:
                raise self._unavailable(error, wait) from error
        finally:
            self._turn.release()

    def sync(self) -> None:
        """Return at once: every transaction has waited for the server's disk."""

    @contextlib.contextmanager
    def reading(self) -> Iterator[Cursor]:
        """Yield a cursor that sees everything as it is now; see `Database.reading`."""
        psycopg = _library()
        from ringfence.database.postgres_cursor import PostgresCursor

        closings = self._closings
        reader = self._reader()
        try:
            cursor = PostgresCursor(reader.cursor(), set())
            # Pages are read off an index in its order; a server that has not counted its rows yet would sort them all.
            cursor.command(
                "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY;"
                " SET LOCAL enable_sort = off; SET LOCAL enable_bitmapscan = off; SET LOCAL jit = off"
            )
            yield cursor
            cursor.command("COMMIT")
        except BaseException as error:
            reader.close()
            if isinstance(error, psycopg.Error):
                raise self._unavailable(error, self._wait_seconds) from error
            raise
        # kept for the next one who reads: connecting takes longer than most questions
        with self._idle_turn:
            kept = self._idle is None and closings == self._closings
            if kept:
                self._idle = reader
        if not kept:
            reader.close()

    def _reader(self) -> Connection[Any]:
        psycopg = _library()
        with self._idle_turn:
            reader, self._idle = self._idle, None
        if reader is not None:
            with contextlib.suppress(psycopg.Error):
                reader.execute("SELECT 1")
                return reader
            reader.close()
        if not self._has_schema:
            with self.transaction():
                pass  # makes it, or brings it up to date
        try:
            connection: Connection[Any] = psycopg.connect(self._url, autocommit=True, **self._options())
        except psycopg.Error as error:
            raise self._unavailable(error, self._wait_seconds) from error
        return connection

    def close(self) -> None:
        """Disconnect, which ends every lease; a later transaction connects again."""
        with self._turn:
            self._drop()
        with self._idle_turn:
            self._closings += 1  # whoever still reads keeps nothing for a next one
            if self._idle is not None:
                self._idle.close()
                self._idle = None

    def _begin(self, cursor: PostgresCursor, wait_seconds: float, deadline: float) -> None:
        left_ms = int((deadline - time.monotonic()) * 1000)
        if wait_seconds <= 0 or left_ms <= 0:
            cursor.command("BEGIN")
            if not cursor.execute(f"SELECT pg_try_advisory_xact_lock({_CLASS}, {_TURN})").fetchone()[0]:
                raise self._busy(wait_seconds)
            return
        # Whoever reads a balance and writes it back must be alone, as in a file.
        cursor.command(
            f"BEGIN; SET LOCAL lock_timeout = {left_ms}; SELECT pg_advisory_xact_lock({_CLASS}, {_TURN});"
            " SET LOCAL lock_timeout = 0"
        )

    @contextlib.contextmanager
    def _undone_on_error(self, cursor: PostgresCursor) -> Iterator[None]:
        kept = set(self._leases)
        try:
            yield
        except BaseException:
            psycopg = _library()
            # a connection whose transaction cannot be ended is not used again
            try:
                cursor.command("ROLLBACK")
                for number in self._leases - kept:
                    cursor.end_lease(number)
            except psycopg.Error:
                self._drop()
            raise

    def _cursor(self) -> PostgresCursor:
        from ringfence.database.postgres_cursor import PostgresCursor

        if self._connection is None or self._connection.closed:
            self._drop()
            self._connection = self._prepared()
        return PostgresCursor(self._connection.cursor(), self._leases)

    def _prepared(self) -> Connection[Any]:
        psycopg = _library()
        from ringfence.database.migrations import POSTGRES, migrate
        from ringfence.database.postgres_cursor import PostgresCursor

        connection: Connection[Any] = psycopg.connect(self._url, autocommit=True, **self._options())
        try:
            cursor = PostgresCursor(connection.cursor(), set())
            # what was acknowledged is on its disk, whatever the server's default is
            cursor.command("SET synchronous_commit = on; SET client_min_messages = warning")
            wait_ms = max(1, int(self._wait_seconds * 1000))
            cursor.command(
                f"BEGIN; SET LOCAL lock_timeout = {wait_ms}; SELECT pg_advisory_xact_lock({_CLASS}, {_TURN})"
            )
            migrate(cursor, POSTGRES, self._name)
            cursor.command("COMMIT")
        except BaseException:
            connection.close()
            raise
        self._has_schema = True
        return connection

    def _options(self) -> dict[str, Any]:
        from psycopg.conninfo import conninfo_to_dict

        stated = conninfo_to_dict(self._url)
        return {name: value for name, value in _CONNECTING.items() if name not in stated}

    def _drop(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        self._leases.clear()

    def _unavailable(self, error: Error, wait_seconds: float) -> Unavailable:
        psycopg = _library()
        state = error.sqlstate or ""
        if isinstance(error, psycopg.errors.LockNotAvailable):
            return self._busy(wait_seconds)
        if state.startswith("53"):
            return self._broken(error, fix="free disk space, memory or connections on the server")
        if state == "25006":
            return self._broken(error, fix="give the address of a server that may be written to")
        if state.startswith("28") or "password" in str(error):
            return self._broken(error, fix="check the user and the password in the address")
        if not state or state.startswith(("08", "57")):
            return self._broken(error, fix="check that the server runs and can be reached")
        return self._broken(error)

    def _busy(self, wait_seconds: float) -> Unavailable:
        return Unavailable(f"{self._name} is held by somebody else for {wait_seconds:g} s", reason="busy")

    def _broken(self, error: Error, fix: str | None = None) -> Unavailable:
        what = f"{self._name} cannot be used, so nothing is recorded, nothing is counted and nothing runs"
        # without the details, in which the server quotes the row it refused
        why = error.diag.message_primary or " ".join(str(error).split())
        return Unavailable(f"{what}: {why}", fix=fix)


def _library() -> Any:
    try:
        import psycopg
    except ImportError as error:
        raise Unavailable(
            "evidence in PostgreSQL needs the library psycopg", fix="pip install 'ringfence[postgres]'"
        ) from error
    return psycopg


def _without_secrets(url: str) -> str:
    """Return which database is meant, without the password that may be in its address."""
    parts = urlsplit(url)
    port = f":{parts.port}" if parts.port else ""
    return f"{parts.scheme}://{parts.hostname or ''}{port}{parts.path}"


_IN_THIS_PROCESS: weakref.WeakSet[PostgresDatabase] = weakref.WeakSet()


def _leave_to_parent() -> None:
    for database in tuple(_IN_THIS_PROCESS):
        database.leave_to_parent()


os.register_at_fork(after_in_child=_leave_to_parent)
