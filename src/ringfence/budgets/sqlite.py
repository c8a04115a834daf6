"""Budgets that every process on one home shares, and that outlive all of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Self

from ringfence.budgets import decide, tables
from ringfence.budgets.decide import Standing
from ringfence.budgets.owner import announce, is_over, this_process
from ringfence.budgets.port import Measured, known_or_all
from ringfence.budgets.reservation import NOTHING_USED, Reservation, Settlement, Usage
from ringfence.budgets.scope import Chain, Scope
from ringfence.capability.budget import Budget
from ringfence.database.port import WAIT_SECONDS, Cursor, Database
from ringfence.database.sqlite import SqliteDatabase


class SqliteMeter:
    """Implements `BudgetMeter`; a chain without a number never opens the file."""

    waits = True

    def __init__(self, database: Database) -> None:
        """Count in `database`."""
        self._database = database

    @classmethod
    def in_home(cls, home: Path, *, wait_seconds: float = WAIT_SECONDS) -> Self:
        """Return the meter of the instance whose state lives in `home`; nothing is opened yet."""
        return cls(SqliteDatabase.in_home(home, wait_seconds=wait_seconds))

    def reserve(self, chain: Chain, amounts: Budget, exec_id: str, *, least: Budget | None = None) -> Reservation:
        """Hold `amounts` for `exec_id`; see `BudgetMeter.reserve`."""
        if not chain.bounds:
            decide.demand(amounts, least)
            return Reservation(exec_id, amounts)
        owner = this_process()
        with self._database.transaction() as cursor:
            announce(cursor, owner)
            return tables.reserve(cursor, chain, amounts, exec_id, owner, least)

    def settle(self, reservation: Reservation, used: Usage) -> Settlement:
        """Charge what was used; see `BudgetMeter.settle`."""
        if not reservation.holds:
            return decide.settle(reservation, {}, used)[1]
        with self._database.transaction() as cursor:
            return tables.settle(cursor, reservation.exec_id, used)

    def settling(self, reservation: Reservation, used: Usage) -> Callable[[Cursor], None] | None:
        """Return what settles in a transaction of the same file; see `BudgetMeter.settling`."""

        def settle(cursor: Cursor) -> None:
            if reservation.holds:
                tables.settle(cursor, reservation.exec_id, used)

        return settle

    def release(self, reservation: Reservation) -> Settlement:
        """Give all of it back; see `BudgetMeter.release`."""
        return self.settle(reservation, NOTHING_USED)

    def recover(self, measured: Measured = lambda _: None) -> tuple[Settlement, ...]:
        """Settle what dead processes had reserved; see `BudgetMeter.recover`."""
        with self._database.transaction() as cursor:
            dead = [exec_id for exec_id, owner in tables.owners(cursor) if is_over(cursor, owner)]
        # outside the transaction: reading cgroups takes a while, and others want to run
        used = {exec_id: known_or_all(measured, exec_id) for exec_id in dead}
        if not used:
            return ()
        with self._database.transaction() as cursor:
            settled = tuple(tables.settle(cursor, exec_id, usage) for exec_id, usage in used.items())
        return tuple(settlement for settlement in settled if settlement.was_open)

    def forget(self, scopes: Iterable[Scope]) -> None:
        """Drop accounts that nobody holds anything of; see `BudgetMeter.forget`."""
        with self._database.transaction() as cursor:
            tables.forget(cursor, scopes)

    def standing(self, scope: Scope, kind: str) -> Standing:
        """Return what `scope` has settled and what is held of it."""
        with self._database.transaction() as cursor:
            return tables.standings(cursor, [(scope, kind)]).get((scope, kind), decide.UNTOUCHED)

    def close(self) -> None:
        """Let go of the file; what is reserved stays reserved."""
        self._database.close()
