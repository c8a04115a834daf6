from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import Any

import pytest

from ringfence.authority.levels import IsolationLevel, RiskLevel
from ringfence.risk.shell import CommandVerdict


def test_the_levels_rise_from_safe_to_critical() -> None:
    assert [str(level) for level in sorted(RiskLevel)] == ["safe", "low", "medium", "high", "critical"]


@pytest.mark.parametrize("ladder", [RiskLevel, IsolationLevel, CommandVerdict])
def test_every_two_rungs_compare_by_their_place_and_not_by_the_alphabet(ladder: Iterable[Any]) -> None:
    for (low, one), (high, other) in itertools.combinations(enumerate(ladder), 2):
        assert (one < other, one <= other, one > other, one >= other) == (True, True, False, False)
        assert max(one, other) is other
        assert (one.rank, other.rank) == (low, high)


def test_a_level_is_found_by_the_word_the_policy_file_writes() -> None:
    assert RiskLevel("high") is RiskLevel.HIGH


@pytest.mark.parametrize("foreign", ["low", IsolationLevel.OS, 3])
def test_a_level_does_not_compare_with_anything_else(foreign: object) -> None:
    with pytest.raises(TypeError):
        _ = foreign > RiskLevel.HIGH
