"""The laws of the pool: bounded, never stuck, calm only when nobody asks."""

from __future__ import annotations

import dataclasses

from hypothesis import given
from hypothesis import strategies as st

from ringfence.isolation.pool.decide import PoolPolicy, ShelfState, ShelfStep, idle_target, next_step

NOW = 10_000.0


@st.composite
def policies(draw: st.DrawFn) -> PoolPolicy:
    most = draw(st.integers(0, 12))
    return PoolPolicy(
        min_idle=draw(st.integers(0, most)),
        max_idle=most,
        max_leased=draw(st.integers(1, 20)),
        refills_at_once=draw(st.integers(1, 12)),
    )


def ages() -> st.SearchStrategy[float]:
    return st.floats(0, 2000, allow_nan=False)


@st.composite
def states(draw: st.DrawFn) -> ShelfState:
    return ShelfState(
        parked_at=tuple(sorted(NOW - age for age in draw(st.lists(ages(), max_size=12)))),
        starting=draw(st.integers(0, 6)),
        leased=draw(st.integers(0, 20)),
        waiting=draw(st.integers(0, 20)),
        recent_peak=draw(st.integers(0, 40)),
        last_wanted=NOW - draw(ages()),
        always_ready=draw(st.booleans()),
    )


def fresh(state: ShelfState, policy: PoolPolicy) -> int:
    return sum(1 for since in state.parked_at if NOW - since <= policy.max_age_seconds)


def calm(state: ShelfState, policy: PoolPolicy) -> bool:
    return not state.leased and not state.waiting and NOW - state.last_wanted > policy.keep_idle_seconds


@given(states(), policies())
def test_the_number_of_workers_never_grows_beyond_room(state: ShelfState, policy: PoolPolicy) -> None:
    step = next_step(state, policy, NOW)
    alive = fresh(state, policy) + state.leased + state.starting
    assert step.start >= 0
    assert step.start == 0 or alive + step.start <= policy.max_leased + policy.max_idle


@given(states(), policies())
def test_somebody_who_waits_gets_a_start_while_there_is_room(state: ShelfState, policy: PoolPolicy) -> None:
    # those who wait take what is parked first, so nothing is
    state = dataclasses.replace(state, parked_at=(), waiting=state.waiting + 1)
    room = policy.max_leased + policy.max_idle - state.leased - state.starting
    unserved = state.waiting - state.starting
    assert next_step(state, policy, NOW).start >= min(unserved, room, 1)


@given(states(), policies())
def test_a_worker_is_retired_only_when_it_is_old_or_nobody_asks(state: ShelfState, policy: PoolPolicy) -> None:
    step = next_step(state, policy, NOW)
    aged = len(state.parked_at) - fresh(state, policy)
    assert aged <= step.retire <= len(state.parked_at)
    if not calm(state, policy):
        assert step.retire == aged


@given(states(), policies())
def test_the_target_stays_between_the_bounds(state: ShelfState, policy: PoolPolicy) -> None:
    target = idle_target(state, policy, NOW)
    assert 0 <= target <= policy.max_idle
    if state.always_ready:
        assert target >= policy.min_idle


@given(states(), policies())
def test_following_the_steps_leads_to_rest(state: ShelfState, policy: PoolPolicy) -> None:
    for _ in range(3 + policy.max_idle):  # with as few as one at a time
        step = next_step(state, policy, NOW)
        if step == ShelfStep():
            break
        # every start succeeds and serves those who wait first
        served = min(step.start, state.waiting)
        state = dataclasses.replace(
            state,
            parked_at=(*state.parked_at[step.retire :], *[NOW] * (step.start - served)),
            leased=state.leased + served,
            waiting=state.waiting - served,
        )
    assert next_step(state, policy, NOW) == ShelfStep()


def test_a_calm_pool_shrinks_to_what_is_always_ready() -> None:
    policy = PoolPolicy(min_idle=2, max_idle=10)
    parked = tuple(NOW - 200 for _ in range(8))
    state = ShelfState(parked_at=parked, recent_peak=8, last_wanted=NOW - 121, always_ready=True)
    assert next_step(state, policy, NOW) == ShelfStep(retire=6)
    assert next_step(dataclasses.replace(state, always_ready=False), policy, NOW) == ShelfStep(retire=8)


def test_a_burst_is_prepared_for_as_long_as_it_is_remembered() -> None:
    policy = PoolPolicy(min_idle=2, max_idle=10)
    state = ShelfState(parked_at=(NOW,), recent_peak=7, last_wanted=NOW, always_ready=True)
    assert next_step(state, policy, NOW) == ShelfStep(start=6)


def test_no_pool_means_a_worker_for_every_caller_and_none_besides() -> None:
    policy = PoolPolicy(min_idle=0, max_idle=0)
    assert next_step(ShelfState(waiting=3, last_wanted=NOW, recent_peak=3), policy, NOW) == ShelfStep(start=3)
    assert next_step(ShelfState(last_wanted=NOW, recent_peak=3), policy, NOW) == ShelfStep()


@given(states(), policies())
def test_a_reserve_is_started_so_many_at_a_time_and_for_those_who_wait_as_many_as_they_are(
    state: ShelfState, policy: PoolPolicy
) -> None:
    unbounded = next_step(state, dataclasses.replace(policy, refills_at_once=1000), NOW)
    step = next_step(state, policy, NOW)
    assert step.start == 0 or state.starting + step.start <= max(policy.refills_at_once, state.waiting)
    assert step.start >= min(unbounded.start, state.waiting - state.starting)
    assert step.retire == unbounded.retire
