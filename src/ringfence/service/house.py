"""What every door of one service shares: the manager, the keys, the settings; opened together, closed together."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ringfence.evidence.correlation import UNKNOWN, Correlation

if TYPE_CHECKING:
    from ringfence.facade import SandboxManager
    from ringfence.service.callers import Principal
    from ringfence.service.keys import Keys
    from ringfence.service.settings import ServiceSettings


@dataclass(slots=True)
class House:
    """One running service; routes find it with `door.house_of`."""

    manager: SandboxManager
    keys: Keys
    settings: ServiceSettings
    execs: Any = None
    """The queue of executions, where there is one (`service.execs`)."""
    skills: Any = None
    """The skills that are offered, where there are any."""
    draining: asyncio.Event = field(default_factory=asyncio.Event)
    """Set once no new work is taken."""

    def manager_for(
        self, principal: Principal, project_id: str | None = None, correlation: Correlation = UNKNOWN
    ) -> SandboxManager:
        """Return a manager that acts for the caller, in one of its projects, and shares the engine of the house."""
        return self.manager.acting_for(caller=principal.caller, session_id=project_id, correlation=correlation)

    async def close(self) -> None:
        """Take nothing new, let what runs end or be cancelled, and close the engine with its journal."""
        self.draining.set()
        if self.execs is not None:
            await self.execs.close()
        await self.manager.cleanup()
