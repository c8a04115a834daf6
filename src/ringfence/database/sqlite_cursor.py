"""SQLite's own cursor, as `port.Cursor` has it; imported when the file is first opened, for it loads the engine."""

from __future__ import annotations

import sqlite3

from ringfence.database.migrations import SQLITE, names_made


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
