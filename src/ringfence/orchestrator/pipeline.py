"""The pipeline: the only way to an executor, for every door."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING

from ringfence import operation as operations
from ringfence.authority.profile import Profile
from ringfence.capability.budget import INHERITED
from ringfence.capability.limits import SYSTEM_CEILING, SYSTEM_FLOOR, Limits
from ringfence.errors import InvalidRequest, RingfenceError
from ringfence.guard.consent import Consent
from ringfence.guard.policy_guard import PolicyGuard, isolation_for
from ringfence.operation import CodeRun
from ringfence.outcome import ExecutionResult, OnOutput
from ringfence.ports import Clock, Executor, Identifiers

if TYPE_CHECKING:
    from ringfence.budgets.admission import Admission

_BOUNDS = tuple(
    (
        field.name,
        (int, float) if isinstance(field.default, float) else (int,),
        SYSTEM_FLOOR.get(field.name, 0),
        getattr(SYSTEM_CEILING, field.name),
    )
    for field in dataclasses.fields(Limits)
)


class Orchestrator:
    """Checks an operation, has it judged, and has it carried out; later authorities add steps, never another way."""

    def __init__(
        self,
        executor: Executor,
        identifiers: Identifiers,
        guard: PolicyGuard,
        clock: Clock,
        admission: Callable[[], Admission],
    ) -> None:
        """Everything it acts through is given to it; `admission` is asked for when the first call has a budget."""
        self._executor = executor
        self._identifiers = identifiers
        self._guard = guard
        self._clock = clock
        self._admission = admission
        # most runs of a manager have the very same limits
        self._checked: Limits | None = None

    async def run(
        self,
        operation: CodeRun,
        profile: Profile,
        on_output: OnOutput | None = None,
        *,
        consent: Consent | None = None,
    ) -> ExecutionResult:
        """Run `operation` under `profile`, with what somebody has agreed to.

        Raises:
            InvalidRequest: The operation or a limit is wrong; nothing ran.
            Denied: A rule of the guard does not allow it; nothing ran.
            QuotaExceeded: A budget has too little left; nothing ran.
            IsolationUnavailable: No box here is as strong as the risk demands; nothing ran.
        """
        operations.check(operation)
        if operation.files or operation.inputs:
            check_names(operation)
        if profile.limits is not self._checked:
            check_limits(profile.limits)
            self._checked = profile.limits
        verdict = self._guard.validate(profile, operation, now_ms=self._clock.now_ms(), consent=consent)
        verdict.require_allowed()
        least = isolation_for(profile, operation, verdict.risk).least
        if least is not profile.isolation_floor:
            profile = dataclasses.replace(profile, isolation_floor=least)
        exec_id = self._identifiers.new("ex")
        if profile.scope_budgets or profile.budget != INHERITED:
            result = await self._metered(exec_id, operation, profile, on_output)
        else:
            result = await self._executor.execute(exec_id, operation, profile, on_output)
        return dataclasses.replace(result, risk=str(verdict.risk))

    async def _metered(
        self, exec_id: str, operation: CodeRun, profile: Profile, on_output: OnOutput | None
    ) -> ExecutionResult:
        """Reserve, run under what was reserved, settle with what was measured; nothing runs unmetered."""
        from ringfence.budgets.reservation import NOT_MEASURED  # not at the top: most calls have no budget
        from ringfence.orchestrator import spending

        admission = self._admission()
        most, least = spending.amounts_for(profile.limits)
        chain = spending.chain_of(profile, operation.session_id)
        patience = profile.limits.wall_seconds
        reservation = await admission.reserve(chain, most, exec_id, least=least, wait_seconds=patience)
        try:
            result = await self._executor.execute(exec_id, operation, spending.within(profile, reservation), on_output)
        except RingfenceError:
            await admission.release(reservation)  # what we refuse or fail at has not run
            raise
        except BaseException:
            # it ran, and nobody knows for how long: all of it is charged
            await asyncio.shield(admission.settle(reservation, NOT_MEASURED))
            raise
        await admission.settle(reservation, spending.usage_of(result))
        return result


def check_limits(limits: Limits) -> None:
    """Refuse limits that are not numbers, not positive, below the system's floor or above its ceiling.

    Raises:
        InvalidRequest: Naming the limit.
    """
    for name, kinds, least, most in _BOUNDS:
        value = getattr(limits, name)
        if isinstance(value, bool) or not isinstance(value, kinds):
            raise InvalidRequest(f"{name} must be a number, not {value!r}", reason="invalid_limit")
        # written so that NaN fails too
        if not value > 0:
            raise InvalidRequest(f"{name} must be greater than 0, not {value}", reason="invalid_limit")
        if value < least:
            raise InvalidRequest(f"{name} must be at least {least}, not {value}", reason="invalid_limit")
        if value > most:
            raise InvalidRequest(
                f"{name} of {value} is beyond the system's ceiling of {most}", reason="limit_exceeds_ceiling"
            )


def check_names(operation: CodeRun) -> None:
    """Refuse names of files that could not be placed exactly so.

    Raises:
        InvalidRequest: Naming the path.
    """
    from ringfence.workspaces import place  # not at the top: most runs bring no files

    place.check_names(operation.files, under="work")
    place.check_names(operation.inputs, under="inputs")
