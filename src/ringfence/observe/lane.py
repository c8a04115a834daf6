"""The way from the journal to one sink: a bounded queue that no run waits for, and a thread that may wait for ever."""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

from ringfence.dataclass import dataclass
from ringfence.observe.sinks import Record, Sink, SinkFailed, SinkRefused, SinkUnready

CAPACITY: Final = 4_096
CAPACITY_BYTES: Final = 16 * 1024 * 1024
USUAL_SIZE: Final = 2_048
_BATCH = 256
_FIRST_DELAY_SECONDS = 0.1
_LONGEST_DELAY_SECONDS = 30.0
_MOST_FAILURES = 5  # of a sink that breaks over one event, before that event is passed over
_LONGEST_ERROR = 300

Position = Mapping[str, int]
# The records of this process's logs beyond a position, oldest first in each log and at most so many; empty: no more.
Reread = Callable[[Position, int], Sequence[tuple[Record, bytes]]]


class _Queued(NamedTuple):
    record: Record
    record_hash: bytes
    size: int


@dataclass(frozen=True, slots=True)
class LaneState:
    """How far a sink has come; `dropped` records are in the journal and, if `behind`, are being read from there."""

    name: str
    backlog: int
    delivered: int
    dropped: int
    refused: int
    behind: bool
    last_error: str
    position: dict[str, int]


