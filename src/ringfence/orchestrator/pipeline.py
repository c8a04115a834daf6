"""The pipeline: the only way to an executor, for every door."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any, overload

from ringfence import operation as operations
from ringfence.authority.policy import BUILT_IN
from ringfence.authority.profile import Profile
from ringfence.capability.budget import INHERITED
from ringfence.capability.limits import check_limits
from ringfence.dataclass import replace
from ringfence.errors import (
    CapabilityBlocked,
    Denied,
    InternalError,
    InvalidRequest,
    QuotaExceeded,
    RingfenceError,
    TimedOut,
)
from ringfence.evidence import records
from ringfence.evidence.correlation import UNKNOWN, Correlation
from ringfence.evidence.documents import papers_of
from ringfence.evidence.effects import reached_so_far
from ringfence.guard.consent import Consent
from ringfence.guard.policy_guard import PolicyGuard, isolation_for
from ringfence.interrupted import Interrupted
from ringfence.operation import CodeRun
from ringfence.orchestrator.beginning import Beginning
from ringfence.orchestrator.carrying import FailingAsOurs, Heard, carried_out
from ringfence.orchestrator.standing import NOT_ASKED, Standing
from ringfence.outcome import BrokerOutcome, ExecutionResult, OnOutput, Outcome, Status
from ringfence.ports import Clock, EvidenceSink, ExecCtx, Executor, Identifiers, Keep, StillGranted, Taints

if TYPE_CHECKING:
    from ringfence.attachment import Attachment
    from ringfence.budgets.admission import Admission
    from ringfence.capability.limits import Limits
    from ringfence.operation.brokered import ByBroker, ProcExec
    from ringfence.operation.form import Operation
    from ringfence.orchestrator.metering import Metering
    from ringfence.orchestrator.tainting import Tainting

Executors = Mapping[str, Callable[[], Executor[Any, Any]]]
"""How to come by the executor of each domain; a domain that is not there is switched off, or not in this version."""


class Orchestrator:
    """Checks an operation, has it judged, written down and carried out; later parts add steps, never another way."""

    def __init__(
        self,
        executors: Executors,
        identifiers: Identifiers,
        guard: PolicyGuard,
        clock: Clock,
        admission: Callable[[], Admission],
        evidence: EvidenceSink,
        *,
        keep: Keep | None = None,
        always_metered: bool = False,
        taints: Callable[[], Taints] | None = None,
    ) -> None:
        """Everything it acts through is given to it; `admission` is asked for when the first call has a budget.

        `taints` is asked for when the first call has a policy that marks whoever reached for untrusted content.

        `always_metered` is for a meter that knows of budgets which no policy and no grant here names.
        """
        self._executors = executors
        self._identifiers = identifiers
        self._guard = guard
        self._clock = clock
        self._admission = admission
        self._evidence = evidence
        self._keep = keep
        self._always_metered = always_metered
        self._taints = taints
        self._policy_seen = ""
        # most runs of a manager have the very same limits
        self._checked: Limits | None = None

    @property
    def domains(self) -> tuple[str, ...]:
        """Return the domains whose operations can be carried out here."""
        return tuple(sorted(self._executors))

    @overload
    async def run(
        self,
        operation: CodeRun | ProcExec,
        profile: Profile,
        on_output: OnOutput | None = None,
        *,
        session_id: str | None = None,
        scope: str | None = None,
        consent: Consent | None = None,
        correlation: Correlation = UNKNOWN,
        built_us: int = 0,
        exec_id: str | None = None,
        attached: Attachment | None = None,
        still_granted: StillGranted | None = None,
    ) -> ExecutionResult: ...

    @overload
    async def run(
        self,
        operation: ByBroker,
        profile: Profile,
        on_output: OnOutput | None = None,
        *,
        session_id: str | None = None,
        scope: str | None = None,
        consent: Consent | None = None,
        correlation: Correlation = UNKNOWN,
        built_us: int = 0,
        exec_id: str | None = None,
        still_granted: StillGranted | None = None,
    ) -> BrokerOutcome: ...

    @overload
    async def run(
        self,
        operation: Operation,
        profile: Profile,
        on_output: OnOutput | None = None,
        *,
        session_id: str | None = None,
        scope: str | None = None,
        consent: Consent | None = None,
        correlation: Correlation = UNKNOWN,
        built_us: int = 0,
        exec_id: str | None = None,
        attached: Attachment | None = None,
        still_granted: StillGranted | None = None,
    ) -> Outcome: ...

    async def run(
        self,
        operation: Operation,
        profile: Profile,
        on_output: OnOutput | None = None,
        *,
        session_id: str | None = None,
        scope: str | None = None,
        consent: Consent | None = None,
        correlation: Correlation = UNKNOWN,
        built_us: int = 0,
        exec_id: str | None = None,
        attached: Attachment | None = None,
        still_granted: StillGranted | None = None,
    ) -> Outcome:
        """Carry out `operation` under `profile`, with what somebody has agreed to.

        `session_id` is whose files are meant, where the operation does not say so itself; `scope` is who shares
        temporary space, and is the call alone unless given; `correlation` is what the caller's own records call it;
        `built_us` is how long the profile took to make; `exec_id` is what the door that answers for the execution
        has already called it; `attached` is who stays with a run of code while it runs; `still_granted` refuses what
        is no longer granted when it has waited for its place.

        Raises:
            InvalidRequest: The operation or a limit is wrong; nothing ran.
            Denied: A rule of the guard does not allow it, or nothing here carries it out; nothing ran.
            QuotaExceeded: A budget has too little left; nothing ran.
            IsolationUnavailable: No box here is as strong as the risk demands; nothing ran.
            TimedOut: A broker took longer than the profile allows; what it did stands.
            ExecutionFailed: An executor failed at its own work.
            Unavailable: It could not be written down; without a beginning nothing ran, without an end nothing is told.
        """
        check_operation(operation)
        if profile.limits is not self._checked:
            check_limits(profile.limits)
            self._checked = profile.limits
        now_ms = self._clock.now_ms()
        if isinstance(operation, CodeRun):
            session_id = operation.session_id
        names = records.Names(exec_id or self._identifiers.new("ex"), self._identifiers.new("ev"))
        standing: Standing = NOT_ASKED
        if profile.taint is not None:
            standing = await self._tainting().look(
                profile, operation, session_id, correlation, names.exec_id, now_ms, stays_open=attached is not None
            )
        began = perf_counter_ns()
        judged_by: dict[str, Any] = {"consent": consent, "tainted": standing.judged_by, "session_id": session_id}
        verdict = self._guard.validate(profile, operation, now_ms=now_ms, **judged_by)
        timings = {"profile_build_us": built_us, "guard_validate_us": (perf_counter_ns() - began) // 1000}
        least = isolation_for(profile, operation, verdict.risk).least
        begun = records.begin(
            names,
            operation,
            profile,
            verdict,
            now_ms=now_ms,
            isolation=least,
            session_id=session_id,
            correlation=correlation,
            consent=consent,
            timings=timings,
            tainted=standing.recorded,
        )
        if profile.policy_version_hash != self._policy_seen:
            await self._policy_loaded(profile, now_ms)
        try:
            verdict.require_allowed()
            executor = self._executor_of(operation.domain)
            if attached is not None and not profile.output_inline:
                raise CapabilityBlocked("the policy shows nobody what programs say, and a process is listened to")
        except RingfenceError as refused:
            await self._evidence.record(records.denied(begun, verdict, refused), papers_of(profile).documents)
            refused.details["evidence_id"] = names.envelope_id
            raise
        if least is not profile.isolation_floor:
            profile = replace(profile, isolation_floor=least)
        scope = scope or profile.call_id or names.exec_id
        if standing.own is not None:
            await self._tainting().mark(standing, begun)
        over = [False]
        later: list[Callable[[], None]] = []
        beginning = Beginning(self._evidence, begun, papers_of(profile).documents, is_announced=exec_id is not None)
        ctx = ExecCtx(
            names.exec_id,
            profile,
            session_id,
            scope,
            None if on_output is None or not profile.output_inline else Heard(on_output),
            envelope_id=names.envelope_id,
            evidence=self._evidence,
            begin=beginning.write,
            note=beginning.note,
            afterwards=later.append,
            cancelled=lambda: over[0],
            attached=attached,
        )

        async def still_allowed() -> None:
            if still_granted is not None:
                await asyncio.to_thread(still_granted)
            self._guard.validate(profile, operation, now_ms=self._clock.now_ms(), **judged_by).require_allowed()

        def told(outcome: Outcome) -> Outcome:
            if standing.told is not None:
                outcome = replace(outcome, tainted=standing.told)
            if isinstance(outcome, ExecutionResult):
                outcome = outcome if profile.output_inline else outcome.withheld()
                return replace(outcome, risk=str(verdict.risk), evidence_id=names.envelope_id)
            return replace(outcome, evidence_id=names.envelope_id)

        try:
            return told(await self._recorded(executor, ctx, operation, beginning, still_allowed))
        except Interrupted as cut:
            cut.result = None if cut.result is None else told(cut.result)
            raise asyncio.CancelledError from cut  # of this very class: `asyncio.timeout` knows no other for its own
        finally:
            over[0] = True
            for act in later:
                act()

    def _tainting(self) -> Tainting:
        if self._taints is None:  # a policy that asks must not be answered with a guess
            raise InternalError("this pipeline keeps no marks of untrusted content, and its policy asks for them")
        from ringfence.orchestrator.tainting import Tainting  # not at the top: most policies mark nobody

        return Tainting(self._taints(), self._evidence, self._identifiers)

    async def _policy_loaded(self, profile: Profile, now_ms: int) -> None:
        """Write down that another policy counts from this call on; the built-in one was never loaded."""
        if profile.policy_version_hash not in (BUILT_IN.policy_version_hash, ""):
            loaded = records.policy_loaded(profile, self._identifiers.new("ev"), now_ms=now_ms)
            await self._evidence.record(loaded, papers_of(profile).documents)
        self._policy_seen = profile.policy_version_hash

    async def refuse(
        self, operation: Operation, refused: RingfenceError, who: records.Asked, exec_id: str | None = None
    ) -> None:
        """Write down a call that was refused before there was a profile to judge it by."""
        names = records.Names(exec_id or self._identifiers.new("ex"), self._identifiers.new("ev"))
        await self._evidence.record(records.turned_away(names, operation, who, refused, now_ms=self._clock.now_ms()))
        refused.details["evidence_id"] = names.envelope_id

    def _executor_of(self, domain: str) -> Executor[Any, Any]:
        maker = self._executors.get(domain)
        if maker is None:
            raise CapabilityBlocked(
                f"{domain}: nothing here carries out such operations, or it is switched off",
                reason="executor_disabled",
                domain=domain,
            )
        with FailingAsOurs(f"{domain}: making its executor"):
            return maker()

    async def _recorded(
        self,
        executor: Executor[Any, Any],
        ctx: ExecCtx,
        operation: Operation,
        beginning: Beginning,
        still_allowed: Callable[[], Awaitable[None]],
    ) -> Outcome:
        """Have it carried out, and write down how that ended together with what it is charged: all of it or nothing."""
        begun = beginning.members
        metering: Metering | None = None
        try:
            with FailingAsOurs("admission"):
                metering = self._metering(ctx.profile, operation, begun)
                if metering is not None:
                    await beginning.write()  # what a budget refuses is on record
                    ctx = await metering.reserve(ctx)
                    await still_allowed()  # it may have waited, for longer than a grant or a consent is good
                    metering.handed_over()
            outcome = await carried_out(executor, ctx, operation)
            await beginning.require_written()
        except RingfenceError as error:
            await self._conclude(error, ctx, operation, beginning, metering)
            raise
        except BaseException as error:
            # whoever cancels has no use for an error of ours, and knows already that he does
            unheard = (asyncio.CancelledError,) if isinstance(error, asyncio.CancelledError) else ()
            with contextlib.suppress(RingfenceError, *unheard):
                await self._conclude(error, ctx, operation, beginning, metering)
            raise
        return await self._settled(outcome, operation, begun, metering)

    async def _conclude(
        self,
        error: BaseException,
        ctx: ExecCtx,
        operation: Operation,
        beginning: Beginning,
        metering: Metering | None,
    ) -> None:
        """Write down how it ended that `error` came of it, and give back what it had reserved."""
        if beginning.has_failed:  # then nothing has begun that could end
            return

        async def conclude() -> None:
            begun = beginning.members
            with contextlib.suppress(asyncio.CancelledError):  # a loop that ends cancels this task too; it is written
                await beginning.write()
            if isinstance(error, Interrupted) and error.result is not None:
                error.result = await self._settled(error.result, operation, begun, metering)
            else:
                await self._end(self._ended_by(error, ctx, operation, begun, metering), metering)

        from ringfence.finishing import finished  # not at the top: most runs end by themselves

        await finished(conclude())

    async def _settled(
        self, outcome: Outcome, operation: Operation, begun: records.Members, metering: Metering | None
    ) -> Outcome:
        if metering is not None:
            metering.measured(outcome)
        ended = records.end(begun, operation, outcome, now_ms=self._clock.now_ms())
        try:
            if self._keep is not None:
                outcome = await self._keep(begun, ended, operation, outcome)
        except Exception as error:  # noqa: BLE001 it ran, and what is kept of that is no evidence
            lost = type(error).__name__
            ended = {**records.end(begun, operation, outcome, now_ms=self._clock.now_ms()), "not_kept": [lost]}
            if isinstance(outcome, ExecutionResult):
                outcome = replace(outcome, notes=(*outcome.notes, f"not kept: {lost}"))
        finally:
            await self._end(ended, metering)
        return outcome

    def _ended_by(
        self,
        error: BaseException,
        ctx: ExecCtx,
        operation: Operation,
        begun: records.Members,
        metering: Metering | None,
    ) -> records.Members:
        now_ms = self._clock.now_ms()
        if not isinstance(error, RingfenceError):
            # it ran, and nobody knows for how long: all of it is charged
            return {**records.end_by_cancelling(begun, now_ms=now_ms), **reached_so_far(ctx.reached)}
        done = error.done
        if metering is not None and isinstance(done, BrokerOutcome | ExecutionResult):
            metering.measured(done)
        elif metering is not None:
            metering.failed(error)
        error.details["evidence_id"] = ctx.envelope_id
        if isinstance(done, ExecutionResult):  # it ran, and what we failed at came after that
            ran = records.end(begun, operation, done, now_ms=now_ms)
            ended = {**ran, **records.end_by_error(begun, error, Status.ERROR, now_ms=now_ms)}
        else:
            by_broker = done if isinstance(done, BrokerOutcome) else None
            ended = records.end_by_error(begun, error, _status_of(error), now_ms=now_ms, done=by_broker)
        return {**ended, **reached_so_far(ctx.reached)}

    def _metering(self, profile: Profile, operation: Operation, begun: records.Members) -> Metering | None:
        bounded = profile.scope_budgets or profile.budget != INHERITED or profile.concurrency is not None
        if not (self._always_metered or bounded):
            return None
        from ringfence.orchestrator.metering import Metering  # not at the top: most calls have no budget

        return Metering(self._admission(), operation, begun)

    async def _end(self, ended: records.Members, metering: Metering | None) -> None:
        if metering is None:
            await self._evidence.end(ended)
        else:
            await metering.settle_with(lambda settle: self._evidence.end(ended, settle))


def _status_of(error: RingfenceError) -> Status:
    match error:
        case TimedOut():
            return Status.TIMED_OUT
        case Denied() | QuotaExceeded() | InvalidRequest():
            return Status.DENIED
        case _:
            return Status.ERROR


def check_operation(operation: Operation) -> None:
    """Refuse what could not be carried out exactly as written.

    Raises:
        InvalidRequest: Naming what is wrong.
    """
    if not isinstance(operation, CodeRun):
        from ringfence.operation import form  # not at the top: most calls run code

        form.check(operation)  # type: ignore[arg-type]  # which refuses what is none of its kinds
        return
    operations.check(operation)
    if operation.files or operation.inputs:
        _check_names(operation)


def _check_names(operation: CodeRun) -> None:
    """Refuse names of files that could not be placed exactly so.

    Raises:
        InvalidRequest: Naming the path.
    """
    from ringfence.workspaces import place  # not at the top: most runs bring no files

    place.check_names(operation.files, under="work")
    place.check_names(operation.inputs, under="inputs")
