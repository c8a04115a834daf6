"""A text or a front may be gone where a signed record says how far it went; every other hole is named."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringfence.journal.pruning import PRUNED, ROWS, TEXTS, Bounds, Gone

BOUNDS = st.builds(
    Bounds,
    texts=st.dictionaries(st.sampled_from(["lg-1", "lg-2", "lg-3"]), st.integers(0, 50)),
    rows=st.dictionaries(st.sampled_from(["lg-1", "lg-2", "lg-3"]), st.integers(0, 50)),
)


def said(bounds: Bounds) -> dict[str, object]:
    return {"type": PRUNED, "up_to": bounds.to_members()}


def gone(*, dropped: int = 0, missing: int | None = None, record: dict[str, object], signed: int = 10**9) -> list[str]:
    """Return what is wrong with a log that lost something, while another one says `record` at 7."""
    seen = Gone()
    seen.begin("lg-1", dropped)
    if missing is not None:
        seen.see(missing, None)
    seen.end(10**9)
    seen.begin("lg-2", 0)
    seen.see(7, record)
    seen.end(signed)
    return list(seen.faults())


@given(first=BOUNDS, second=BOUNDS)
def test_bounds_are_read_back_as_they_were_said_and_only_ever_widen(first: Bounds, second: Bounds) -> None:
    both = Bounds()
    both.read(first.to_members())
    assert both == first
    both.read(second.to_members())
    for part in (TEXTS, ROWS):
        one, other = first.of(part), second.of(part)
        assert both.of(part) == {name: max(one.get(name, -1), other.get(name, -1)) for name in one.keys() | other}


@given(bounds=BOUNDS, missing=st.integers(0, 60), dropped=st.integers(1, 60))
def test_what_is_gone_is_explained_up_to_its_bound_and_no_further(bounds: Bounds, missing: int, dropped: int) -> None:
    record = said(bounds)
    assert (gone(missing=missing, record=record) == []) == (missing <= bounds.texts.get("lg-1", -1))
    assert (gone(dropped=dropped, record=record) == []) == (dropped - 1 <= bounds.rows.get("lg-1", -1))


def test_a_hole_is_named() -> None:
    assert gone(missing=3, dropped=2, record={"type": "log.opened"}) == [
        "the text of record 3 of lg-1 is gone, and nobody wrote down that it was taken away",
        "the first 2 records of lg-1 were dropped, and nobody wrote that down",
    ]


def test_that_rows_may_go_explains_no_text_and_that_texts_may_go_no_row() -> None:
    assert gone(missing=3, record=said(Bounds(rows={"lg-1": 9})))
    assert gone(dropped=3, record=said(Bounds(texts={"lg-1": 9})))


@pytest.mark.parametrize(("signed", "is_believed"), [(0, False), (7, False), (8, True)])
def test_only_what_is_signed_is_believed(signed: int, is_believed: bool) -> None:
    found = gone(missing=3, record=said(Bounds(texts={"lg-1": 3})), signed=signed)
    assert (found == []) is is_believed


@pytest.mark.parametrize(
    "up_to",
    [None, 7, "lg-1", {"log_id": "lg-1", "texts": 9}, [7], [{"texts": 9}], [{"log_id": 1, "texts": 9}]]
    + [[{"log_id": "lg-1", "texts": wrong}] for wrong in (True, "9", 9.5, None, [9])],
)
def test_what_no_release_writes_explains_nothing(up_to: object) -> None:
    assert gone(missing=0, record={"type": PRUNED, "up_to": up_to})


def test_what_another_kind_of_record_says_explains_nothing() -> None:
    assert gone(missing=3, record={**said(Bounds(texts={"lg-1": 9})), "type": "exec.begin"})
