"""Boxes that cannot be had are on record: the first time, and then what came together in a minute."""

from __future__ import annotations

from ringfence.errors import InvalidRequest, IsolationUnavailable
from ringfence.identifiers import TimeOrdered
from ringfence.stores.troubles import Troubles
from ringfence.testing import FrozenClock, MemorySink

SPOKEN = "no namespaces\x1b[2J"


def test_a_reason_is_on_record_once_a_minute_with_how_often_it_came_in_between() -> None:
    kept, clock = MemorySink(), FrozenClock(1000.0)
    troubles = Troubles(kept, TimeOrdered(), clock)
    for _ in range(5):
        troubles.failed("native", IsolationUnavailable(SPOKEN))
    troubles.failed("docker", IsolationUnavailable(SPOKEN))
    troubles.failed("native", OSError("no more files"))
    clock.advance(60)
    troubles.failed("native", IsolationUnavailable(SPOKEN))
    assert [(record["type"], record["isolation"], record["reason"], record["unsaid"]) for record in kept.records] == [
        ("pool.failed", "native", "isolation_unavailable", 0),
        ("pool.failed", "docker", "isolation_unavailable", 0),
        ("pool.failed", "native", "start_failed", 0),
        ("pool.failed", "native", "isolation_unavailable", 4),
    ]
    assert kept.records[0]["error_reason"] == "no namespaces%1B[2J"


def test_a_clock_that_is_set_back_silences_nobody() -> None:
    kept, clock = MemorySink(), FrozenClock(1000.0)
    troubles = Troubles(kept, TimeOrdered(), clock)
    troubles.failed("native", IsolationUnavailable(SPOKEN))
    clock.advance(-500)
    troubles.failed("native", IsolationUnavailable(SPOKEN))
    assert len(kept.records) == 2


def test_what_was_asked_for_wrongly_is_nobodys_trouble_but_the_askers() -> None:
    kept = MemorySink()
    Troubles(kept, TimeOrdered(), FrozenClock()).failed("native", InvalidRequest("no such module"))
    assert kept.records == []
