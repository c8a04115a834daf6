"""Lets a run wait for a free place instead of being refused; no other budget comes back by waiting."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from ringfence.budgets.port import BudgetMeter, Measured
from ringfence.budgets.reservation import Reservation, Settlement, Usage
from ringfence.budgets.scope import Chain
from ringfence.capability.budget import Budget
from ringfence.errors import QuotaExceeded

if TYPE_CHECKING:
    from ringfence.database.port import Cursor

_LOOK_AGAIN_SECONDS = 0.05
_CONCURRENCY = "concurrency"
T = TypeVar("T")


class Admission:
    """The one way to a meter for whoever runs in an event loop: it queues, and keeps the loop free."""

    def __init__(self, meter: BudgetMeter, measured: Measured = lambda _: None) -> None:
        """Ask `meter`; `measured` is what `BudgetMeter.recover` takes."""
        self._meter = meter
        self._measured = measured
        # protects the list: runs end in other loops and threads
        self._lock = threading.Lock()
        self._waiting: list[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = []

    async def reserve(
        self,
        chain: Chain,
        amounts: Budget,
        exec_id: str,
        *,
        least: Budget | None = None,
        wait_seconds: float = 0.0,
    ) -> Reservation:
        """Reserve as `BudgetMeter.reserve` does; where only a place is missing, wait for one that long.

        Raises:
            QuotaExceeded: A scope has too little left, or still no place free.
            Unavailable: Nobody can tell how much is left; nothing may run.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + wait_seconds
        looked_for_the_dead = False
        while True:
            ended = asyncio.Event()
            with self._lock:
                # before asking: a place that comes free between the answer and the wait is not missed
                self._waiting.append((loop, ended))
            try:
                return await self._reserve(lambda: self._meter.reserve(chain, amounts, exec_id, least=least))
            except QuotaExceeded as refused:
                left = deadline - loop.time()
                if refused.reason != _CONCURRENCY or (looked_for_the_dead and left <= 0):
                    raise
                if not looked_for_the_dead:
                    # a process that was killed keeps its places until somebody notices
                    looked_for_the_dead = True
                    await self._ask(lambda: self._meter.recover(self._measured))
                    continue
                await _first(ended, min(left, _LOOK_AGAIN_SECONDS))
            finally:
                with self._lock:
                    self._waiting.remove((loop, ended))

    async def settle(self, reservation: Reservation, used: Usage) -> Settlement:
        """Settle as `BudgetMeter.settle` does, and let the next one try."""
        try:
            return await self._ask(lambda: self._meter.settle(reservation, used))
        finally:
            self.one_ended()

    def settling(self, reservation: Reservation, used: Usage) -> Callable[[Cursor], None] | None:
        """Return what settles inside a transaction of the journal, where the meter counts in the same place."""
        return self._meter.settling(reservation, used)

    def one_ended(self) -> None:
        """Tell those who wait, in the order they came, that a place is free; also for `tables.settle`."""
        with self._lock:
            for loop, ended in self._waiting:
                with contextlib.suppress(RuntimeError):  # its loop was closed under it
                    loop.call_soon_threadsafe(ended.set)

    async def _reserve(self, reserve: Callable[[], Reservation]) -> Reservation:
        if not self._meter.waits:
            return reserve()
        handover = _Handover(self._meter)
        try:
            return await asyncio.to_thread(handover.take, reserve)
        except asyncio.CancelledError:
            handover.abandon()
            raise

    async def _ask(self, question: Callable[[], T]) -> T:
        return await asyncio.to_thread(question) if self._meter.waits else question()


class _Handover:
    """Brings a reservation from the thread that makes it to the run that asked, or back if that was cancelled."""

    def __init__(self, meter: BudgetMeter) -> None:
        self._meter = meter
        self._lock = threading.Lock()
        self._abandoned = False
        self._held: Reservation | None = None

    def take(self, reserve: Callable[[], Reservation]) -> Reservation:
        held = reserve()
        with self._lock:
            self._held = held
            abandoned = self._abandoned
        if abandoned:
            self._meter.release(held)
        return held

    def abandon(self) -> None:
        with self._lock:
            self._abandoned = True
            held = self._held
        if held is not None:
            self._meter.release(held)


async def _first(ended: asyncio.Event, seconds: float) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(max(0.0, seconds)):
            await ended.wait()
