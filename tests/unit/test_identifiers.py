"""Names of executions and the like: by age, of one length, never twice."""

from __future__ import annotations

import re

import pytest

from ringfence.identifiers import TimeOrdered


def test_names_made_one_after_the_other_sort_like_that_also_within_a_millisecond(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = iter(range(1_700_000_000_000_000_000, 1_700_000_000_003_000_000, 1_000))
    monkeypatch.setattr("time.time_ns", lambda: next(now))
    made = [TimeOrdered().new("ex") for _ in range(3000)]
    assert made == sorted(made)
    assert all(re.fullmatch(r"ex_[0-9a-f]{32}", name) for name in made)


def test_names_of_one_moment_differ_by_chance_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.time_ns", lambda: -1)
    made = {TimeOrdered().new("ex") for _ in range(1000)}
    assert len(made) == 1000
    assert {name[:18] for name in made} == {"ex_" + "0" * 15}
    for place in range(18, 35):
        assert len({name[place] for name in made}) == 16
