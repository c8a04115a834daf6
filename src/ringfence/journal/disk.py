"""The disk behind the journal: what was committed reaches it in a thread, while the runs go on."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import deque
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import NamedTuple

from ringfence.errors import Unavailable
from ringfence.journal.forked import begin_anew_in_child

_OVERDUE_SECONDS = 0.02


class Disk:
    """Counts what was committed and what of it no loss of power can take back."""

    def __init__(self, sync: Callable[[], None], is_due: Callable[[], bool], file: Callable[[], None]) -> None:
        """`sync` puts on the disk whatever was committed before; its thread begins with the first commit.

        While `is_due` something is to be filed by an event loop: `file` does it where that is kept from it.
        """
        self._sync = sync
        self._is_due = is_due
        self._file = file
        self._failure: Unavailable | None = None
        self._closed = False
        self.begin_anew()
        begin_anew_in_child(self)

    def begin_anew(self) -> None:
        """Have written nothing; a forked child has no thread either."""
        self._committed = self._called_for = self._kept = 0
        self._waiting: deque[_Waiter] = deque()
        self._counting = threading.Lock()
        self._looking = threading.Lock()
        self._calls: SimpleQueue[bool] = SimpleQueue()
        self._thread: threading.Thread | None = None

    def committed(self) -> None:
        """Count what was written just now; `call` has the disk take it."""
        with self._counting:
            self._committed += 1

    def call(self) -> None:
        """Have the disk take all that was committed; once is enough, and a run is not kept waiting for it."""
        if self._called_for == self._committed:
            return
        with self._counting:  # two who call at once must not begin two threads
            if self._closed:
                return
            self._called_for = self._committed
            is_served = self._thread is not None or self._begin()
            if is_served:
                self._calls.put(True)
        if not is_served:
            self._look()

    def _begin(self) -> bool:
        thread = threading.Thread(target=self._serve, name="ringfence-disk", daemon=True)
        try:
            thread.start()
        except RuntimeError:  # so many are there already, or the interpreter ends: the caller is the one who waits
            return False
        self._thread = thread
        return True

    async def reached(self) -> None:
        """Return when all that was committed before is on the disk.

        Raises:
            Unavailable: It does not keep it; nothing is kept after that, for a disk tells of a failure only once.
        """
        number = self._committed
        if self._kept < number:
            self.call()
            loop = asyncio.get_running_loop()
            waiter = _Waiter(number, loop, loop.create_future())
            self._waiting.append(waiter)
            if self._kept >= number or self._failure is not None:  # it was looked at before this one stood there
                waiter.tell()
            elif self._closed:  # and nobody looks any more
                self._look()
            await waiter.told
        if self._failure is not None:
            raise self._failure

    def close(self) -> None:
        """Let the thread go once it has done what was asked of it; the last transaction has waited for the disk."""
        with self._counting:
            self._closed = True
            self._calls.put(False)
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        self._look()  # whoever came while it closed is told

    def _serve(self) -> None:
        calls = self._calls
        while self._is_called():
            while not calls.empty():  # one look at the disk serves everybody who called before it
                if not calls.get():
                    calls.put(False)
                    break
            self._look()

    def _is_called(self) -> bool:
        """Wait for the next call; an application that keeps its loop to itself must not keep what it was told."""
        if not self._is_due():
            return self._calls.get()
        try:
            return self._calls.get(timeout=_OVERDUE_SECONDS)
        except Empty:
            self._file()
            return True

    def _look(self) -> None:
        with self._looking:
            number = self._committed
            try:
                if self._failure is None and self._kept < number:
                    self._sync()
                    self._kept = number
            except Unavailable as error:
                self._failure = error
            except Exception as error:  # noqa: BLE001 whatever it is, those who wait are told
                self._failure = Unavailable(f"the disk was not asked: {error!r}")
            while self._waiting and (self._failure is not None or self._waiting[0].number <= self._kept):
                self._waiting.popleft().tell()


class _Waiter(NamedTuple):
    number: int
    loop: asyncio.AbstractEventLoop
    told: asyncio.Future[None]

    def tell(self) -> None:
        """Wake it up, in whatever thread its loop is; where the loop is gone nobody waits."""
        with contextlib.suppress(RuntimeError):
            self.loop.call_soon_threadsafe(_set, self.told)


def _set(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
