"""How a run with a way out divides what it may send."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from ringfence.capability.limits import Limits
from ringfence.executors.shares import shares


@given(st.integers(0, 10**9), st.integers(1, 10**8), st.integers(1, 10**8))
def test_together_they_are_what_there_is_and_neither_goes_beyond_its_limit(
    most: int, output: int, network: int
) -> None:
    limits = replace(Limits(), stdout_bytes=output, stderr_bytes=output, max_bytes_out=network)
    said, sent = shares(most, limits)
    assert said is not None
    assert said + sent == most
    assert 0 <= sent <= network


def test_without_a_budget_each_has_its_own_limit() -> None:
    assert shares(None, Limits()) == (None, Limits().max_bytes_out)