class Lane:
    """Delivers to one sink, in the order of each log and at least once, without ever making `offer` wait.

    What does not fit is not queued. With `reread` it is read from the journal once the sink takes events again; without
    it the position stays before the gap, so that whoever goes on from it later begins there.
    """

    def __init__(
        self,
        sink: Sink,
        *,
        position: Position | None = None,
        reread: Reread | None = None,
        capacity: int = CAPACITY,
        capacity_bytes: int = CAPACITY_BYTES,
        wait: Callable[[float], bool] | None = None,
    ) -> None:
        """Start nothing yet; `wait` waits so many seconds and says whether to give up instead."""
        self._sink = sink
        self._reread = reread
        self._capacity = capacity
        self._capacity_bytes = capacity_bytes
        self._position = dict(position or {})
        self._gaps: dict[str, int] = {}
        self._behind = False
        self._missed = self._dropped = self._delivered = self._refused = 0
        self._last_error = ""
        self._begin_afresh()
        self._wait = wait or (lambda seconds: self._stopped.wait(seconds))

    def offer(self, record: Record, record_hash: bytes, size: int = USUAL_SIZE) -> None:
        """Queue a record, or note that it was not; the record must not be changed afterwards."""
        with self._changed:
            if self._closing:
                return
            if self._behind:
                self._missed += 1
            elif len(self._queue) < self._capacity and self._queued_bytes + size <= self._capacity_bytes:
                self._queue.append(_Queued(record, record_hash, size))
                self._queued_bytes += size
            else:
                self._drop(record)
            self._wake()

    def offer_note(self, note: str) -> None:
        """Queue a checkpoint; of too many the oldest goes, since a later one covers all that it covered."""
        with self._changed:
            if self._closing:
                return
            if len(self._notes) >= self._capacity:
                self._notes.popleft()
                self._dropped += 1
            self._notes.append(note)
            self._wake()

    def resume(self) -> None:
        """Read from the journal what an earlier process did not deliver."""
        with self._changed:
            if self._reread is not None and not self._closing:
                self._behind = True
                self._wake()

    def state(self) -> LaneState:
        """Return how far it has come."""
        with self._changed:
            waiting = len(self._queue) + len(self._notes) + self._missed
            return LaneState(
                self._sink.name,
                waiting,
                self._delivered,
                self._dropped,
                self._refused,
                self._behind,
                self._last_error,
                dict(self._position),
            )

    def begin_closing(self) -> None:
        """Take nothing more, and end once all that is queued is delivered."""
        with self._changed:
            self._closing = True
            self._changed.notify()

    def finish_closing(self, timeout_seconds: float) -> bool:
        """Wait until it has ended, give up what is left after that time, and say whether all was delivered."""
        if self._thread is not None:
            self._thread.join(timeout_seconds)
        self._stopped.set()
        return not (self._queue or self._notes or self._behind or self._in_hand)

    def after_fork(self) -> None:
        """Forget, in a forked child, what the parent's thread is going to deliver, and the lock it may hold."""
        self._begin_afresh()

    def _begin_afresh(self) -> None:
        # re-entrant: an engine that the garbage collector ends may offer its last record in the middle of an offer
        self._changed = threading.Condition(threading.RLock())
        self._stopped = threading.Event()
        self._queue: deque[_Queued] = deque()
        self._notes: deque[str] = deque()
        self._queued_bytes = 0
        self._in_hand = 0
        self._closing = False
        self._thread: threading.Thread | None = None

    def _drop(self, record: Record) -> None:
        self._dropped += 1
        if self._reread is not None:
            self._behind = True
            self._missed += 1
        else:
            log_id, seq = _place(record)
            self._gaps.setdefault(log_id, seq)

    def _wake(self) -> None:
        if self._thread is None or not self._thread.is_alive():
            thread = threading.Thread(target=self._work, name="ringfence-observe", daemon=True)
            # too many threads, or the interpreter is ending: what is queued waits for the next offer, or for a restart
            with contextlib.suppress(RuntimeError):
                thread.start()
                self._thread = thread
        self._changed.notify()

    def _work(self) -> None:
        while self._next():
            pass
        self._sink.close()

    def _next(self) -> bool:
        """Deliver one thing; return whether to go on."""
        with self._changed:
            self._changed.wait_for(lambda: self._queue or self._notes or self._behind or self._closing)
            note = self._notes.popleft() if self._notes else None
            queued = self._queue.popleft() if note is None and self._queue else None
            if queued is not None:
                self._queued_bytes -= queued.size
            ended = note is None and queued is None and not self._behind
            self._in_hand = int(note is not None or queued is not None)
        if note is not None:
            done = self._insist(lambda: self._sink.deliver_note(note))
        elif queued is not None:
            done = self._deliver(queued.record, queued.record_hash)
        elif ended:
            return False
        else:
            done = self._catch_up()
        if done:
            self._in_hand = 0
        return done

    def _catch_up(self) -> bool:
        """Deliver one batch from the journal; once there is none, let offers be queued again."""
        batch = self._read()
        if batch is None:
            return not self._wait(_FIRST_DELAY_SECONDS)
        if batch:
            return self._deliver_batch(batch)
        with self._changed:
            self._behind = False
            self._missed = 0
        # what was committed between that look and this line was not queued; what is queued since may come twice
        rest = self._read()
        if rest is None or len(rest) >= _BATCH:
            with self._changed:
                self._behind = True
        return self._deliver_batch(rest or ())

    def _read(self) -> Sequence[tuple[Record, bytes]] | None:
        assert self._reread is not None  # noqa: S101  only then can it be behind
        try:
            return self._reread(dict(self._position), _BATCH)
        except Exception as error:  # noqa: BLE001  the journal is busy or shut: later, then
            self._note_error(error)
            return None

    def _deliver_batch(self, batch: Sequence[tuple[Record, bytes]]) -> bool:
        for record, record_hash in batch:
            if not self._deliver(record, record_hash):
                return False
            with self._changed:
                self._missed = max(0, self._missed - 1)
        return True

    def _deliver(self, record: Record, record_hash: bytes) -> bool:
        log_id, seq = _place(record)
        if 0 <= seq <= self._position.get(log_id, -1):
            return True  # it came from the journal already
        if not self._insist(lambda: self._sink.deliver(record, record_hash.hex())):
            return False
        gap = self._gaps.get(log_id)
        if seq >= 0 and (gap is None or seq < gap):
            with self._changed:
                self._position[log_id] = seq
        return True

    def _insist(self, deliver: Callable[[], None]) -> bool:
        """Deliver one thing, however long it takes; return False where the lane is stopped first."""
        attempts = failures = 0
        while True:
            try:
                deliver()
                self._delivered += 1
                return True
            except SinkFailed as error:
                self._note_error(error)
                failures += 1
                if failures >= _MOST_FAILURES:
                    self._refused += 1
                    return True
            except SinkUnready as error:
                self._note_error(error)
            except SinkRefused as error:
                self._note_error(error)
                self._refused += 1
                return True
            except Exception as error:  # noqa: BLE001  an event that cannot be encoded must not stop those after it
                self._note_error(error)
                self._refused += 1
                return True
            if self._wait(delay_seconds(attempts)):
                return False
            attempts += 1

    def _note_error(self, error: Exception) -> None:
        self._last_error = f"{type(error).__name__}: {error}"[:_LONGEST_ERROR]


def delay_seconds(attempts: int) -> float:
    """Return how long to wait after so many failed attempts before: twice as long each time, to a bound."""
    return min(_FIRST_DELAY_SECONDS * 2.0 ** min(attempts, 30), _LONGEST_DELAY_SECONDS)


def _place(record: Record) -> tuple[str, int]:
    log_id, seq = record.get("log_id"), record.get("seq")
    return (log_id, seq) if isinstance(log_id, str) and isinstance(seq, int) else ("", -1)
