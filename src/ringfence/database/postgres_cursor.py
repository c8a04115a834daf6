"""PostgreSQL's cursor, as `port.Cursor` has it: it reads the neutral dialect, and takes leases from the server."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from psycopg import Cursor

    from ringfence.database.port import Value

_LEASES = 0x4C454153


class PostgresCursor:
    """Implements `Cursor`; `leases` are those that its connection has now."""

    def __init__(self, cursor: Cursor[Any], leases: set[int]) -> None:
        """Speak through `cursor`."""
        self._cursor = cursor
        self._leases = leases

    @property
    def rowcount(self) -> int:
        """How many rows the last statement changed."""
        return self._cursor.rowcount

    def execute(self, statement: str, values: Sequence[Value] = (), /) -> PostgresCursor:
        """Carry out one statement."""
        self._cursor.execute(translated(statement), tuple(values))
        return self

    def executemany(self, statement: str, values: Iterable[Sequence[Value]], /) -> PostgresCursor:
        """Carry out one statement for each of the rows."""
        self._cursor.executemany(translated(statement), [tuple(row) for row in values])
        return self

    def command(self, statements: str) -> None:
        """Carry out statements without values, in one message."""
        self._cursor.execute(statements, prepare=False)

    def fetchone(self) -> Any:
        """Return the next row, or None."""
        return self._cursor.fetchone()

    def fetchall(self) -> list[Any]:
        """Return the rows that are left."""
        return self._cursor.fetchall()

    def lease(self, number: int) -> bool:
        """Take the lease, unless anybody has it, be it another part of this very process."""
        if number in self._leases:
            return False
        taken: bool = self.execute(f"SELECT pg_try_advisory_lock({_LEASES}, ?::int)", (number,)).fetchone()[0]
        if taken:
            self._leases.add(number)
        return taken

    def keeps_lease(self, number: int) -> bool:
        """Whether this connection has the lease; it takes it where the connection before it had lost it."""
        return number in self._leases or self.lease(number)

    def end_lease(self, number: int) -> None:
        """Give the lease back."""
        if number in self._leases:
            self.execute(f"SELECT pg_advisory_unlock({_LEASES}, ?::int)", (number,))
            self._leases.discard(number)

    def planted(self) -> tuple[str, ...]:
        """Return nothing: whoever may add to a server's schema runs it, and may keep things of his own there."""
        return ()


@lru_cache(maxsize=256)
def translated(statement: str) -> str:
    """Return a statement as psycopg wants it: `%s` for every `?` outside quoted texts, and every `%` doubled."""
    parts = statement.replace("%", "%%").split("'")
    parts[::2] = [part.replace("?", "%s") for part in parts[::2]]
    return "'".join(parts)
