from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ringfence.interfaces.cli.screen import Screen

CHUNKS = st.lists(st.binary(max_size=12), max_size=6)


def shown(*chunks: bytes) -> bytes:
    screen = Screen()
    return b"".join(screen.show(chunk) for chunk in chunks) + screen.end()


@given(CHUNKS)
def test_no_control_character_but_newline_and_tab_ever_reaches_the_terminal(chunks: list[bytes]) -> None:
    text = shown(*chunks).decode()
    assert all(char in "\n\t" or not (ord(char) < 0x20 or 0x7F <= ord(char) < 0xA0) for char in text)


@given(CHUNKS)
def test_where_the_chunks_are_cut_makes_no_difference(chunks: list[bytes]) -> None:
    assert shown(*chunks) == shown(b"".join(chunks))


@given(st.text(alphabet=st.characters(categories=["L", "N", "P", "S", "Zs"])))
def test_ordinary_text_is_untouched(text: str) -> None:
    assert shown(text.encode()) == text.encode()


def test_a_clipboard_sequence_is_shown_and_not_obeyed() -> None:
    assert shown(b"\x1b]52;c;ZXZpbA==\x07") == rb"\x1b]52;c;ZXZpbA==\x07"


def test_an_eight_bit_csi_is_shown_both_raw_and_encoded() -> None:
    assert shown(b"\x9b31m", "\x9b31m".encode()) == rb"\x9b31m\x9b31m"


def test_a_carriage_return_cannot_overwrite_what_was_printed() -> None:
    assert shown(b"rm -rf /\rls\n") == b"rm -rf /\\x0dls\n"


def test_a_right_to_left_override_is_shown() -> None:
    assert shown("a\u202eb".encode()) == b"a\\u202eb"


def test_a_character_split_over_two_chunks_stays_one_character() -> None:
    assert shown(b"\xe2\x82", b"\xac") == "€".encode()


def test_a_character_cut_off_at_the_end_is_shown_as_bytes() -> None:
    assert shown(b"ok\xe2\x82") == rb"ok\xe2\x82"
