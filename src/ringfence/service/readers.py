"""Threads for those who look back: a tenant has one of them at a time, and one reading of everything serves all.

Whoever runs something does not wait for them, and no tenant that asks without end keeps the others from asking once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import Any, Final, TypeVar
from weakref import WeakValueDictionary

_Found = TypeVar("_Found")
_THREADS: Final = 4


class Readers:
    """The readers of one house, and of its event loop."""

    def __init__(self) -> None:
        """No thread is started before somebody reads."""
        self._threads = ThreadPoolExecutor(_THREADS, "ringfence-reads")
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._under_way: asyncio.Future[Any] | None = None
        self._next: asyncio.Future[Any] | None = None

    async def read(self, tenant: str, work: Callable[..., _Found], *arguments: Any) -> _Found:
        """Return what `work` finds, when it is the tenant's turn."""
        turn = self._turns.setdefault(tenant, asyncio.Lock())
        await turn.acquire()
        loop = asyncio.get_running_loop()
        begun = self._threads.submit(work, *arguments)

        def over(_: Future[_Found]) -> None:
            with suppress(RuntimeError):  # a loop that is closed has nobody who waits
                loop.call_soon_threadsafe(turn.release)  # not before: whoever leaves does not free the thread

        begun.add_done_callback(over)
        return await asyncio.wrap_future(begun)

    async def read_everything(self, work: Callable[..., _Found], *arguments: Any) -> _Found:
        """Return what `work` finds in a reading that begins after this was asked, shared by all who ask before it.

        It must be the same for everybody: one at a time is enough for a disk, and nobody waits for more than two.
        """
        if self._next is None:
            self._next = asyncio.ensure_future(self._read_after(self._under_way, work, *arguments))
            self._next.add_done_callback(_look_at)
        found: _Found = await asyncio.shield(self._next)
        return found

    def close(self) -> None:
        """End the threads; what has not begun never does."""
        self._threads.shutdown(cancel_futures=True)

    async def _read_after(
        self, before: asyncio.Future[Any] | None, work: Callable[..., _Found], *arguments: Any
    ) -> _Found:
        if before is not None:
            await asyncio.wait([before])
        self._under_way, self._next = self._next, None
        return await asyncio.wrap_future(self._threads.submit(work, *arguments))


def _look_at(reading: asyncio.Future[Any]) -> None:
    """Take note of how it ended: whoever asked gets it, and all of them may have left."""
    if not reading.cancelled():
        reading.exception()
