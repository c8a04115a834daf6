"""What a run has used of its reservation so far; the one place that stops it in flight, in whatever broker it is."""

from __future__ import annotations

import threading

from ringfence.budgets.decide import LEVELS, quota_exceeded
from ringfence.budgets.reservation import MeterSource, Reservation, Usage
from ringfence.capability.budget import KINDS, Budget
from ringfence.errors import InvalidRequest


class Spending:
    """Counts one run's use against what was reserved for it; asks no store, since that much is promised already."""

    def __init__(self, reservation: Reservation) -> None:
        """Nothing is spent yet."""
        self._reservation = reservation
        self._spent = dict.fromkeys((kind for kind in KINDS if kind not in LEVELS), 0)
        # protects the counts: a broker's threads spend at the same time
        self._lock = threading.Lock()

    def check_and_consume(self, kind: str, amount: int) -> None:
        """Count `amount` of `kind` as used, before it is; refused, nothing is counted.

        Raises:
            QuotaExceeded: The reservation does not have that much left.
            InvalidRequest: There is no such kind, or the amount is not a number from 0.
        """
        if kind not in self._spent or type(amount) is not int or amount < 0:
            raise InvalidRequest(f"{amount!r} of {kind!r} cannot be used", reason="invalid_budget")
        reserved = getattr(self._reservation.amounts, kind)
        with self._lock:
            spent = self._spent[kind]
            if reserved is not None and spent + amount > reserved:
                raise quota_exceeded(kind, scope="call", name="", limit=reserved, observed=spent, asked=amount)
            self._spent[kind] = spent + amount

    def usage(self) -> Usage:
        """Return what was used, as `BudgetMeter.settle` takes it."""
        with self._lock:
            return Usage(Budget(**self._spent), MeterSource.COUNTED)
