"""A Python session: cells that share their variables, in one box that lives until the session is left."""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol, Self

from ringfence.errors import InvalidRequest

if TYPE_CHECKING:
    from ringfence.outcome import ExecutionResult, OnOutput
    from ringfence.processes.process import Process

IDLE_SECONDS = 900.0
"""How long a session that is given no cell goes on living, unless its caller says otherwise."""


class Interpreting(Protocol):
    """The manager, as a session needs it."""

    async def start_interpreter(self, **options: Any) -> Process:
        """Start the process that takes cells."""
        ...

    async def run_cell(
        self,
        process_id: str,
        code: str,
        timeout: float | None,  # noqa: ASYNC109  the cell's own limit
        on_output: OnOutput | None,
    ) -> ExecutionResult:
        """Run one cell in it."""
        ...


class Session:
    """Made by `SandboxManager.session`: `async with manager.session() as session: await session.run("x = 1")`."""

    def __init__(self, manager: Interpreting, options: dict[str, Any]) -> None:
        """Nothing starts before `async with`."""
        self._manager = manager
        self._options = options
        self._process: Process | None = None

    async def __aenter__(self) -> Self:
        """Start the interpreter."""
        self._process = await self._manager.start_interpreter(**self._options)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        """End it, with everything it started."""
        if self._process is not None:
            await self._process.kill()

    @property
    def process(self) -> Process:
        """The process that the cells run in.

        Raises:
            InvalidRequest: The session has not been begun.
        """
        if self._process is None:
            raise InvalidRequest("the session has not been begun", fix="use it with `async with`")
        return self._process

    async def run(
        self,
        code: str,
        timeout: float | None = None,  # noqa: ASYNC109  the cell's own limit, kept by interrupting it
        *,
        on_output: OnOutput | None = None,
    ) -> ExecutionResult:
        """Run one cell; what its last line evaluates to is the result's `value`, what it draws is in `artifacts`.

        The cell is judged and recorded as any run. One that takes too long is interrupted, and the variables live on.

        Raises:
            InvalidRequest: The session is over.
            Denied: The policy does not allow it; nothing ran.
        """
        return await self._manager.run_cell(self.process.process_id, code, timeout, on_output)
