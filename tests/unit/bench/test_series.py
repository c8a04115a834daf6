from __future__ import annotations

import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringfence.bench.series import Series, quantile

TIMES = st.lists(st.floats(min_value=1e-6, max_value=1e3), min_size=1, max_size=50)


@given(TIMES)
def test_the_median_is_the_one_everybody_knows(times: list[float]) -> None:
    assert quantile(times, 0.5) == pytest.approx(statistics.median(times))


@given(TIMES, st.floats(min_value=0, max_value=1), st.floats(min_value=0, max_value=1))
def test_quantiles_rise_and_stay_within_the_times(times: list[float], one: float, other: float) -> None:
    low, high = sorted((one, other))
    assert min(times) <= quantile(times, low) <= quantile(times, high) <= max(times)


@given(TIMES, st.randoms())
def test_the_order_of_the_times_makes_no_difference(times: list[float], random: object) -> None:
    assert quantile(times, 0.99) == quantile(list(reversed(times)), 0.99)


def test_the_99th_of_a_hundred_is_between_the_last_two() -> None:
    assert quantile([float(n) for n in range(101)], 0.99) == 99.0


@pytest.mark.parametrize(("times", "share"), [([], 0.5), ([1.0], -0.1), ([1.0], 1.1)])
def test_a_quantile_that_means_nothing_is_refused(times: list[float], share: float) -> None:
    with pytest.raises(ValueError, match=r"quantile|share"):
        quantile(times, share)


def test_a_series_gives_its_whole_distribution() -> None:
    answer = Series("x", (0.003, 0.001, 0.002)).to_dict()
    assert (answer["count"], answer["mean_ms"], answer["p50_ms"], len(answer["quantiles_ms"])) == (3, 2.0, 2.0, 101)
    assert (answer["quantiles_ms"][0], answer["quantiles_ms"][100]) == (1.0, 3.0)
