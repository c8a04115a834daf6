"""The processes of one engine: started for a tenant, found by that tenant alone, bounded in number and in memory."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from ringfence.dataclass import dataclass
from ringfence.errors import InvalidRequest, QuotaExceeded
from ringfence.outcome import ExecutionResult
from ringfence.processes import records
from ringfence.processes.running import ProcessInfo, Running

if TYPE_CHECKING:
    from ringfence.interpreter.conversation import Conversation
    from ringfence.ports import Clock, EvidenceSink, Identifiers


@dataclass(frozen=True, slots=True)
class Bounds:
    """How many processes there may be, and how much of those that are over is kept beside the last of them."""

    alive: int = 64
    alive_per_tenant: int = 16
    over: int = 64
    over_per_tenant: int = 16
    over_bytes: int = 64 * 1024 * 1024


@dataclass(slots=True)
class _Entry:
    running: Running
    owner: object


class Registry:
    """Holds what runs in the background of an engine; used from one event loop at a time."""

    def __init__(
        self,
        evidence: EvidenceSink,
        identifiers: Identifiers,
        clock: Clock,
        bounds: Bounds = Bounds(),  # noqa: B008
    ) -> None:
        """Nothing runs yet."""
        self._evidence = evidence
        self._identifiers = identifiers
        self._clock = clock
        self._bounds = bounds
        self._entries: dict[str, _Entry] = {}

    def new_id(self) -> str:
        """Return what the next process may be called."""
        return self._identifiers.new("pr")

    async def start(
        self,
        about: records.Started,
        run: Callable[[Running], Awaitable[ExecutionResult]],
        *,
        owner: object = None,
        conversation: Conversation | None = None,
    ) -> Running:
        """Have `run` carried out in the background, and return once the guest runs.

        `conversation` is for a program that takes cells: it hears everything from the first byte on. The process goes
        on when whoever started it goes away, until it ends, is killed, or `end_all` of its `owner`.

        Raises:
            QuotaExceeded: As many processes as allowed are running.
            RingfenceError: Whatever kept it from starting; then there is no process.
        """
        self._require_room(about.tenant)
        running = Running(about, lambda: self._started(about), started_ms=self._clock.now_ms())
        running.conversation = conversation
        self._entries[about.process_id] = _Entry(running, owner)
        running.live(run(running), lambda: self._ended(running))
        try:
            await running.under_way()
        except BaseException:
            # it never ran, or nobody was told of it
            with contextlib.suppress(BaseException):
                await asyncio.shield(running.kill())
            self._entries.pop(about.process_id, None)
            raise
        return running

    def find(self, tenant: str | None, process_id: str) -> Running:
        """Return a process of the tenant; None is whoever may see all of them.

        Raises:
            InvalidRequest: There is none of this name, or it is another tenant's, which nobody can tell apart.
        """
        entry = self._entries.get(process_id)
        if entry is None or tenant not in (None, entry.running.about.tenant):
            raise InvalidRequest("there is no such process", reason="not_found")
        return entry.running

    def listed(self, tenant: str | None) -> list[ProcessInfo]:
        """Return the tenant's processes, those that are over and still known included; the oldest first."""
        known = [entry.running for entry in self._entries.values()]
        return [running.info() for running in known if tenant in (None, running.about.tenant)]

    async def end_all(self, owner: object) -> None:
        """End the processes of `owner`, and wait until nothing of them is left."""
        mine = [entry.running for entry in self._entries.values() if entry.owner is owner and not entry.running.is_over]
        await asyncio.gather(*(running.kill() for running in mine), return_exceptions=True)

    def _require_room(self, tenant: str) -> None:
        alive = [entry.running.about.tenant for entry in self._entries.values() if not entry.running.is_over]
        # no more than are left for the others: a few tenants with all they may have would leave none to the next
        if alive.count(tenant) >= min(self._bounds.alive_per_tenant, self._bounds.alive - len(alive)):
            raise QuotaExceeded(
                "as many processes as allowed are running",
                reason="concurrency",
                fix="kill one, or wait until one ends",
            )

    async def _started(self, about: records.Started) -> None:
        members = records.started(about, self._identifiers.new("ev"), now_ms=self._clock.now_ms())
        await self._evidence.record(members)

    async def _ended(self, running: Running) -> None:
        if running.was_announced:
            envelope_id = self._identifiers.new("ev")
            members = records.ended(running.about, running.ended(), envelope_id, now_ms=self._clock.now_ms())
            await self._evidence.record(members)
        self._forget_some(running)

    def _forget_some(self, last: Running) -> None:
        """Forget the oldest of those that are over, of whoever has the most of them; never the one that just ended."""
        over = [entry.running for entry in self._entries.values() if entry.running.is_over]
        mine = [running for running in over if running.about.tenant == last.about.tenant]
        while len(mine) >= self._bounds.over_per_tenant:
            self._forget(mine.pop(0), over)
        while len(over) >= self._bounds.over or sum(running.weight for running in over) > self._bounds.over_bytes:
            held: Counter[str] = Counter()
            for running in over:
                held[running.about.tenant] += running.weight + 1
            [(greediest, _)] = held.most_common(1)
            self._forget(next(running for running in over if running.about.tenant == greediest), over)

    def _forget(self, running: Running, over: list[Running]) -> None:
        over.remove(running)
        del self._entries[running.about.process_id]
