"""Answers: however they are cut into pieces they are read alike, and what cannot be read in one way is refused."""

from __future__ import annotations

import gzip
import zlib
from contextlib import suppress
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringfence.egress.caps import FREE_EXPANSION, RetrievalCaps
from ringfence.egress.responses import ChunkedBody, framing_of, read_head
from ringfence.egress.unpacking import Unpacker
from ringfence.errors import CapabilityBlocked, Unavailable

CAPS = RetrievalCaps()


def head(*lines: str, status: str = "HTTP/1.1 200 OK") -> bytes:
    return "\r\n".join((status, *lines)).encode("latin-1") + b"\r\n\r\n"


def pieces(data: bytes, cuts: list[int]) -> list[bytes]:
    at = sorted({cut % (len(data) + 1) for cut in cuts} | {0, len(data)})
    return [data[begin:end] for begin, end in pairwise(at)] or [b""]


def chunked(content: bytes, size: int, ending: bytes = b"0\r\n\r\n") -> bytes:
    parts = [content[at : at + size] for at in range(0, len(content), size)]
    return b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in parts) + ending


@given(st.binary(max_size=500), st.integers(1, 50), st.lists(st.integers(0, 2000), max_size=20))
def test_chunks_come_together_however_they_are_cut(content: bytes, size: int, cuts: list[int]) -> None:
    body = ChunkedBody()
    assert b"".join(body.feed(piece) for piece in pieces(chunked(content, size), cuts)) == content
    assert body.is_over
    assert body.feed(b"whatever comes behind it") == b""


@given(st.binary(max_size=300), st.lists(st.integers(0, 2000), max_size=5))
def test_no_bytes_make_the_reader_of_chunks_fail_otherwise_than_by_refusing(data: bytes, cuts: list[int]) -> None:
    body = ChunkedBody()
    with suppress(Unavailable):
        assert len(b"".join(body.feed(piece) for piece in pieces(data, cuts))) <= len(data)


@pytest.mark.parametrize(
    "data",
    [
        b"5\nhello\n0\n\n", b"5\r\nhello0\r\n\r\n", b"-1\r\n\r\n", b"0x5\r\nhello\r\n", b" 5\r\nhello\r\n",
        b"5 x\r\nhello\r\n",
        b"\r\n5\r\nhello\r\n", b"ffffffffffffffff\r\n", b"5;\0\r\nhello\r\n", b"5\r\rhello\r\n", b"a" * 300,
        b"5;" + b"x" * 300 + b"\r\nhello\r\n", b"0\r\n" + b"X: y\r\n" * 2000,
    ],
)  # fmt: skip
def test_what_is_not_chunked_as_the_standard_says_is_refused(data: bytes) -> None:
    with pytest.raises(Unavailable):
        ChunkedBody().feed(data)


@given(st.binary(max_size=400))
def test_no_bytes_make_the_reader_of_heads_fail_otherwise_than_by_refusing(data: bytes) -> None:
    try:
        read_head(data + b"\r\n\r\n", CAPS)
    except (Unavailable, CapabilityBlocked):
        return
    assert data.startswith(b"HTTP/1.")


@pytest.mark.parametrize(
    "answer",
    [
        head(status="HTTP/1.2 200 OK"), head(status="HTTP/0.9 200 OK"), head(status="http/1.1 200 OK"),
        head(status="HTTP/1.1  200 OK"), head(status="HTTP/1.1 99 OK"), head(status="HTTP/1.1 600 OK"),
        head(status="HTTP/1.1 2000 OK"), head(status="ICY 200 OK"), head(status=" HTTP/1.1 200 OK"), head(status=""),
        head("A b: c"), head("A : b"), head(": b"), head("A"), head(" folded: x"), head("A: b\rc"), head("A: b\nc"),
        head("A: \x01"), head("\xe4: b"), head("Location: /a", "location: /b"),
        head("Content-Length: 1", "Content-Length: 1"),
    ],
)  # fmt: skip
def test_a_head_that_is_not_exactly_one_is_refused(answer: bytes) -> None:
    with pytest.raises(Unavailable):
        read_head(answer, CAPS)


def test_a_head_as_servers_write_it_is_read() -> None:
    found = read_head(
        head("Content-Type:text/plain", "X-Empty:", "Set-Cookie: a", "Set-Cookie: b", "X: \ta b \xe4 "), CAPS
    )
    assert (found.status, found.get("content-type"), found.get("x-empty"), found.get("x")) == (
        200, "text/plain", "", "a b \xe4",
    )  # fmt: skip
    assert read_head(b"HTTP/1.0 404\r\n\r\n", CAPS).status == 404


@pytest.mark.parametrize(
    ("fields", "method", "expected"),
    [
        (["Content-Length: 5"], "GET", (5, False)),
        (["Transfer-Encoding: Chunked"], "GET", (None, True)),
        ([], "GET", (None, False)),
        (["Content-Length: 5"], "HEAD", (0, False)),
    ],
)
def test_where_a_body_ends(fields: list[str], method: str, expected: tuple[int | None, bool]) -> None:
    framing = framing_of(read_head(head(*fields), CAPS), method)
    assert (framing.length, framing.is_chunked) == expected


def test_http_1_0_has_no_chunks() -> None:
    with pytest.raises(Unavailable):
        framing_of(read_head(head("Transfer-Encoding: chunked", status="HTTP/1.0 200 OK"), CAPS), "GET")


# --- unpacking ---


@given(
    st.binary(max_size=3000),
    st.sampled_from(["gzip", "x-gzip", "GZIP", "deflate", "identity", None]),
    st.lists(st.integers(0, 3000), max_size=10),
)
def test_a_body_unpacks_to_itself_however_it_is_cut(content: bytes, coding: str | None, cuts: list[int]) -> None:
    name = (coding or "identity").lower().removeprefix("x-")
    data = gzip.compress(content) if name == "gzip" else zlib.compress(content) if name == "deflate" else content
    unpacker = Unpacker(coding, CAPS)
    assert b"".join(unpacker.feed(piece) for piece in pieces(data, cuts)) == content
    unpacker.finish()
    assert (unpacker.raw, unpacker.unpacked) == (len(data), len(content))


@given(st.binary(min_size=1, max_size=500), st.sampled_from(["gzip", "deflate"]))
def test_no_bytes_make_the_unpacker_fail_otherwise_than_by_refusing(data: bytes, coding: str) -> None:
    unpacker = Unpacker(coding, CAPS)
    with suppress(Unavailable):
        unpacker.feed(data)
        unpacker.finish()


def test_nothing_unpacks_to_more_than_the_caps_say_and_stops_soon_after() -> None:
    for size, most in ((64 << 20, 1 << 30), (64 << 20, 2 << 20)):
        unpacker = Unpacker("gzip", RetrievalCaps(body_bytes=most))
        given_out = 0
        for piece in pieces(gzip.compress(bytes(size)), list(range(0, size // 1000, 1000))):
            try:
                given_out += len(unpacker.feed(piece))
            except CapabilityBlocked:
                break
        else:
            pytest.fail("all of it came out")
        assert unpacker.unpacked <= max(FREE_EXPANSION, 200 * 1000) + (2 << 20)
        assert given_out <= FREE_EXPANSION + (1 << 20)


@pytest.mark.parametrize("coding", ["br", "zstd", "gzip, gzip", "gzip,identity", "compress", "chunked", "", "gzip;q=1"])
def test_what_nobody_asked_for_is_not_unpacked(coding: str) -> None:
    with pytest.raises(Unavailable):
        Unpacker(coding, CAPS)
