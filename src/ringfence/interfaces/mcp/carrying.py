"""Carries one call out to its end: progress while it lasts, and a cancelled one is dead before its caller goes on."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from time import monotonic
from typing import Any, Final, TypeVar

import anyio

from ringfence.outcome import OnOutput

Report = Callable[[float, str], Awaitable[None]]
"""Tells the client how far a call is: a number that only rises, and a line to show."""

PROGRESS_SECONDS: Final = 0.5
_Result = TypeVar("_Result")


async def to_its_end(work: Coroutine[Any, Any, _Result]) -> _Result:
    """Await `work` in a task of its own, which is cancelled once and then left to clean up.

    A cancel scope of the protocol's library cancels again at every `await`: it would tear apart the very steps that
    kill a run and write down its end.
    """
    task = asyncio.ensure_future(work)
    try:
        await asyncio.wait({task})
    except asyncio.CancelledError:
        task.cancel()
        with anyio.CancelScope(shield=True):
            await asyncio.wait({task})
        if not task.cancelled():
            task.exception()  # looked at, so that nobody reports it as never retrieved
        raise
    return task.result()


class Progress:
    """Counts the output of one call and tells of it, at most once in `PROGRESS_SECONDS`."""

    def __init__(self, report: Report | None) -> None:
        """Without `report`, which is a client that asked for none, nothing is told."""
        self._report = report
        self._chunks = 0
        self._bytes = 0

    def seen(self, _name: str, data: bytes) -> None:
        """Count a chunk of output."""
        self._chunks += 1
        self._bytes += len(data)

    async def during(self, work: Callable[[OnOutput], Coroutine[Any, Any, _Result]]) -> _Result:
        """Carry out `work`, which tells of its output, and report until it ends."""
        if self._report is None:
            return await to_its_end(work(_unheard))
        ticking = asyncio.ensure_future(self._tick(self._report))
        try:
            return await to_its_end(work(self.seen))
        finally:
            ticking.cancel()
            with anyio.CancelScope(shield=True):
                await asyncio.wait({ticking})

    async def _tick(self, report: Report) -> None:
        began = monotonic()
        while True:
            await asyncio.sleep(PROGRESS_SECONDS)
            elapsed = round(monotonic() - began, 1)
            await report(elapsed, f"{elapsed} s, {self._chunks} chunks of output, {self._bytes} bytes")


def _unheard(_name: str, _data: bytes) -> None:
    """Nobody asked for progress."""
