"""Has one operation carried out, and tells failures of ours from a cancellation and from what a listener raises."""

from __future__ import annotations

import asyncio
import math
from typing import TYPE_CHECKING, Any

from ringfence.dataclass import replace
from ringfence.errors import ExecutionFailed, InternalError, RingfenceError, TimedOut
from ringfence.operation import IN_A_BOX
from ringfence.outcome import BrokerOutcome

if TYPE_CHECKING:
    from types import TracebackType

    from ringfence.operation.form import Operation
    from ringfence.outcome import OnOutput, Outcome
    from ringfence.ports import ExecCtx, Executor


class Heard:
    """Passes output on to the caller, and remembers what he raised: that is his own, and reaches him as it is."""

    def __init__(self, on_output: OnOutput) -> None:
        """Nothing was raised yet."""
        self._on_output = on_output
        self.raised: Exception | None = None

    def __call__(self, name: str, data: bytes) -> None:
        """Pass on one chunk."""
        try:
            self._on_output(name, data)
        except Exception as error:
            self.raised = error
            raise


class FailingAsOurs:
    """Takes whatever breaks in a `with` block around an executor for a failure of ours, and shows nothing of it.

    No generator: every run goes through two of these.
    """

    def __init__(self, step: str) -> None:
        """Name what is tried, for the error."""
        self._step = step

    def __enter__(self) -> None:
        """Begin."""

    def __exit__(self, _: type[BaseException] | None, error: BaseException | None, __: TracebackType | None) -> None:
        """Let through what may be raised there.

        Raises:
            InternalError: Something was raised that should not have been.
        """
        if isinstance(error, Exception) and not isinstance(error, RingfenceError):
            raise InternalError(f"{self._step} failed: {type(error).__name__}") from error


async def carried_out(executor: Executor[Any, Any], ctx: ExecCtx, operation: Operation) -> Outcome:
    """Have it carried out in no more time than the profile gives; a broker's time is taken here.

    Raises:
        ExecutionFailed: The executor raised what it should not have; nothing of that is shown.
    """
    outcome: Outcome
    try:
        if operation.domain not in IN_A_BOX:  # which is killed at its limit, and says so in its result
            return await _in_time(executor, ctx, operation)
        outcome = await executor.execute(ctx, operation)
    except RingfenceError:
        raise
    except Exception as error:
        if isinstance(ctx.on_output, Heard) and error is ctx.on_output.raised:
            raise
        raise ExecutionFailed(f"{operation.kind}: the executor failed: {type(error).__name__}") from error
    return outcome


async def _in_time(executor: Executor[Any, Any], ctx: ExecCtx, operation: Operation) -> Outcome:
    outcome: Outcome
    await ctx.begun()
    loop = asyncio.get_running_loop()
    began, most = loop.time(), ctx.profile.limits.wall_seconds
    try:
        async with asyncio.timeout(most):
            outcome = await executor.execute(ctx, operation)
    except TimeoutError:
        raise TimedOut(f"{operation.kind} took longer than {most:g} s; what it did stands") from None
    except RingfenceError as error:
        if isinstance(error.done, BrokerOutcome):
            error.done = _timed(error.done, ctx, loop.time() - began)
        raise
    return _timed(outcome, ctx, loop.time() - began) if isinstance(outcome, BrokerOutcome) else outcome


def _timed(outcome: BrokerOutcome, ctx: ExecCtx, seconds: float) -> BrokerOutcome:
    used = replace(outcome.used, wall_ms=math.ceil(seconds * 1000))
    return replace(outcome, used=used, exec_id=ctx.exec_id)
