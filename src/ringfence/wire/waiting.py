"""How a task waits for a service: in a thread of a lane, told to stop when the task is cancelled."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

from ringfence.wire.lane import Lane
from ringfence.wire.stop import Stop

_T = TypeVar("_T")


async def awaited(lane: Lane, work: Callable[[Stop], _T]) -> _T:
    """Have a thread do what waits for the service; a cancelled task has it stopped, and waits until it has."""
    stop = Stop()
    future = lane.submit(lambda: work(stop))
    waiting = asyncio.wrap_future(future)
    try:
        return await asyncio.shield(waiting)
    except asyncio.CancelledError:
        stop.now()
        if not future.cancel():  # a thread has begun it, and ends it there, too, before it is done
            await asyncio.gather(waiting, return_exceptions=True)
        raise
