"""Runs code where it belongs: in a box of its own, or as the next cell of an interpreter that is already running."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from ringfence.errors import InvalidRequest
from ringfence.operation import CodeRun, Language
from ringfence.outcome import ExecutionResult, Status
from ringfence.ports import ExecCtx, Executor

if TYPE_CHECKING:
    from ringfence.attachment import Observed
    from ringfence.capability.limits import Limits
    from ringfence.interpreter.conversation import Cell
    from ringfence.processes.registry import Registry


class CodeOrCell:
    """Implements `ports.Executor` for code; a cell is judged and recorded as any code, and only then handed over."""

    def __init__(self, code: Executor[CodeRun, ExecutionResult], processes: Callable[[], Registry]) -> None:
        """`code` runs what is no cell; `processes` are those whose interpreters run the others."""
        self._code = code
        self._processes = processes

    def capability_domain(self) -> str:
        """Return the domain whose operations are carried out here."""
        return "code"

    async def execute(self, ctx: ExecCtx, operation: CodeRun) -> ExecutionResult:
        """Run `operation`; a cell after those that its session was given before."""
        if operation.process_id is None:
            return await self._code.execute(ctx, operation)
        running = self._processes().find(ctx.profile.tenant, operation.process_id)
        if running.conversation is None or running.observed is None or operation.language is not Language.PYTHON:
            raise InvalidRequest("the process is no Python interpreter that takes cells", reason="no_interpreter")
        await ctx.begun()
        cell = await running.conversation.run(operation.code, ctx.profile.limits, ctx.on_output)
        return result_of(ctx.exec_id, cell, running.observed, ctx.profile.limits)


def result_of(exec_id: str, cell: Cell, box: Observed, limits: Limits) -> ExecutionResult:
    """Put what the interpreter said of a cell into the words of a result; of the box only what was seen from outside.

    What the cell used of cpu and memory is the session's: its process is charged with all of it when it ends.
    """
    done = cell.done
    error, code, reason = _explained(cell, limits)
    over = done is None or done.ended
    (stdout, stdout_left_out), (stderr, stderr_left_out) = cell.stdout.finish(), cell.stderr.finish()
    notes = () if done is None else done.notes
    return ExecutionResult(
        exec_id=exec_id,
        status=cell.status,
        exit_code=_exit_code(cell),
        stdout_raw=stdout,
        stderr_raw=stderr,
        stdout_bytes=cell.stdout.seen,
        stderr_bytes=cell.stderr.seen,
        stdout_truncated=stdout_left_out > 0,
        stderr_truncated=stderr_left_out > 0,
        stdout_left_out=stdout_left_out,
        stderr_left_out=stderr_left_out,
        killed_by=cell.killed_by,
        error=error,
        error_code=code,
        reason=reason,
        elapsed_ms=cell.elapsed_seconds * 1000,
        sandbox_id=box.sandbox_id,
        sandbox_type=box.sandbox_type,
        backend=box.backend,
        isolation=box.layers,
        artifacts=() if done is None else done.artifacts,
        notes=(*notes, "the session is over") if over else notes,
        value=None if done is None else done.value,
    )


def _exit_code(cell: Cell) -> int | None:
    if cell.killed_by is not None:
        return None
    if cell.done is None:
        return None if cell.session is None else cell.session.exit_code
    return cell.done.status if cell.done.ended else int(cell.done.error is not None)


def _explained(cell: Cell, limits: Limits) -> tuple[str | None, str | None, str | None]:
    if cell.status is Status.TIMED_OUT:
        return f"the cell was ended at its wall-clock limit of {limits.wall_seconds:g} s", "LLM.TIMEOUT", "wall_timeout"
    if cell.done is None:
        ended = cell.session
        if ended is not None and ended.error is not None:
            return f"the session ended: {ended.error}", ended.error_code, ended.reason
        return "the session ended before the cell did", "TOOL.EXECUTION_FAILED", "session_over"
    if cell.done.error is not None:
        return cell.done.error, None, "exception"
    if cell.done.status:
        return f"the program exited with {cell.done.status}", None, "exit_code"
    return None, None, None
