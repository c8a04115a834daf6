"""What a manager can start and leave running: processes, each one run through the pipeline that somebody stays with."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from ringfence.identifiers import TimeOrdered
from ringfence.requests import ExecutionRequest

if TYPE_CHECKING:
    from ringfence import engines, wiring
    from ringfence.authority.caller import Caller
    from ringfence.authority.layers import Request
    from ringfence.authority.profile import Profile
    from ringfence.evidence.correlation import Correlation
    from ringfence.grants.door import Presented
    from ringfence.operation import CodeRun
    from ringfence.operation.form import Operation
    from ringfence.processes.process import Process
    from ringfence.processes.registry import ProcessInfo

_runs = TimeOrdered()


class Background(ABC):
    """The part of `SandboxManager` that starts what outlives the call which started it."""

    _caller: Caller
    _correlation: Correlation
    _held: engines.Hold | None
    _presented: Presented | None

    async def start_process(
        self,
        command: str | None = None,
        *,
        language: str = "bash",
        code: str | bytes | None = None,
        terminal: tuple[int, int] | None = None,
        idle_timeout: float | None = None,
        ports: Iterable[int] = (),
        **options: Any,
    ) -> Process:
        """Start what goes on when its caller goes away, and return once it runs.

        It is one run, judged, bounded and recorded as any other, and ends with this manager. `command` is for the
        shell; otherwise `code` is of `language`. With `terminal`, as rows and columns, it has one instead of pipes.
        `timeout` bounds all of it, `idle_timeout` the time without output and input. `ports` are those of its own
        loopback that `Process.connect` reaches; each has to be granted. Other options as in `execute_code`.

        Raises:
            InvalidRequest: Something about the request is wrong; nothing ran.
            Denied: The policy does not allow it, or one of its ports.
            QuotaExceeded: As many processes as allowed are running.
        """
        from ringfence.processes import starting  # not at the top: most managers start none

        starting.check(terminal, idle_timeout)
        request = ExecutionRequest(*starting.program(command, code, language), **options)
        operation = replace(self._operation(request), ports=tuple(ports))
        exec_id, engine = _runs.new("ex"), self._engine()
        profile = await self._profile(operation, self._requested(request), exec_id)
        run = partial(engine.orchestrator.run, operation, profile, correlation=self._correlation, exec_id=exec_id)
        return await starting.start(
            engine.processes(),
            run,
            operation,
            profile,
            exec_id=exec_id,
            terminal=terminal,
            idle_timeout=idle_timeout,
            correlation=self._correlation,
            owner=self._held,
        )

    async def processes(self) -> list[ProcessInfo]:
        """List the caller's processes: those that run, and the last of those that are over."""
        return self._engine().processes().listed(self._tenant)

    async def process(self, process_id: str) -> Process:
        """Return a process of the caller's.

        Raises:
            InvalidRequest: There is none of this name.
        """
        from ringfence.processes.process import Process

        return Process(self._engine().processes().find(self._tenant, process_id))

    @property
    def _tenant(self) -> str:
        return self._caller.tenant if self._presented is None else self._presented.who[0]

    @abstractmethod
    def _engine(self) -> wiring.Engine: ...

    @abstractmethod
    def _operation(self, request: ExecutionRequest) -> CodeRun: ...

    @abstractmethod
    def _requested(self, request: ExecutionRequest) -> Request: ...

    @abstractmethod
    async def _profile(self, operation: Operation, request: Request, exec_id: str | None = None) -> Profile: ...
