"""Where a placeholder may stand, and what becomes of it."""

from __future__ import annotations

import base64
import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringfence.egress.proxy.messages import Request, Response
from ringfence.egress.proxy.refusal import Refusal
from ringfence.egress.proxy.swap import Loan, Swap, asking_for_all, carrying, hidden
from ringfence.masking import Masks
from ringfence.operation.target import target

VALUE, PLACEHOLDER = "the-real-value", "rfsecret_0123456789"
HERE, ELSEWHERE = target("https://api.example.com/x"), target("https://example.org/x")


def loan(name: str = "KEY", placeholder: str = PLACEHOLDER) -> Loan:
    masks = Masks({name: VALUE.encode()}, placeholder.encode())
    here = HERE.host
    return Loan(
        name, placeholder, VALUE, lambda where: where.host == here, lambda host: host == here, lambda: True, masks
    )


def request(*fields: tuple[str, str], method: str = "GET", path: str = "/x") -> Request:
    return Request(method, path, 1, fields)


@given(st.lists(st.tuples(st.sampled_from(["A", "Authorization", "Cookie"]), st.text("ab \t", max_size=5)), max_size=4))
def test_without_a_placeholder_nothing_is_asked_for_and_nothing_changes(fields: list[tuple[str, str]]) -> None:
    asked = request(*fields)
    assert Swap([loan()]).asked(asked, HERE) is None
    assert carrying(asked, loan()) == asked


def test_the_value_takes_the_place_of_every_placeholder_in_values_of_headers_and_in_basic() -> None:
    basic = base64.b64encode(f"me:{PLACEHOLDER}".encode()).decode()
    asked = request(("A", f"x {PLACEHOLDER} {PLACEHOLDER}"), ("Authorization", f"basic {basic}"), ("B", "Basic !!"))
    found = Swap([loan()]).asked(asked, HERE)
    assert found is not None
    filled = dict(carrying(asked, found).fields)
    assert filled["A"] == f"x {VALUE} {VALUE}"
    assert base64.b64decode(filled["Authorization"].removeprefix("Basic ")) == f"me:{VALUE}".encode()
    assert VALUE not in repr(found)


@pytest.mark.parametrize(
    ("asked", "where"),
    [
        (request(("A", PLACEHOLDER)), ELSEWHERE),
        (request(("A", PLACEHOLDER)), target("http://api.example.com/x")),
        (request((PLACEHOLDER, "x")), HERE),
        (request(method=PLACEHOLDER), HERE),
        (request(path=f"/?{PLACEHOLDER}"), HERE),
        (request(("A", PLACEHOLDER), ("B", "rfsecret_other")), HERE),
    ],
    ids=["host", "http", "name", "method", "query", "two"],
)
def test_it_is_refused_everywhere_else_by_its_name(asked: Request, where: object) -> None:
    with pytest.raises(Refusal) as refused:
        Swap([loan(), loan("OTHER", "rfsecret_other")]).asked(asked, where)  # type: ignore[arg-type]
    assert refused.value.secret in ("KEY", "OTHER")
    assert VALUE not in str(refused.value)


@given(st.binary(max_size=60), st.binary(max_size=60), st.lists(st.integers(0, 139), max_size=8))
def test_a_body_is_watched_however_it_is_cut(before: bytes, after: bytes, cuts: list[int]) -> None:
    body = before + PLACEHOLDER.encode() + after
    at = sorted({0, len(body), *(cut for cut in cuts if cut < len(body))})
    watch = Swap([loan()]).watch()
    with pytest.raises(Refusal):
        list(itertools.starmap(lambda begin, end: watch.see(body[begin:end]), itertools.pairwise(at)))
    other = Swap([loan()]).watch()
    assert other.see(before) == before


def test_a_host_that_knows_it_is_asked_for_all_and_its_head_is_looked_through() -> None:
    asked = asking_for_all(request(("range", "bytes=0-1"), ("Accept-Encoding", "gzip"), ("If-Range", "x"), ("A", "b")))
    assert asked.fields == (("A", "b"), ("Accept-Encoding", "identity"))
    told = hidden(Response(200, f"OK {VALUE}", (("X", VALUE), (f"X-{VALUE}", "1"))), [loan()])
    assert (told.phrase, told.fields) == (f"OK {PLACEHOLDER}", (("X", PLACEHOLDER), (f"X-{PLACEHOLDER}", "1")))
    for answer in (Response(206, "", ()), Response(200, "", (("content-Encoding", "GZIP"),))):
        with pytest.raises(Refusal) as refused:
            hidden(answer, [loan()])
        assert refused.value.reason == "encoded"
