"""SQLite's own cursor, as `port.Cursor` has it; imported when the file is first opened, for it loads the engine."""

from __future__ import annotations

import sqlite3
from typing import TYPE_CHECKING

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
