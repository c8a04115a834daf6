"""Interleaved pairs: one and the other in turn, so that whatever the machine does hits both."""

from __future__ import annotations

import asyncio
import time

from ringfence.bench.bare import Timed
from ringfence.bench.series import Series
from ringfence.bench.subject import AsyncTimed


async def interleave(
    name: str, bare: Timed, ours: AsyncTimed, *, pairs: int, gap_seconds: float, warm_up: int
) -> tuple[Series, Series]:
    """Warm up, then measure `pairs` of both; see `alternate`.

    Bare blocks the event loop on purpose: while it is timed, nothing of ours runs in this process.
    """
    for _ in range(warm_up):
        await ours()
        await asyncio.sleep(gap_seconds)
    bare()

    async def theirs() -> float:
        return bare()

    own, beside = await alternate(ours, theirs, pairs=pairs, gap_seconds=gap_seconds)
    return Series(f"{name}: bare", tuple(beside)), Series(f"{name}: ringfence", tuple(own))


async def alternate(
    one: AsyncTimed, other: AsyncTimed, *, pairs: int, gap_seconds: float
) -> tuple[list[float], list[float]]:
    """Measure `pairs` of two calls, `gap_seconds` apart; the first of each pair alternates."""
    taken: tuple[list[float], list[float]] = [], []
    for number in range(pairs):
        for turn in (0, 1):
            await asyncio.sleep(gap_seconds)
            which = (number + turn) % 2
            taken[which].append(await (other if which else one)())
    return taken


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
