"""The laws of reserving and settling, without any store."""

from __future__ import annotations

import contextlib
from itertools import permutations
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from tests.unit.budgets.accounts import TENANT, USER, chain_of, used

from ringfence.budgets import decide
from ringfence.budgets.decide import REASONS, Key, Refusal, Standing
from ringfence.budgets.memory import MemoryMeter
from ringfence.budgets.reservation import NOT_MEASURED, MeterSource, Overrun, Reservation, Usage, usage_of_run
from ringfence.capability.budget import KINDS, Budget
from ringfence.errors import QuotaExceeded
from ringfence.errors.table import TABLE
from ringfence.outcome import Budget as RunFigures

amounts = st.integers(0, 12)
partial = st.one_of(st.none(), amounts)
limits = st.one_of(st.none(), st.just("unlimited"), st.integers(0, 40))
budgets = st.builds(Budget, calls=limits, cpu_ms=limits, concurrent=st.one_of(st.none(), st.integers(0, 4)))
requests = st.builds(Budget, calls=amounts, cpu_ms=partial, concurrent=st.integers(0, 1))


def apply(standings: dict[Key, Standing], changes: tuple[decide.Change, ...]) -> None:
    for scope, kind, settled, held in changes:
        before = standings.get((scope, kind), decide.UNTOUCHED)
        standings[scope, kind] = Standing(before.settled + settled, before.held + held)


@given(budgets, budgets, st.lists(st.tuples(requests, partial, partial, st.booleans()), max_size=12), st.randoms())
def test_no_account_ever_passes_its_limit_whatever_is_used_and_in_whatever_order(
    tenant: Budget, user: Budget, runs: list[tuple[Budget, int | None, int | None, bool]], random: Any
) -> None:
    chain = chain_of(tenant, user)
    standings: dict[Key, Standing] = {}
    under_way: list[tuple[Reservation, Budget]] = []
    for place, (wanted, calls, cpu_ms, partly) in enumerate(runs):
        decision = decide.decide(chain, standings, wanted, f"ex{place}", Budget(cpu_ms=0) if partly else None)
        if isinstance(decision, Reservation):
            apply(standings, decide.changes_of(decision))
            under_way.append((decision, Budget(calls=calls, cpu_ms=cpu_ms)))
        random.shuffle(under_way)
        while under_way and random.random() < 0.4:
            settle_one(standings, *under_way.pop())
        check(chain.bounds, standings)
    for reservation, measured in under_way:
        settle_one(standings, reservation, measured)
        check(chain.bounds, standings)
    assert all(standing.held == 0 for standing in standings.values())


def settle_one(standings: dict[Key, Standing], reservation: Reservation, measured: Budget) -> None:
    changes, _ = decide.settle(reservation, standings, Usage(measured, MeterSource.CGROUP))
    apply(standings, changes)


def check(bounds: tuple[Any, ...], standings: dict[Key, Standing]) -> None:
    for scope, kind, limit in bounds:
        settled, held = standings.get((scope, kind), decide.UNTOUCHED)
        assert settled >= 0
        assert held >= 0
        assert settled + held <= limit


@given(budgets, requests)
def test_reserving_and_giving_back_leaves_everything_as_it_was(tenant: Budget, wanted: Budget) -> None:
    meter = MemoryMeter()
    chain = chain_of(tenant)
    with contextlib.suppress(QuotaExceeded):
        meter.release(meter.reserve(chain, wanted, "ex"))
    assert all(meter.standing(bound.scope, bound.kind) == Standing() for bound in chain.bounds)


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), min_size=1, max_size=4))
def test_the_order_in_which_runs_end_does_not_change_what_is_charged(runs: list[tuple[int, int]]) -> None:
    ends = set()
    for order in permutations(range(len(runs))):
        meter = MemoryMeter()
        chain = chain_of(Budget(cpu_ms=100))
        held = [meter.reserve(chain, Budget(cpu_ms=reserved), f"ex{i}") for i, (reserved, _) in enumerate(runs)]
        for i in order:
            meter.settle(held[i], used(cpu_ms=min(runs[i])))
        ends.add(meter.standing(TENANT, "cpu_ms"))
    assert ends == {Standing(sum(min(run) for run in runs), 0)}


@given(budgets, budgets, requests)
def test_a_reservation_is_given_exactly_when_every_scope_alone_would_give_it(
    tenant: Budget, user: Budget, wanted: Budget
) -> None:
    alone = [decide.decide(chain, {}, wanted, "ex") for chain in (chain_of(tenant), chain_of(Budget(), user))]
    together = decide.decide(chain_of(tenant, user), {}, wanted, "ex")
    assert isinstance(together, Refusal) == any(isinstance(each, Refusal) for each in alone)


