"""A sink may hang, break or be slow: no offer waits for it, memory is bounded, and nothing is lost from the journal."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ringfence.observe.lane import Lane, LaneState, delay_seconds
from ringfence.observe.observers import Observers
from ringfence.observe.sinks import SinkFailed, SinkRefused, SinkUnready

WAIT = 20  # of a test for a thread; reached only where something is broken


def record(seq: int, log_id: str = "lg-1", kind: str = "exec.end") -> dict[str, Any]:
    return {"v": 1, "type": kind, "log_id": log_id, "seq": seq, "exec_id": f"ex-{seq}", "status": "ok"}


def noting(waits: list[float]) -> Callable[[float], bool]:
    def wait(seconds: float) -> bool:
        waits.append(seconds)
        return False

    return wait


def told(sink: Told) -> list[tuple[str, int]]:
    return [(each["log_id"], each["seq"]) for each in sink.records]


class Told:
    """A sink that keeps what it is told, after `before` had its way."""

    def __init__(self, before: Callable[[Mapping[str, Any]], None] = lambda _: None, name: str = "told") -> None:
        self.name = name
        self.records: list[Mapping[str, Any]] = []
        self.hashes: list[str] = []
        self.notes: list[str] = []
        self.closed = False
        self._before = before

    def deliver(self, record: Mapping[str, Any], record_hash: str) -> None:
        self._before(record)
        self.records.append(record)
        self.hashes.append(record_hash)

    def deliver_note(self, note: str) -> None:
        self._before({})
        self.notes.append(note)

    def close(self) -> None:
        self.closed = True


class Stuck(Told):
    """A sink that does not come back until it is let go."""

    def __init__(self) -> None:
        super().__init__(self._hang)
        self.entered = threading.Event()
        self.let_go = threading.Event()

    def _hang(self, _: Mapping[str, Any]) -> None:
        self.entered.set()
        assert self.let_go.wait(WAIT)


class Journal:
    """What the writer has committed, readable from any position."""

    def __init__(self) -> None:
        self.records: list[dict[str, Any]] = []
        self.reads = 0

    def commit(self, record: dict[str, Any]) -> dict[str, Any]:
        self.records.append(record)
        return record

    def reread(self, position: Mapping[str, int], most: int) -> Sequence[tuple[dict[str, Any], bytes]]:
        self.reads += 1
        found = [each for each in list(self.records) if each["seq"] > position.get(each["log_id"], -1)]
        return [(each, b"\1" * 32) for each in found[:most]]


def finished(lane: Lane) -> LaneState:
    lane.begin_closing()
    assert lane.finish_closing(WAIT)
    return lane.state()


def test_records_arrive_in_order_with_their_hash_and_the_position_follows() -> None:
    sink = Told()
    lane = Lane(sink)
    for seq in range(100):
        lane.offer(record(seq), bytes([seq]) * 32)
    state = finished(lane)
    assert [seq for _, seq in told(sink)] == list(range(100))
    assert sink.hashes[7] == "07" * 32
    assert (state.position, state.delivered, state.dropped, state.backlog) == ({"lg-1": 99}, 100, 0, 0)
    assert sink.closed


def test_no_thread_is_started_before_the_first_offer() -> None:
    before = threading.active_count()
    lane = Lane(Told())
    assert threading.active_count() == before
    assert finished(lane).delivered == 0


def test_a_million_offers_to_a_stuck_sink_return_and_keep_no_more_than_the_queue() -> None:
    sink = Stuck()
    lane = Lane(sink, capacity=100)
    lane.offer(record(0), b"")
    assert sink.entered.wait(WAIT)
    for seq in range(1, 1_000_000):
        lane.offer(record(seq), b"")
    state = lane.state()
    assert (state.backlog, state.dropped, state.delivered) == (100, 1_000_000 - 101, 0)
    assert len(lane._queue) == 100
    sink.let_go.set()
    state = finished(lane)
    assert told(sink) == [("lg-1", seq) for seq in range(101)]
    assert state.position == {"lg-1": 100}


def test_large_records_fill_the_queue_by_their_size() -> None:
    sink = Stuck()
    lane = Lane(sink, capacity_bytes=1_000)
    lane.offer(record(0), b"", 400)
    assert sink.entered.wait(WAIT)
    for seq in range(1, 10):
        lane.offer(record(seq), b"", 400)
    assert (lane.state().backlog, lane.state().dropped) == (2, 7)
    sink.let_go.set()
    assert finished(lane).delivered == 3


def test_the_position_stays_before_a_gap_that_nobody_can_fill() -> None:
    sink = Stuck()
    lane = Lane(sink, capacity=1)
    lane.offer(record(0), b"")
    assert sink.entered.wait(WAIT)
    for seq in (1, 2, 3):
        lane.offer(record(seq), b"")
    sink.let_go.set()
    while lane.state().delivered < 2:
        assert not threading.Event().wait(0)
    lane.offer(record(4), b"")
    state = finished(lane)
    assert [seq for _, seq in told(sink)] == [0, 1, 4]
    assert state.position == {"lg-1": 1}


def test_what_did_not_fit_is_read_from_the_journal_once_the_sink_takes_events_again() -> None:
    sink, journal = Stuck(), Journal()
    lane = Lane(sink, capacity=10, reread=journal.reread)
    lane.offer(journal.commit(record(0)), b"")
    assert sink.entered.wait(WAIT)
    for seq in range(1, 5_000):
        lane.offer(journal.commit(record(seq)), b"")
    state = lane.state()
    assert state.behind
    assert state.backlog == 4_999
    sink.let_go.set()
    state = finished(lane)
    assert told(sink) == [("lg-1", seq) for seq in range(5_000)]
    assert (state.position, state.backlog, state.behind) == ({"lg-1": 4_999}, 0, False)


def test_offers_from_several_threads_during_catching_up_are_neither_lost_nor_told_twice() -> None:
    sink, journal = Told(), Journal()
    lane = Lane(sink, capacity=3, reread=journal.reread)

    def write(log_id: str) -> None:
        for seq in range(1_000):
            lane.offer(journal.commit(record(seq, log_id)), b"")

    writers = [threading.Thread(target=write, args=(f"lg-{number}",)) for number in range(3)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(WAIT)
    finished(lane)
    for log_id in ("lg-0", "lg-1", "lg-2"):
        assert [seq for log, seq in told(sink) if log == log_id] == list(range(1_000))


def test_a_record_committed_just_as_the_lane_has_caught_up_is_not_lost() -> None:
    sink, journal = Told(), Journal()
    journal.commit(record(0))
    late = [record(1)]

    def reread(position: Mapping[str, int], most: int) -> Sequence[tuple[dict[str, Any], bytes]]:
        found = journal.reread(position, most)
        if not found and late:  # it saw the end of the journal, and meanwhile somebody wrote
            lane.offer(journal.commit(late.pop()), b"")
        return found

    lane = Lane(sink, reread=reread)
    lane.resume()
    while lane.state().position != {"lg-1": 1} and lane.state().behind:
        assert not threading.Event().wait(0)
    finished(lane)
    assert [seq for _, seq in told(sink)] == [0, 1]


def test_a_restart_goes_on_from_the_position_that_was_kept() -> None:
    sink, journal = Told(), Journal()
    for seq in range(700):
        journal.commit(record(seq))
    observers = Observers([sink], positions={"told": {"lg-1": 299}}, reread=journal.reread)
    observers.resume()
    assert observers.close(WAIT)
    assert [seq for _, seq in told(sink)] == list(range(300, 700))
    assert observers.positions() == {"told": {"lg-1": 699}}


def test_a_journal_that_cannot_be_read_now_is_read_later() -> None:
    sink, journal = Told(), Journal()
    journal.commit(record(0))
    failures = [OSError("locked"), OSError("locked")]
    waits: list[float] = []

    def reread(position: Mapping[str, int], most: int) -> Sequence[tuple[dict[str, Any], bytes]]:
        if failures:
            raise failures.pop()
        return journal.reread(position, most)

    lane = Lane(sink, reread=reread, wait=noting(waits))
    lane.resume()
    state = finished(lane)
    assert len(waits) == 2
    assert state.position == {"lg-1": 0}
    assert "locked" in state.last_error


def test_an_unready_sink_is_asked_again_ever_later_with_the_same_record() -> None:
    waits: list[float] = []
    failures = [SinkUnready("down") for _ in range(12)]

    def down(_: Mapping[str, Any]) -> None:
        if failures:
            raise failures.pop()

    sink = Told(down)
    lane = Lane(sink, wait=noting(waits))
    lane.offer(record(0), b"")
    lane.offer(record(1), b"")
    state = finished(lane)
    assert [seq for _, seq in told(sink)] == [0, 1]
    assert waits == sorted(waits)
    assert (len(waits), waits[0], waits[-1]) == (12, 0.1, 30.0)
    assert state.refused == 0


@given(st.integers(0, 10**9))
@settings(max_examples=50, deadline=None)
def test_a_delay_is_never_longer_than_the_bound(attempts: int) -> None:
    assert 0 < delay_seconds(attempts) <= 30.0


@pytest.mark.parametrize("error", [SinkRefused("no"), ValueError("cannot be encoded"), SinkFailed("it broke over it")])
def test_one_record_that_is_never_taken_does_not_stop_those_after_it(error: Exception) -> None:
    def poisoned(record: Mapping[str, Any]) -> None:
        if record["seq"] == 1:
            raise error

    sink = Told(poisoned)
    lane = Lane(sink, wait=lambda _: False)
    for seq in range(3):
        lane.offer(record(seq), b"")
    state = finished(lane)
    assert [seq for _, seq in told(sink)] == [0, 2]
    assert (state.refused, state.position) == (1, {"lg-1": 2})
    assert str(error) in state.last_error


def test_closing_gives_up_a_stuck_sink_and_says_so() -> None:
    sink = Stuck()
    observers = Observers([sink])
    observers.offer(record(0), b"")
    assert sink.entered.wait(WAIT)
    observers.offer(record(1), b"")
    assert not observers.close(0.0)
    assert observers.positions() == {"told": {}}
    sink.let_go.set()


def test_closing_does_not_wait_out_the_pause_of_a_sink_that_is_down() -> None:
    def down(_: Mapping[str, Any]) -> None:
        raise SinkUnready("down")

    lane = Lane(Told(down))
    lane.offer(record(0), b"")
    lane.begin_closing()
    assert not lane.finish_closing(0.0)
    thread = lane._thread
    assert thread is not None
    thread.join(WAIT)
    assert not thread.is_alive()


def test_a_stuck_sink_delays_no_other() -> None:
    stuck, free = Stuck(), Told(name="free")
    observers = Observers([stuck, free])
    for seq in range(50):
        observers.offer(record(seq), b"")
    while observers.positions()["free"] != {"lg-1": 49}:
        assert not threading.Event().wait(0)
    assert observers.positions()["told"] == {}
    assert observers.backlog()[""] >= 49
    stuck.let_go.set()
    assert observers.close(WAIT)


def test_checkpoints_go_to_their_own_sinks_and_of_too_many_the_oldest_goes() -> None:
    records, copies = Told(name="records"), Stuck()
    observers = Observers([records], [copies], lane=lambda sink, **given: Lane(sink, capacity=3, **given))
    observers.offer_checkpoint("first")
    assert copies.entered.wait(WAIT)
    for number in range(10):
        observers.offer_checkpoint(f"note {number}")
    copies.let_go.set()
    assert observers.close(WAIT)
    assert copies.notes == ["first", "note 7", "note 8", "note 9"]
    assert not records.notes
    assert not records.records


def test_with_nobody_to_tell_nothing_is_started() -> None:
    before = threading.active_count()
    observers = Observers()
    observers.offer(record(0), b"")
    observers.offer_checkpoint("note")
    observers.resume()
    assert threading.active_count() == before
    assert (observers.backlog(), observers.positions(), observers.states()) == ({"": 0}, {}, ())
    assert observers.close()


def test_nothing_is_taken_after_closing() -> None:
    sink = Told()
    observers = Observers([sink], [sink])
    assert observers.close()
    observers.offer(record(0), b"")
    observers.offer_checkpoint("note")
    observers.resume()
    assert not sink.records
    assert not sink.notes


def test_a_machine_without_room_for_a_thread_is_offered_to_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    sink = Told()
    lane = Lane(sink)
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", lambda _: (_ for _ in ()).throw(RuntimeError("no more threads")))
        lane.offer(record(0), b"")
    assert lane.state().backlog == 1
    lane.offer(record(1), b"")
    assert finished(lane).delivered == 2


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_child_does_not_tell_what_its_parent_tells_and_can_tell_its_own() -> None:
    sink = Stuck()
    observers = Observers([sink])
    observers.offer(record(0), b"")
    assert sink.entered.wait(WAIT)
    observers.offer(record(1), b"")
    child = os.fork()
    if child == 0:
        try:
            sink.let_go.set()
            observers.offer(record(9, "lg-child"), b"")
            whole = observers.close(WAIT) and told(sink) == [("lg-child", 9)]
            os._exit(0 if whole else 1)
        except BaseException:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    sink.let_go.set()
    assert observers.close(WAIT)
    assert told(sink) == [("lg-1", 0), ("lg-1", 1)]
