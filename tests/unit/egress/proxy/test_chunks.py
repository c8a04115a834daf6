"""Chunked bodies, read strictly and written anew."""

from __future__ import annotations

import contextlib

from hypothesis import given
from hypothesis import strategies as st

from ringfence.egress.proxy.chunks import Chunks
from ringfence.egress.proxy.refusal import Refusal

BODIES = st.lists(st.binary(min_size=1, max_size=50), max_size=8)
CUTS = st.lists(st.integers(1, 20), max_size=60)


def chunked(pieces: list[bytes]) -> bytes:
    return b"".join(b"%X\r\n%b\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n\r\n"


def pieces_of(data: bytes, cuts: list[int]) -> list[bytes]:
    pieces = []
    for cut in cuts:
        pieces.append(data[:cut])
        data = data[cut:]
    return [*pieces, data]


def content_of(data: bytes) -> bytes:
    body = b""
    while True:
        size, _, data = data.partition(b"\r\n")
        if not int(size, 16):
            assert data == b"\r\n"
            return body
        body += data[: int(size, 16)]
        assert data[int(size, 16) :].startswith(b"\r\n")
        data = data[int(size, 16) + 2 :]


@given(BODIES, CUTS, st.binary(max_size=20))
def test_however_it_arrives_the_same_body_goes_on_and_nothing_after_it(
    body: list[bytes], cuts: list[int], more: bytes
) -> None:
    chunks = Chunks()
    sent = b"".join(chunks.feed(piece) for piece in pieces_of(chunked(body) + more, cuts))
    assert chunks.is_over
    assert content_of(sent) == b"".join(body)


@given(st.binary(max_size=100), CUTS)
def test_whatever_comes_is_held_back_passed_on_or_refused(data: bytes, cuts: list[int]) -> None:
    chunks = Chunks()
    with contextlib.suppress(Refusal):
        for piece in pieces_of(data, cuts):
            chunks.feed(piece)
