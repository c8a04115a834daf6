"""A ring of output against the simplest thing that could be right: the whole stream."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringfence.processes.ring import Ring

writes = st.lists(st.binary(max_size=40), max_size=30)


@given(st.integers(1, 64), writes, st.integers(-5, 1500), st.integers(0, 100))
def test_a_piece_is_what_the_whole_stream_has_there_and_what_is_lost_is_counted(
    cap: int, chunks: list[bytes], offset: int, most: int
) -> None:
    ring, whole = Ring(cap), b""
    for chunk in chunks:
        ring.write(chunk)
        whole += chunk
    piece = ring.read(offset, most)
    kept_from = max(0, len(whole) - cap)
    expected_begin = min(max(offset, kept_from), len(whole))
    assert piece.offset == expected_begin
    assert piece.data == whole[expected_begin : expected_begin + most]
    assert piece.next_offset == piece.offset + len(piece.data)
    assert piece.lost_bytes == max(0, expected_begin - max(0, offset))
    assert (ring.start, ring.end) == (kept_from, len(whole))


@given(st.integers(1, 64), st.lists(st.tuples(st.binary(max_size=40), st.integers(1, 50)), max_size=30))
def test_a_poller_that_follows_next_offset_gets_every_byte_or_its_number(
    cap: int, steps: list[tuple[bytes, int]]
) -> None:
    ring, whole, seen, lost, offset = Ring(cap), b"", 0, 0, 0
    for chunk, most in steps:
        ring.write(chunk)
        whole += chunk
        piece = ring.read(offset, most)
        assert piece.offset == offset + piece.lost_bytes
        assert whole[piece.offset : piece.next_offset] == piece.data
        seen, lost, offset = seen + len(piece.data), lost + piece.lost_bytes, piece.next_offset
    last = ring.read(offset, cap)
    assert seen + lost + last.lost_bytes + len(last.data) == len(whole)


@given(st.integers(1, 64), writes)
def test_a_ring_never_holds_more_than_twice_its_cap_and_one_write(cap: int, chunks: list[bytes]) -> None:
    ring = Ring(cap)
    for chunk in chunks:
        ring.write(chunk)
        assert len(ring._held) <= 2 * cap + max(map(len, chunks))


def test_a_ring_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one byte"):
        Ring(0)
