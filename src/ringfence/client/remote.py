"""A service as a manager holds it: its operations awaited in an event loop, and cancelled there with their task."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import asynccontextmanager, contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar
from urllib.parse import quote

from ringfence.client.forms import Asking, GrantInUse, process_form
from ringfence.client.service import RUN_SECONDS, Service, new_key
from ringfence.dataclass import replace
from ringfence.errors import InvalidRequest, RingfenceError
from ringfence.operation.code import CodeRun
from ringfence.outcome_form import read_member, read_object
from ringfence.wire.address import parse_address
from ringfence.wire.lane import Lane
from ringfence.wire.stop import Stop
from ringfence.wire.transport import Transport
from ringfence.wire.waiting import awaited

if TYPE_CHECKING:
    from ringfence.authority.layers import Request
    from ringfence.config import SandboxConfig
    from ringfence.operation.brokered import Brokered
    from ringfence.outcome import ExecutionResult, OnOutput, Outcome
    from ringfence.processes.process import Process
    from ringfence.processes.running import ProcessInfo
    from ringfence.skills.skill import Skill, SkillOutcome

KEY_VARIABLE: Final = "RINGFENCE_API_KEY"
_T = TypeVar("_T")


class Remote:
    """What a manager has instead of an engine."""

    def __init__(self, service: Service, lane: Lane | None = None, asking: Asking | None = None) -> None:
        """Ask this service, from threads of the lane."""
        self._service = service
        self._lane = lane or Lane()
        self._asking = asking or Asking()
        self._taken: dict[str, Asking] = {}
        """Temporary space that nobody has freed yet, and for whom it was taken."""

    @property
    def service(self) -> Service:
        """The service, for whoever waits in a thread of its own."""
        return self._service

    def asking(self, session_id: str | None, role: str | None, correlation: Mapping[str, str]) -> Remote:
        """Return the same service, asked in this role for the files of this session."""
        return self._with(replace(self._asking, session_id=session_id, role=role, correlation=correlation))

    @asynccontextmanager
    async def under(self, grant: str, call_id: str) -> AsyncIterator[Remote]:
        """Give the same service, asked under a signed grant beside its policy; afterwards the grant is used up.

        Raises:
            InvalidRequest: The grant or the call has characters that no header can carry.
        """
        given: tuple[tuple[str, object], ...] = (("grant", grant), ("call_id", call_id))
        for name, value in given:
            if not isinstance(value, str) or not value or not value.isascii() or not value.isprintable():
                raise InvalidRequest(f"{name} must be printable ASCII text", reason="invalid_text")
        used = GrantInUse(grant, call_id)
        remote = self._with(replace(self._asking, grant=used))
        try:
            yield remote
        finally:
            await remote.call("DELETE", f"/grants/calls/{quote(call_id, safe='')}", repeatable=True)
            used.is_over = True

    async def run(self, operation: CodeRun | Brokered, request: Request, on_output: OnOutput | None = None) -> Outcome:
        """Have the service take an operation through its pipeline; cancelling the task cancels it there.

        Raises:
            RingfenceError: As the pipeline raises them; and what went wrong on the way to it.
        """
        asking = self._within(request)
        with _hearing(on_output) as told:
            if isinstance(operation, CodeRun) and operation.process_id is not None:
                return await self.wait(lambda stop: self._service.run_cell(operation, asking, told, stop))
            if isinstance(operation, CodeRun):
                return await self.wait(lambda stop: self._service.execute(operation, asking, told, stop))
            outcome = await self.wait(lambda stop: self._service.perform(operation, asking, told, stop))
        self._note_space(operation, outcome)
        return outcome

    async def call(
        self,
        method: str,
        target: str,
        form: Mapping[str, Any] | None = None,
        *,
        repeatable: bool = False,
        key: str | None = None,
    ) -> Any:
        """Ask for something of the service, with JSON for JSON; what has a `key` may be sent twice and happens once."""
        asking = self._asking
        _, answer = await self.wait(
            lambda stop: self._service.call(
                method, target, form, asking=asking, repeatable=repeatable, key=key, seconds=RUN_SECONDS, stop=stop
            )
        )
        return answer

    async def start_process(
        self,
        operation: CodeRun,
        request: Request,
        *,
        terminal: tuple[int, int] | None,
        idle_timeout: float | None,
        interpreter: bool,
    ) -> Process:
        """Have the service start what goes on when its caller goes away."""
        from ringfence.client.processes import RemoteProcess, read_info

        asking = self._within(request)
        form = process_form(operation, asking, terminal=terminal, idle_timeout=idle_timeout, interpreter=interpreter)
        return RemoteProcess(self, read_info(await self.call("POST", "/sandbox/processes", form, key=new_key())))

    async def processes(self) -> list[ProcessInfo]:
        """List the processes of the service that the caller may know of."""
        from ringfence.client.processes import read_info

        answer = read_object(await self.call("GET", "/sandbox/processes"))
        return [read_info(entry) for entry in read_member(answer, "items", list)]

    async def process(self, process_id: str) -> Process:
        """Return a process of the caller's."""
        from ringfence.client.processes import RemoteProcess, read_info

        answer = await self.call("GET", f"/sandbox/processes/{quote(process_id, safe='')}?max_bytes=1")
        return RemoteProcess(self, read_info(answer))

    async def result_of(self, exec_id: str) -> ExecutionResult:
        """Return what came of an execution that is over."""
        return self._service.result(await self.call("GET", f"/sandbox/execs/{quote(exec_id, safe='')}"))

    async def skills(self) -> list[Skill]:
        """Return the skills that the service offers."""
        from ringfence.client.skills import list_skills  # not at the top: most managers call none

        return await self.wait(lambda stop: list_skills(self._service, self._asking, stop))

    async def skill(self, skill_id: str) -> Skill:
        """Return one of them."""
        from ringfence.client.skills import find_skill

        return await self.wait(lambda stop: find_skill(self._service, self._asking, skill_id, stop))

    async def invoke(
        self, skill_id: str, inputs: Mapping[str, Any], request: Request, on_output: OnOutput | None = None
    ) -> SkillOutcome:
        """Have the service call a skill."""
        from ringfence.client.skills import invoke_skill

        asking = self._asking.within(request.limits)
        with _hearing(on_output) as told:
            return await self.wait(lambda stop: invoke_skill(self._service, asking, skill_id, inputs, told, stop))

    async def wait(self, work: Callable[[Stop], _T]) -> _T:
        """Have a thread do what waits for the service; a cancelled task has it stopped, and waits until it has."""
        return await awaited(self._lane, work)

    async def close(self) -> None:
        """Give the temporary space back that nobody has freed, and close the connections."""
        from ringfence.operation.brokered import TmpFree

        try:
            while self._taken:
                handle, asking = self._taken.popitem()
                with suppress(RingfenceError):  # a service that is gone has given it back itself
                    await self.wait(partial(self._service.perform, TmpFree(handle), asking, None))
        finally:
            self._service.close()

    def _within(self, request: Request) -> Asking:
        return replace(
            self._asking,
            limits=request.limits,
            isolation=str(request.isolation),
            security_mode=None if request.security_mode is None else str(request.security_mode),
            require_cgroups=request.require_cgroups,
            commit=str(request.commit),
        )

    def _with(self, asking: Asking) -> Remote:
        other = Remote(self._service, self._lane, asking)
        other._taken = self._taken
        return other

    def _note_space(self, operation: Brokered, outcome: Outcome) -> None:
        if operation.kind == "tmp_alloc" and isinstance(handle := outcome.out.get("handle"), str):
            self._taken[handle] = self._asking
        elif operation.kind == "tmp_free":
            self._taken.pop(getattr(operation, "handle", ""), None)


