"""What budgets and journal ask of the engine below them: transactions, one dialect of SQL, and leases on logs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

Value = str | int | bytes | None

WAIT_SECONDS = 5.0
"""How long a transaction waits for its turn before it is refused as `busy`."""


class Cursor(Protocol):
    """Carries out statements with `?` for their values; both engines read the same text."""

    @property
    def rowcount(self) -> int:
        """How many rows the last statement changed."""
        ...

    def execute(self, statement: str, values: Sequence[Value] = (), /) -> Cursor:
        """Carry out one statement and return this cursor, to fetch from."""
        ...

    def executemany(self, statement: str, values: Iterable[Sequence[Value]], /) -> Cursor:
        """Carry out one statement for each of the rows."""
        ...

    def fetchone(self) -> Any:
        """Return the next row, or None."""
        ...

    def fetchall(self) -> list[Any]:
        """Return the rows that are left."""
        ...

    def lease(self, number: int) -> bool:
        """Take the lease `number` for as long as this database stays open; False when another has it, on any host."""
        ...

    def keeps_lease(self, number: int) -> bool:
        """Whether the lease is still this process's; one lost with its connection is taken again where it is free."""
        ...

    def end_lease(self, number: int) -> None:
        """Give the lease back."""
        ...

    def planted(self) -> tuple[str, ...]:
        """Return what somebody else added to the schema that could change what is written or shown."""
        ...


class Database(Protocol):
    """Keeps what it was given, or says that it cannot; may be used from any thread and never across a fork."""

    def transaction(self, wait_seconds: float | None = None, *, on_disk: bool = True) -> AbstractContextManager[Cursor]:
        """Yield a cursor in the only transaction there is now: kept when the block ends, undone when it raises.

        Args:
            wait_seconds: How long to wait for whoever is at it; 0 tries once, for a caller that must not be kept
                waiting and goes to a thread when it is refused as `busy`.
            on_disk: Whether the block ends only when the disk has it; otherwise it outlives every process by then, and
                a loss of power after `sync`. An engine that always waits may do so.

        Raises:
            Unavailable: Held by somebody else for too long (reason `busy`), full, unreadable, damaged or out of reach.
        """
        ...

    def sync(self) -> None:
        """Return when the disk has every transaction that was kept before; may be called beside one.

        Raises:
            Unavailable: The disk does not keep it, and nobody can tell how much of it.
        """
        ...

    def reading(self) -> AbstractContextManager[Cursor]:
        """Yield a cursor that sees everything as it is now and changes nothing; nobody who writes waits for it.

        Inside a transaction of its own thread it would wait for itself: there, the transaction's cursor reads.

        Raises:
            Unavailable: It cannot be read.
        """
        ...

    def close(self) -> None:
        """Let go of it; a later transaction opens it again."""
        ...
