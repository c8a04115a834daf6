"""A capture keeps head and tail, counts all bytes, cuts no character, and never holds more than its cap."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from ringfence.isolation.capture import Capture, gap_line

CHUNKS = st.lists(st.binary(max_size=40), max_size=20)


def captured(cap: int, chunks: list[bytes]) -> tuple[bytes, int]:
    capture = Capture("stdout", cap)
    for chunk in chunks:
        capture.add(chunk)
        assert capture.held <= cap
    return capture.finish()


@given(st.integers(0, 64), CHUNKS)
def test_it_keeps_head_and_tail_and_says_how_much_lay_between(cap: int, chunks: list[bytes]) -> None:
    everything = b"".join(chunks)
    kept, left_out = captured(cap, chunks)
    if len(everything) <= cap:
        assert (kept, left_out) == (everything, 0)
        return
    half = cap // 2
    head, tail = everything[: cap - half], everything[len(everything) - half :]
    trimmed = left_out - (len(everything) - cap)
    assert 0 <= trimmed <= 6  # at most three bytes of a character on either side
    candidates = {
        (n, m): head[: len(head) - n] + gap_line(left_out, after=head[: len(head) - n]) + tail[m:]
        for n in range(min(3, len(head)) + 1)
        for m in range(min(3, len(tail)) + 1)
        if n + m == trimmed
    }
    assert kept in candidates.values()


@given(st.integers(0, 64), CHUNKS)
def test_it_does_not_matter_how_the_bytes_arrive(cap: int, chunks: list[bytes]) -> None:
    everything = b"".join(chunks)
    assert captured(cap, chunks) == captured(cap, [everything]) == captured(cap, [bytes([b]) for b in everything])


@given(st.integers(0, 40), st.text(max_size=60))
@example(2, "a\nbbbb")
def test_no_character_is_cut_in_two(cap: int, text: str) -> None:
    encoded = text.encode("utf-8", "surrogatepass")
    if b"\xed" in encoded:  # a lone surrogate is none of UTF-8 from the beginning
        return
    kept, left_out = captured(cap, [encoded])
    shown = kept.decode()  # strictly
    if left_out:
        line = gap_line(left_out).decode()
        head, _, tail = shown.rpartition(line)
        assert text.endswith(tail)
        # the line may have had to begin with an end of line, which the text may have had at that very place
        assert text.startswith((head, head[:-1]))
        assert len(head.encode()) + left_out + len(tail.encode()) - len(encoded) in (0, int(head.endswith("\n")))


@given(CHUNKS)
def test_who_listens_hears_everything_in_order(chunks: list[bytes]) -> None:
    heard: list[tuple[str, bytes]] = []
    capture = Capture("stderr", 4, lambda name, data: heard.append((name, data)))
    for chunk in chunks:
        capture.add(chunk)
    assert heard == [("stderr", chunk) for chunk in chunks]
    assert capture.seen == sum(map(len, chunks))


def test_the_line_stands_on_a_line_of_its_own() -> None:
    assert captured(8, [b"abcdefghijkl"]) == ("abcd\n[… 4 bytes left out …]\nijkl".encode(), 4)
    assert captured(8, [b"abc\ndefghijkl"]) == ("abc\n[… 5 bytes left out …]\nijkl".encode(), 5)
    assert captured(1, [b"xyz"]) == ("x\n[… 2 bytes left out …]\n".encode(), 2)


def test_what_is_no_text_loses_no_more_than_a_character_could_have() -> None:
    kept, left_out = captured(8, [b"\xf0" * 4 + b"\x80" * 100])
    assert left_out == 104 - 8 + 1 + 3
    assert kept == b"\xf0" * 3 + gap_line(left_out, after=b"\xf0") + b"\x80"
