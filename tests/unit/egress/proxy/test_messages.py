"""Heads of HTTP messages: one reading, written anew."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringfence.egress.proxy import messages
from ringfence.egress.proxy.refusal import Refusal, answer

NAMES = st.from_regex(r"[A-Za-z][A-Za-z0-9-]{0,10}", fullmatch=True)
VALUES = st.from_regex(r"[!-~]([ -~]{0,20}[!-~])?", fullmatch=True)


def request(*fields: str, first: str = "GET http://a.example.com/x?y=1 HTTP/1.1") -> messages.Request:
    return messages.read_request("\r\n".join((first, *fields, "", "")).encode("latin-1"))


def test_a_plain_request_is_for_the_host_of_its_url() -> None:
    where = messages.request_target(request("Host: A.example.com:80"))
    assert (where.host, where.port, where.path) == ("a.example.com", 80, "/x?y=1")


def test_a_guest_writes_no_letters_into_the_record_by_way_of_a_method() -> None:
    with pytest.raises(Refusal):
        request("Host: a.example.com", first=f"{'A' * 65} http://a.example.com/ HTTP/1.1")


@given(st.binary(max_size=300))
def test_whatever_comes_is_a_request_or_refused(head: bytes) -> None:
    with contextlib.suppress(Refusal):
        messages.read_request(head + b"\r\n\r\n")
    with contextlib.suppress(Refusal):
        messages.read_response(head + b"\r\n\r\n")


@given(st.lists(st.tuples(NAMES, VALUES), max_size=10), st.integers(0, 10**6))
def test_what_is_sent_on_reads_as_what_was_judged(fields: list[tuple[str, str]], length: int) -> None:
    said = [f"{name}: {value}" for name, value in fields if name.lower() not in ("host", "content-length", "expect")]
    try:
        came = request("Host: a.example.com", f"Content-Length: {length}", *said)
        framing = messages.framing_of(came)
    except Refusal:
        return
    where = messages.request_target(came)
    sent = messages.read_request(messages.forwarded(came, where, framing))
    assert (sent.method, sent.target) == (came.method, "/x?y=1")
    named = [name.lower() for name, _ in sent.fields]
    assert named.count("host") == 1
    assert dict(sent.fields)["Host"] == "a.example.com"
    assert messages.framing_of(sent) == framing
    assert not any(name.startswith("proxy-") for name in named)
    assert [value for name, value in sent.fields if name.lower() == "connection"] == ["close"]


@pytest.mark.parametrize(
    ("method", "status", "fields", "length"),
    [
        ("GET", 200, "Content-Length: 5", 5),
        ("HEAD", 200, "Content-Length: 5", 0),
        ("GET", 204, "X: y", 0),
        ("GET", 304, "Content-Length: 5", 0),
        ("GET", 200, "Transfer-Encoding: chunked", None),
        ("GET", 200, "Content-Length: five", None),
    ],
)
def test_where_an_answer_ends(method: str, status: int, fields: str, length: int | None) -> None:
    response = messages.read_response(f"HTTP/1.1 {status} OK\r\n{fields}\r\n\r\n".encode())
    assert messages.answer_length(method, response) == length


def test_an_answer_that_ends_in_two_places_is_refused() -> None:
    with pytest.raises(Refusal):
        messages.read_response(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n")


def test_a_refusal_is_a_whole_answer_in_ascii() -> None:
    said = answer(Refusal(403, "host", "w\xe9b"))
    head, _, body = said.partition(b"\r\n\r\n")
    assert body == b"ringfence: egress denied (host): w?b\n"
    assert f"Content-Length: {len(body)}".encode() in head
