"""What a manager offers beside running: to commit, discard or look at what runs would change in their project."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

from ringfence.outcome import BrokerOutcome, OnOutput, Pending, pending_of

if TYPE_CHECKING:
    from ringfence.operation.workspace_proposals import ProposalOperation


class Decisions(ABC):
    """Each of them is one operation, judged and recorded as every other."""

    @abstractmethod
    async def perform(self, operation: Any, *, on_output: OnOutput | None = None) -> Any:
        """Carry out an operation through the pipeline."""

    async def commit(self, exec_id: str, *, force: bool = False) -> BrokerOutcome:
        """Apply what an execution of this session proposed; `force` overwrites what others changed since it began.

        Raises:
            InvalidRequest: Nothing of this name waits (`not_found`), or others changed the same files (`conflict`).
            Denied: The policy does not allow it, or lets nobody change what it touches; nothing was changed.
        """
        from ringfence.operation.workspace_proposals import WsCommit

        return await self._decide(WsCommit(exec_id, force))

    async def discard(self, exec_id: str) -> BrokerOutcome:
        """Forget what an execution of this session proposed.

        Raises:
            InvalidRequest: Nothing of this name waits (`not_found`).
        """
        from ringfence.operation.workspace_proposals import WsDiscard

        return await self._decide(WsDiscard(exec_id))

    async def pending(self) -> list[Pending]:
        """Return what waits to be committed or discarded, the oldest first."""
        from ringfence.operation.workspace_proposals import WsPending

        return pending_of(await self._decide(WsPending()))

    async def _decide(self, operation: ProposalOperation) -> BrokerOutcome:
        outcome: BrokerOutcome = await self.perform(operation)
        return outcome
