"""The governed run without its proof: the same manager, pool and pipeline, which write their evidence nowhere.

Nobody can run anything this way but the bench, which has to tell what the proof costs from what the rest costs.
"""

from __future__ import annotations

import copy
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from ringfence import wiring
from ringfence.bench.subject import Runs
from ringfence.dataclass import replace
from ringfence.facade import SandboxManager
from ringfence.testing import MemorySink


class Unrecorded(SandboxManager):
    """Shares the engine of every other manager with its settings, up to where the pipeline writes."""

    _forgetful: wiring.Engine | None = None

    def _engine(self) -> wiring.Engine:
        if self._forgetful is None:
            engine = super()._engine()
            orchestrator = copy.copy(engine.orchestrator)
            orchestrator._evidence = MemorySink()
            self._forgetful = replace(engine, orchestrator=orchestrator)
        return self._forgetful


@asynccontextmanager
async def open_both(home: Path) -> AsyncIterator[tuple[Runs, Runs]]:
    """Open a manager with the journal of `home`, and beside it, on the same pool, one without any."""
    async with SandboxManager(home=home) as recorded, Unrecorded(home=home) as unrecorded:
        yield recorded, unrecorded
