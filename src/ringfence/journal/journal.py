"""The journal of one process: its own log in the shared database, written together by whoever writes at that moment."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, NamedTuple

from ringfence.dataclass import dataclass
from ringfence.errors import RingfenceError, Unavailable
from ringfence.evidence.records import END
from ringfence.journal import recovery, store
from ringfence.journal.log import Draft, Log, Written

if TYPE_CHECKING:
    from concurrent.futures import ThreadPoolExecutor

    from ringfence.database.port import Cursor, Database
    from ringfence.evidence.documents import Document
    from ringfence.evidence.records import Members
    from ringfence.journal.signer import Signer
    from ringfence.ports import AlsoWrite, Clock, Identifiers

_MOST_AT_ONCE = 256
_TOO_SLOW_FOR_A_LOOP = 0.003
_PATIENCE_WITH_ENDS = 2.0
_A_CROWD = 8
_JUST_NOW_MS = 1000
_GATHERING_SECONDS = 0.005


@dataclass(frozen=True, slots=True)
class Checkpoints:
    """When the log is signed: after so many records, or so long after the first that no checkpoint covers."""

    every: int = 1024
    seconds: float = 60.0


_USUAL = Checkpoints()


class Entry(NamedTuple):
    """One record to write, with what belongs into the same transaction."""

    members: Members
    documents: Sequence[Document] = ()
    also: AlsoWrite | None = None


class Journal:
    """Implements `ports.EvidenceSink`.

    A record that is alone is written where its caller stands, for handing it to a thread costs as much as the disk
    does. What would keep an event loop waiting, other runs, a file that another process holds or a slow disk, is
    written in a thread; records that come together share one transaction.
    """

    def __init__(
        self,
        database: Database,
        signer: Callable[[], Signer],
        clock: Clock,
        identifiers: Identifiers,
        *,
        checkpoints: Checkpoints = _USUAL,
        room: Callable[[], None] = lambda: None,
        in_thread: bool = False,
        on_written: Callable[[Sequence[Written]], None] = lambda _: None,
        on_checkpoint: Callable[[str], None] = lambda _: None,
        on_close: Callable[[], None] = lambda: None,
    ) -> None:
        """Nothing is opened before the first record.

        `room` raises Unavailable while there is too little left to write down how a run would end. `in_thread` is for a
        database that is not on this machine, and so always keeps its caller waiting. `on_written` and
        `on_checkpoint` are told what is durable; they must neither block nor raise.
        """
        self._database = database
        self._signer = signer
        self._clock = clock
        self._identifiers = identifiers
        self._checkpoints = checkpoints
        self._room = room
        self._in_thread = in_thread
        self._on_written = on_written
        self._on_checkpoint = on_checkpoint
        self._on_close = on_close
        self._log: Log | None = None
        self._queue: deque[_Waiting] = deque()
        self._owed: list[Entry] = []
        self._pace = 0.0
        self._unsure = False
        """Whether the last transaction failed in a way that leaves open whether it was kept."""
        # protects the log and what is owed: one transaction of ours at a time
        self._turn = threading.Lock()
        # is told when fewer runs are open
        self._fewer = threading.Condition()
        self._thread: ThreadPoolExecutor | None = None
        self._called = False
        self._timer: threading.Timer | None = None
        self._closed = False

    async def begin(self, ev: Members, documents: Sequence[Document] = ()) -> None:
        """Write down that an execution starts; see `EvidenceSink`."""
        await self._write(Entry(ev, documents))

    async def end(self, ev: Members, also: AlsoWrite | None = None) -> None:
        """Write down how an execution ended; see `EvidenceSink`."""
        await self._write(Entry(ev, (), also))

    async def record(self, ev: Members, documents: Sequence[Document] = ()) -> None:
        """Write down what has no end of its own; see `EvidenceSink`."""
        await self._write(Entry(ev, documents))

    def checkpoint(self) -> None:
        """Sign the log as it stands, if any of it is not covered yet; may block.

        Raises:
            Unavailable: It cannot be written, or nothing can sign here.
        """
        try:
            with self._turn:
                self._timer = None
                if self._log is not None and self._log.signed < self._log.head.size:
                    self._commit((), None, sign=True)
        finally:
            self._write_all()  # whoever came meanwhile saw the turn taken, and waits for us to look

    def close(self) -> None:
        """Sign the log a last time and leave it to whoever comes next; may block.

        Raises:
            Unavailable: It cannot be written; whoever comes next finds our log as that of a dead process.
        """
        self._wait_for_ends()
        if self._thread is not None:
            self._thread.shutdown()
        try:
            with self._turn:
                self._close()
        finally:
            self._write_all()  # nothing is written any more, and whoever came meanwhile is told so

    def _close(self) -> None:
        while self._queue:
            self._write_batch(wait_seconds=None)
        if self._timer is not None:
            self._timer.cancel()
        try:
            if self._log is not None:
                self._commit((), None, sign=self._log.signed < self._log.head.size, release=True)
        finally:
            self._closed = True
            try:
                self._on_close()
            finally:
                self._database.close()

    def _wait_for_ends(self) -> None:
        """Give the runs that are being ended a moment to say so, unless they would have to say it in this thread."""
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            deadline = time.monotonic() + _PATIENCE_WITH_ENDS
            with self._fewer:
                while self._log is not None and self._log.begun:
                    if not self._fewer.wait(deadline - time.monotonic()):
                        return

    async def _write(self, entry: Entry) -> None:
        loop = asyncio.get_running_loop()
        waiting = _Waiting(entry, loop, loop.create_future())
        self._queue.append(waiting)
        if self._in_thread or self._pace > _TOO_SLOW_FOR_A_LOOP or (self._log and len(self._log.begun) > 1):
            self._write_in_thread()
        else:
            self._write_here()
        # where the caller is cancelled meanwhile the record is written all the same: it stands in the queue
        await waiting.written

    def _write_here(self) -> None:
        """Write what is waiting, unless somebody is at it, who will look again before he leaves."""
        while self._queue and self._turn.acquire(blocking=False):
            try:
                busy = not self._write_batch(wait_seconds=0)
            finally:
                self._turn.release()
            if busy:
                self._write_in_thread()
                return

    def _write_in_thread(self) -> None:
        if self._called:  # whoever was called has not looked yet
            return
        if self._thread is None:
            from concurrent.futures import ThreadPoolExecutor

            self._thread = ThreadPoolExecutor(1, "ringfence-journal")
        self._called = True
        try:
            self._thread.submit(self._write_when_called)
        except RuntimeError:  # closed, or the interpreter ends
            self._write_when_called()

    def _write_when_called(self) -> None:
        if self._in_a_crowd():
            time.sleep(_GATHERING_SECONDS)
        # before the queue is looked at, so that nobody who comes later counts on this look
        self._called = False
        with self._turn:
            self._write_batch(wait_seconds=None)
        if self._queue:
            self._write_in_thread()

    def _in_a_crowd(self) -> bool:
        """Whether so many runs have begun just now that the next record is not far; processes that stay are none."""
        with self._turn:
            if self._log is None or len(self._log.begun) < _A_CROWD:
                return False
            youngest = next(itertools.islice(reversed(self._log.begun.values()), _A_CROWD - 1, None))
        return self._clock.now_ms() - youngest.started_ms < _JUST_NOW_MS

    def _write_all(self) -> None:
        while self._queue:
            with self._turn:
                self._write_batch(wait_seconds=None)

    def _write_batch(self, wait_seconds: float | None) -> bool:
        """Write what is waiting in one transaction; False when the file is held by another process right now."""
        batch = self._with_room([self._queue.popleft() for _ in range(min(len(self._queue), _MOST_AT_ONCE))])
        if not batch:
            return True
        try:
            self._commit([waiting.entry for waiting in batch], wait_seconds)
        except Unavailable as error:
            if wait_seconds == 0 and error.reason == "busy":
                self._queue.extendleft(reversed(batch))
                return False
            self._failed(batch, error)
        except Exception as error:  # noqa: BLE001 one of them cannot be written, and the others must not suffer for it
            if len(batch) > 1:
                self._write_one_by_one(batch)
            else:
                self._failed(batch, error)
        else:
            _tell(batch, None)
        return True

    def _with_room(self, batch: list[_Waiting]) -> list[_Waiting]:
        """Refuse what must not use up the room for ends: what begins, and denials, of which anybody can cause many."""
        ends = [waiting for waiting in batch if waiting.entry.members["type"] == END]
        if len(ends) == len(batch):
            return batch
        try:
            self._room()
        except Unavailable as error:
            self._failed([waiting for waiting in batch if waiting.entry.members["type"] != END], error)
            return ends
        return batch

    def _write_one_by_one(self, batch: Sequence[_Waiting]) -> None:
        for waiting in batch:
            try:
                self._commit([waiting.entry], None)
            except Exception as error:  # noqa: BLE001 each caller gets his own
                self._failed([waiting], error)
            else:
                _tell([waiting], None)

    def _failed(self, batch: Sequence[_Waiting], error: Exception) -> None:
        for waiting in batch:
            if waiting.entry.members["type"] == END and isinstance(error, Unavailable):
                # it did happen: it is written as soon as anything can be, or by whoever finds us dead
                self._owed.append(waiting.entry)
        _tell(batch, error)

    def _commit(
        self, entries: Sequence[Entry], wait_seconds: float | None, *, sign: bool = False, release: bool = False
    ) -> None:
        """Make `entries`, and what is owed from before, durable in one transaction, or nothing of it."""
        if self._closed:
            raise Unavailable("the journal is closed", reason="closed")
        began = time.monotonic()
        unsure, self._unsure = self._unsure, True
        try:
            with self._database.transaction(wait_seconds) as cursor:
                log, notes = self._log_for(cursor, unsure=unsure)
                draft = Draft(log, cursor, self._signer())
                for entry in (*self._owed, *entries):
                    if unsure and entry.members["type"] == END and entry.members["exec_id"] not in log.begun:
                        continue  # it was kept after all
                    draft.add(entry.members, entry.documents)
                    if entry.also is not None:
                        entry.also(cursor)
                draft.finish()
                if sign or draft.head.size - draft.signed >= self._checkpoints.every:
                    notes.append(draft.sign(self._clock.now_ms()))
                if release:
                    store.release_log(cursor, log.state)
        except store.LogTaken:
            # whoever took it has ended what we had begun
            self._log, self._unsure = None, False
            self._owed.clear()
            raise
        except Unavailable as error:
            if error.reason == "busy":
                self._unsure = unsure  # it has not even begun
            raise
        self._unsure = False
        log.became(draft)
        self._log = None if release else log
        if draft.ended:
            with self._fewer:
                self._fewer.notify_all()
        self._owed.clear()
        self._pace += (time.monotonic() - began - self._pace) / 8
        self._after(log, draft, notes)

    def _log_for(self, cursor: Cursor, *, unsure: bool) -> tuple[Log, list[str]]:
        if self._log is None:
            taken = recovery.take_log(cursor, self._identifiers, self._clock.now_ms(), self._signer)
            return taken.log, list(taken.notes)
        if unsure:
            return recovery.resume(cursor, self._log, self._clock.now_ms(), self._signer()), []
        return self._log, []

    def _after(self, log: Log, draft: Draft, notes: Sequence[str]) -> None:
        # what is durable is acknowledged, whatever those who watch make of it
        with contextlib.suppress(Exception):
            self._on_written(draft.written)
            for note in notes:
                self._on_checkpoint(note)
        if self._timer is None and log.signed < log.head.size and not self._closed:
            timer = threading.Timer(self._checkpoints.seconds, self._checkpoint_in_time)
            timer.daemon = True
            # without a thread it is signed at the next occasion; what is written is written
            with contextlib.suppress(RuntimeError):
                timer.start()
                self._timer = timer

    def _checkpoint_in_time(self) -> None:
        # whatever is wrong is told to whoever writes next, who cannot either
        with contextlib.suppress(RingfenceError):
            self.checkpoint()


class _Waiting(NamedTuple):
    entry: Entry
    loop: asyncio.AbstractEventLoop
    written: asyncio.Future[None]


def _tell(batch: Iterable[_Waiting], error: Exception | None) -> None:
    """Let callers go on, in whatever thread their loop is; another thread's is woken up once for all of its own."""
    try:
        here = asyncio.get_running_loop()
    except RuntimeError:
        here = None
    for loop, some in itertools.groupby(batch, attrgetter("loop")):
        told = [waiting.written for waiting in some]
        if loop is here:
            _set(told, error)
        else:
            with contextlib.suppress(RuntimeError):  # it was closed under them
                loop.call_soon_threadsafe(_set, told, error)


def _set(told: Iterable[asyncio.Future[None]], error: Exception | None) -> None:
    for written in told:
        if written.done():  # cancelled
            continue
        if error is None:
            written.set_result(None)
        else:
            written.set_exception(error)
