"""How an answer ends, said anew: one reading of it, whoever reads."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringfence.egress.proxy import messages
from ringfence.egress.proxy.chunks import LAST, Chunks, chunk
from ringfence.egress.proxy.messages import Framing, Response
from ringfence.egress.proxy.refusal import Refusal


def response(*fields: tuple[str, str], status: int = 200) -> Response:
    return Response(status, "OK", fields)


@pytest.mark.parametrize(
    ("method", "answer", "framing"),
    [
        ("GET", response(("Content-Length", "5")), Framing(5)),
        ("GET", response(("transfer-encoding", "Chunked")), Framing(chunked=True)),
        ("GET", response(), None),
        ("HEAD", response(("Content-Length", "5")), Framing()),
        ("GET", response(("Content-Length", "5"), status=304), Framing()),
        ("GET", response(status=204), Framing()),
    ],
)
def test_where_a_body_ends(method: str, answer: Response, framing: Framing | None) -> None:
    assert messages.answer_framing(method, answer) == framing


@pytest.mark.parametrize(
    "fields",
    [
        (("Content-Length", "5"), ("Content-Length", "5")),
        (("Content-Length", "5, 5"),),
        (("Content-Length", "-1"),),
        (("Transfer-Encoding", "gzip, chunked"),),
        (("Transfer-Encoding", "chunked"), ("Transfer-Encoding", "chunked")),
    ],
)
def test_a_body_that_could_end_in_two_places_is_refused(fields: tuple[tuple[str, str], ...]) -> None:
    with pytest.raises(Refusal):
        messages.answer_framing("GET", response(*fields))


def test_nothing_of_what_a_host_said_of_its_body_is_left() -> None:
    told = response(("Content-Length", "5"), ("Connection", "content-length, x"), ("X", "1"), ("A", "b"))
    chunked = messages.retold(told, Framing(chunked=True), stays=True)
    assert chunked == b"HTTP/1.1 200 OK\r\nA: b\r\nTransfer-Encoding: chunked\r\n\r\n"
    assert messages.retold(told, None, stays=False) == b"HTTP/1.1 200 OK\r\nA: b\r\nConnection: close\r\n\r\n"


@given(st.lists(st.binary(max_size=20), max_size=5), st.binary(max_size=20), st.integers(1, 30))
def test_chunks_are_laid_bare_and_what_follows_them_is_given_back(pieces: list[bytes], rest: bytes, size: int) -> None:
    wire = b"".join(map(chunk, pieces)) + LAST + rest
    chunks, body, at = Chunks(bare=True), b"", 0
    while not chunks.is_over:
        body += chunks.feed(wire[at : at + size])
        at += size
    assert body == b"".join(pieces)
    assert chunks.rest + wire[at:] == rest
