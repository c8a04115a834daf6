"""The part of a manager that calls skills: what a skill is asked and what it may do, both from its manifest."""

from __future__ import annotations

import asyncio
import copy
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any

from ringfence.clock import SystemClock
from ringfence.errors import InvalidRequest
from ringfence.identifiers import TimeOrdered

if TYPE_CHECKING:
    from ringfence import wiring
    from ringfence.authority.layers import Request
    from ringfence.authority.manifest import Manifest
    from ringfence.authority.profile import Profile
    from ringfence.evidence.correlation import Correlation
    from ringfence.operation.form import Operation
    from ringfence.outcome import OnOutput
    from ringfence.skills.shelf import Shelf
    from ringfence.skills.skill import Skill, SkillOutcome


class Skilled(ABC):
    """What `SandboxManager` does about skills; it brings the rest."""

    _settings: wiring.Settings
    _session_id: str | None
    _role: str | None
    _correlation: Correlation
    _skill_directories: tuple[Path, ...]
    _remote: Any
    """The service that is asked instead, if there is one."""

    async def skills(self) -> list[Skill]:
        """Return the skills that this manager's role may call."""
        if self._remote is not None:
            return await self._asked_there().skills()  # type: ignore[no-any-return]
        found = await asyncio.to_thread(self._shelf().read)
        authority = self._engine().authority
        return [skill for skill in found.skills.values() if authority.may_use(skill.id, self._role)]

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
        if self._remote is not None:
            if exec_id is not None:
                raise InvalidRequest("what an execution is called, the service says", reason="of_the_service")
            there = self._asked_there()
            return await there.invoke(skill_id, inputs or {}, self._within(timeout), on_output)  # type: ignore[no-any-return]
        from ringfence.skills import call
        from ringfence.skills.confinement import shows_work

        skill = await asyncio.to_thread(self._shelf().find, skill_id)
        operation = await asyncio.to_thread(call.operation_of, skill, inputs or {})
        began = perf_counter_ns()
        acting = copy.copy(self)
        acting._correlation = replace(
            self._correlation, skill_id=skill.id, project_id=self._correlation.project_id or self._session_id
        )
        profile = await acting._profile(operation, self._within(timeout), exec_id, skill.manifest)
        shown = self._session_id if shows_work(profile.capabilities) else None
        result = await self._engine().orchestrator.run(
            replace(operation, preload=self._settings.preload, session_id=shown),
            profile,
            on_output,
            correlation=acting._correlation,
            built_us=(perf_counter_ns() - began) // 1000,
            exec_id=exec_id,
        )
        outcome = await asyncio.to_thread(call.outcome_of, skill, result)
        if outcome.reason == "output_invalid":
            await self._note_rejected(skill, outcome, profile.tenant)
        return outcome

    async def _note_rejected(self, skill: Skill, outcome: SkillOutcome, tenant: str) -> None:
        """Write down that a program which ended well did not give what it promised: its caller is told it failed."""
        journal = self._engine().journal
        if journal is not None:
            await journal.record(
                {
                    "type": "skill.output_invalid",
                    "envelope_id": TimeOrdered().new("ev"),
                    "time_ms": SystemClock().now_ms(),
                    "tenant": tenant,
                    "exec_id": outcome.result.exec_id,
                    "skill_id": skill.id,
                    "reason": "output_invalid",
                }
            )

    def _asked_there(self) -> Any:
        return self._remote.asking(self._session_id, self._role, self._correlation.members())

    def _shelf(self) -> Shelf:
        from ringfence.skills.shelf import shelf_of

        return shelf_of(self._settings.home, self._skill_directories)

    @abstractmethod
    def _engine(self) -> wiring.Engine: ...

    @abstractmethod
    def _within(self, timeout: float | None) -> Request: ...

    @abstractmethod
    async def _profile(
        self, operation: Operation, request: Request, exec_id: str | None = None, manifest: Manifest | None = None
    ) -> Profile: ...
