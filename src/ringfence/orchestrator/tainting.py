"""Finds what a call comes after before it is judged, and marks what it reaches for itself before it runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ringfence.authority.taint import Tainted, Whose
from ringfence.evidence.effects import harmless_text
from ringfence.evidence.records import tainted_by
from ringfence.guard.outward import brings_in
from ringfence.orchestrator.standing import Standing

if TYPE_CHECKING:
    from ringfence.authority.profile import Profile
    from ringfence.evidence.correlation import Correlation
    from ringfence.evidence.records import Members
    from ringfence.operation.form import Operation
    from ringfence.ports import EvidenceSink, Identifiers, Taints


class Tainting:
    """Looks marks up and puts them, for calls whose policy asks for it."""

    def __init__(self, taints: Taints, evidence: EvidenceSink, identifiers: Identifiers) -> None:
        """Whoever is marked is on record in `evidence` first."""
        self._taints = taints
        self._evidence = evidence
        self._identifiers = identifiers

    async def look(
        self,
        profile: Profile,
        operation: Operation,
        session_id: str | None,
        correlation: Correlation,
        exec_id: str,
        now_ms: int,
        *,
        stays_open: bool,
    ) -> Standing:
        """Find out what the call comes after, as every process that shares the evidence has written it down.

        Raises:
            Unavailable: Nobody can tell.
        """
        projects = frozenset(name for name in (session_id, correlation.project_id) if name)
        whose = Whose(profile.subject_id, projects, correlation.conversation_id or "")
        asked = () if profile.taint is None else whose.asked(profile.taint.reach)
        marked = whose.marked()
        found = await self._taints.found(profile.tenant, tuple({*asked, *marked}))
        after = min((found[name] for name in asked if name in found), key=lambda mark: mark.at_ms, default=None)
        reached = brings_in(operation)
        own = None if reached is None else Tainted(exec_id, harmless_text(reached), now_ms)
        judged_by = after
        if stays_open and after is None:
            judged_by = own or Tainted(exec_id, "whatever it is told while it runs", now_ms)
        unmarked = () if own is None else tuple(name for name in marked if name not in found)
        recorded = {} if judged_by is None else judged_by.to_dict()
        return Standing(after or own, own, judged_by, unmarked, recorded)

    async def mark(self, standing: Standing, begun: Members) -> None:
        """Have the call's own mark written down, durably and after its record, before anything of the call happens.

        A process that dies later leaves the mark, a caller who gives up takes nothing back, and another process that
        looks from now on sees it.

        Raises:
            Unavailable: It cannot be written; nothing may happen.
        """
        if standing.own is None or not standing.unmarked:
            return
        await self._evidence.record(tainted_by(begun, standing.own, self._identifiers.new("ev")))
        await self._taints.mark(begun["tenant"], standing.unmarked, standing.own)
