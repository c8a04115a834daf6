"""The case of containers: a parked one against a new one and a running one, and what they cost their neighbours."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager

from ringfence.bench import bare, promise
from ringfence.bench.promise import judged
from ringfence.bench.series import Series
from ringfence.bench.subject import AsyncTimed, Bench, Manager, Measured, ours
from ringfence.errors import IsolationUnavailable
from ringfence.isolation.docker.configured import engine_settings
from ringfence.isolation.docker.engine import Engine
from ringfence.isolation.docker.reaper import HOME_LABEL, home_id

_PRINT = ("print(1)", "1\n")
_PROGRAM = ("python3", "-I", "-c", _PRINT[0])
_CALLERS = 8
_REFILL_SECONDS = 60.0
_LOOK_SECONDS = 0.02
_PROMISES = (promise.DOCKER_RUN, promise.DOCKER_EXEC, promise.DOCKER_LEFT, promise.DOCKER_BESIDE)


async def docker(bench: Bench) -> Measured:
    """Warm containers against `docker run` and `docker exec` of the same code; what 200 runs leave; native beside."""
    engine = Engine(engine_settings(bench.home, os.environ))
    try:
        await asyncio.to_thread(engine.version)
        await asyncio.to_thread(engine.image_digest, engine.settings.image)
    except IsolationUnavailable as refusal:
        return Measured(tuple(judged(each, None, str(refusal)) for each in _PROMISES))
    with _running(engine) as container:
        warm, fresh, entered = await _compared(bench, engine, container)
    idle, beside = await _native_beside(bench)
    left = await _left_of_a_crowd(bench, engine)
    runs = bench.settings.container_crowd
    return Measured(
        (
            judged(promise.DOCKER_RUN, warm.p50 / fresh.p50, _versus(warm, fresh)),
            judged(promise.DOCKER_EXEC, warm.p50 / entered.p50, _versus(warm, entered)),
            judged(promise.DOCKER_LEFT, left, f"after {runs} runs from {_CALLERS} callers"),
            judged(promise.DOCKER_BESIDE, beside.p50 / idle.p50, _versus(beside, idle)),
        ),
        (warm, fresh, entered, idle, beside),
    )


async def _compared(bench: Bench, engine: Engine, container: str) -> tuple[Series, Series, Series]:
    """Time all three in turn, each when no container is being started for the next."""
    command = engine.dialect.base(engine.settings)
    fresh = (*command, "run", "--rm", "--network=none", "--pull=never", f"--entrypoint={_PROGRAM[0]}")
    calls: dict[str, AsyncTimed] = {
        "docker run": _blocking((*fresh, engine.settings.image, *_PROGRAM[1:])),
        "docker exec": _blocking((*command, "exec", container, *_PROGRAM)),
    }
    taken: dict[str, list[float]] = {name: [] for name in ("warm", *calls)}
    async with bench.open_manager(isolation="docker", pool_size=1) as manager:
        calls["warm"] = ours(manager, *_PRINT)
        for name in calls:
            await _refilled(manager)
            await calls[name]()
        for _ in range(bench.settings.container_pairs):
            for name, call in calls.items():
                await _refilled(manager)
                taken[name].append(await call())
    warm, run, entered = (Series(f"docker: {name}", tuple(values)) for name, values in taken.items())
    return warm, run, entered


def _blocking(command: tuple[str, ...]) -> AsyncTimed:
    call = bare.timed(command, _PRINT[1].encode())

    async def run() -> float:
        return call()  # on purpose in this thread: while it is timed, nothing of ours runs in this process

    return run


async def _refilled(manager: Manager) -> None:
    end = time.monotonic() + _REFILL_SECONDS
    while not list(manager.pool_pids()) and time.monotonic() < end:  # noqa: ASYNC110  the pool tells nobody
        await asyncio.sleep(_LOOK_SECONDS)


async def _native_beside(bench: Bench) -> tuple[Series, Series]:
    """Time native runs alone, and then while the pool of containers is refilled all the time."""
    settings = bench.settings
    async with bench.open_manager(isolation="native") as native, bench.open_manager(isolation="docker") as containers:
        run, other = ours(native, *_PRINT), ours(containers, *_PRINT)
        await _refilled(containers)

        async def timed(name: str) -> Series:
            taken = []
            for _ in range(settings.pairs):
                await asyncio.sleep(settings.gap_seconds)
                taken.append(await run())
            return Series(f"native: {name}", tuple(taken))

        for _ in range(settings.warm_up):
            await run()
        idle = await timed("alone")

        async def churn() -> None:
            while True:
                await other()

        busy = asyncio.ensure_future(churn())
        try:
            return idle, await timed("while containers are refilled")
        finally:
            busy.cancel()
            await asyncio.gather(busy, return_exceptions=True)


async def _left_of_a_crowd(bench: Bench, engine: Engine) -> int:
    """Return how many containers are there after many runs from several callers."""
    async with bench.open_manager(isolation="docker") as manager:
        run = ours(manager, *_PRINT)

        async def caller() -> None:
            for _ in range(bench.settings.container_crowd // _CALLERS):
                await run()

        await asyncio.gather(*(caller() for _ in range(_CALLERS)))
    label = f"{HOME_LABEL}={home_id(bench.home)}"
    return len(await asyncio.to_thread(engine.listed, label))


@contextmanager
def _running(engine: Engine) -> Iterator[str]:
    """Have a plain container run, to be entered; it is removed in the end."""
    words = ("run", "--detach", "--rm", "--network=none", "--pull=never", "--entrypoint=sleep")
    container = engine.ask(*words, engine.settings.image, "1d").strip()
    try:
        yield container
    finally:
        engine.remove((container,))


def _versus(one: Series, other: Series) -> str:
    return f"{one.p50 * 1000:.2f} ms to {other.p50 * 1000:.2f} ms"
