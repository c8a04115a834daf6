"""The disk behind the journal: what was committed reaches it in a thread, while the runs go on."""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
import weakref
from collections import deque
from collections.abc import Callable
from queue import SimpleQueue
from typing import NamedTuple

from ringfence.errors import Unavailable


class Disk:
    """Counts what was committed and what of it no loss of power can take back."""

    def __init__(self, sync: Callable[[], None]) -> None:
        """`sync` puts on the disk whatever was committed before; its thread begins with the first commit."""
        self._sync = sync
        self._committed = 0
        self._called_for = 0
        self._kept = 0
        self._waiting: deque[_Waiter] = deque()
        self._failure: Unavailable | None = None
        self._closed = False
        self._begin_anew()
        _IN_THIS_PROCESS.add(self)

    def _begin_anew(self) -> None:
        self._counting = threading.Lock()
        self._calls: SimpleQueue[bool] = SimpleQueue()
        self._thread: threading.Thread | None = None

    def committed(self) -> None:
        """Count what was written just now; `call` has the disk take it."""
        with self._counting:
            self._committed += 1

    def call(self) -> None:
        """Have the disk take all that was committed; once is enough, and a run is not kept waiting for it."""
        if self._called_for == self._committed or self._closed:
            return
        self._called_for = self._committed
        if self._thread is None:
            self._thread = threading.Thread(target=self._serve, name="ringfence-disk", daemon=True)
            self._thread.start()
        self._calls.put(True)

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
            if (
                self._kept >= number or self._failure is not None
            ):  # the thread may have looked before this one stood there
                waiter.tell()
            await waiter.told
        if self._failure is not None:
            raise self._failure

    def close(self) -> None:
        """Let the thread go once it has done what was asked of it; the last transaction has waited for the disk."""
        self._closed = True
        if self._thread is not None:
            self._calls.put(False)
            self._thread.join()
            self._thread = None

    def _serve(self) -> None:
        calls = self._calls
        while calls.get():
            while not calls.empty():  # one look at the disk serves everybody who called before it
                if not calls.get():
                    calls.put(False)
                    break
            self._look()

    def _look(self) -> None:
        number = self._committed
        try:
            if self._failure is None:
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


_IN_THIS_PROCESS: weakref.WeakSet[Disk] = weakref.WeakSet()


def _without_threads() -> None:
    for disk in tuple(_IN_THIS_PROCESS):
        disk._begin_anew()  # a forked child has none


os.register_at_fork(after_in_child=_without_threads)
