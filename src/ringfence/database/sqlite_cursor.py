"""SQLite's own cursor, as `port.Cursor` has it; imported when the file is first opened, for it loads the engine."""

from __future__ import annotations

import sqlite3


class SqliteCursor(sqlite3.Cursor):
    """Implements `Cursor`: the file is on this machine, and so is everybody who writes to it."""

    def lease(self, number: int) -> bool | None:  # noqa: ARG002 - the port's
        """Return None: processes are looked at instead."""
        return None

    def keeps_lease(self, number: int) -> bool:  # noqa: ARG002 - the port's
        """Return True: nobody takes what a living process of this machine has."""
        return True

    def end_lease(self, number: int) -> None:
        """Do nothing: there was none."""
