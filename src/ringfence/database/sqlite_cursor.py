"""SQLite's own cursor, as `port.Cursor` has it; imported when the file is first opened, for it loads the engine."""

from __future__ import annotations

import sqlite3
from typing import TYPE_CHECKING

from ringfence.database.migrations import SQLITE, names_made

if TYPE_CHECKING:
    from ringfence.database.leases import FileLeases


class SqliteCursor(sqlite3.Cursor):
    """Implements `Cursor`; the leases are locks on a file beside the database, of all who write with it."""

    leases: FileLeases

    def lease(self, number: int) -> bool:
        """Take the lease, unless anybody has it."""
        return self.leases.take(number)

    def keeps_lease(self, number: int) -> bool:
        """Whether this database has the lease."""
        return self.leases.keeps(number)

    def end_lease(self, number: int) -> None:
        """Give the lease back."""
        self.leases.end(number)

    def planted(self) -> tuple[str, ...]:
        """Return the triggers, and the tables, views and indexes that no migration of ours made."""
        known = names_made(SQLITE)
        found = self.execute("SELECT type, name FROM sqlite_master ORDER BY type, name").fetchall()
        return tuple(
            f"the {kind} {name}" for kind, name in found if (kind, name) not in known and not _is_own(kind, name)
        )


def _is_own(kind: str, name: str) -> bool:
    """Whether the engine made it for itself: the index of a key, the statistics of its planner."""
    return kind in ("table", "index") and name.startswith("sqlite_")
