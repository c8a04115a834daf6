"""What a program holds: `SandboxManager`, through which every run of an agent's session goes into the one pipeline."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from time import perf_counter_ns
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, overload

from ringfence import arguments, engines, wiring
from ringfence.asked import Asks, operation_of
from ringfence.authority.caller import NOBODY_ELSE, Caller
from ringfence.authority.layers import Request
from ringfence.authority.local import tool_of
from ringfence.authority.profile import Isolation, Profile, SecurityMode
from ringfence.background import Background
from ringfence.browsing import Browsing
from ringfence.capability.limits import Limits
from ringfence.config import SandboxConfig, of_the_service
from ringfence.dataclass import replace
from ringfence.deciding import Decisions
from ringfence.errors import Denied, InternalError, InvalidRequest, QuotaExceeded
from ringfence.evidence.correlation import UNKNOWN, Correlation
from ringfence.evidence.records import Asked
from ringfence.fetching import Fetching
from ringfence.filed import Filed
from ringfence.identifiers import TimeOrdered
from ringfence.operation import CodeRun
from ringfence.outcome import BrokerOutcome, ExecutionResult, OnOutput, Outcome
from ringfence.requests import Content, OutputStream
from ringfence.requests import ExecutionRequest as ExecutionRequest
from ringfence.skilled import Skilled

if TYPE_CHECKING:
    from ringfence.authority.manifest import Manifest
    from ringfence.client.remote import Remote
    from ringfence.grants.door import Presented
    from ringfence.isolation.aio.pool import AIOSandboxPool
    from ringfence.operation.brokered import Brokered, ByBroker, ProcExec
    from ringfence.operation.form import Operation
    from ringfence.ports import StillGranted

_calls = TimeOrdered()
_LATER = ("confirmation_service",)


class SandboxManager(Background, Browsing, Decisions, Fetching, Filed, Skilled):
    """The one way in: every run of an agent's session goes through here."""

    def __init__(
        self,
        session_id: str | None = None,
        *,
        config: SandboxConfig | None = None,
        security_mode: SecurityMode | str | None = None,
        isolation: Isolation | str | None = None,
        pool_size: int | None = None,
        packages: Iterable[str] | None = None,
        preload: Iterable[str] | None = None,
        limits: Limits | None = None,
        require_cgroups: bool | None = None,
        home: str | Path | None = None,
        policy_file: str | Path | None = None,
        role: str | None = None,
        executors: Mapping[str, bool] | None = None,
        budget_service: str | None = None,
        database: str | None = None,
        docker_url: str | None = None,
        aio_pool: AIOSandboxPool | None = None,
        correlation: Correlation = UNKNOWN,
        url: str | None = None,
        api_key: str | None = None,
        skills: Iterable[str | Path] | None = None,
        **later: Any,
    ) -> None:
        """Describe how to run; nothing starts before `async with` or the first run.

        What is not said here is as `config` has it. `policy_file` is read again when it changes; `role` is one of its
        agent roles. `executors` switches off what is not to be there at all, whatever a policy says: `{"fs": False}`.
        `budget_service` is the URL of a quota service that counts every call, instead of this home. `database` is
        the URL of a PostgreSQL server that keeps evidence and budgets, instead of a file in this home. `docker_url` is
        where the container engine listens, for runs in containers. With `aio_pool` code runs in AIO services of that
        pool, unless `isolation` says otherwise. `correlation` is whose work it is, by which evidence is found again.
        `skills` are directories with skills, beside those of the package and of `<home>/skills`. With `url` everything
        runs in the service there; `api_key`, or the environment's RINGFENCE_API_KEY, tells it who calls.

        Raises:
            InvalidRequest: An argument has no such value, or its part is not in this version.
        """
        for name in later:
            if name not in _LATER:
                raise TypeError(f"SandboxManager() got an unexpected keyword argument {name!r}")
            raise InvalidRequest(f"{name} is not available in this version", reason="not_in_this_version")
        if session_id is not None and not isinstance(session_id, str):
            raise InvalidRequest(f"session_id must be text, not {session_id!r}", reason="invalid_session_id")
        if config is not None and not isinstance(config, SandboxConfig):
            raise InvalidRequest(f"config must be a SandboxConfig, not {config!r}", reason="invalid_value")
        said = {
            "security_mode": security_mode,
            "isolation": isolation,
            "pool_size": pool_size,
            "packages": packages,
            "preload": preload,
            "require_cgroups": require_cgroups,
            "home": home,
            "policy_file": policy_file,
            "role": role,
            "executors": executors,
            "budget_service": budget_service,
            "database": database,
            "docker_url": docker_url,
            "aio_pool": aio_pool,
            "skills": skills,
        }
        given: dict[str, Any] = {name: value for name, value in said.items() if value is not None}
        config = replace((config or SandboxConfig()).with_limits(limits), **given)
        self._session_id = session_id
        self._packages = arguments.strings("packages", config.packages)
        self._preload = arguments.strings("preload", config.preload)
        self._asks = Asks(
            *config.asked_limits(),
            arguments.choice(Isolation, config.kind_of_box(), "isolation"),
            arguments.choice(SecurityMode, config.security_mode, "security_mode"),
            config.require_cgroups,
            config.ceilings or {},
            config.net_ceiling,
        )
        self._settings = wiring.Settings(
            home=arguments.place("home", config.home) or wiring.default_home(),
            isolation=self._asks.isolation,
            limits=self._asks.limits,
            pool=arguments.pool_policy(config.pool_size),
            preload=() if self._packages else self._preload,
            policy_file=arguments.place("policy_file", config.policy_file),
            switched_off=arguments.switched_off(config.executors),
            budget_service=arguments.budget_service(config.budget_service),
            database=arguments.database(config.database),
            docker_url=arguments.engine_address(config.docker_url),
            aio_pool=arguments.aio_pool(config.aio_pool),
            workspace_root=arguments.place("workspace_root", config.workspace_root),
            net=config.net,
        )
        if config.role is not None and not isinstance(config.role, str):
            raise InvalidRequest(f"role must be text, not {config.role!r}", reason="invalid_name")
        self._role = config.role
        self._skill_directories = arguments.directories("skills", config.skills)
        self._correlation = arguments.correlation(correlation)
        self._caller = NOBODY_ELSE
        self._remote: Remote | None = None
        if url is not None or api_key is not None:
            from ringfence.client.remote import connect  # not at the top: most managers have an engine here

            self._remote = connect(url, api_key, config)
        # whose temporary space it is: another manager of the same session has its own
        self._scope = _calls.new("scope")
        self._held: engines.Hold | None = None
        self._presented: Presented | None = None
        self._still_granted: StillGranted | None = None

    async def __aenter__(self) -> Self:
        """Start filling the pool."""
        if self._remote is None:
            self._engine()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        """End it; see `cleanup`."""
        await self.cleanup()

    async def cleanup(self) -> None:
        """Destroy the parked workers; the last manager of an engine ends its processes."""
        if self._remote is not None:
            await self._remote.close()
        held, self._held = self._held, None
        if held is not None:
            await held.let_go(self._scope)

    async def execute_code(
        self,
        language: str = "python",
        code: str | bytes = "",
        timeout: float | None = None,  # noqa: ASYNC109  the run's own limit, kept by killing it, not by cancelling
        *,
        args: Iterable[str] = (),
        stdin: Content = b"",
        files: Mapping[str, Content] | None = None,
        inputs: Mapping[str, Content] | None = None,
        env: Mapping[str, str] | None = None,
        packages: Iterable[str] = (),
        preload: Iterable[str] = (),
        limits: Limits | None = None,
        commit: str | None = None,
        cwd: str | None = None,
        secrets: Iterable[str] = (),
        allow_domains: Iterable[str] = (),
        on_output: OnOutput | None = None,
    ) -> ExecutionResult:
        """Run code of one of the languages; `files` appear in its working directory, `cwd` is another to start in.

        `allow_domains` are the hosts it may reach, each as far as the policy grants it; without any it has no network.
        """
        request = ExecutionRequest(
            code,
            language,
            timeout,
            args,
            stdin,
            files or {},
            inputs or {},
            env or {},
            packages,
            preload,
            limits,
            commit,
            cwd,
            secrets,
            allow_domains,
        )
        return await self.execute(request, on_output=on_output)

    async def execute_shell(
        self,
        command: str,
        files: Mapping[str, Content] | None = None,
        timeout: float | None = None,  # noqa: ASYNC109  as in `execute_code`
        **options: Any,
    ) -> ExecutionResult:
        """Run a bash command line inside the box; options as in `execute_code`."""
        return await self.execute_code("bash", command, timeout, files=files, **options)

    async def execute(
        self, request: ExecutionRequest, *, on_output: OnOutput | None = None, exec_id: str | None = None
    ) -> ExecutionResult:
        """Run `request`; cancelling the task kills the run and everything it started.

        `exec_id` is for a door that has already told somebody what the execution is called.

        Raises:
            InvalidRequest: Something about the request is wrong; nothing ran.
            IsolationUnavailable: This machine cannot isolate it; nothing ran.
        """
        asked, heard = self._asks.of(request), arguments.listener(on_output)
        result: ExecutionResult = await self._carry_out(self._operation(request), asked, heard, exec_id)
        return result

    def acting_for(
        self,
        caller: Caller | None = None,
        *,
        session_id: str | None = None,
        correlation: Correlation | None = None,
        role: str | None = None,
        isolation: Isolation | None = None,
        require_cgroups: bool = False,
    ) -> Self:
        """Return a manager that shares this one's engine, and ends with it, for another caller, session or role.

        What is not given is as it is here; `isolation` and `require_cgroups` only ever ask for more. It is for a door
        that knows who calls: what it runs can touch nothing of another tenant.
        """
        if self._remote is None:
            self._engine()
        elif caller is not None:
            raise of_the_service("who calls")
        acting = copy.copy(self)
        acting._caller = caller or self._caller
        acting._session_id = session_id if session_id is not None else self._session_id
        acting._correlation = arguments.correlation(correlation or self._correlation)
        acting._role = role if role is not None else self._role
        if isolation is not None or require_cgroups:
            acting._asks = self._asks.stricter(isolation, require_cgroups=require_cgroups)
        if self._presented is None:  # a call under a grant has space of its own, and takes it along when it ends
            # not of this object alone: the next call of the same caller finds its temporary space again
            acting._scope = f"tenant {acting._caller.tenant} session {acting._session_id}"
        return acting

    @asynccontextmanager
    async def under(
        self, grant: str, *, call_id: str, tenant: str | None = None, subject_id: str | None = None
    ) -> AsyncIterator[Self]:
        """Give a manager that acts in one call, under a signed grant beside the policy: `async with manager.under(…)`.

        The grant is checked before every operation, and is used up when the block is left; temporary space is the
        call's own, and goes with it.

        Raises:
            Unavailable: Grants cannot be checked here: `pip install 'ringfence[law]'`.
        """
        if self._remote is not None:
            if tenant is not None or subject_id is not None:
                raise of_the_service("who calls")
            async with self._remote.under(grant, call_id) as remote:
                acting = copy.copy(self)
                acting._remote = remote
                yield acting
            return
        engine = self._engine()
        door = engine.grants
        if door is None:
            raise InternalError("this engine takes no grants")
        presented = (await asyncio.to_thread(door)).present(
            grant,
            tenant=tenant or self._caller.tenant,
            subject_id=subject_id or self._caller.subject_id,
            call_id=call_id,
        )
        governed = copy.copy(self)
        governed._presented, governed._still_granted = presented, presented.still_good
        governed._scope = _calls.new("scope")
        from ringfence.finishing import all_finished  # not at the top: most calls are under no grant

        try:
            yield governed
        finally:
            await all_finished(
                partial(asyncio.to_thread, presented.close),
                partial(asyncio.to_thread, engine.release, governed._scope),
            )

    async def _profile(
        self, operation: Operation, request: Request, exec_id: str | None = None, manifest: Manifest | None = None
    ) -> Profile:
        """Return what the call may do; a call that gets no profile is written down as refused."""
        engine, presented = self._engine(), self._presented
        tool = tool_of(operation) if manifest is None else manifest.id
        call_id = _calls.new("call") if presented is None else presented.call_id
        try:
            granted = None if presented is None else await asyncio.to_thread(presented.grant_for, tool)
            profile = engine.authority.profile(
                operation,
                call_id=call_id,
                caller=self._caller,
                role=self._role,
                request=request,
                granted=granted,
                manifest=manifest,
            )
            if manifest is not None:
                from ringfence.skills.confinement import shows_work

                shows_work(profile.capabilities)
            return profile
        except (Denied, QuotaExceeded, InvalidRequest) as refused:
            caller = self._caller
            tenant, subject_id = (caller.tenant, caller.subject_id) if presented is None else presented.who
            asked = Asked(tenant, subject_id, call_id, tool, self._correlation)
            await engine.orchestrator.refuse(operation, refused, asked, exec_id)
            raise

    @overload
    async def perform(self, operation: ProcExec, *, on_output: OnOutput | None = None) -> ExecutionResult: ...

    @overload
    async def perform(self, operation: ByBroker, *, on_output: OnOutput | None = None) -> BrokerOutcome: ...

    @overload
    async def perform(self, operation: Brokered, *, on_output: OnOutput | None = None) -> Outcome: ...

    async def perform(self, operation: Brokered, *, on_output: OnOutput | None = None) -> Outcome:
        """Carry out one operation of `ringfence.operation.brokered`: on the session's files, or a program in the box.

        Temporary space is this manager's, and is given back when it is cleaned up.

        Raises:
            InvalidRequest: It cannot be done as written, or there is no session whose files it could mean.
            Denied: The policy does not allow it, or its executor is switched off; nothing was touched.
            QuotaExceeded: A budget or the workspace has too little left.
        """
        from ringfence.operation.brokered import ProcExec  # not at the top: most managers run code
        from ringfence.operation.form import check

        check(operation)
        if isinstance(operation, ProcExec) and operation.timeout_ms is not None:
            request = self._asks.within(operation.timeout_ms / 1000)
        else:
            request = self._asks.usual
        outcome: Outcome = await self._carry_out(operation, request, on_output)
        return outcome

    async def _carry_out(
        self, operation: Any, request: Request, on_output: OnOutput | None, exec_id: str | None = None
    ) -> Any:
        """Take an operation through the pipeline: the one of this process, or that of the service it is meant for."""
        if (service := self._service()) is not None:
            if exec_id is not None:
                raise of_the_service("what an execution is called")
            return await service.run(operation, request, on_output)
        began = perf_counter_ns()
        profile = await self._profile(operation, request, exec_id)
        return await self._engine().orchestrator.run(
            operation,
            profile,
            on_output,
            session_id=self._session_id,
            scope=self._scope,
            correlation=self._correlation,
            built_us=(perf_counter_ns() - began) // 1000,
            exec_id=exec_id,
            still_granted=self._still_granted,
        )

    def stream(self, request: ExecutionRequest) -> OutputStream:
        """Run `request` and iterate over its output as it comes: `async for name, chunk in manager.stream(…)`."""
        return OutputStream(partial(self.execute, request))

    @property
    def engine(self) -> wiring.Engine:
        """The core behind this manager, started if it was not; for a service, which ends with it."""
        return self._engine()

    def pool_status(self) -> dict[str, int]:
        """Count the workers of the pool by what they are doing."""
        return self._engine().pools.status()

    def pool_pids(self) -> list[tuple[int, int]]:
        """Return, for each parked worker, the host's pids of its init and of itself."""
        return [(worker.init_pid, worker.worker_pid) for worker in self._engine().pools.parked()]

    def keep_engine(self) -> None:
        """Leave the engine running until the process ends, for whoever makes a manager for every run."""
        if self._remote is not None:
            return
        self._held = engines.keep(self._settings)
        self._scope = f"session {self._session_id}"

    def _service(self) -> Remote | None:
        """Return the service, asked as this manager asks, where it has one instead of an engine."""
        if self._remote is None:
            return None
        return self._remote.asking(self._session_id, self._role, self._correlation.members())

    def _engine(self) -> wiring.Engine:
        if self._remote is not None:
            raise of_the_service("the engine")
        if self._held is None or self._held.inherited:
            self._held = engines.hold(self._settings)
        return self._held.engine

    def _operation(self, request: ExecutionRequest) -> CodeRun:
        return operation_of(request, self._session_id, packages=self._packages, preload=self._preload)
