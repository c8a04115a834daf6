"""Budgets of one process that end with it: for instances whose policy names no budget that has to last."""

from __future__ import annotations

import threading
from collections.abc import Iterable

from ringfence.budgets import decide
from ringfence.budgets.decide import Key, Refusal, Standing
from ringfence.budgets.port import Measured
from ringfence.budgets.reservation import NOTHING_USED, Reservation, Settlement, Usage, already_closed
from ringfence.budgets.scope import Chain, Scope, check_name
from ringfence.capability.budget import KINDS, Budget
from ringfence.errors import InvalidRequest


class MemoryMeter:
    """Implements `BudgetMeter`; a chain without a number costs neither the lock nor a look."""

    waits = False

    def __init__(self) -> None:
        # protects both: a standing and the reservations it is made of change together
        self._lock = threading.Lock()
        self._standings: dict[Key, Standing] = {}
        self._open: dict[str, Reservation] = {}

    def reserve(self, chain: Chain, amounts: Budget, exec_id: str, *, least: Budget | None = None) -> Reservation:
        """Hold `amounts` for `exec_id`; see `BudgetMeter.reserve`."""
        if not chain.bounds:
            decide.demand(amounts, least)
            return Reservation(exec_id, amounts)
        check_name(exec_id, "the exec_id")
        with self._lock:
            if exec_id in self._open:
                raise InvalidRequest(f"{exec_id} has a reservation already")
            decision = decide.decide(chain, self._standings, amounts, exec_id, least)
            if isinstance(decision, Refusal):
                raise decision.error()
            self._apply(decide.changes_of(decision))
            self._open[exec_id] = decision
            return decision

    def settle(self, reservation: Reservation, used: Usage) -> Settlement:
        """Charge what was used; see `BudgetMeter.settle`."""
        if not reservation.holds:
            return decide.settle(reservation, {}, used)[1]
        with self._lock:
            held = self._open.pop(reservation.exec_id, None)
            if held is None:
                return already_closed(reservation.exec_id, used)
            changes, settlement = decide.settle(held, self._standings, used)
            self._apply(changes)
            return settlement

    def settling(self, reservation: Reservation, used: Usage) -> None:
        """Return nothing: what is in memory is in no file."""
        del reservation, used

    def release(self, reservation: Reservation) -> Settlement:
        """Give all of it back; see `BudgetMeter.release`."""
        return self.settle(reservation, NOTHING_USED)

    def recover(self, measured: Measured = lambda _: None) -> tuple[Settlement, ...]:
        """Return nothing: what this process reserved dies with it."""
        del measured
        return ()

    def forget(self, scopes: Iterable[Scope]) -> None:
        """Drop accounts that nobody holds anything of; see `BudgetMeter.forget`."""
        with self._lock:
            for key in [(scope, kind) for scope in scopes for kind in KINDS]:
                if not self._standings.get(key, decide.UNTOUCHED).held:
                    self._standings.pop(key, None)

    def standing(self, scope: Scope, kind: str) -> Standing:
        """Return what `scope` has settled and what is held of it."""
        with self._lock:
            return self._standings.get((scope, kind), decide.UNTOUCHED)

    def _apply(self, changes: Iterable[decide.Change]) -> None:
        for scope, kind, settled, held in changes:
            before = self._standings.get((scope, kind), decide.UNTOUCHED)
            self._standings[scope, kind] = Standing(before.settled + settled, before.held + held)
