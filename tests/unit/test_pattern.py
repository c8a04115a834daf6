"""A regular expression that waits to be compiled finds what a compiled one finds."""

from __future__ import annotations

import re
from unittest.mock import patch

import pytest

from ringfence.pattern import pattern


def test_it_is_compiled_when_something_is_first_held_against_it() -> None:
    with patch("re.compile", wraps=re.compile) as compiling:
        number = pattern(r"[0-9]+")
        assert compiling.call_count == 0
        assert [bool(number.match(text)) for text in ("12", "x", "3")] == [True, False, True]
        assert compiling.call_count == 1


def test_it_has_all_that_a_compiled_one_has() -> None:
    word = pattern(r"(?P<first>[a-z])[a-z]*", re.IGNORECASE)
    found = word.fullmatch("Word")
    assert found is not None
    assert found["first"] == "W"
    assert word.sub("-", "one 2 THREE") == "- 2 -"
    assert (word.pattern, word.groups) == (r"(?P<first>[a-z])[a-z]*", 1)


def test_one_that_is_wrong_says_so_when_it_is_used() -> None:
    with pytest.raises(re.error):
        pattern("(").match("")
