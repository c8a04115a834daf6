"""Work that blocks, done beside the event loop and never abandoned with its descriptors open.

In threads of its own, and no tenant has more than a few of them at once: one whose work waits, for a lock or a full
disk, keeps neither the threads of the others nor those that look things up.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, TypeVar
from weakref import WeakKeyDictionary, WeakValueDictionary

if TYPE_CHECKING:
    from concurrent.futures import Future, ThreadPoolExecutor

_T = TypeVar("_T")
_Lanes = WeakValueDictionary[str, asyncio.Semaphore]

MOST_OF_A_TENANT = 8
_MOST_THREADS = 64
_lanes: WeakKeyDictionary[asyncio.AbstractEventLoop, _Lanes] = WeakKeyDictionary()


async def in_a_thread(tenant: str, work: Callable[..., _T], *arguments: object) -> _T:
    """Do what may be slow beside the event loop; it is finished when this returns, however often one cancels.

    Otherwise it would go on with descriptors that have been closed, and may by then be somebody else's.
    """
    from ringfence.finishing import finished  # not at the top: nor is what makes threads

    # no task: whoever cancels every task of the loop would make it look finished
    return await finished(asyncio.wrap_future(await _begun(tenant, work, *arguments)))


async def while_wanted(tenant: str, work: Callable[..., _T], *arguments: object) -> _T:
    """Do what takes very long and holds nothing of ours; who is cancelled does not wait for it."""
    return await asyncio.wrap_future(await _begun(tenant, work, *arguments))


async def _begun(tenant: str, work: Callable[..., _T], *arguments: object) -> Future[_T]:
    loop = asyncio.get_running_loop()
    lane = _lanes.setdefault(loop, _Lanes()).setdefault(tenant, asyncio.Semaphore(MOST_OF_A_TENANT))
    await lane.acquire()
    begun = _threads().submit(work, *arguments)

    def over(_: Future[_T]) -> None:
        with contextlib.suppress(RuntimeError):  # a loop that is closed has nobody who waits
            loop.call_soon_threadsafe(lane.release)

    begun.add_done_callback(over)
    return begun


@cache
def _threads() -> ThreadPoolExecutor:
    from concurrent.futures import ThreadPoolExecutor  # not at the top: a run that leaves no files needs none

    return ThreadPoolExecutor(_MOST_THREADS, "ringfence-work")


# a forked child has none of the threads, and would wait for them for ever
os.register_at_fork(after_in_child=_threads.cache_clear)