def test_the_refusal_names_the_scope_with_the_least_left_and_what_it_observed() -> None:
    chain = chain_of(Budget(calls=10), Budget(calls=5))
    standings = {(TENANT, "calls"): Standing(8, 1), (USER, "calls"): Standing(1, 0)}
    decision = decide.decide(chain, standings, Budget(calls=2), "ex")
    assert isinstance(decision, Refusal)
    error = decision.error()
    assert (error.code, error.reason, error.retryable) == ("QUOTA.BUDGET_EXCEEDED", "calls", False)
    assert error.details == {
        "scope": "tenant",
        "name": "acme",
        "kind": "calls",
        "limit": 10,
        "observed": 9,
        "asked": 2,
    }


def test_the_strictest_of_several_concurrency_limits_decides_and_waiting_is_worth_it() -> None:
    chain = chain_of(Budget(concurrent=4), Budget(concurrent=1))
    standings = {(TENANT, "concurrent"): Standing(0, 1), (USER, "concurrent"): Standing(0, 1)}
    decision = decide.decide(chain, standings, Budget(concurrent=1), "ex")
    assert isinstance(decision, Refusal)
    assert decision.bound == (USER, "concurrent", 1)
    assert (decision.error().reason, decision.error().retryable) == ("concurrency", True)


def test_whoever_has_no_calls_left_is_not_told_to_wait_for_a_free_place() -> None:
    decision = decide.decide(chain_of(Budget(calls=0, concurrent=0)), {}, Budget(calls=1, concurrent=1), "ex")
    assert isinstance(decision, Refusal)
    assert decision.bound.kind == "calls"


def test_less_is_given_where_less_is_enough() -> None:
    chain = chain_of(Budget(cpu_ms=100), Budget(cpu_ms=70))
    decision = decide.decide(chain, {}, Budget(cpu_ms=500), "ex", Budget(cpu_ms=50))
    assert isinstance(decision, Reservation)
    assert decision.amounts == Budget(cpu_ms=70)
    assert isinstance(decide.decide(chain, {}, Budget(cpu_ms=500), "ex", Budget(cpu_ms=71)), Refusal)


def test_what_was_not_asked_for_is_capped_at_none_where_it_is_bounded() -> None:
    decision = decide.decide(chain_of(Budget(gpu_ms=9)), {}, Budget(calls=1), "ex")
    assert isinstance(decision, Reservation)
    assert decision.amounts == Budget(calls=1, gpu_ms=0)


def test_what_nobody_measured_is_settled_at_what_was_reserved_and_says_so() -> None:
    meter = MemoryMeter()
    held = meter.reserve(
        chain_of(Budget(calls=9, cpu_ms=100, concurrent=1)), Budget(calls=1, cpu_ms=60, concurrent=1), "ex"
    )
    settlement = meter.settle(held, NOT_MEASURED)
    assert settlement.charged == Budget(calls=1, cpu_ms=60, concurrent=0)
    assert settlement.source is MeterSource.RESERVED
    assert meter.standing(TENANT, "cpu_ms") == Standing(60, 0)
    assert meter.standing(TENANT, "concurrent") == Standing(0, 0)


def test_what_goes_over_is_charged_as_far_as_there_is_any_left_and_the_rest_is_told() -> None:
    meter = MemoryMeter()
    chain = chain_of(Budget(cpu_ms=100))
    over, other = (meter.reserve(chain, Budget(cpu_ms=40), name) for name in ("over", "other"))
    settlement = meter.settle(over, used(cpu_ms=90))
    assert settlement.overruns == (Overrun(TENANT, "cpu_ms", 30),)
    assert meter.standing(TENANT, "cpu_ms") == Standing(60, 40)
    assert meter.settle(other, used(cpu_ms=40)).overruns == ()
    assert meter.standing(TENANT, "cpu_ms") == Standing(100, 0)


def test_every_kind_that_can_run_out_has_a_reason_in_the_table() -> None:
    assert set(REASONS) == set(KINDS)
    assert set(REASONS.values()) <= TABLE["QUOTA.BUDGET_EXCEEDED"].reasons.keys()


def test_memory_is_charged_at_its_peak_for_the_whole_run_and_rounded_up() -> None:
    usage = usage_of_run(RunFigures(wall_ms=1500, memory_peak_bytes=10_000_001, cpu_ms=7), MeterSource.CGROUP)
    assert (usage.amounts.memory_mb_s, usage.amounts.cpu_ms, usage.amounts.disk_bytes) == (16, 7, None)
    assert usage_of_run(RunFigures(wall_ms=1500), MeterSource.RUSAGE).amounts.memory_mb_s is None
