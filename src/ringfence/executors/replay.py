"""Answers from what was recorded and carries nothing out: an agent's run can be gone through again without a box.

It stands behind the guard as every executor does, so a replay is allowed no more than a run.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from ringfence.dataclass import replace
from ringfence.errors import Unavailable
from ringfence.evidence.recorded import Recorded, operation_digest
from ringfence.outcome import ExecutionResult, Layers, Outcome
from ringfence.ports import ExecCtx

if TYPE_CHECKING:
    from ringfence.operation.form import Operation

NOTHING_RAN: Final = "replayed: nothing ran, and nothing was isolated"


class ReplayExecutor:
    """Implements `ports.Executor` for any one domain (S0-163)."""

    def __init__(self, domain: str, recorded: Recorded) -> None:
        """Answer for `domain` with what `recorded` finds."""
        self._domain = domain
        self._recorded = recorded

    def capability_domain(self) -> str:
        """Return the domain whose operations are answered here."""
        return self._domain

    async def execute(self, ctx: ExecCtx, operation: Operation) -> Outcome:
        """Return what came of the same operation, in the same session and under the same profile.

        Raises:
            Unavailable: It was never recorded, or what was recorded is of another kind of operation.
        """
        await ctx.begun()
        name = operation_digest(operation, ctx.session_id)
        # a store decrypts and reads files
        found = await asyncio.to_thread(self._recorded.find, name, ctx.profile.profile_hash)
        runs = operation.kind in ("code_run", "proc_exec")
        if found is None or isinstance(found, ExecutionResult) is not runs:
            raise Unavailable(
                f"{operation.kind}: this operation was never recorded under this profile",
                reason="not_recorded",
                fix="keep the contents of the runs that are to be replayed",
                operation=name,
            )
        if not isinstance(found, ExecutionResult):
            return replace(found, exec_id=ctx.exec_id)
        if ctx.on_output is not None:
            for stream, data in (("stdout", found.stdout_raw), ("stderr", found.stderr_raw)):
                if data:
                    ctx.on_output(stream, data)
        # no record of a replay may look as if a box had been there
        return replace(
            found,
            exec_id=ctx.exec_id,
            evidence_id=None,
            sandbox_id="",
            backend="replay",
            isolation=Layers(notes=(NOTHING_RAN,)),
            notes=(*found.notes, NOTHING_RAN),
        )
