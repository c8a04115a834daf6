"""What has to be finished once it has begun, however often whoever waits for it is cancelled meanwhile.

A cancel scope cancels again at every `await`, and so does whoever is in a hurry: a second time must not cut off what is
done about the first.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AsyncExitStack
from typing import Any, TypeVar

_T = TypeVar("_T")


async def finished(work: asyncio.Future[_T] | Coroutine[Any, Any, _T]) -> _T:
    """Return what `work` does; it is over when this returns, and whoever was cancelled hears of it then."""
    doing = asyncio.ensure_future(work)
    cancelled: asyncio.CancelledError | None = None
    while not doing.done():
        try:
            await asyncio.wait([doing])
        except asyncio.CancelledError as again:
            cancelled = again
    if cancelled is not None:
        if not doing.cancelled():
            doing.exception()  # looked at, so that nobody reports it as never retrieved
        raise cancelled
    return doing.result()


async def all_finished(*steps: Callable[[], Awaitable[object]]) -> None:
    """Take every step, in this order and whatever became of those before it; the last failure is raised at the end."""

    async def taken() -> None:
        async with AsyncExitStack() as left:
            for step in reversed(steps):
                left.push_async_callback(step)

    await finished(taken())
