"""What the queue of a service runs executions with, and how it learns that a guest is gone."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Protocol

from ringfence.service.callers import Principal
from ringfence.service.calls import GrantShown
from ringfence.service.exec_form import ExecForm

if TYPE_CHECKING:
    from ringfence.facade import ExecutionRequest
    from ringfence.outcome import ExecutionResult, OnOutput


class Runs(Protocol):
    """What executions are run with: a manager that acts for a caller."""

    async def execute(
        self, request: ExecutionRequest, *, on_output: OnOutput | None = None, exec_id: str | None = None
    ) -> ExecutionResult:
        """Run the request under this name."""
        ...


ManagerFor = Callable[[Principal, ExecForm], Runs]
ManagerUnder = Callable[[Principal, GrantShown, ExecForm], Awaitable[Runs]]
Gone = Callable[[str, Callable[[], None]], AbstractContextManager[None]]
"""Has somebody told, within a block, that the guest of an execution is gone, while its end is still being written."""


def untold(exec_id: str, tell: Callable[[], None]) -> AbstractContextManager[None]:  # noqa: ARG001  of type `Gone`
    """Tell nobody: a turn is then given back with the end of the whole execution."""
    return nullcontext()
