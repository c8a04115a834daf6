"""The journal of one process: its own log in the shared database, written together by whoever writes at that moment."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from ringfence.errors import RingfenceError, Unavailable
from ringfence.journal import recovery, store
from ringfence.journal.disk import Disk
from ringfence.journal.forked import begin_anew_in_child
from ringfence.journal.line import Entry, Waiting, tell, unattended
from ringfence.journal.log import Checkpoints, Draft, Log, Written
from ringfence.journal.noted import Noted

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
_JUST_NOW = 0.05
_GATHERING_SECONDS = 0.005
_A_MOMENT = 0.05


_USUAL = Checkpoints()


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
        ends_on_disk: bool = False,
        noted: Noted | None = None,
        on_written: Callable[[Sequence[Written]], None] = lambda _: None,
        on_checkpoint: Callable[[str], None] = lambda _: None,
        on_close: Callable[[], None] = lambda: None,
    ) -> None:
        """Nothing is opened before the first record.

        `room` raises Unavailable while there is too little left to write down how a run would end. `in_thread` is for a
        database that is not on this machine, and so always keeps its caller waiting. `ends_on_disk` has nobody told a
        result before its end is on the disk. Without `noted` every beginning is filed at once. `on_written` is told
        what is written and `on_checkpoint` what is on the disk; they must neither block nor raise.
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
        self._noted = noted
        self._disk = Disk(self._sync, lambda: bool(self._unfiled or self._queue), self._file_overdue)
        self._lately: deque[float] = deque(maxlen=_A_CROWD)
        self._ends_on_disk = ends_on_disk
        self._pace = 0.0
        self._closed = False
        self.begin_anew()
        begin_anew_in_child(self)

    def begin_anew(self) -> None:
        """Have nothing in hand; in a forked child all that there was is its parent's to write."""
        self._unfiled: dict[str, Entry] = {}
        """What is noted to have begun, has not ended and is not in the database yet."""
        self._log: Log | None = None
        self._queue: deque[Waiting] = deque()
        self._owed: list[Entry] = []
        self._is_free = False
        """Whether the database could be written while the last noted run went on."""
        self._unsure = False
        """Whether the last transaction failed in a way that leaves open whether it was kept."""
        # protects the log and what is owed: one transaction of ours at a time
        self._turn = threading.Lock()
        # keeps an end from coming before the beginning that is put in line for it
        self._turning = threading.Lock()
        # is told when fewer runs are open
        self._fewer = threading.Condition()
        self._thread: ThreadPoolExecutor | None = None
        self._called = False
        self._timer: threading.Timer | None = None

    async def note(self, ev: Members, documents: Sequence[Document] = ()) -> None:
        """Write down that an execution starts which nobody looks for yet; see `EvidenceSink`."""
        log, exec_id = self._log, ev["exec_id"]
        are_kept = log is not None and all(document.digest in log.documents for document in documents)
        noted = None if self._closed or self._owed or exec_id in self._unfiled or not are_kept else self._noted
        if noted is not None:
            self._room()
        if noted is None or not noted.note(ev, self._signer()):
            await self.begin(ev, documents)
            return
        self._unfiled[exec_id], self._is_free = Entry(ev, documents, is_noted=True), False
        self._disk.committed()
        loop = asyncio.get_running_loop()
        loop.call_soon(self._prepare_end)
        loop.call_later(_A_MOMENT, self._file, exec_id)

    async def begin(self, ev: Members, documents: Sequence[Document] = ()) -> None:
        """Write down that an execution starts; see `EvidenceSink`."""
        await self._write(Entry(ev, documents))

    async def on_disk(self) -> None:
        """Return when all that was written is on the disk; see `EvidenceSink`."""
        await self._disk.reached()

    async def end(self, ev: Members, also: AlsoWrite | None = None) -> None:
        """Write down how an execution ended; see `EvidenceSink`."""
        if self._put_in_line(ev["exec_id"]) and also is None and self._note_end(ev):
            return
        await self._write(Entry(ev, (), also))
        if self._ends_on_disk:
            await self._disk.reached()

    async def record(self, ev: Members, documents: Sequence[Document] = ()) -> None:
        """Put on the disk what has no end of its own; see `EvidenceSink`."""
        await self._write(Entry(ev, documents))
        await self._disk.reached()

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
            self._disk.close()
            self._write_all()  # nothing is written any more, and whoever came meanwhile is told so

    def _close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        for exec_id in tuple(self._unfiled):
            self._put_in_line(exec_id)
        while self._queue:
            self._write_batch(wait_seconds=None)
        try:
            if self._log is not None:
                self._sync()
                if self._noted is not None and not self._owed:
                    self._noted.end_log()
                self._commit((), None, sign=self._log.signed < self._log.head.size, release=True)
        finally:
            self._closed = True
            if self._noted is not None:
                self._noted.close()
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
                while self._open_runs():
                    if not self._fewer.wait(deadline - time.monotonic()):
                        return

    def _open_runs(self) -> int:
        return len(self._unfiled) + (0 if self._log is None else len(self._log.begun))

    def _sync(self) -> None:
        if self._noted is None:
            self._database.sync()
        else:
            self._noted.sync(self._database.sync)

    def _prepare_end(self) -> None:
        """While the run goes on: have the disk take its beginning, and look whether its end can be filed afterwards."""
        self._disk.call()
        if self._noted is not None and self._keeps_nobody_waiting():
            self._is_free = self._noted.could_file()

    def _note_end(self, end: Members) -> bool:
        """Note how a run ended and file it when its result has been told; False where that could not be done then."""
        is_likely = self._is_free and not self._ends_on_disk and not self._owed and self._keeps_nobody_waiting()
        if not is_likely or self._noted is None or not self._noted.note_end(end, self._signer()):
            return False
        self._queue.append(unattended(Entry(end)))
        self._disk.committed()
        loop = asyncio.get_running_loop()
        loop.call_soon(self._write_here)
        loop.call_soon(self._disk.call)
        return True

    def _keeps_nobody_waiting(self) -> bool:
        return not (self._in_thread or self._pace > _TOO_SLOW_FOR_A_LOOP or self._open_runs() > 1)

    def _file(self, exec_id: str) -> None:
        """Put a beginning that has been noted for a moment where everybody finds it."""
        if self._put_in_line(exec_id):
            self._write_in_thread()

    def _file_overdue(self) -> None:
        """Do in another thread what an event loop was to do, and does not come to."""
        for exec_id in tuple(self._unfiled):
            self._put_in_line(exec_id)
        self._write_here()

    def _put_in_line(self, exec_id: str) -> bool:
        """Have a beginning that is only noted written next; False where that is done."""
        with self._turning:
            noted = self._unfiled.pop(exec_id, None)
            if noted is not None:
                self._queue.append(unattended(noted))
        return noted is not None

    async def _write(self, entry: Entry) -> None:
        loop = asyncio.get_running_loop()
        written: asyncio.Future[None] = loop.create_future()
        self._queue.append(Waiting(entry, loop, written))
        self._lately.append(time.monotonic())
        if self._keeps_nobody_waiting():
            self._write_here()
            loop.call_soon(self._disk.call)  # when the run has gone on: waking a thread up takes as long as the commit
        else:
            self._write_in_thread()
        # where the caller is cancelled meanwhile the record is written all the same: it stands in the queue
        await written

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
        self._disk.call()
        if self._queue:
            self._write_in_thread()

    def _in_a_crowd(self) -> bool:
        """Whether so many run, and so many records came just now, that the next is not far; few wait for each other."""
        came = len(self._lately) == _A_CROWD and time.monotonic() - self._lately[0] < _JUST_NOW
        return came and self._open_runs() >= _A_CROWD

    def _write_all(self) -> None:
        while self._queue:
            with self._turn:
                self._write_batch(wait_seconds=None)
        self._disk.call()

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
            tell(batch, None)
        return True

    def _with_room(self, batch: list[Waiting]) -> list[Waiting]:
        """Refuse what must not use up the room for ends: what begins, and denials, of which anybody can cause many."""
        ends = [waiting for waiting in batch if waiting.entry.is_owed]
        if len(ends) == len(batch):
            return batch
        try:
            self._room()
        except Unavailable as error:
            self._failed([waiting for waiting in batch if not waiting.entry.is_owed], error)
            return ends
        return batch

    def _write_one_by_one(self, batch: Sequence[Waiting]) -> None:
        for waiting in batch:
            try:
                self._commit([waiting.entry], None)
            except Exception as error:  # noqa: BLE001 each caller gets his own
                self._failed([waiting], error)
            else:
                tell([waiting], None)

    def _failed(self, batch: Sequence[Waiting], error: Exception) -> None:
        for waiting in batch:
            if waiting.entry.is_owed and isinstance(error, Unavailable):
                # it did happen: it is written as soon as anything can be, or by whoever finds us dead
                self._owed.append(waiting.entry)
        tell(batch, error)

    def _commit(
        self, entries: Sequence[Entry], wait_seconds: float | None, *, sign: bool = False, release: bool = False
    ) -> None:
        """Write `entries`, and what is owed from before, in one transaction, or nothing of it."""
        if self._closed:
            raise Unavailable("the journal is closed", reason="closed")
        began = time.monotonic()
        unsure, self._unsure = self._unsure, True
        try:
            # what is signed may be told anywhere, where a loss of power takes nothing back
            on_disk = sign or release or self._is_due(len(self._owed) + len(entries))
            with self._database.transaction(wait_seconds, on_disk=on_disk) as cursor:
                log, notes = self._log_for(cursor, unsure=unsure)
                draft = Draft(log, cursor, self._signer())
                for number, entry in enumerate((*self._owed, *entries)):
                    if unsure and number < len(self._owed) and recovery.was_kept(entry, cursor, log, draft):
                        continue
                    draft.add(entry.members, entry.documents)
                    if entry.also is not None:
                        entry.also(cursor)
                draft.finish()
                if sign or draft.head.size - draft.signed >= self._checkpoints.every:
                    notes.append(draft.sign(self._clock.now_ms()))
                if release:
                    store.release_log(cursor, log.state)
        except store.LogTaken:
            # whoever took it has ended what we had begun, as far as he knew of it: the rest is written to another
            self._log = None
            if self._noted is not None:
                self._noted.close()
            self._owed += self._unfiled.values()
            self._unfiled.clear()
            raise
        except Unavailable as error:
            if error.reason == "busy":
                self._unsure = unsure  # it has not even begun
            raise
        self._unsure = False
        self._disk.committed()
        log.became(draft)
        if self._noted is not None:
            self._noted.committed(log.state, (entry.members for entry in (*self._owed, *entries)))
        self._log = None if release else log
        if draft.ended:
            with self._fewer:
                self._fewer.notify_all()
        self._owed.clear()
        self._pace += (time.monotonic() - began - self._pace) / 8
        self._after(log, draft, notes)

    def _is_due(self, coming: int) -> bool:
        """Whether the next transaction signs: after so many records, or when it takes over what others left."""
        return self._log is None or self._log.head.size + coming - self._log.signed >= self._checkpoints.every

    def _log_for(self, cursor: Cursor, *, unsure: bool) -> tuple[Log, list[str]]:
        if self._log is None:
            taken = recovery.take_log(cursor, self._identifiers, self._clock.now_ms(), self._signer, self._noted)
            return taken.log, list(taken.notes)
        if unsure:
            happened = {entry.members["exec_id"] for entry in self._owed if entry.is_noted}
            return recovery.resume(cursor, self._log, self._clock.now_ms(), self._signer(), happened), []
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
