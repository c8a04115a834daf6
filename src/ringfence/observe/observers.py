"""Everybody who is told what the journal holds, each in a lane of its own, so that one that hangs delays no other."""

from __future__ import annotations

import os
import time
import weakref
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from ringfence.observe.lane import USUAL_SIZE, Lane, LaneState, Position, Reread
from ringfence.observe.sinks import Record, Sink

CLOSING_SECONDS: Final = 2.0


class Observers:
    """Passes committed records on; with no sinks, as when `observe` is off, it does nothing and starts nothing."""

    def __init__(
        self,
        sinks: Iterable[Sink] = (),
        checkpoint_sinks: Iterable[Sink] = (),
        *,
        positions: Mapping[str, Position] | None = None,
        reread: Reread | None = None,
        lane: Callable[..., Lane] = Lane,
    ) -> None:
        """Take up each sink where `positions` (by the sink's name) says it came to; no thread is started yet."""
        known = positions or {}
        self._lanes = tuple(lane(sink, position=known.get(sink.name), reread=reread) for sink in sinks)
        self._checkpoint_lanes = tuple(lane(sink) for sink in checkpoint_sinks)
        if self._lanes or self._checkpoint_lanes:
            os.register_at_fork(after_in_child=_forgetting(self))

    def offer(self, record: Record, record_hash: bytes, size: int = USUAL_SIZE) -> None:
        """Tell of one record after it was committed, in the order of its log; never waits and never raises.

        `size` is that of the record as stored: it is what the queue's share of memory is counted in.
        """
        for lane in self._lanes:
            lane.offer(record, record_hash, size)

    def offer_checkpoint(self, note: str) -> None:
        """Copy one signed checkpoint to its second places; never waits and never raises."""
        for lane in self._checkpoint_lanes:
            lane.offer_note(note)

    def resume(self) -> None:
        """Deliver what an earlier process of this log did not, read from the journal."""
        for lane in self._lanes:
            lane.resume()

    def backlog(self) -> dict[str, int]:
        """Return how many records and checkpoints wait, over all sinks: the reading of `sandbox_evidence_backlog`."""
        return {"": sum(state.backlog for state in self.states())}

    def states(self) -> tuple[LaneState, ...]:
        """Return how far each sink has come, for `health`."""
        return tuple(lane.state() for lane in (*self._lanes, *self._checkpoint_lanes))

    def positions(self) -> dict[str, dict[str, int]]:
        """Return the position of every sink that gets records, to be kept for the next start."""
        states = (lane.state() for lane in self._lanes)
        return {state.name: state.position for state in states}

    def close(self, timeout_seconds: float = CLOSING_SECONDS) -> bool:
        """Deliver what is queued, but for no longer than that; return whether all of it was."""
        lanes = (*self._lanes, *self._checkpoint_lanes)
        for lane in lanes:
            lane.begin_closing()
        deadline = time.monotonic() + timeout_seconds
        # every lane is ended, also after one that was not done
        done = [lane.finish_closing(max(0.0, deadline - time.monotonic())) for lane in lanes]
        return all(done)

    def _after_fork(self) -> None:
        for lane in (*self._lanes, *self._checkpoint_lanes):
            lane.after_fork()


def _forgetting(observers: Observers) -> Callable[[], None]:
    # a weak one: whatever is registered is never let go of
    found = weakref.ref(observers)

    def after_fork() -> None:
        there = found()
        if there is not None:
            there._after_fork()

    return after_fork
