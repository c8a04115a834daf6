"""Cases about many calls at once: sixteen callers, the burst after idling, and what they leave behind."""

from __future__ import annotations

import asyncio
import gc
import itertools
import os
import time
from pathlib import Path

from ringfence.bench import bare, promise
from ringfence.bench.promise import Line, judged
from ringfence.bench.series import Series, quantile
from ringfence.bench.subject import AsyncTimed, Bench, Manager, Measured, ours
from ringfence.dataclass import dataclass

_CODE, _EXPECTED = "print(1)", "1\n"
_MEMORY_SLACK_BYTES = 8_000_000
_WARM_UP_RUNS = 32
_PER_WORKER = 16
_SLACK = 16


@dataclass(frozen=True, slots=True)
class Holdings:
    """What this process and its host hold at one moment."""

    memory_bytes: int
    fds: int
    cgroups: int
    mounts: int

    def __str__(self) -> str:
        return f"{self.memory_bytes / 1e6:.1f} MB, {self.fds} fds, {self.cgroups} cgroups, {self.mounts} mounts"


async def crowd(bench: Bench) -> Measured:
    """Sixteen callers, 2,000 runs in one go, with half of bare's before and half after."""
    settings = bench.settings
    call = bare.timed(bare.python(_CODE), _EXPECTED.encode())
    half = max(settings.crowd_runs // 2, 1)
    before = holdings()
    async with bench.open_manager() as manager:
        run = ours(manager, _CODE, _EXPECTED)
        # Until bounded caches are full (cgroup directories are kept for reuse): what grows after that is a leak.
        await _callers(run, settings.crowd_callers * _WARM_UP_RUNS, settings.crowd_callers)
        await asyncio.sleep(settings.settle_seconds)
        warm, warm_parked = holdings(), _parked(manager)
        theirs = bare.crowd(call, half, settings.crowd_callers)
        taken, each = await _callers(run, settings.crowd_runs, settings.crowd_callers)
        # The pool refills now; its work is not bare's to pay for.
        await asyncio.sleep(settings.settle_seconds)
        after, more_parked = holdings(), _parked(manager) - warm_parked
        theirs += bare.crowd(call, half, settings.crowd_callers)
    closed = holdings()
    grown = growth(before, warm, after, closed, more_parked=more_parked)
    stages = f"before: {before}; warm: {warm}; after: {after}; closed: {closed}"
    our_rate, their_rate = settings.crowd_runs / taken, 2 * half / theirs
    return Measured(
        (
            judged(promise.CROWD, our_rate / their_rate, f"{our_rate:.0f} to {their_rate:.0f} runs per second"),
            judged(promise.CROWD_GROWTH, len(grown), f"{', '.join(grown) or 'nothing'} grew; {stages}"),
            Line("latency under 16 callers, p50", quantile(each, 0.5) * 1000, "a caller's view", unit="ms"),
        ),
        (Series("16 callers: ringfence", tuple(each)),),
    )


async def burst(bench: Bench) -> Measured:
    """A hundred calls at once on a default pool that has idled; bare starts its hundred at once too."""
    settings = bench.settings
    call = bare.timed(bare.python(_CODE), _EXPECTED.encode())
    ratios, details = [], []
    async with bench.open_manager() as manager:
        run = ours(manager, _CODE, _EXPECTED)
        await run()
        for _ in range(settings.bursts):
            theirs = bare.crowd(call, settings.burst, settings.burst)
            await asyncio.sleep(settings.idle_seconds)
            start = time.perf_counter()
            await asyncio.gather(*(run() for _ in range(settings.burst)))
            taken = time.perf_counter() - start
            ratios.append(taken / theirs)
            details.append(f"{taken * 1000:.0f} to {theirs * 1000:.0f} ms")
    idle = f"after {settings.idle_seconds:g} s"
    return Measured((judged(promise.BURST, quantile(ratios, 0.5), f"{idle}: {'; '.join(details)}"),))


async def footprint(bench: Bench) -> Measured:
    """The memory that one more parked worker costs this machine."""
    settings = bench.settings
    async with bench.open_manager(pool_size=settings.parked) as manager:
        run = ours(manager, _CODE, _EXPECTED)
        pairs: list[tuple[int, int]] = []
        deadline = time.monotonic() + 30
        while len(pairs) < settings.parked and time.monotonic() < deadline:
            # The pool grows with what is asked of it, up to its size.
            await _callers(run, settings.parked * 2, settings.parked)
            await asyncio.sleep(settings.settle_seconds / 4)
            pairs = list(manager.pool_pids())
        if len(pairs) < settings.parked:
            return Measured((judged(promise.FOOTPRINT, None, f"only {len(pairs)} workers were parked in 30 s"),))
        await asyncio.sleep(settings.settle_seconds)
        try:
            sizes = [pss_bytes(init) + pss_bytes(worker) for init, worker in pairs]
        except PermissionError:
            return Measured((judged(promise.FOOTPRINT, None, "the kernel shows PSS of a sealed worker to root only"),))
    mean = sum(sizes) / len(sizes) / 1e6
    return Measured((judged(promise.FOOTPRINT, mean, f"{len(sizes)} parked, largest {max(sizes) / 1e6:.2f} MB"),))


async def _callers(run: AsyncTimed, runs: int, callers: int) -> tuple[float, list[float]]:
    """Make `runs` calls from `callers` tasks; return the time of all, and of each."""
    left = itertools.count()
    each: list[float] = []

    async def caller() -> None:
        while next(left) < runs:
            each.append(await run())

    start = time.perf_counter()
    await asyncio.gather(*(caller() for _ in range(callers)))
    return time.perf_counter() - start, each


def growth(before: Holdings, warm: Holdings, after: Holdings, closed: Holdings, *, more_parked: int) -> tuple[str, ...]:
    """Name what grew, from warm to after the load, or from before the manager to after it was closed.

    A pool that parks more workers under load may hold more for each of them, and no more than that.
    """
    allowed = _SLACK + _PER_WORKER * max(more_parked, 0)
    found = [
        name
        for name in ("fds", "cgroups", "mounts")
        if getattr(after, name) - getattr(warm, name) > allowed or getattr(closed, name) > getattr(before, name)
    ]
    if after.memory_bytes - warm.memory_bytes > _MEMORY_SLACK_BYTES:
        found.insert(0, "memory")
    return tuple(found)


def _parked(manager: Manager) -> int:
    return sum(1 for _ in manager.pool_pids())


def holdings() -> Holdings:
    """Count what is held now, after a garbage collection."""
    gc.collect()
    return Holdings(
        memory_bytes=_status_bytes("VmRSS"),
        fds=sum(1 for _ in Path("/proc/self/fd").iterdir()),
        cgroups=_own_cgroups(),
        mounts=len(Path("/proc/self/mountinfo").read_bytes().splitlines()),
    )


def _own_cgroups() -> int:
    """Count the directories made by this process, which carry its pid; other programs come and go meanwhile."""
    own = f"ringfence-{os.getpid()}-"
    return sum(f"/{own}" in f"{where}/{name}" for where, names, _ in os.walk("/sys/fs/cgroup") for name in names)


def pss_bytes(pid: int) -> int:
    """Return the proportional set size of a process."""
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) * 1024
    return 0


def _status_bytes(field: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * 1024
    return 0
