"""The part of a manager that calls skills: what a skill is asked and what it may do, both from its manifest."""

from __future__ import annotations

import asyncio
import copy
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any, Self

from ringfence.clock import SystemClock
from ringfence.config import of_the_service
from ringfence.dataclass import replace
from ringfence.identifiers import TimeOrdered

if TYPE_CHECKING:
    from ringfence import wiring
    from ringfence.asked import Asks
    from ringfence.authority.caller import Caller
    from ringfence.authority.layers import Request
    from ringfence.authority.manifest import Manifest
    from ringfence.authority.profile import Profile
    from ringfence.client.remote import Remote
    from ringfence.evidence.correlation import Correlation
    from ringfence.operation.code import CodeRun
    from ringfence.operation.form import Operation
    from ringfence.outcome import ExecutionResult, OnOutput
    from ringfence.ports import StillGranted
    from ringfence.requests import ExecutionRequest
    from ringfence.skills.shelf import Shelf
    from ringfence.skills.skill import Skill, SkillOutcome


class Skilled(ABC):
    """What `SandboxManager` does about skills; it brings the rest."""

    _settings: wiring.Settings
    _session_id: str | None
    _role: str | None
    _correlation: Correlation
    _asks: Asks
    _caller: Caller
    _skill_directories: tuple[Path, ...]
    _still_granted: StillGranted | None

    async def skills(self) -> list[Skill]:
        """Return the skills that this manager's role may call."""
        if (service := self._service()) is not None:
            return await service.skills()
        found = await asyncio.to_thread(self._shelf().read)
        authority = self._engine().authority
        return [skill for skill in found.skills.values() if authority.may_use(skill.id, self._role)]

    async def skill(self, skill_id: str) -> Skill:
        """Return one of them, reading no other.

        Raises:
            InvalidRequest: There is none of this id that can be called, or that this manager's role may call.
        """
        if (service := self._service()) is not None:
            return await service.skill(skill_id)
        from ringfence.skills.shelf import not_found

        found = await asyncio.to_thread(self._shelf().find, skill_id)
        if not self._engine().authority.may_use(found.id, self._role):
            raise not_found()
        return found

    async def invoke(
        self,
        skill_id: str,
        inputs: Mapping[str, Any] | None = None,
        *,
        timeout: float | None = None,  # noqa: ASYNC109  the run's own limit, kept by killing it, not by cancelling
        on_output: OnOutput | None = None,
        exec_id: str | None = None,
    ) -> SkillOutcome:
        """Call a skill: its inputs and outputs are held against its schemas, and its run to its manifest.

        Raises:
            InvalidRequest: There is no such skill, or the inputs are not what it takes; nothing ran.
            Denied: The policy does not allow it; nothing ran.
            Unavailable: Nothing here runs the image it asks for; nothing ran.
        """
        if (service := self._service()) is not None:
            if exec_id is not None:
                raise of_the_service("what an execution is called")
            return await service.invoke(skill_id, inputs or {}, self._asks.within(timeout), on_output)
        from ringfence.skills import call

        skill = await asyncio.to_thread(self._shelf().find, skill_id)
        request = self._asks.within(timeout)
        fetched = await self._fetched(skill, inputs or {}, request)
        operation = await asyncio.to_thread(call.operation_of, skill, inputs or {}, fetched)
        operation = replace(operation, preload=self._settings.preload)
        result = await self._run_under(skill.manifest, operation, request, on_output, exec_id)
        outcome = await asyncio.to_thread(call.outcome_of, skill, result)
        if outcome.reason == "output_invalid":
            await self._note_rejected(outcome)
        return outcome

    async def _fetched(self, skill: Skill, inputs: Mapping[str, Any], request: Request) -> dict[str, bytes]:
        """Fetch what the skill's manifest has the host fetch, each as an operation of the skill's own."""
        if not skill.manifest.fetches:
            return {}
        from ringfence.skills import call

        wanted = await asyncio.to_thread(call.fetches_of, skill, inputs)
        acting = self._acting_as(skill.manifest)
        fetched = {}
        for name, operation in wanted.items():
            profile = await acting._profile(operation, request, None, skill.manifest)
            fetched[name] = await self._engine().orchestrator.run(
                operation,
                profile,
                session_id=self._session_id,
                correlation=acting._correlation,
                still_granted=self._still_granted,
            )
        return call.as_inputs(fetched)

    def _acting_as(self, manifest: Manifest) -> Self:
        """Return this manager with what it does recorded as the work of the manifest's skill."""
        acting = copy.copy(self)
        acting._correlation = replace(
            self._correlation, skill_id=manifest.id, project_id=self._correlation.project_id or self._session_id
        )
        return acting

    def on_behalf_of(self, skill_id: str) -> OnBehalf:
        """Return what runs code under the manifest of a skill that says so of itself, whatever the code is."""
        return OnBehalf(self, skill_id)

    async def _run_under(
        self,
        manifest: Manifest,
        operation: CodeRun,
        request: Request,
        on_output: OnOutput | None,
        exec_id: str | None,
    ) -> ExecutionResult:
        """Take a run through the pipeline as a use of the tool that the manifest is of."""
        from ringfence.skills.confinement import shows_work

        began = perf_counter_ns()
        acting = self._acting_as(manifest)
        profile = await acting._profile(operation, request, exec_id, manifest)
        shown = self._session_id if shows_work(profile.capabilities) else None
        return await self._engine().orchestrator.run(
            replace(operation, session_id=shown),
            profile,
            on_output,
            correlation=acting._correlation,
            built_us=(perf_counter_ns() - began) // 1000,
            exec_id=exec_id,
            still_granted=self._still_granted,
        )

    async def _note_rejected(self, outcome: SkillOutcome) -> None:
        """Write down that a program which ended well did not give what it promised: its caller is told it failed."""
        journal = self._engine().journal
        if journal is not None:
            await journal.record(
                {
                    "type": "skill.output_invalid",
                    "envelope_id": TimeOrdered().new("ev"),
                    "time_ms": SystemClock().now_ms(),
                    "tenant": self._caller.tenant,
                    "exec_id": outcome.result.exec_id,
                    "skill_id": outcome.skill_id,
                    "reason": "output_invalid",
                }
            )

    def _shelf(self) -> Shelf:
        from ringfence.skills.shelf import shelf_of

        return shelf_of(self._settings.home, self._skill_directories)

    @abstractmethod
    def _engine(self) -> wiring.Engine: ...

    @abstractmethod
    def _service(self) -> Remote | None: ...

    @abstractmethod
    def _operation(self, request: ExecutionRequest) -> CodeRun: ...

    @abstractmethod
    async def _profile(
        self, operation: Operation, request: Request, exec_id: str | None = None, manifest: Manifest | None = None
    ) -> Profile: ...


class OnBehalf:
    """Runs what a caller brings as a use of a skill: of both, the manifest can only take away."""

    def __init__(self, manager: Skilled, skill_id: str) -> None:
        """Nothing is read before something is to run."""
        self._manager = manager
        self._skill_id = skill_id

    async def execute(
        self, request: ExecutionRequest, *, on_output: OnOutput | None = None, exec_id: str | None = None
    ) -> ExecutionResult:
        """Run `request` as `SandboxManager.execute` does, within what the skill's manifest allows.

        Raises:
            InvalidRequest: There is no such skill, or something about the request is wrong; nothing ran.
            Denied: The policy or the manifest does not allow it; nothing ran.
        """
        from ringfence.skills.entry import require_image

        held = self._manager
        skill = await asyncio.to_thread(held._shelf().find, self._skill_id)
        require_image(skill.manifest.runtime)
        operation, asked = held._operation(request), held._asks.of(request)
        return await held._run_under(skill.manifest, operation, asked, on_output, exec_id)
