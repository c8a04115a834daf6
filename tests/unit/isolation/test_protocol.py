"""Messages survive any cut of the byte stream, and nothing impossible is ever buffered."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringfence.isolation.protocol import MAX_MESSAGE, Decoder, Kind, ProtocolError, encode

messages = st.lists(st.tuples(st.sampled_from(Kind), st.binary(max_size=300)), max_size=8)


@given(messages, st.data())
def test_any_split_of_the_stream_gives_the_same_messages(sent: list[tuple[Kind, bytes]], data: st.DataObject) -> None:
    stream = b"".join(encode(kind, payload) for kind, payload in sent)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=20)))
    decoder = Decoder()
    heard = []
    for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        heard += decoder.feed(stream[start:end])
    assert heard == sent


@given(messages, st.sampled_from([n for n in range(256) if n not in {*map(int, Kind)}]), st.binary(max_size=64))
def test_an_unknown_kind_is_refused_at_the_header(sent: list[tuple[Kind, bytes]], number: int, payload: bytes) -> None:
    decoder = Decoder()
    for kind, body in sent:
        assert decoder.feed(encode(kind, body)) == [(kind, body)]
    with pytest.raises(ProtocolError, match="unknown message kind"):
        decoder.feed(struct.pack(">IB", len(payload) + 1, number))


@given(st.one_of(st.just(0), st.integers(65, 2**32 - 1)))
def test_an_impossible_length_is_refused_at_the_header(length: int) -> None:
    with pytest.raises(ProtocolError, match="impossible message length"):
        Decoder(limit=64).feed(struct.pack(">IB", length, Kind.STDOUT))


@given(st.lists(st.binary(max_size=40), min_size=1, max_size=10))
def test_whatever_is_said_the_decoder_answers_or_refuses(pieces: list[bytes]) -> None:
    decoder = Decoder(limit=64)
    try:
        for piece in pieces:
            for kind, payload in decoder.feed(piece):
                assert kind in Kind
                assert len(payload) < 64
    except ProtocolError:
        # and it does not come to terms with the stream later
        with pytest.raises(ProtocolError):
            decoder.feed(b"")


def test_a_message_nobody_would_take_is_not_sent() -> None:
    with pytest.raises(ProtocolError):
        encode(Kind.STDIN, bytes(MAX_MESSAGE))


def test_the_longest_message_that_is_sent_is_taken() -> None:
    payload = bytes(MAX_MESSAGE - 1)
    assert Decoder().feed(encode(Kind.STDIN, payload)) == [(Kind.STDIN, payload)]


def test_the_numbers_of_kinds_never_change() -> None:
    assert [(kind.name, kind.value) for kind in Kind] == [
        ("READY", 1),
        ("START", 2),
        ("STARTED", 3),
        ("STDIN", 4),
        ("STDOUT", 5),
        ("STDERR", 6),
        ("RESIZE", 7),
        ("SIGNAL", 8),
        ("EXIT", 9),
        ("FAILED", 10),
        ("SEALED", 11),
        ("TERMINAL", 12),
        ("SETUP", 13),
        ("ENTRY", 14),
        ("PIECE", 15),
        ("GONE", 16),
        ("PLACED", 17),
        ("TAKEN", 18),
        ("END", 19),
        ("HARVEST", 20),
        ("DIAL", 21),
        ("FLOW", 22),
        ("ROOM", 23),
        ("CALL", 24),
        ("CUT", 25),
        ("JOB", 26),
    ]
