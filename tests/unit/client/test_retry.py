"""Asking again: only where it is safe, never sooner than asked for, never for longer than there is."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ringfence.client.retry import Retrying


@given(st.lists(st.none() | st.integers(0, 10**6), max_size=200))
def test_all_the_waiting_together_stays_within_what_there_is(asked: list[int | None]) -> None:
    retrying, waited = Retrying(left_seconds=30.0), 0.0
    for seconds in asked:
        pause = (
            retrying.after_drop(repeatable=True, known=True)
            if seconds is None
            else retrying.after_refusal(503, str(seconds))
        )
        if pause is None:
            break
        assert seconds is None or pause >= seconds
        waited += pause
        retrying = retrying.waited(pause)
    assert waited <= 30.0 + 2.0


def test_what_may_not_be_repeated_is_not_asked_again_after_a_lost_connection() -> None:
    assert Retrying().after_drop(repeatable=False, known=True) is None


def test_a_service_that_never_answered_is_not_waited_for() -> None:
    assert Retrying().after_drop(repeatable=True, known=False) is None


def test_pauses_grow_and_stay_short() -> None:
    retrying, pauses = Retrying(left_seconds=1000), []
    for _ in range(10):
        pause = retrying.after_drop(repeatable=True, known=True)
        assert pause is not None
        pauses.append(pause)
        retrying = retrying.waited(pause)
    assert pauses == sorted(pauses)
    assert pauses[-1] == 2.0


@given(st.integers(200, 599), st.none() | st.text(max_size=8))
def test_only_a_service_that_says_when_is_asked_again(status: int, retry_after: str | None) -> None:
    pause = Retrying().after_refusal(status, retry_after)
    assert pause is None or (status in (429, 503) and retry_after is not None and retry_after.isdecimal())


def test_a_service_that_asks_for_longer_than_there_is_gets_no_second_question() -> None:
    assert Retrying(left_seconds=30).after_refusal(429, "31") is None
    assert Retrying(left_seconds=30).after_refusal(429, "9" * 400) is None
