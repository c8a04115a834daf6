"""The box without the law: the executor and its pool, under a profile that was worked out before.

Nobody can run anything this way but the bench, which has to tell what the box costs from what governing it costs.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from ringfence import wiring
from ringfence.authority.profile import Profile
from ringfence.clock import SystemClock
from ringfence.dataclass import dataclass
from ringfence.operation import CodeRun, Language
from ringfence.outcome import ExecutionResult
from ringfence.ports import ExecCtx, Executor


@dataclass(frozen=True, slots=True)
class BoxAlone:
    """Has the one method of a manager that is measured."""

    executor: Executor[CodeRun, ExecutionResult]
    profile: Profile

    async def execute_code(self, *, language: str, code: str) -> ExecutionResult:
        """Run `code` once, judged by nobody."""
        return await self.executor.execute(ExecCtx("ex_bench", self.profile), CodeRun(Language(language), code))


@asynccontextmanager
async def open_box() -> AsyncIterator[BoxAlone]:
    """Start a pool of the default size and end it."""
    with tempfile.TemporaryDirectory(prefix="ringfence-bench-") as home:
        executor, pools = wiring.build_box(wiring.Settings(home=Path(home)))
        operation = CodeRun(Language.PYTHON, "print(1)")
        profile = wiring.make_authority(None, SystemClock()).profile(operation, call_id="bench")
        try:
            yield BoxAlone(executor, profile)
        finally:
            await asyncio.to_thread(pools.close)
