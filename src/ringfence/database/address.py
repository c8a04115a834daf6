"""Which database an instance has: the file in its home, or the server that its settings name."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from ringfence.database.port import WAIT_SECONDS
from ringfence.errors import InvalidRequest

if TYPE_CHECKING:
    from pathlib import Path

    from ringfence.database.port import Database


def default_database() -> str | None:
    """Return the server that the environment names, if any."""
    return os.environ.get("RINGFENCE_DATABASE") or None


def open_database(home: Path, url: str | None = None, *, wait_seconds: float = WAIT_SECONDS) -> Database:
    """Return the database at `url`, or without one that of `home`; nothing is opened yet.

    Raises:
        InvalidRequest: The address is none of PostgreSQL's.
    """
    if url is None:
        from ringfence.database.sqlite import SqliteDatabase

        return SqliteDatabase.in_home(home, wait_seconds=wait_seconds)
    if not url.startswith(("postgresql://", "postgres://")):
        raise InvalidRequest("a database is given as postgresql://user@host/name", fix="or give none, for a file")
    from ringfence.database.postgres import PostgresDatabase

    return PostgresDatabase(url, wait_seconds=wait_seconds)
