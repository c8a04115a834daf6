"""What waits for a slow reader is bounded, in order, and says where something is missing."""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from ringfence.streaming import Backlog

STEPS = st.lists(
    st.none() | st.tuples(st.sampled_from(["stdout", "stderr"]), st.binary(min_size=1, max_size=300)), max_size=60
)
LINE = re.compile(rb"\n?\[\xe2\x80\xa6 (\d+) bytes left out \xe2\x80\xa6\]\n\Z")


@given(STEPS)
def test_a_reader_finds_every_byte_or_a_line_that_counts_it(steps: list[tuple[str, bytes] | None]) -> None:
    backlog, said, read = Backlog(2000), {"stdout": 0, "stderr": 0}, {"stdout": 0, "stderr": 0}

    def take() -> bool:
        chunk = backlog.take()
        if chunk is None:
            return False
        line = LINE.match(chunk[1])
        read[chunk[0]] += int(line[1]) if line else len(chunk[1])
        return True

    for step in steps:
        if step is None:
            take()
        else:
            backlog.put(*step)
            said[step[0]] += len(step[1])
        assert backlog.weight <= 2000
    while take():
        pass
    assert read == said


def test_a_reader_who_keeps_up_finds_what_was_put() -> None:
    backlog = Backlog()
    chunks = [("stdout", b"a"), ("stderr", b"b"), ("stdout", b"c")]
    for chunk in chunks:
        backlog.put(*chunk)
    assert [backlog.take() for _ in range(4)] == [*chunks, None]


def test_the_oldest_give_way_and_the_tail_stays() -> None:
    backlog = Backlog(1000)
    backlog.put("stdout", b"head")
    assert backlog.take() == ("stdout", b"head")
    for number in range(100):
        backlog.put("stdout", b"%03d" % number)
    assert backlog.take() == ("stdout", "\n[… 291 bytes left out …]\n".encode())
    assert [backlog.take() for _ in range(4)] == [*(("stdout", b"%03d" % n) for n in (97, 98, 99)), None]
