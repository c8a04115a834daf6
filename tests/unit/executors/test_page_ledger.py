"""The ledger of a page tells every byte once, whichever operation asks, and lets through what the last one allowed."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ringfence.egress.proxy.ledger import Entry
from ringfence.executors.page_ledger import PageLedger

SIZES = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 1000), st.booleans(), st.booleans()), max_size=40)


@given(SIZES)
def test_every_byte_is_told_exactly_once(moves: list[tuple[int, int, bool, bool]]) -> None:
    ledger = PageLedger()
    ledger.allow(10**9, 10**9)
    alive: dict[int, Entry] = {}
    moved = told = connections = counted = 0
    for which, size, ends, asks in moves:
        if which not in alive:
            alive[which] = ledger.begin(Entry(f"h{which}.test", 80))
            connections += 1
        ledger.received(alive[which], size)
        moved += size
        if ends:
            alive[which].decision = "failed"  # what it is called may change while it lives
            ledger.end(alive.pop(which))
        if asks:
            network = ledger.since()
            told += network.bytes_in
            counted += sum(place.count for place in network.destinations)
    ledger.total()
    last = ledger.since()
    assert told + last.bytes_in == moved
    assert counted + sum(place.count for place in last.destinations) == connections
    assert ledger.since().destinations == ()


def test_nothing_passes_before_an_operation_allows_it_and_no_more_than_it_allows() -> None:
    ledger = PageLedger()
    entry = ledger.begin(Entry("a.test", 80))
    assert (ledger.may_receive(5), ledger.may_send(5), ledger.is_spent) == (0, 0, True)
    ledger.allow(10, 4)
    ledger.received(entry, ledger.may_receive(7))
    ledger.sent(entry, ledger.may_send(9))
    assert (ledger.may_receive(7), ledger.may_send(1), ledger.is_spent) == (3, 0, True)
    ledger.since()
    ledger.allow(10, 10)  # not on top of what was left
    assert (ledger.may_receive(100), ledger.may_send(100), ledger.is_spent) == (10, 10, False)


def test_what_comes_after_an_operation_counts_as_a_part_of_the_next() -> None:
    ledger = PageLedger()
    entry = ledger.begin(Entry("a.test", 80))
    ledger.allow(10, 10)
    ledger.received(entry, 4)
    assert ledger.since().bytes_in == 4
    ledger.received(entry, 3)
    ledger.allow(10, 10)
    ledger.received(entry, ledger.may_receive(100))
    assert (ledger.since().bytes_in, ledger.is_spent) == (10, True)


def test_a_connection_that_has_not_said_where_it_goes_is_told_when_it_has() -> None:
    ledger = PageLedger()
    entry = ledger.begin(Entry("", 0))
    assert ledger.since().destinations == ()
    entry.host, entry.port = "a.test", 80
    ledger.end(entry)
    assert [(place.host, place.count) for place in ledger.since().destinations] == [("a.test", 1)]
