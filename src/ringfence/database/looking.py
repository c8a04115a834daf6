"""Looks at the database of an instance as it is: nothing in it is made, brought up to date, locked or written back."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import quote

from ringfence.database.migrations import VERSION
from ringfence.database.sqlite import DATABASE_NAME
from ringfence.errors import Unavailable

if TYPE_CHECKING:
    from pathlib import Path

    from ringfence.database.port import Cursor

_WAIT_SECONDS = 5.0
_VERSIONS_IN_A_FILE = "SELECT count(*) FROM sqlite_master WHERE name = 'schema_version'"
_VERSIONS_ON_A_SERVER = (
    "SELECT count(*) FROM pg_tables WHERE tablename = 'schema_version' AND schemaname = current_schema()"
)


class View(NamedTuple):
    """A database that is there; what an older release made has no journal that this one could read."""

    cursor: Cursor
    is_older: bool


@contextlib.contextmanager
def looking(home: Path, url: str | None = None) -> Iterator[View | None]:
    """Yield the database at `url`, or without one that of `home`; nothing where none was made yet.

    Raises:
        Unavailable: It cannot be used, so that nothing would run.
        InvalidRequest: The address is none of PostgreSQL's.
    """
    with _server(home, url) if url is not None else _file(home / DATABASE_NAME) as cursor:
        if cursor is None:
            yield None
            return
        version = _version(cursor, _VERSIONS_IN_A_FILE if url is None else _VERSIONS_ON_A_SERVER)
        if version > VERSION:
            raise Unavailable(
                f"a newer release made the database (its schema is {version}, this one knows {VERSION})",
                reason="newer_schema",
                fix="use the newer release, or another home",
            )
        yield View(cursor, version < VERSION)


@contextlib.contextmanager
def _file(path: Path) -> Iterator[Cursor | None]:
    import sqlite3

    from ringfence.database.sqlite_cursor import SqliteCursor

    if not path.exists():
        yield None
        return
    for needed in (path, path.parent):
        if not os.access(needed, os.W_OK, effective_ids=True):
            raise Unavailable(f"{needed} may not be written", fix=f"let this user write to {path} and its directory")
    # Without a log beside it nobody has the file open, and reading it must not make one.
    how = "mode=ro" if path.with_name(f"{path.name}-wal").exists() else "immutable=1"
    try:
        with contextlib.closing(
            sqlite3.connect(f"file:{quote(str(path))}?{how}", uri=True, timeout=_WAIT_SECONDS, isolation_level=None)
        ) as connection:
            cursor = connection.cursor(SqliteCursor)
            cursor.execute("BEGIN")
            yield cursor
    except sqlite3.Error as error:
        raise Unavailable(
            f"{path.name} cannot be read: {error}",
            fix=f"restore {path} from a copy, or move it away to begin from zero",
        ) from error


@contextlib.contextmanager
def _server(home: Path, url: str) -> Iterator[Cursor]:
    from ringfence.database.address import open_database

    open_database(home, url)  # refuses what is no address, and connects to nothing
    try:
        import psycopg
    except ImportError as error:
        raise Unavailable(
            "evidence in PostgreSQL needs the library psycopg", fix="pip install 'ringfence[postgres]'"
        ) from error
    from ringfence.database.postgres_cursor import PostgresCursor

    try:
        with psycopg.connect(url, autocommit=True, connect_timeout=int(_WAIT_SECONDS)) as connection:
            cursor = PostgresCursor(connection.cursor(), set())
            cursor.command("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
            yield cursor
    except psycopg.Error as error:
        why = error.diag.message_primary or " ".join(str(error).split())
        raise Unavailable(
            f"the database server cannot be used: {why}", fix="check that the server runs and can be reached"
        ) from error


def _version(cursor: Cursor, tables: str) -> int:
    """Return the schema's version; a database that has no table of versions is older than those."""
    if not cursor.execute(tables).fetchone()[0]:
        return 0
    row = cursor.execute("SELECT version FROM schema_version").fetchone()
    return int(row[0]) if row else 0
