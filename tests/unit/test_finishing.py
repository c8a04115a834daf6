"""What is begun is finished, however often one cancels, and an engine is let go of whatever fails before."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ringfence.engines import Hold
from ringfence.facade import SandboxManager
from ringfence.finishing import all_finished, finished
from ringfence.service.house import House
from ringfence.service.settings import ServiceSettings
from ringfence.wiring import Settings


async def cancelled_often(work: Awaitable[object], goes_on: asyncio.Event) -> None:
    running = asyncio.ensure_future(work)
    for _ in range(5):
        await asyncio.sleep(0)
        running.cancel()
    assert not running.done()
    goes_on.set()
    with pytest.raises(asyncio.CancelledError):
        await running


async def test_whoever_is_cancelled_hears_of_it_when_the_work_is_over() -> None:
    goes_on, done = asyncio.Event(), list[str]()

    async def work() -> None:
        await goes_on.wait()
        done.append("done")

    await cancelled_often(finished(work()), goes_on)
    assert done == ["done"]


async def test_what_the_work_raises_reaches_whoever_waits() -> None:
    async def work() -> None:
        raise OSError("full")

    with pytest.raises(OSError, match="full"):
        await finished(work())


async def test_every_step_is_taken_whatever_became_of_those_before() -> None:
    goes_on, done = asyncio.Event(), list[str]()

    async def first() -> None:
        done.append("first")
        raise OSError("full")

    async def second() -> None:
        await goes_on.wait()
        done.append("second")

    goes_on.set()
    with pytest.raises(OSError, match="full"):
        await all_finished(first, second)
    goes_on.clear()
    await cancelled_often(all_finished(first, second), goes_on)
    assert done == ["first", "second", "first", "second"]


class Engine:
    """Stands in for an engine whose processes end when they are told to, or never well."""

    def __init__(self, error: Exception | None = None) -> None:
        self.done: list[str] = []
        self.goes_on = asyncio.Event()
        self._error = error
        self.grants = lambda: SimpleNamespace(present=lambda *_, **__: self)
        self.still_good = lambda: None

    async def end_processes(self, _: object) -> None:
        await self.goes_on.wait()
        self._step("processes")

    def release(self, _: str) -> None:
        self._step("space")

    def close(self) -> None:
        self._step("grant")

    def _step(self, name: str) -> None:
        self.done.append(name)
        if self._error is not None:
            raise self._error


class Shared(Hold):
    """A share of a stand-in."""

    def __init__(self, engine: Any) -> None:
        super().__init__(Settings(Path()), engine)
        self._done: list[str] = engine.done

    def release(self) -> None:
        self._done.append("engine")


def manager_over(engine: Engine) -> SandboxManager:
    manager = SandboxManager()
    manager._held = Shared(engine)
    return manager


async def test_a_manager_lets_go_of_its_engine_whatever_fails_before() -> None:
    """Seen red: threads, zygotes and journal stayed until the process ended."""
    engine = Engine(OSError("full"))
    engine.goes_on.set()
    with pytest.raises(OSError, match="full"):
        await manager_over(engine).cleanup()
    assert engine.done == ["processes", "space", "engine"]


async def test_a_manager_lets_go_of_its_engine_however_often_one_cancels() -> None:
    engine = Engine()
    await cancelled_often(manager_over(engine).cleanup(), engine.goes_on)
    assert engine.done == ["processes", "space", "engine"]


async def test_a_call_under_a_grant_gives_back_its_space_whatever_fails_before() -> None:
    engine = Engine(OSError("full"))
    with pytest.raises(OSError, match="full"):
        async with manager_over(engine).under("token", call_id="one"):
            pass
    assert engine.done == ["grant", "space"]


async def test_a_house_closes_everything_whatever_fails_before() -> None:
    done: list[str] = []

    def broken(name: str) -> Callable[[], None]:
        def close() -> None:
            done.append(name)
            raise OSError(name)

        return close

    def broken_later(name: str) -> Callable[[], Awaitable[None]]:
        async def close() -> None:
            broken(name)()

        return close

    shared: Any = {
        "manager": SimpleNamespace(cleanup=broken_later("manager")),
        "calls": SimpleNamespace(close=broken_later("calls")),
        "readers": SimpleNamespace(close=broken("readers")),
        "database": SimpleNamespace(close=broken("database")),
        **dict.fromkeys(("keys", "home", "clock")),
    }
    house = House(settings=ServiceSettings(), **shared)
    with pytest.raises(OSError, match="database"):
        await house.close()
    assert done == ["calls", "readers", "manager", "database"]
    await house.close()
