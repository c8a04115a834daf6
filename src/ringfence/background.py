"""What a manager can start and leave running: processes, each one run through the pipeline that somebody stays with."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING, Any

from ringfence.dataclass import replace
from ringfence.errors import InvalidRequest
from ringfence.identifiers import TimeOrdered
from ringfence.requests import ExecutionRequest

if TYPE_CHECKING:
    from ringfence import engines, wiring
    from ringfence.asked import Asks
    from ringfence.authority.caller import Caller
    from ringfence.authority.layers import Request
    from ringfence.authority.profile import Profile
    from ringfence.client.remote import Remote
    from ringfence.evidence.correlation import Correlation
    from ringfence.grants.door import Presented
    from ringfence.interpreter.conversation import Conversation
    from ringfence.operation import CodeRun
    from ringfence.operation.form import Operation
    from ringfence.outcome import ExecutionResult, OnOutput
    from ringfence.ports import StillGranted
    from ringfence.processes.process import Process
    from ringfence.processes.running import ProcessInfo
    from ringfence.sessions import Session

_runs = TimeOrdered()


class Background(ABC):
    """The part of `SandboxManager` that starts what outlives the call which started it."""

    _asks: Asks
    _caller: Caller
    _correlation: Correlation
    _held: engines.Hold | None
    _presented: Presented | None
    _role: str | None
    _still_granted: StillGranted | None

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

        request = ExecutionRequest(*starting.program(command, code, language), **options)
        return await self._start(request, self._asks.of(request), terminal, idle_timeout, ports)

    def session(self, language: str = "python", *, timeout: float | None = None, **options: Any) -> Session:
        """Give a stateful interpreter: `async with manager.session() as session: await session.run("x = 1")`.

        Variables are kept from cell to cell; what a cell's last line evaluates to is the result's `value`, and what it
        draws is among the artifacts. `timeout` bounds the whole session, by default as long as the policy allows;
        `idle_timeout` the time between cells. Other options as in `execute_code`.

        Raises:
            InvalidRequest: There is no such interpreter.
        """
        from ringfence.sessions import Session  # not at the top: most managers have none

        if language != "python":
            raise InvalidRequest("a session is in python", reason="unknown_language")
        return Session(self, {"timeout": timeout, **options})

    async def start_interpreter(
        self,
        *,
        timeout: float | None = None,  # noqa: ASYNC109  kept by killing it, not by cancelling
        idle_timeout: float | None = None,
        **options: Any,
    ) -> Process:
        """Start the process of a session, which takes cells; `session` is how a program has one."""
        from ringfence import interpreter
        from ringfence.interpreter.conversation import Conversation
        from ringfence.sessions import IDLE_SECONDS

        request = ExecutionRequest(interpreter.program(), "python", timeout, **options)
        asked = self._asks.of(request)
        if timeout is None and self._service() is None:
            longest = self._engine().authority.longest(self._operation(request), role=self._role)
            asked = replace(asked, limits={**asked.limits, "wall_seconds": longest})
        idle = IDLE_SECONDS if idle_timeout is None else idle_timeout
        return await self._start(request, asked, None, idle, (), Conversation())

    async def run_cell(
        self,
        process_id: str,
        code: str,
        timeout: float | None = None,  # noqa: ASYNC109  the cell's own limit, kept by interrupting it
        on_output: OnOutput | None = None,
    ) -> ExecutionResult:
        """Run one cell in a session's process; `Session.run` is how a program does."""
        request = ExecutionRequest(code, "python", timeout)
        operation = replace(self._operation(request), packages=(), process_id=process_id)
        result: ExecutionResult = await self._carry_out(operation, self._asks.of(request), on_output)
        return result

    async def _start(
        self,
        request: ExecutionRequest,
        asked: Request,
        terminal: tuple[int, int] | None,
        idle_timeout: float | None,
        ports: Iterable[int],
        conversation: Conversation | None = None,
    ) -> Process:
        from ringfence.processes import starting

        starting.check(terminal, idle_timeout)
        operation = replace(self._operation(request), ports=tuple(ports))
        if (service := self._service()) is not None:
            return await service.start_process(
                operation,
                asked,
                terminal=terminal,
                idle_timeout=idle_timeout,
                interpreter=conversation is not None,
            )
        exec_id, engine = _runs.new("ex"), self._engine()
        profile = await self._profile(operation, asked, exec_id)
        run = partial(
            engine.orchestrator.run,
            operation,
            profile,
            correlation=self._correlation,
            exec_id=exec_id,
            still_granted=self._still_granted,
        )
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
            conversation=conversation,
        )

    async def processes(self) -> list[ProcessInfo]:
        """List the caller's processes: those that run, and the last of those that are over."""
        if (service := self._service()) is not None:
            return await service.processes()
        return self._engine().processes().listed(self._tenant)

    async def process(self, process_id: str) -> Process:
        """Return a process of the caller's.

        Raises:
            InvalidRequest: There is none of this name.
        """
        from ringfence.processes.process import Process

        if (service := self._service()) is not None:
            return await service.process(process_id)
        return Process(self._engine().processes().find(self._tenant, process_id))

    @property
    def _tenant(self) -> str:
        return self._caller.tenant if self._presented is None else self._presented.who[0]

    @abstractmethod
    def _engine(self) -> wiring.Engine: ...

    @abstractmethod
    def _service(self) -> Remote | None: ...

    @abstractmethod
    def _operation(self, request: ExecutionRequest) -> CodeRun: ...

    @abstractmethod
    async def _profile(self, operation: Operation, request: Request, exec_id: str | None = None) -> Profile: ...

    @abstractmethod
    async def _carry_out(
        self, operation: Any, request: Request, on_output: OnOutput | None, exec_id: str | None = None
    ) -> Any: ...
