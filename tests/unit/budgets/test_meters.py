"""What every meter on this machine keeps to: in memory and in both databases alike."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.unit.budgets.accounts import TENANT, USER, chain_of, used

from ringfence.budgets.decide import Standing
from ringfence.budgets.memory import MemoryMeter
from ringfence.budgets.port import BudgetMeter
from ringfence.budgets.reservation import NOT_MEASURED, MeterSource
from ringfence.budgets.scope import UNBOUNDED, Scope, ScopeKind
from ringfence.budgets.sqlite import SqliteMeter
from ringfence.capability.budget import Budget
from ringfence.database.address import open_database
from ringfence.errors import InvalidRequest, QuotaExceeded

Meter = MemoryMeter | SqliteMeter


@pytest.fixture(params=["memory", "sqlite", pytest.param("postgres", marks=pytest.mark.needs("postgres"))])
def meter(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Meter]:
    if request.param == "memory":
        yield MemoryMeter()
        return
    url = request.getfixturevalue("postgres").new_database() if request.param == "postgres" else None
    meter = SqliteMeter(open_database(tmp_path, url))
    yield meter
    meter.close()


def test_both_are_meters() -> None:
    meters: list[type[BudgetMeter]] = [MemoryMeter, SqliteMeter]
    assert [meter.waits for meter in meters] == [False, True]


def test_what_is_reserved_is_held_and_what_is_settled_stays(meter: Meter) -> None:
    chain = chain_of(Budget(calls=3, cpu_ms=100), Budget(cpu_ms=90))
    held = meter.reserve(chain, Budget(calls=1, cpu_ms=60), "ex")
    assert held.amounts == Budget(calls=1, cpu_ms=60)
    assert meter.standing(USER, "cpu_ms") == Standing(0, 60)
    settlement = meter.settle(held, used(calls=1, cpu_ms=25))
    assert (settlement.charged, settlement.source) == (Budget(calls=1, cpu_ms=25), MeterSource.CGROUP)
    assert [meter.standing(scope, "cpu_ms") for scope in (TENANT, USER)] == [Standing(25, 0)] * 2
    assert meter.standing(TENANT, "calls") == Standing(1, 0)


def test_a_refusal_by_one_scope_leaves_every_other_untouched(meter: Meter) -> None:
    chain = chain_of(Budget(calls=5), Budget(calls=0))
    with pytest.raises(QuotaExceeded) as refused:
        meter.reserve(chain, Budget(calls=1), "ex")
    assert (refused.value.details["scope"], refused.value.details["name"]) == ("user", "ada")
    assert meter.standing(TENANT, "calls") == Standing()


def test_settling_twice_charges_once(meter: Meter) -> None:
    held = meter.reserve(chain_of(Budget(cpu_ms=100)), Budget(cpu_ms=60), "ex")
    assert meter.settle(held, used(cpu_ms=10)).was_open
    assert not meter.settle(held, used(cpu_ms=10)).was_open
    assert not meter.release(held).was_open
    assert meter.standing(TENANT, "cpu_ms") == Standing(10, 0)


def test_an_exec_id_has_one_reservation_at_a_time(meter: Meter) -> None:
    chain = chain_of(Budget(calls=5))
    meter.reserve(chain, Budget(calls=1), "ex")
    with pytest.raises(InvalidRequest):
        meter.reserve(chain, Budget(calls=1), "ex")
    assert meter.standing(TENANT, "calls") == Standing(0, 1)


def test_only_numbers_can_be_reserved(meter: Meter) -> None:
    for chain in (UNBOUNDED, chain_of(Budget(calls=1))):
        with pytest.raises(InvalidRequest):
            meter.reserve(chain, Budget(calls="unlimited"), "ex")


def test_a_raised_limit_counts_from_the_next_reservation_and_keeps_what_was_used(meter: Meter) -> None:
    meter.settle(meter.reserve(chain_of(Budget(calls=1)), Budget(calls=1), "a"), used(calls=1))
    with pytest.raises(QuotaExceeded):
        meter.reserve(chain_of(Budget(calls=1)), Budget(calls=1), "b")
    meter.reserve(chain_of(Budget(calls=2)), Budget(calls=1), "b")
    with pytest.raises(QuotaExceeded) as refused:
        meter.reserve(chain_of(Budget(calls=1)), Budget(calls=1), "c")
    assert refused.value.details["observed"] == 2


def test_what_was_not_reserved_and_was_used_all_the_same_is_charged(meter: Meter) -> None:
    held = meter.reserve(chain_of(Budget(bytes_out=100)), Budget(calls=1), "ex")
    meter.settle(held, used(bytes_out=30))
    assert meter.standing(TENANT, "bytes_out") == Standing(30, 0)


def test_a_forgotten_scope_begins_anew_unless_somebody_still_holds_it(meter: Meter) -> None:
    chain = chain_of(Budget(calls=5))
    meter.settle(meter.reserve(chain, Budget(calls=1), "a"), used(calls=1))
    held = meter.reserve(chain, Budget(calls=1), "b")
    meter.forget([TENANT])
    assert meter.standing(TENANT, "calls") == Standing(1, 1)
    meter.settle(held, NOT_MEASURED)
    meter.forget([TENANT, Scope(ScopeKind.CALL, "never seen", "acme")])
    assert meter.standing(TENANT, "calls") == Standing()


def test_what_a_living_process_holds_is_not_recovered(meter: Meter) -> None:
    meter.reserve(chain_of(Budget(calls=5)), Budget(calls=1), "ex")
    assert meter.recover() == ()
    assert meter.standing(TENANT, "calls") == Standing(0, 1)


def test_a_storm_of_threads_never_passes_a_limit(meter: Meter, count: Callable[[int], int]) -> None:
    chain = chain_of(Budget(calls=count(600), concurrent=3, cpu_ms=10**6), Budget(concurrent=2))
    rounds = count(600)
    over: list[Standing] = []
    ran = [0] * 6
    begin = threading.Barrier(len(ran))

    def work(place: int) -> None:
        begin.wait()
        for i in range(rounds):
            try:
                held = meter.reserve(chain, Budget(calls=1, concurrent=1, cpu_ms=9), f"ex-{place}-{i}")
            except QuotaExceeded:
                continue
            standing = meter.standing(USER, "concurrent")
            if standing.held > 2:
                over.append(standing)
            meter.settle(held, used(calls=1, cpu_ms=i % 10))
            ran[place] += 1

    threads = [threading.Thread(target=work, args=(place,)) for place in range(len(ran))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert over == []
    assert 0 < sum(ran) <= count(600)
    assert meter.standing(TENANT, "calls") == Standing(sum(ran), 0)
    assert meter.standing(USER, "concurrent") == Standing(0, 0)


def test_where_no_budget_is_configured_no_file_is_made_and_sqlite_is_not_even_imported(tmp_path: Path) -> None:
    code = f"""
import sys
from pathlib import Path
from ringfence.budgets.sqlite import SqliteMeter
from ringfence.budgets.scope import UNBOUNDED
from ringfence.budgets.reservation import NOT_MEASURED
from ringfence.capability.budget import Budget
meter = SqliteMeter.in_home(Path({str(tmp_path)!r}))
meter.settle(meter.reserve(UNBOUNDED, Budget(calls=1, concurrent=1), "ex"), NOT_MEASURED)
print("sqlite3" in sys.modules, "http.client" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False False\n"
    assert list(tmp_path.iterdir()) == []
