"""A problem read back is the error that was raised on the other side, and nothing whoever wrote it may have planted."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringfence import errors
from ringfence.errors import InternalError, InvalidRequest, PathTraversalError, RingfenceError
from ringfence.errors.form import read_problem
from ringfence.errors.table import TABLE, answer

EVERY = [(code, reason) for code, entry in TABLE.items() for reason in entry.reasons]
CLASSES = [
    kind
    for kind in vars(errors).values()
    if isinstance(kind, type) and issubclass(kind, RingfenceError) and kind is not RingfenceError
]


def written(error: RingfenceError) -> dict[str, Any]:
    """Write the members that a door answers with."""
    return {
        "status": error.answer.http_status,
        "detail": str(error),
        "code": error.code,
        "reason": error.reason,
        "retryable": error.retryable,
        "fix": error.fix,
        "details": dict(error.details),
    }


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)
def test_every_class_of_error_comes_back_as_itself(kind: type[RingfenceError]) -> None:
    raised = kind("it is so", fix="mend it", limit=3, field="code")
    read = read_problem(written(raised))
    assert type(read) is kind
    assert read is not None
    assert (str(read), read.code, read.reason, read.fix, read.details) == (
        "it is so",
        raised.code,
        raised.reason,
        "mend it",
        {"limit": 3, "field": "code"},
    )


@pytest.mark.parametrize(("code", "reason"), EVERY)
def test_every_code_and_reason_comes_back_with_the_same_answer(code: str, reason: str) -> None:
    read = read_problem({"code": code, "reason": reason, "detail": "so"})
    assert read is not None
    assert (read.code, read.reason, read.answer) == (code, reason, answer(code, reason))


def test_a_traversal_under_way_keeps_its_class_and_its_code() -> None:
    read = read_problem(written(PathTraversalError("out").at_runtime()))
    assert isinstance(read, PathTraversalError)
    assert read.code == "SANDBOX.CAPABILITY_BLOCKED"


def test_a_code_of_a_later_release_counts_as_a_failure_of_ours_and_keeps_its_name() -> None:
    read = read_problem({"code": "NEWER.THING", "reason": "unheard_of", "detail": "x"})
    assert isinstance(read, InternalError)
    assert (read.code, read.retryable) == ("NEWER.THING", False)


def test_control_characters_of_the_other_side_never_reach_a_terminal() -> None:
    read = read_problem(
        {
            "code": InvalidRequest.code,
            "reason": "invalid_request",
            "detail": "\x1b]0;owned\x07\nsecond line\u202e",
            "fix": "\x1b[2J",
            "details": {"field": "\x9b31m", "Bad Name": "x", "deep": {"a": 1}},
        }
    )
    assert read is not None
    assert all(text.isprintable() for text in (str(read), read.fix or "", str(read.details["field"])))
    assert read.details.keys() == {"field"}


def test_a_text_without_end_is_cut() -> None:
    read = read_problem({"code": InvalidRequest.code, "reason": "invalid_request", "detail": "x" * 10**6})
    assert read is not None
    assert len(str(read)) < 3_000


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.text(), st.lists))
@pytest.mark.parametrize("name", ["code", "reason", "detail", "fix", "details"])
def test_a_member_of_another_type_is_no_error_of_ours_nor_a_mistake(name: str, value: Any) -> None:
    read = read_problem({"code": InvalidRequest.code, "reason": "invalid_request", "detail": "x", name: value})
    assert read is None or isinstance(read, RingfenceError)
