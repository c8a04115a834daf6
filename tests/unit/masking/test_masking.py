"""What is masked of a secret, however a program prints it and however its output is cut."""

from __future__ import annotations

import base64
import binascii
import html
import json
import re
import urllib.parse

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringfence import masking
from ringfence.errors import InvalidRequest
from ringfence.masking import LEAST_BYTES, MOST_BYTES, PIECE_BYTES, Masks, leaves, spellings

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
    "JSON of PHP": lambda value: json.dumps(value.decode()).replace("/", "\\/").encode(),
    "JSON of .NET": lambda value: json.dumps(value.decode()).replace('\\"', "\\u0022").replace("+", "\\u002B").encode(),
    "HTML": lambda value: html.escape(value.decode()).encode(),
    "HTML of Go": lambda value: value.replace(b'"', b"&#34;").replace(b"+", b"&#43;"),
    "HTML of mustache": lambda value: value.replace(b'"', b"&quot;").replace(b"/", b"&#x2F;"),
    "repr": lambda value: repr(value.decode()).encode(),
    "reversed": lambda value: value[::-1],
    "UPPER CASE": lambda value: value.upper(),
    "UTF-16": lambda value: value.decode().encode("utf-16-le"),
    "base64 of UTF-16": lambda value: base64.b64encode(value.decode().encode("utf-16-le")),
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


LINES = b"\n".join(b"line-%05d-of-a-secret" % number for number in range(700))
NEAR = {
    "a long run of one byte": (b"-" * MOST_BYTES, (b"-" * (MOST_BYTES - 1) + b"x") * 8),
    "its hex": (b"-" * MOST_BYTES, b"2d" * (4 * MOST_BYTES) + b"x"),
    "hundreds of lines": (LINES, b"line-0000" * 10_000),
    "lines that begin alike": (b"\n".join(b"a" * size for size in range(8, 170)), b"a" * 7 + b"b" * 100_000),
}


@pytest.mark.parametrize(("value", "output"), NEAR.values(), ids=NEAR.keys())
def test_output_made_of_the_beginnings_of_a_secret_is_masked_in_one_pass(
    value: bytes, output: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    # a guest prints such for as long as it may run, and the host reads it in the loop that everybody shares
    compared = 0
    plain = masking._alike

    def counted(data: bytes, at: int, spelling: bytes) -> int:
        nonlocal compared
        size = plain(data, at, spelling)
        compared += size
        return size

    masker = Masks({"TOKEN": value}).stream()
    monkeypatch.setattr(masking, "_alike", counted)
    for at in range(0, len(output), 65536):
        masker.add(output[at : at + 65536])
    masker.finish()
    assert compared <= 4 * len(output)


def test_no_two_spellings_are_tried_one_after_the_other() -> None:
    # ten thousand of them side by side in one pattern took the host 20 s for a megabyte
    pattern = masking._one_of(sorted({spelling[:64] for line in LINES.split(b"\n") for spelling in spellings(line)}))
    widest = max(len(found.split(b"|")) for found in re.findall(rb"\(\?:([^()]*)\)", pattern))
    assert widest <= 64


def test_more_spellings_than_can_be_masked_in_time_are_refused() -> None:
    # 32 secrets of 16 KiB, each of short lines, would keep the host busy before anything ran
    many = {f"S{n}": b"\n".join(b"%02d-%05d" % (n, line) for line in range(1700)) for n in range(32)}
    with pytest.raises(InvalidRequest):
        Masks(many)


def test_no_more_than_a_piece_is_searched_in_one_go() -> None:
    # the interpreter lets no other thread run while it searches, and an answer may have many megabytes
    known = masks()
    searched: list[int] = []

    class Counting:
        def __init__(self, pattern: re.Pattern[bytes]) -> None:
            self._pattern = pattern

        def search(self, data: bytes, at: int) -> re.Match[bytes] | None:
            searched.append(len(data) - at)
            return self._pattern.search(data, at)

    assert known._pattern is not None
    known._pattern = Counting(known._pattern)  # type: ignore[assignment]
    filler = b"x" * (PIECE_BYTES - 3)
    assert known.mask((filler + VALUE) * 5) == (filler + NAME) * 5
    assert max(searched) <= PIECE_BYTES + len(VALUE)


def test_the_beginning_of_a_long_secret_is_masked_too() -> None:
    value = bytes(range(33, 127)) * 20
    shown = masks(value).mask(b"head: " + value[:100] + b"\n")
    assert shown == b"head: " + NAME + b"\n"


@given(st.lists(st.sampled_from([b"aaaaaaaa", b"aaaaaaaab", b"aaaaaaaabaaaaaaaa", b"baaaaaaaa", b"a", b"b", b"x"])))
def test_alike_spellings_are_found_in_a_stream_as_in_the_whole(parts: list[bytes]) -> None:
    known = Masks({"ONE": b"aaaaaaaab", "TWO": b"aaaaaaaabaaaaaaaac", "LONG": b"ab" * 50 + b"c"})
    output = b"".join((*parts, b"ab" * 49, *parts))
    masker = known.stream()
    assert b"".join((*(masker.add(bytes((byte,))) for byte in output), masker.finish())) == known.mask(output)


@given(st.lists(st.binary(max_size=40), max_size=6), st.integers(0, 6), st.data())
def test_a_steady_stream_masks_all_and_holds_back_as_much_whatever_comes(
    pieces: list[bytes], at: int, data: st.DataObject
) -> None:
    masks = Masks({"KEY": b"correct horse"}, b"<it>")
    pieces.insert(min(at, len(pieces)), b"correct horse")
    whole = b"".join(pieces)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(whole)), max_size=5)))
    masker = masks.stream(steady=True)
    shown = [masker.add(whole[begin:end]) for begin, end in zip([0, *cuts], [*cuts, len(whole)], strict=True)]
    assert b"".join((*shown, masker.finish())) == masks.whole(whole)
    assert b"correct horse" not in b"".join(shown)


@given(st.binary(min_size=200, max_size=400))
def test_a_guess_of_a_value_is_shown_no_later_than_anything_else(said: bytes) -> None:
    masks = Masks({"KEY": b"correct horse"})
    sizes = {
        len(masks.stream(steady=True).add(said[: len(said) - len(guess)] + guess))
        for guess in (b"", b"correct", b"correct hors", b"wrong")
        if masks.whole(said) == said
    }
    assert len(sizes) <= 1


@given(st.integers(64, 99), st.integers(0, 80), st.booleans())
def test_of_a_long_value_no_guess_tells_how_much_of_it_is_right(known: int, more: int, steady: bool) -> None:
    """Whoever knows how a token begins must not have the rest of it confirmed letter by letter."""
    value = b"".join(b"%02x" % (number * 37 % 256) for number in range(50))
    masks = Masks({"KEY": value}, b"<it>", blind=True)
    for tail in (b"", b"." * more):
        shown = []
        for guess in (value[: known + 1], value[:known] + b"!", value[:64] + b"!" * (known - 63)):
            if guess == value:
                continue
            said = b"see " + guess + tail
            masker = masks.stream(steady=steady)
            shown.append(masker.add(said[:60]) + masker.add(said[60:]) + masker.finish())
            assert shown[-1] == masks.mask(said)
        assert len(set(shown)) <= 1
    assert masks.mask(b"x" + value + b"y") == b"x<it>y"
