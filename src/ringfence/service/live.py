"""One execution of this service from the moment it is asked for until somebody can be told how it ended."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from ringfence.dataclass import dataclass, field
from ringfence.errors import Overloaded
from ringfence.evidence.projections.exec_row import COLUMNS
from ringfence.outcome import ExecutionResult, Status
from ringfence.service import exec_views
from ringfence.service.admission import Claim, Turn
from ringfence.service.events import Ring

if TYPE_CHECKING:
    from ringfence.errors import RingfenceError
    from ringfence.evidence.correlation import Correlation
    from ringfence.service.callers import Principal
    from ringfence.service.calls import GrantShown
    from ringfence.service.exec_form import ExecForm
    from ringfence.service.exec_views import View


MOST_WAITING_BYTES: Final = 256 * 1024 * 1024
_LIGHT: Final = 64 * 1024
_ADVICE_SECONDS: Final = 5


@dataclass(slots=True, eq=False)
class Live:
    """One execution that waits or runs here."""

    exec_id: str
    who: Principal
    form: ExecForm
    created_ms: int
    finished: asyncio.Future[None]
    ring: Ring = field(default_factory=Ring)
    status: Status = Status.QUEUED
    promised: bool = False
    shown: GrantShown | None = None
    """The grant that it runs under; it is written nowhere."""
    turn: Turn | None = None
    task: asyncio.Task[None] | None = None
    result: ExecutionResult | None = None
    error: RingfenceError | None = None

    is_ending: bool = False
    """Whether somebody has asked for its end."""

    def end(self) -> None:
        """Cancel its task after its first step: one that never took it could not tell anybody that it ended."""
        if self.task is not None and not self.is_ending:  # a second time would cut off what is written of the first
            asyncio.get_running_loop().call_soon(self.task.cancel)
        self.is_ending = True

    def leave_line(self) -> None:
        """Cancel its task as `end` does, unless its turn has come by then: what runs is let run."""

        def leave() -> None:
            if self.status is Status.QUEUED and self.task is not None and not self.is_ending:
                self.is_ending = True
                self.task.cancel()

        asyncio.get_running_loop().call_soon(leave)

    def was_left(self, leaving: asyncio.Future[None]) -> None:
        """Be told that whoever waits for it has left, or got his answer."""
        if self.status is Status.QUEUED and not leaving.cancelled():
            self.end()

    @property
    def view(self) -> View:
        """What can be said of it now."""
        if self.result is not None:
            return exec_views.finished(self.who.tenant, self.form.project_id, self.result)
        return exec_views.unfinished(self.who.tenant, self.form.project_id, self.exec_id, self.status)

    def claim(self) -> Claim:
        """On whose account it takes its turn."""
        return claim_by(self.who, self.form.correlation)

    def row(self) -> View:
        """Return the row of 003 for what may be in no record yet."""
        request, correlation = self.form.request, self.form.correlation
        return {
            **dict.fromkeys(COLUMNS),
            "exec_id": self.exec_id,
            "project_id": self.form.project_id,
            "task_id": correlation.task_id,
            "conversation_id": correlation.conversation_id,
            "skill_id": correlation.skill_id,
            "cmd": request.language,
            "cwd": self.form.cwd,
            "env_keys": sorted(request.env),
            "status": str(self.status),
        }

    def line(self) -> View:
        """Return it as a line of a list."""
        return {**self.row(), "evidence_id": None, "error_code": None, "reason": None, "operation": "code_run"}


def too_heavy(lives: Iterable[Live], who: Principal, form: ExecForm) -> Overloaded | None:
    """Return why a request is too much to be kept beside those of its tenant that wait, if it is.

    How many may wait says nothing of how large they are, and all of them are in memory.
    """
    if form.weight <= _LIGHT:
        return None
    waiting = sum(live.form.weight for live in lives if live.who.tenant == who.tenant and live.status is Status.QUEUED)
    if waiting + form.weight <= MOST_WAITING_BYTES:
        return None
    return Overloaded(
        "the executions of this tenant that wait hold as many bytes as they may",
        scope="tenant",
        limit=MOST_WAITING_BYTES,
        retry_after_seconds=_ADVICE_SECONDS,
    )


def claim_by(who: Principal, correlation: Correlation) -> Claim:
    """Return on whose account something runs; a user that the caller does not name is the caller."""
    return Claim(who.tenant, correlation.user_id or who.caller.subject_id, correlation.space_id)
