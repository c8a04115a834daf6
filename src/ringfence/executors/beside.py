"""Work that blocks, done beside the event loop and never abandoned with its descriptors open."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import TypeVar

_T = TypeVar("_T")


async def in_a_thread(work: Callable[..., _T], *arguments: object) -> _T:
    """Do what may be slow beside the event loop; it is finished when this returns, however often one cancels.

    Otherwise it would go on with descriptors that have been closed, and may by then be somebody else's.
    """
    # no task: whoever cancels every task of the loop would make it look finished
    done = asyncio.get_running_loop().run_in_executor(None, work, *arguments)
    try:
        return await asyncio.shield(done)
    except asyncio.CancelledError:
        while not done.done():
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.wait([done])
        raise
