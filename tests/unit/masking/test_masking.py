"""What is masked of a secret, however a program prints it and however its output is cut."""

from __future__ import annotations

import base64
import binascii
import json
import urllib.parse

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringfence.errors import InvalidRequest
from ringfence.masking import LEAST_BYTES, Masks, leaves

VALUE = b'k9$Qz+/7"t\\w-secret_value~42'
NAME = b"[secret:TOKEN]"
values = st.binary(min_size=LEAST_BYTES, max_size=64)
texts = st.binary(max_size=200)


def masks(value: bytes = VALUE) -> Masks:
    return Masks({"TOKEN": value})


DISGUISES = {
    "plain": lambda value: value,
    "base64": base64.b64encode,
    "base64, urlsafe": base64.urlsafe_b64encode,
    "base64 after one byte": lambda value: base64.b64encode(b"x" + value),
    "base64 after two bytes": lambda value: base64.b64encode(b"xy" + value),
    "base64 of a header": lambda value: base64.b64encode(b"user:" + value + b"\n"),
    "hex": lambda value: value.hex().encode(),
    "HEX": lambda value: value.hex().upper().encode(),
    "uuencoded hex": lambda value: binascii.hexlify(value),
    "percent": lambda value: urllib.parse.quote(value, safe="").encode(),
    "percent, lower case": lambda value: urllib.parse.quote(value, safe="").lower().encode(),
    "form": lambda value: urllib.parse.quote_plus(value).encode(),
    "every byte in percent": lambda value: "".join(f"%{byte:02X}" for byte in value).encode(),
    "JSON": lambda value: json.dumps({"token": value.decode()}).encode(),
    "repr": lambda value: repr(value.decode()).encode(),
    "reversed": lambda value: value[::-1],
}


@pytest.mark.parametrize("disguise", DISGUISES.values(), ids=DISGUISES.keys())
def test_the_usual_disguises_are_seen_through(disguise) -> None:  # type: ignore[no-untyped-def]
    shown = masks().mask(b"before " + disguise(VALUE) + b" after")
    assert NAME in shown
    assert shown.startswith(b"before ")
    assert shown.endswith(b" after")
    core = disguise(VALUE)[4:-4]
    assert core not in shown


@given(values, texts, texts, st.lists(st.integers(min_value=1, max_value=7), max_size=60))
def test_however_a_stream_is_cut_its_secret_does_not_come_out(
    value: bytes, before: bytes, after: bytes, cuts: list[int]
) -> None:
    known = masks(value)
    whole = before + value + after
    masker, shown, at = known.stream(), b"", 0
    for size in (*cuts, len(whole)):
        shown += masker.add(whole[at : at + size])
        at += size
    shown += masker.finish()
    assert shown == known.mask(whole)
    if value not in NAME:
        assert NAME in shown


@given(values, st.lists(texts, max_size=8))
def test_a_stream_without_the_secret_comes_out_as_it_was(value: bytes, pieces: list[bytes]) -> None:
    known = masks(value)
    whole = b"".join(pieces)
    if known.mask(whole) == whole:
        masker = known.stream()
        assert b"".join([*map(masker.add, pieces), masker.finish()]) == whole


def test_only_what_may_begin_a_secret_is_held_back() -> None:
    masker = masks().stream()
    assert masker.add(b"a prompt> ") == b"a prompt> "
    assert masker.add(b"x" + VALUE[:5]) == b"x"
    assert masker.add(VALUE[5:]) == NAME
    assert masker.finish() == b""


def test_every_line_of_a_secret_of_many_is_masked() -> None:
    key = b"-----BEGIN KEY-----\nMC4CAQAwBQYDK2Vw\nBCIEIPZ8s2fq9QxN\n-----END KEY-----\n"
    assert b"MC4CAQAwBQYDK2Vw" not in masks(key).mask(b"> MC4CAQAwBQYDK2Vw\n")


def test_the_texts_in_a_structured_secret_are_secrets_too() -> None:
    value = json.dumps({"user": "a", "keys": ["first-long-key", {"x": "second-long-key"}], "n": 12345678}).encode()
    assert set(leaves(value)) == {value, b"first-long-key", b"second-long-key"}


@pytest.mark.parametrize("value", [b"", b"short", b"x" * 70_000])
def test_what_cannot_be_masked_is_refused(value: bytes) -> None:
    with pytest.raises(InvalidRequest, match="TOKEN"):
        masks(value)


def test_nothing_of_a_secret_is_in_what_is_shown_of_masks() -> None:
    assert VALUE.decode() not in repr(masks())
    assert repr(masks()) == "Masks(1)"


def test_the_longer_of_two_secrets_that_begin_alike_is_named() -> None:
    both = Masks({"SHORT": b"abcdefgh", "LONG": b"abcdefghijklmnop"})
    assert both.mask(b"abcdefghijklmnop abcdefgh") == b"[secret:LONG] [secret:SHORT]"


def test_nothing_to_mask_masks_nothing() -> None:
    none = Masks({})
    assert not none
    assert none.stream().add(b"anything") == b"anything"
