"""One run's budget: reserved before it starts, its limits lowered to that, settled in the transaction of its end."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any

from ringfence.budgets.reservation import NOT_MEASURED, NOTHING_USED, Reservation
from ringfence.dataclass import replace
from ringfence.errors import ExecutionFailed, TimedOut
from ringfence.operation import IN_A_BOX
from ringfence.orchestrator import spending
from ringfence.outcome import BrokerOutcome
from ringfence.outcome import Budget as Used

if TYPE_CHECKING:
    from ringfence.budgets.admission import Admission
    from ringfence.errors import RingfenceError
    from ringfence.operation.form import Operation
    from ringfence.outcome import Outcome
    from ringfence.ports import AlsoWrite, ExecCtx


class Metering:
    """Made for a run that somebody's budget bounds."""

    def __init__(self, admission: Admission, operation: Operation, known: Mapping[str, Any]) -> None:
        """Nothing is reserved yet; `known` is what the call's record says of whose work it is."""
        self._known = known
        self._admission = admission
        self._operation = operation
        self._reservation: Reservation | None = None
        self._used = NOT_MEASURED
        self._began_ns: int | None = None

    async def reserve(self, ctx: ExecCtx) -> ExecCtx:
        """Hold what the run may use at most, and return the same with a profile that keeps it within that.

        Raises:
            QuotaExceeded: A scope has too little left.
            Unavailable: Nobody can tell how much is left.
        """
        profile = ctx.profile
        most, least = spending.amounts_for(self._operation, profile.limits)
        chain = spending.chain_of(profile, ctx.session_id, self._known)
        patience = profile.limits.wall_seconds
        held = await self._admission.reserve(chain, most, ctx.exec_id, least=least, wait_seconds=patience)
        self._reservation = held
        return replace(
            ctx,
            profile=spending.within(profile, held),
            reserved=held.amounts,
            most_output=spending.most_output(held),
        )

    def measured(self, outcome: Outcome) -> None:
        """Charge what `outcome` says was used, instead of all that was reserved."""
        self._used = spending.usage_of(outcome)

    def handed_over(self) -> None:
        """Take the time from now on: whoever carries it out has it."""
        self._began_ns = perf_counter_ns()

    def failed(self, error: RingfenceError) -> None:
        """Charge what a failure without an outcome has cost: code that ran says so, a broker has at least looked.

        What took too long is charged in full, and what broke under a run: nobody knows how far it had come.
        """
        in_a_box = self._operation.domain in IN_A_BOX
        if self._began_ns is not None and isinstance(error, (TimedOut, ExecutionFailed) if in_a_box else TimedOut):
            return
        if self._began_ns is None or in_a_box:
            self._used = NOTHING_USED
            return
        took = Used(wall_ms=-(-(perf_counter_ns() - self._began_ns) // 1_000_000))
        self._used = spending.usage_of(BrokerOutcome(self._operation.kind, {}, None, took))

    async def settle_with(self, write: Callable[[AlsoWrite | None], Awaitable[None]]) -> None:
        """Have `write` record the end, and settle with it, or after it where the budget is counted elsewhere."""
        reservation = self._reservation
        if reservation is None:
            await write(None)
            return
        settle = self._admission.settling(reservation, self._used)
        try:
            await write(settle)
        finally:
            if settle is None:
                await asyncio.shield(self._admission.settle(reservation, self._used))
            else:
                self._admission.one_ended()
