"""Carries out what somebody decided about a run's changes: the host applies or forgets them, and runs no code."""

from __future__ import annotations

import json
from pathlib import Path

from ringfence.errors import InvalidRequest
from ringfence.executors.beside import in_a_thread
from ringfence.operation.workspace_proposals import ProposalOperation, WsCommit, WsDiscard, WsPending
from ringfence.outcome import BrokerOutcome, Budget, Effect, Pending
from ringfence.ports import ExecCtx
from ringfence.workspaces import proposals
from ringfence.workspaces.commit import CommitReport
from ringfence.workspaces.session import SessionWorkspace


class ProposalExecutor:
    """Implements `ports.Executor` for proposals: every operation opens the project of its call, and lets go of it."""

    def __init__(self, home: Path) -> None:
        """Find the projects of `home`."""
        self._home = home

    def capability_domain(self) -> str:
        """Return the domain whose operations are carried out here."""
        return "proposals"

    async def execute(self, ctx: ExecCtx, operation: ProposalOperation) -> BrokerOutcome:
        """Carry out `operation` beside the event loop, under the limits and denials of its own profile.

        Raises:
            InvalidRequest: There is no such proposal, or it is in conflict with what others changed since.
            ChangeDenied: The policy lets nobody change what it touches.
            ChangesTooLarge: The policy lets no run change that much.
            QuotaExceeded: The project would outgrow its quota.
        """
        project_id, profile = ctx.session(), ctx.profile
        bounds = proposals.Bounds.of(profile.limits, profile.denials)

        def perform() -> BrokerOutcome:
            with SessionWorkspace.create(self._home, project_id, tenant=profile.tenant) as project:
                match operation:
                    case WsCommit(exec_id, force):
                        return _committed(*proposals.commit(project, exec_id, bounds, force=force))
                    case WsDiscard(exec_id):
                        return BrokerOutcome(operation.kind, _told(proposals.discard(project, exec_id)))
                    case WsPending():
                        return _listed(proposals.waiting(project), inline=profile.output_inline)
            raise InvalidRequest("there is no such operation on proposals", reason="unknown_operation")

        return await in_a_thread(profile.tenant, perform)


def _committed(pending: Pending, report: CommitReport) -> BrokerOutcome:
    effects = [Effect("write", {"path": f"/workspace/work/{name}"}) for name in (*pending.added, *pending.modified)]
    effects += [Effect("write", {"path": f"/workspace/work/{name}", "deleted": 1}) for name in pending.deleted]
    out = {**_told(pending), "written": report.written, "dropped": list(report.dropped)}
    out |= {"bytes": report.bytes, "inodes": report.inodes}
    return BrokerOutcome(WsCommit.kind, out, used=Budget(file_count=report.written), effects=tuple(effects))


def _listed(waiting: list[Pending], *, inline: bool) -> BrokerOutcome:
    content = json.dumps([pending.to_dict() for pending in waiting]).encode() if inline else None
    return BrokerOutcome(WsPending.kind, {"proposals": [_told(pending) for pending in waiting]}, content)


def _told(pending: Pending) -> dict[str, object]:
    """Return a proposal without its diff, which is content."""
    return {name: value for name, value in pending.to_dict().items() if name != "diff"}