def connect(url: object, api_key: object = None, config: SandboxConfig | None = None) -> Remote:
    """Return the service at `url` for a manager of this configuration; nothing is sent yet.

    Raises:
        InvalidRequest: The address or the key is none, or the configuration has what is the service's to say.
    """
    if url is None:
        fix = "pass url=… too, or leave out api_key"
        raise InvalidRequest("api_key is for a service, and there is no url of one", reason="invalid_url", fix=fix)
    if config is not None:
        config.refuse_host_settings()
    return Remote(Service(Transport(parse_address(url), os.environ.get(KEY_VARIABLE) if api_key is None else api_key)))


class _NotHeard(Exception):
    """What a listener raised, on its way through the thread that waits for the service, which ends the run there."""

    def __init__(self, error: Exception) -> None:
        super().__init__()
        self.error = error


@contextmanager
def _hearing(on_output: OnOutput | None) -> Iterator[OnOutput | None]:
    """Give what tells a listener of the running loop from another thread, and raise what he raises."""
    try:
        yield None if on_output is None else _in_loop(asyncio.get_running_loop(), on_output)
    except _NotHeard as failed:
        raise failed.error from None


def _in_loop(loop: asyncio.AbstractEventLoop, on_output: OnOutput) -> OnOutput:
    def tell(name: str, data: bytes) -> None:
        heard: Future[None] = Future()

        def listen() -> None:
            try:
                on_output(name, data)
            except Exception as error:  # noqa: BLE001  whatever it is, it is the caller's own to see
                heard.set_exception(_NotHeard(error))
            finally:
                if not heard.done():
                    heard.set_result(None)

        loop.call_soon_threadsafe(listen)
        heard.result()

    return tell
