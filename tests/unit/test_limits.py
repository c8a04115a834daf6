"""Laws of the limits: two sets of them only ever meet by taking the smaller."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, fields, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringfence.capability.limits import SYSTEM_CEILING, Limits

NAMES = tuple(field.name for field in fields(Limits))

limits = st.builds(
    Limits,
    **{
        name: st.floats(0, 10_000) if isinstance(getattr(Limits(), name), float) else st.integers(0, 2**40)
        for name in NAMES
    },
)


@given(limits, limits)
def test_narrowing_never_exceeds_either_side(ours: Limits, theirs: Limits) -> None:
    met = ours.narrow(theirs)
    assert (met.exceeding(ours), met.exceeding(theirs)) == ((), ())


@given(limits, limits)
def test_narrowing_takes_every_number_from_one_of_the_two(ours: Limits, theirs: Limits) -> None:
    met = ours.narrow(theirs)
    assert all(getattr(met, name) in (getattr(ours, name), getattr(theirs, name)) for name in NAMES)


@given(limits, limits)
def test_it_does_not_matter_who_narrows_whom(ours: Limits, theirs: Limits) -> None:
    assert ours.narrow(theirs) == theirs.narrow(ours)


@given(limits, limits, limits)
def test_it_does_not_matter_in_which_order_three_meet(first: Limits, second: Limits, third: Limits) -> None:
    assert first.narrow(second).narrow(third) == first.narrow(second.narrow(third))


@given(limits)
def test_narrowing_by_oneself_changes_nothing(ours: Limits) -> None:
    assert ours.narrow(ours) == ours


@given(limits, limits)
def test_nothing_exceeds_exactly_when_narrowing_changes_nothing(ours: Limits, ceiling: Limits) -> None:
    assert (ours.exceeding(ceiling) == ()) == (ours.narrow(ceiling) == ours)


@pytest.mark.parametrize("name", NAMES)
def test_one_limit_over_the_ceiling_is_named_alone(name: str) -> None:
    over = replace(SYSTEM_CEILING, **{name: getattr(SYSTEM_CEILING, name) + 1})
    assert over.exceeding(SYSTEM_CEILING) == (name,)


def test_a_limit_at_the_ceiling_does_not_exceed_it() -> None:
    assert SYSTEM_CEILING.exceeding(SYSTEM_CEILING) == ()


def test_the_defaults_lie_beneath_the_ceiling() -> None:
    assert Limits().exceeding(SYSTEM_CEILING) == ()


@pytest.mark.parametrize("name", NAMES)
def test_every_default_bounds_something(name: str) -> None:
    assert getattr(Limits(), name) > 0


def test_limits_cannot_be_raised_after_they_were_set() -> None:
    with pytest.raises(FrozenInstanceError):
        Limits().pids = 10_000  # type: ignore[misc]
