"""The canonical form against an independent library, what it refuses, and the chain that sealing makes."""

from __future__ import annotations

import enum
import hashlib
import json
from typing import Any

import pytest
import rfc8785
from hypothesis import given
from hypothesis import strategies as st

from ringfence.errors import InvalidRequest
from ringfence.evidence.merkle import Frontier
from ringfence.evidence.sealing import Head, canonical_record, read_record, record_hash

BIGGEST = 2**53 - 1
KEYS = st.text(st.characters(max_codepoint=0x7F), max_size=8)
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
VALUES = st.recursive(
    TEXTS | st.booleans() | st.integers(-BIGGEST, BIGGEST),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=12,
)
RECORDS = st.dictionaries(KEYS, VALUES, max_size=8)
ITSELF: list[Any] = []
ITSELF.append(ITSELF)


class Status(enum.StrEnum):
    OK = "ok"


@given(RECORDS)
def test_every_allowed_record_has_the_bytes_of_rfc_8785(members: dict[str, Any]) -> None:
    assert canonical_record(members) == rfc8785.dumps(members)


@given(RECORDS)
def test_a_record_is_read_back_from_its_text_alone(members: dict[str, Any]) -> None:
    assert read_record(canonical_record(members).decode()) == members


def test_the_characters_json_must_escape_are_written_as_rfc_8785_says() -> None:
    members = {"a": "".join(map(chr, range(0x80))) + "\u2028\u2029é€\U0001f600\ufffd"}
    assert canonical_record(members) == rfc8785.dumps(members)


def test_an_enumeration_and_a_tuple_are_written_as_what_they_stand_for() -> None:
    assert canonical_record({"status": Status.OK, "paths": ("a", "b")}) == b'{"paths":["a","b"],"status":"ok"}'


@pytest.mark.parametrize(
    "value",
    [
        1.0,
        0.5,
        float("nan"),
        float("inf"),
        2**53,
        -(2**53),
        10**400,
        None,
        b"bytes",
        {1: "a"},
        {True: "a"},
        {None: "a"},
        {"é": 1},
        {"a", "b"},
        "\ud800",
        {"\udfff": 1},
        object(),
        ITSELF,
    ],
    ids=lambda value: f"{value!r:.12}",
)
def test_what_has_no_canonical_form_is_refused_at_any_depth(value: object) -> None:
    for members in ({"a": value}, {"a": [value]}, {"a": {"b": [{"c": value}]}}):
        with pytest.raises(InvalidRequest) as refused:
            canonical_record(members)
        assert refused.value.reason == "not_canonical"
        with pytest.raises(InvalidRequest):
            Head.empty("lg-1").seal(members)


def test_a_record_nested_beyond_all_measure_is_refused() -> None:
    deep: list[Any] = []
    for _ in range(50_000):
        deep = [deep]
    with pytest.raises(InvalidRequest):
        canonical_record({"a": deep})
    with pytest.raises(InvalidRequest):
        read_record('{"a":' + "[" * 50_000 + "]" * 50_000 + "}")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        '"a"',
        "null",
        '{"a":1,"a":1}',
        '{"b":1,"a":1}',
        '{"a": 1}',
        '{"a":1}\n',
        ' {"a":1}',
        '{"a":1.0}',
        '{"a":1e2}',
        '{"a":-0}',
        '{"a":null}',
        '{"a":NaN}',
        '{"a":9007199254740992}',
        r'{"a":"\u0041"}',
        r'{"a":"\/"}',
        r'{"a":"\u001F"}',
        r'{"a":"\ud800"}',
        '{"a":"\ud800"}',
        '{"é":1}',
        '{"a":1',
        '{"a":1}{}',
        "\ufeff{}",
    ],
)
def test_a_text_that_is_not_its_own_canonical_form_is_not_read(text: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        read_record(text)
    assert refused.value.reason == "not_canonical"


def test_each_record_names_the_one_before_it_and_its_place() -> None:
    head = Head.empty("lg-1")
    first, head = head.seal({"type": "log.opened", "time_ms": 5})
    second, head = head.seal({"type": "log.closed", "time_ms": 4})
    assert first.text == (
        '{"log_id":"lg-1","prev_hash":"' + "0" * 64 + '","seq":0,"time_ms":5,"type":"log.opened","v":1}'
    )
    assert json.loads(second.text)["prev_hash"] == first.hash.hex() == hashlib.sha256(first.text.encode()).hexdigest()
    assert (first.seq, second.seq, head.size, head.last_hash) == (0, 1, 2, second.hash)
    assert record_hash(second.text) == second.hash
    assert head.frontier == Frontier().extend([first.hash, second.hash])


def test_a_head_stays_as_it_was_when_a_record_was_sealed_after_it() -> None:
    before = Head.empty("lg-1")
    once, _ = before.seal({"type": "log.opened"})
    again, _ = before.seal({"type": "log.opened"})
    assert once == again
    assert before == Head.empty("lg-1")


@pytest.mark.parametrize("name", ["v", "log_id", "seq", "prev_hash", "hash"])
def test_nobody_but_the_log_says_where_a_record_stands(name: str) -> None:
    with pytest.raises(InvalidRequest, match=name):
        Head.empty("lg-1").seal({"type": "exec.begin", name: 7})
