"""The laws of the pool: bounded, never stuck, calm only when nobody asks."""

from __future__ import annotations

import dataclasses

from hypothesis import given
from hypothesis import strategies as st

from ringfence.isolation.pool.decide import (
    PoolPolicy,
    ShelfState,
    ShelfStep,
    affordable,
    idle_target,
    is_low,
    most_idle,
    next_step,
)

NOW = 10_000.0


@st.composite
def policies(draw: st.DrawFn) -> PoolPolicy:
    most = draw(st.integers(0, 12))
    return PoolPolicy(
        min_idle=draw(st.integers(0, most)),
        max_idle=most,
        crowd_idle=draw(st.integers(most, 40)),
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
        shares_memory=draw(st.booleans()),
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
    assert 0 <= target <= (policy.crowd_idle if state.always_ready and state.shares_memory else policy.max_idle)
    if state.always_ready:
        assert target >= policy.min_idle


@given(states(), policies())
def test_following_the_steps_leads_to_rest(state: ShelfState, policy: PoolPolicy) -> None:
    for _ in range(3 + policy.crowd_idle):  # with as few as one at a time
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


def test_a_crowd_is_prepared_for_only_where_one_more_costs_little_and_only_for_the_default_kind() -> None:
    policy = PoolPolicy(min_idle=2, max_idle=10, crowd_idle=64, refills_at_once=100)
    state = ShelfState(recent_peak=100, last_wanted=NOW, always_ready=True, shares_memory=True)
    assert next_step(state, policy, NOW) == ShelfStep(start=64)
    assert next_step(dataclasses.replace(state, always_ready=False), policy, NOW) == ShelfStep(start=10)
    assert next_step(dataclasses.replace(state, shares_memory=False), policy, NOW) == ShelfStep(start=10)
    assert next_step(dataclasses.replace(state, recent_peak=12), policy, NOW) == ShelfStep(start=12)


def test_what_a_crowd_left_parked_takes_the_place_of_those_who_run() -> None:
    """However many are parked, no more exist at once than before: each holds descriptors of the application."""
    policy = PoolPolicy(max_idle=10, crowd_idle=64, max_leased=64)
    state = ShelfState(leased=64, waiting=36, recent_peak=100, last_wanted=NOW, always_ready=True, shares_memory=True)
    assert next_step(state, policy, NOW) == ShelfStep(start=10)


@given(st.integers(0, 80), st.integers(0, 80), st.integers(0, 80))
def test_a_shelf_is_low_when_less_than_half_of_what_should_be_parked_is_there(
    parked: int, recent_peak: int, most: int
) -> None:
    should_be = min(recent_peak, most)
    assert not is_low(parked, recent_peak, most) or parked * 2 < should_be
    assert is_low(parked, recent_peak, most) or (parked + 1) * 2 > should_be


def test_only_the_default_shelf_of_workers_that_share_their_memory_may_have_a_crowds_reserve() -> None:
    policy = PoolPolicy(max_idle=10, crowd_idle=64)
    assert most_idle(policy, always_ready=True, shares_memory=True) == 64
    for always_ready, shares_memory in ((False, True), (True, False), (False, False)):
        assert most_idle(policy, always_ready=always_ready, shares_memory=shares_memory) == 10


@given(policies(), st.integers(0, 2**40), st.integers(0, 2**20))
def test_a_crowds_reserve_fits_the_machine_and_is_never_less_than_any_other(
    policy: PoolPolicy, memory_bytes: int, descriptors: int
) -> None:
    fitted = affordable(policy, memory_bytes=memory_bytes, descriptors=descriptors)
    assert policy.max_idle <= fitted.crowd_idle <= policy.crowd_idle
    if fitted.crowd_idle > policy.max_idle:
        assert fitted.crowd_idle * 3_000_000 <= memory_bytes / 50
        assert fitted.crowd_idle * 13 <= descriptors / 4


def test_an_ordinary_machine_has_room_for_a_crowd() -> None:
    assert affordable(PoolPolicy(), memory_bytes=16 << 30, descriptors=1 << 19).crowd_idle == 64
    assert affordable(PoolPolicy(), memory_bytes=16 << 30, descriptors=1024).crowd_idle == 19
    assert affordable(PoolPolicy(), memory_bytes=1 << 30, descriptors=1 << 19).crowd_idle == 10


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
