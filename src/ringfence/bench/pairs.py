"""Interleaved pairs: bare and ours in turn, so that whatever the machine does hits both."""

from __future__ import annotations

import asyncio
import time

from ringfence.bench.bare import Timed
from ringfence.bench.series import Series
from ringfence.bench.subject import AsyncTimed


async def interleave(
    name: str, bare: Timed, ours: AsyncTimed, *, pairs: int, gap_seconds: float, warm_up: int
) -> tuple[Series, Series]:
    """Measure `pairs` of both, `gap_seconds` apart; the first of each pair alternates.

    Bare blocks the event loop on purpose: while it is timed, nothing of ours runs in this process.
    """
    for _ in range(warm_up):
        await ours()
        await asyncio.sleep(gap_seconds)
    bare()
    theirs, own = [], []
    for number in range(pairs):
        for turn in (0, 1):
            await asyncio.sleep(gap_seconds)
            if (number + turn) % 2:
                theirs.append(bare())
            else:
                own.append(await ours())
    return Series(f"{name}: bare", tuple(theirs)), Series(f"{name}: ringfence", tuple(own))


async def closed_loop(name: str, ours: AsyncTimed, *, runs: int) -> Series:
    """Measure `runs` calls back to back from one caller: faster than the pool can refill behind it."""
    return Series(f"{name}: ringfence, closed loop", tuple([await ours() for _ in range(runs)]))


async def back_to_back(name: str, bare: Timed, *, runs: int, gap_seconds: float) -> Series:
    """Measure `runs` bare calls."""
    taken = []
    for _ in range(runs):
        time.sleep(gap_seconds)  # noqa: ASYNC251 nothing else is to run while a neighbour is timed
        taken.append(bare())
    return Series(name, tuple(taken))
