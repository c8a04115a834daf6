"""The first words of a TLS client."""

from __future__ import annotations

import contextlib
import ssl

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringfence.capability.capabilities import Capabilities
from ringfence.egress.proxy import hello
from ringfence.egress.proxy.reading import ReadingRules
from ringfence.egress.proxy.refusal import Refusal
from ringfence.egress.proxy.rules import Rules
from ringfence.operation.target import Target

HOST = "a.example.com"


def message(name: str | None, *speaks: str) -> bytes:
    context = ssl.create_default_context()
    if speaks:
        context.set_alpn_protocols(list(speaks))
    context.check_hostname = False
    outgoing = ssl.MemoryBIO()
    client = context.wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname=name)
    with contextlib.suppress(ssl.SSLWantReadError):
        client.do_handshake()
    return outgoing.read()


WHOLE = message(HOST)


@given(st.integers(0, len(WHOLE) - 1))
def test_nothing_is_said_before_all_of_it_is_there(size: int) -> None:
    assert not hello.require_name(HOST, WHOLE[:size])


def test_all_of_it_asks_for_the_host_whatever_its_case_and_whatever_follows() -> None:
    assert hello.require_name(HOST, WHOLE)
    assert hello.require_name(HOST, WHOLE + b"more")
    assert hello.require_name(HOST, message(HOST.upper()))


@given(st.integers(1, 400))
def test_a_message_in_several_records_is_one_message(size: int) -> None:
    body = WHOLE[5:]
    records = b"".join(
        b"\x16\x03\x01" + len(part).to_bytes(2) + part
        for part in (body[n : n + size] for n in range(0, len(body), size))
    )
    assert hello.require_name(HOST, records)


@given(st.integers(0, len(WHOLE) - 1), st.integers(0, 255))
def test_a_changed_byte_never_makes_it_another_host(at: int, byte: int) -> None:
    changed = WHOLE[:at] + bytes((byte,)) + WHOLE[at + 1 :]
    with contextlib.suppress(Refusal):
        hello.require_name(HOST, changed)
    with contextlib.suppress(Refusal):
        assert not hello.require_name("other.example.com", changed)


@given(st.binary(max_size=200))
def test_whatever_comes_is_no_hello_or_refused(data: bytes) -> None:
    for prefix in (b"", b"\x16\x03\x01\x00\xc8\x01\x00\x00\xc4"):
        with contextlib.suppress(Refusal):
            assert not hello.require_name(HOST, prefix + data)


def test_a_tunnel_to_an_address_is_for_a_client_that_names_no_host() -> None:
    assert hello.require_name("93.184.216.34", message(None))
    with pytest.raises(Refusal):
        hello.require_name("93.184.216.34", WHOLE)
    with pytest.raises(Refusal):
        hello.require_name(HOST, message(None))


def test_what_a_client_offers_to_speak_is_read_from_the_same_message() -> None:
    assert hello.protocols(WHOLE) == ()
    assert hello.protocols(message(HOST, "h2", "http/1.1")) == (b"h2", b"http/1.1")
    assert hello.protocols(message(HOST, "http/1.1") + b"more") == (b"http/1.1",)


@given(st.integers(0, len(WHOLE) - 1), st.integers(0, 255))
def test_a_changed_byte_in_the_offer_is_read_or_refused(at: int, byte: int) -> None:
    with contextlib.suppress(Refusal):
        hello.protocols(WHOLE[:at] + bytes((byte,)) + WHOLE[at + 1 :])


def test_rules_for_reading_refuse_what_can_only_be_a_websocket() -> None:
    where, reading = Target("https", HOST, 443, "/"), ReadingRules(Capabilities())
    refusal = reading.refuse_protocols(where, (b"http/1.1",))
    assert refusal is not None
    assert refusal.reason == "websocket"
    assert reading.refuse_protocols(where, (b"h2", b"http/1.1")) is None
    assert reading.refuse_protocols(where, ()) is None  # a client that is no browser says nothing of it
    assert Rules(Capabilities()).refuse_protocols(where, (b"http/1.1",)) is None
