"""Events read line by line, whatever the lines."""

from __future__ import annotations

import base64
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringfence.client.events import Event, output_of, read_events
from ringfence.errors import Unavailable


def lines(text: bytes) -> list[bytes]:
    return text.splitlines(keepends=True)


def test_events_comments_ids_and_retries_are_told_apart() -> None:
    text = (
        b'retry: 2000\n\n: still here\n\nid: 1\nevent: status\ndata: {"status": "running"}\n\nevent: lost\ndata:{}\n\n'
    )
    assert list(read_events(lines(text))) == [Event("status", {"status": "running"}), Event("lost", {})]


def test_an_event_that_was_not_finished_is_none() -> None:
    assert list(read_events(lines(b'event: result\ndata: {"status"'))) == []


def test_data_of_several_lines_is_one() -> None:
    assert list(read_events(lines(b'data: {"a":\ndata: 1}\n\n'))) == [Event("message", {"a": 1})]


@given(st.lists(st.binary(max_size=30), max_size=20))
def test_whatever_the_lines_there_are_events_or_a_refusal_of_ours(given_lines: list[bytes]) -> None:
    try:
        for event in read_events(given_lines):
            assert isinstance(event.data, dict)
    except Unavailable:
        return


@given(st.binary(max_size=100), st.integers(0, 2**50))
def test_output_is_read_as_it_was_written(data: bytes, offset: int) -> None:
    form = {"stream": "stdout", "offset": offset, "data_b64": base64.b64encode(data).decode()}
    (event,) = read_events(lines(b"event: output\ndata: " + json.dumps(form).encode() + b"\n\n"))
    assert output_of(event) == ("stdout", offset, data)


@pytest.mark.parametrize("form", [{}, {"stream": "stdout", "offset": "0", "data_b64": ""}, {"stream": 1}])
def test_output_that_is_none_is_refused(form: dict[str, object]) -> None:
    with pytest.raises(Unavailable):
        output_of(Event("output", form))
