"""A run in flight is stopped at what was reserved for it."""

from __future__ import annotations

import threading

import pytest

from ringfence.budgets.reservation import MeterSource, Reservation
from ringfence.budgets.spending import Spending
from ringfence.capability.budget import Budget
from ringfence.errors import InvalidRequest, QuotaExceeded


def test_spending_stops_at_the_reservation_and_counts_nothing_that_was_refused() -> None:
    spending = Spending(Reservation("ex", Budget(bytes_out=10)))
    spending.check_and_consume("bytes_out", 7)
    with pytest.raises(QuotaExceeded) as refused:
        spending.check_and_consume("bytes_out", 4)
    assert refused.value.reason == "bytes_out"
    assert (refused.value.details["limit"], refused.value.details["observed"]) == (10, 7)
    spending.check_and_consume("bytes_out", 3)
    assert spending.usage().amounts.bytes_out == 10
    assert spending.usage().source is MeterSource.COUNTED


def test_what_no_budget_bounds_is_counted_and_not_stopped() -> None:
    spending = Spending(Reservation("ex", Budget()))
    spending.check_and_consume("bytes_in", 10**12)
    assert spending.usage().amounts.bytes_in == 10**12


@pytest.mark.parametrize(
    ("kind", "amount"), [("bytes", 1), ("concurrent", 1), ("calls", -1), ("calls", True), ("calls", 0.5)]
)
def test_only_amounts_of_something_can_be_spent(kind: str, amount: int) -> None:
    with pytest.raises(InvalidRequest):
        Spending(Reservation("ex", Budget(calls=5))).check_and_consume(kind, amount)


def test_threads_together_spend_no_more_than_one_could() -> None:
    spending = Spending(Reservation("ex", Budget(calls=100)))
    got = [0] * 4

    def work(place: int) -> None:
        for _ in range(60):
            try:
                spending.check_and_consume("calls", 1)
            except QuotaExceeded:
                return
            got[place] += 1

    threads = [threading.Thread(target=work, args=(place,)) for place in range(len(got))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(got) == spending.usage().amounts.calls == 100
