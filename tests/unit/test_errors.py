"""The one hierarchy of errors: its codes are a promise, and its picture is true."""

from __future__ import annotations

import re

import pytest

from ringfence import errors
from ringfence.errors import InvalidRequest, IsolationUnavailable, RingfenceError

DRAWN = re.compile(
    r"^(?P<indent>[│├└─ ]*)(?P<name>[A-Z]\w+)"
    r"(?: +(?:(?P<code>[A-Z]+\.[A-Z_]+)|… reason (?P<reason>[a-z_]+)) {2,}\S.*)?$"
)


def hierarchy(top: type[RingfenceError] = RingfenceError) -> list[type[RingfenceError]]:
    """List the classes of `ringfence.errors` below and including `top`, each before its children."""
    ours = [child for child in top.__subclasses__() if child.__module__ == errors.__name__]
    return [top, *(below for child in ours for below in hierarchy(child))]


def drawn() -> list[re.Match[str]]:
    """Read the tree in the module's docstring, line by line."""
    picture = (errors.__doc__ or "").split("\n\n")[1]
    lines = [DRAWN.match(line) for line in picture.splitlines()]
    assert None not in lines, picture
    return [line for line in lines if line]


def depth(kind: type[RingfenceError]) -> int:
    return kind.__mro__.index(RingfenceError)


def test_the_picture_draws_exactly_the_classes_in_their_order_and_depth() -> None:
    assert [(line["name"], len(line["indent"]) // 4) for line in drawn()] == [
        (kind.__name__, depth(kind)) for kind in hierarchy()
    ]


def test_the_picture_tells_the_codes_and_reasons_of_the_classes() -> None:
    for line in drawn()[1:]:
        kind = getattr(errors, line["name"])
        if line["code"]:
            assert (line["name"], kind.code) == (line["name"], line["code"])
        else:
            assert (kind.code, kind.default_reason) == (kind.__base__.code, line["reason"])


def test_every_class_below_the_base_is_drawn_with_a_code_or_a_reason() -> None:
    assert [line["name"] for line in drawn()[1:] if not (line["code"] or line["reason"])] == []


def test_no_two_families_share_a_code() -> None:
    families = [kind for kind in hierarchy() if depth(kind) == 1]
    assert len({kind.code for kind in families}) == len(families)


def test_no_two_errors_share_a_reason() -> None:
    reasons = [kind.default_reason for kind in hierarchy()[1:]]
    assert len(set(reasons)) == len(reasons)


@pytest.mark.parametrize("kind", hierarchy(), ids=lambda kind: kind.__name__)
def test_codes_and_reasons_keep_one_spelling(kind: type[RingfenceError]) -> None:
    assert re.fullmatch(r"[A-Z]+\.[A-Z_]+", kind.code)
    assert re.fullmatch(r"[a-z]+(_[a-z]+)*", kind.default_reason)


@pytest.mark.parametrize("kind", hierarchy(), ids=lambda kind: kind.__name__)
def test_every_error_has_its_reason_from_its_class_unless_it_is_given(kind: type[RingfenceError]) -> None:
    assert (kind("it broke").reason, kind("it broke", reason="narrower").reason) == (kind.default_reason, "narrower")


def test_an_error_carries_its_message_its_fix_and_flat_details() -> None:
    error = IsolationUnavailable("no user namespaces", fix="sysctl …", layer="user", wanted=1)
    assert (str(error), error.fix, error.details, error.code) == (
        "no user namespaces",
        "sysctl …",
        {"layer": "user", "wanted": 1},
        "PROVIDER.UNAVAILABLE",
    )


def test_what_is_wrong_with_the_request_is_never_worth_a_retry() -> None:
    below = hierarchy(InvalidRequest)
    assert [kind for kind in below if kind.retryable] == []


def test_missing_isolation_is_not_cured_by_trying_again() -> None:
    assert not IsolationUnavailable.retryable
