"""A pattern finds what Python's own engine finds, in time that the text alone decides."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringfence.errors import InvalidRequest
from ringfence.stepwise import MAX_STEPS, Pattern

_CHARACTERS = st.sampled_from(["a", "b", "0", "_", ".", " ", "-", "é", "\t"])
_ATOMS = st.sampled_from(["a", "b", "0", r"\.", ".", r"\d", r"[a-z]", "[^a]", r"[a\-0]", "_", r"[^\d_]", "é"])
_EXPRESSIONS = st.recursive(
    _ATOMS,
    lambda inner: st.one_of(
        st.builds("{}{}".format, inner, inner),
        st.builds("({}|{})".format, inner, inner),
        st.builds("(?:{})*".format, inner),
        st.builds("({})+?".format, inner),
        st.builds("({})?".format, inner),
        st.builds("({}){{0,2}}".format, inner),
        st.builds("({}){{2}}".format, inner),
        st.builds("^{}".format, inner),
        st.builds("{}$".format, inner),
    ),
    max_leaves=6,
)


@given(_EXPRESSIONS, st.text(_CHARACTERS, max_size=12))
def test_it_finds_what_the_backtracking_engine_finds(expression: str, text: str) -> None:
    assert Pattern(expression).found_in(text) is (re.search(expression, text, re.ASCII) is not None)


@given(_EXPRESSIONS, st.text(_CHARACTERS, max_size=12))
def test_it_spans_what_the_backtracking_engine_matches_in_full(expression: str, text: str) -> None:
    # but for an end before a last newline, which none of these texts has
    assert Pattern(expression).spans(text) is (re.fullmatch(expression, text, re.ASCII) is not None)


@pytest.mark.parametrize("expression", ["^(a+)+$", "^(a|a)*$", "(a*)*b", "^(a?){50}a{50}$", "(.*.*.*.*)=x"])
def test_what_would_take_a_backtracking_engine_for_ever_is_soon_over(expression: str) -> None:
    pattern = Pattern(expression)
    assert pattern.found_in("a" * min(20_000, MAX_STEPS // pattern.states - 1) + "!") is False


def test_an_end_is_the_very_end() -> None:
    # Python's `$` also matches before a last newline, which has let many a name past its check
    assert not Pattern("^[a-z]+$").found_in("shell\n")
    assert Pattern("^[a-z]+$").found_in("shell")


def test_digits_and_letters_are_those_of_ascii_as_ecma_has_them() -> None:
    assert not Pattern(r"^\d$").found_in("٣")
    assert not Pattern(r"^\w$").found_in("é")
    assert Pattern(r"^\W$").found_in("é")


@pytest.mark.parametrize(
    "expression",
    [
        "(?=a)", "(?!a)b", "(?<=a)b", r"(a)\1", "(?i)a", "(?i:a)", r"\ba", "(?>a)", "a*+", "(a)(?(1)b|c)",
        "[", "(", "*", "a{5000}", "((a{30}){30}){30}", "(){60000}", "((){60000}){60000}", "a{0,4294967294}", "a" * 513,
    ],
)  # fmt: skip
def test_what_cannot_be_matched_step_by_step_is_refused_when_it_is_read(expression: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        Pattern(expression)
    assert refused.value.reason == "invalid_schema"


def test_a_text_that_is_too_long_for_the_pattern_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="too long"):
        Pattern("(ab|cd){100}").found_in("a" * 100_000)
