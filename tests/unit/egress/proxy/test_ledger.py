"""What is told of a run's network, also of what came to nothing."""

from __future__ import annotations

from ringfence.egress.proxy.ledger import Entry, Ledger


def test_what_is_cut_off_before_it_says_where_it_goes_was_allowed_nowhere() -> None:
    ledger = Ledger(100, 100)
    ledger.begin(Entry("", 0))
    ledger.begin(Entry("granted.example", 443))
    told = ledger.total()
    assert [(place.host, place.decision, place.reason) for place in told.destinations] == [
        ("", "failed", "unsaid"),
        ("granted.example", "allowed", ""),
    ]


def test_a_refusal_of_nobody_stays_what_it_was() -> None:
    ledger = Ledger(100, 100)
    ledger.end(ledger.begin(Entry("", 0, decision="denied", reason="invalid")))
    (place,) = ledger.total().destinations
    assert (place.decision, place.reason) == ("denied", "invalid")
