"""A form is bounded in what it is taken apart into, not only in its bytes."""

from __future__ import annotations

import tracemalloc

import pytest

from ringfence.errors import InvalidRequest
from ringfence.service.aio.multipart import read_form


def test_a_body_of_nothing_but_boundaries_takes_no_more_memory_than_itself() -> None:
    body = b"--b" + b"xy\r\n--b" * 200_000 + b"--\r\n"
    tracemalloc.start()
    try:
        with pytest.raises(InvalidRequest):
            read_form("multipart/form-data; boundary=b", body)
        assert tracemalloc.get_traced_memory()[1] < 3 * len(body)
    finally:
        tracemalloc.stop()


def test_as_many_parts_as_are_allowed_are_read() -> None:
    part = '--b\r\nContent-Disposition: form-data; name="{}"\r\n\r\nx\r\n'
    body = "".join(part.format(number) for number in range(16)).encode() + b"--b--\r\n"
    assert len(read_form("multipart/form-data; boundary=b", body)) == 16
    with pytest.raises(InvalidRequest):
        read_form("multipart/form-data; boundary=b", part.format("one more").encode() + body)
