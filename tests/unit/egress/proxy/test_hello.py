"""The first words of a TLS client."""

from __future__ import annotations

import contextlib
import ssl

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringfence.egress.proxy import hello
from ringfence.egress.proxy.refusal import Refusal

HOST = "a.example.com"


def message(name: str | None) -> bytes:
    context = ssl.create_default_context()
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
