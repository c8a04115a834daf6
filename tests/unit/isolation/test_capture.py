"""A capture keeps the first bytes, counts all of them, and never holds more than its cap."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ringfence.isolation.capture import Capture


@given(st.integers(0, 64), st.lists(st.binary(max_size=40), max_size=20))
def test_it_keeps_the_first_bytes_and_counts_the_rest(cap: int, chunks: list[bytes]) -> None:
    heard: list[tuple[str, bytes]] = []
    capture = Capture("stdout", cap, lambda name, data: heard.append((name, data)))
    for chunk in chunks:
        capture.add(chunk)
        assert len(capture.kept) <= cap
    everything = b"".join(chunks)
    assert bytes(capture.kept) == everything[:cap]
    assert capture.seen == len(everything)
    # who listens hears exactly what is kept
    assert b"".join(data for _, data in heard) == everything[:cap]
    assert {name for name, _ in heard} <= {"stdout"}
