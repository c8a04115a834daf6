"""Waiting for a free place, in one process and across processes."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from pathlib import Path

import pytest
from tests.unit.budgets.accounts import TENANT, chain_of, used

from ringfence.budgets.admission import Admission
from ringfence.budgets.decide import Standing
from ringfence.budgets.memory import MemoryMeter
from ringfence.budgets.reservation import Reservation, Settlement
from ringfence.budgets.scope import Chain
from ringfence.budgets.sqlite import SqliteMeter
from ringfence.capability.budget import Budget
from ringfence.errors import QuotaExceeded

ONE_PLACE = chain_of(Budget(concurrent=1, calls=100))
RUN = Budget(concurrent=1, calls=1)


async def test_without_a_wait_the_last_one_is_refused_with_the_scope_named() -> None:
    admission = Admission(MemoryMeter())
    await admission.reserve(ONE_PLACE, RUN, "first")
    with pytest.raises(QuotaExceeded) as refused:
        await admission.reserve(ONE_PLACE, RUN, "second")
    assert (refused.value.reason, refused.value.details["scope"]) == ("concurrency", "tenant")


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
async def test_whoever_waits_gets_the_place_when_it_is_free_and_never_two_at_a_time(kind: str, tmp_path: Path) -> None:
    meter = MemoryMeter() if kind == "memory" else SqliteMeter.in_home(tmp_path)
    admission = Admission(meter)
    inside: list[str] = []
    most = 0

    async def run(exec_id: str) -> None:
        nonlocal most
        held = await admission.reserve(ONE_PLACE, RUN, exec_id, wait_seconds=60)
        inside.append(exec_id)
        most = max(most, len(inside))
        await asyncio.sleep(0)
        inside.remove(exec_id)
        await admission.settle(held, used(calls=1))

    await asyncio.gather(*(run(f"ex{i}") for i in range(12)))
    assert most == 1
    assert meter.standing(TENANT, "calls") == Standing(12, 0)
    if isinstance(meter, SqliteMeter):
        meter.close()


async def test_nobody_waits_for_what_does_not_come_back() -> None:
    admission = Admission(MemoryMeter())
    with pytest.raises(QuotaExceeded) as refused:
        await admission.reserve(chain_of(Budget(calls=0, concurrent=0)), RUN, "ex", wait_seconds=10**6)
    assert refused.value.reason == "calls"


async def test_a_wait_ends() -> None:
    admission = Admission(MemoryMeter())
    await admission.reserve(ONE_PLACE, RUN, "first")
    with pytest.raises(QuotaExceeded):
        await admission.reserve(ONE_PLACE, RUN, "second", wait_seconds=0.02)


def die_holding(home: Path) -> None:
    child = os.fork()
    if child == 0:
        SqliteMeter.in_home(home).reserve(ONE_PLACE, RUN, "dead")
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(child, 0)


async def test_a_place_held_by_a_dead_process_is_found_even_without_waiting(tmp_path: Path) -> None:
    die_holding(tmp_path)
    meter = SqliteMeter.in_home(tmp_path)
    assert (await Admission(meter).reserve(ONE_PLACE, RUN, "ex")).exec_id == "ex"
    assert meter.standing(TENANT, "calls") == Standing(1, 1)
    meter.close()


class SlowMeter(MemoryMeter):
    """A meter whose answer comes when the test says so."""

    waits = True

    def __init__(self) -> None:
        super().__init__()
        self.asked = threading.Event()
        self.may_answer = threading.Event()
        self.released = threading.Event()

    def reserve(self, chain: Chain, amounts: Budget, exec_id: str, *, least: Budget | None = None) -> Reservation:
        self.asked.set()
        self.may_answer.wait()
        return super().reserve(chain, amounts, exec_id, least=least)

    def release(self, reservation: Reservation) -> Settlement:
        settlement = super().release(reservation)
        self.released.set()
        return settlement


async def test_what_a_cancelled_run_was_still_asking_for_is_given_back() -> None:
    meter = SlowMeter()
    task = asyncio.create_task(Admission(meter).reserve(ONE_PLACE, RUN, "ex"))
    await asyncio.to_thread(meter.asked.wait)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    meter.may_answer.set()
    await asyncio.to_thread(meter.released.wait)
    assert meter.standing(TENANT, "concurrent") == Standing(0, 0)
