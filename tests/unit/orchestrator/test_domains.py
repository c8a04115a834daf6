"""Every domain passes the same steps: form, guard, executor, budget, time; and each of them stops what it should."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from ringfence.authority.policy_reader import load_policy
from ringfence.capability.budget import Budget
from ringfence.capability.limits import Limits
from ringfence.errors import (
    CapabilityBlocked,
    Denied,
    ExecutionFailed,
    InvalidRequest,
    QuotaExceeded,
    RingfenceError,
    TimedOut,
)
from ringfence.executors.proc import ProcExecutor
from ringfence.operation import needs
from ringfence.operation.brokered import FsRead, FsWrite, ProcExec, TmpAlloc
from ringfence.outcome import BrokerOutcome
from ringfence.outcome import Budget as Used
from ringfence.ports import ExecCtx
from ringfence.testing import ScriptedExecutor, orchestrator_over, standard_profile

READ = FsRead("work/f")


@dataclass
class Broker:
    """Stands in for a broker: remembers, and answers when it is let."""

    used: Used = field(default_factory=Used)
    domain: str = "fs"
    asked: list[ExecCtx] = field(default_factory=list)
    slow: bool = False

    def capability_domain(self) -> str:
        return self.domain

    async def execute(self, ctx: ExecCtx, operation: Any) -> BrokerOutcome:
        self.asked.append(ctx)
        if self.slow:
            await asyncio.Event().wait()
        return BrokerOutcome(operation.kind, used=self.used)


async def test_an_outcome_has_the_name_and_the_time_of_its_execution() -> None:
    broker = Broker()
    outcome = await orchestrator_over(broker).run(READ, standard_profile(READ), session_id="s")
    assert outcome.exec_id == broker.asked[0].exec_id
    assert isinstance(outcome.used.wall_ms, int)


async def test_temporary_space_is_the_calls_own_unless_somebody_shares_it() -> None:
    broker = Broker(domain="tmp")
    orchestrator, profile = orchestrator_over(broker), standard_profile(TmpAlloc(1))
    await orchestrator.run(TmpAlloc(1), profile, session_id="s")
    await orchestrator.run(TmpAlloc(1), profile, session_id="s", scope="shared")
    assert [ctx.scope for ctx in broker.asked] == [profile.call_id, "shared"]


async def test_without_an_executor_an_operation_is_refused_after_the_guard() -> None:
    orchestrator = orchestrator_over(ScriptedExecutor())
    with pytest.raises(CapabilityBlocked) as refusal:
        await orchestrator.run(READ, standard_profile(READ))
    assert (refusal.value.reason, refusal.value.details["domain"]) == ("executor_disabled", "fs")
    denied = FsRead("../x")
    with pytest.raises(Denied) as earlier:
        await orchestrator.run(denied, standard_profile(denied))
    assert earlier.value.reason == "path_traversal"


@pytest.mark.parametrize("operation", [needs.SecretUse("key"), None, object(), FsRead("")])
async def test_what_no_executor_could_carry_out_is_refused_before_the_guard(operation: Any) -> None:
    broker = Broker()
    with pytest.raises(InvalidRequest) as refusal:
        await orchestrator_over(broker).run(operation, standard_profile(READ))
    assert refusal.value.reason in ("unknown_operation", "invalid_operation")
    assert broker.asked == []


async def test_a_broker_that_takes_too_long_is_a_timeout_and_is_charged_in_full() -> None:
    broker = Broker(slow=True)
    orchestrator = orchestrator_over(broker)
    limited = standard_profile(READ, Limits(wall_seconds=0.01, max_bytes_in=10))
    profile = replace(limited, scope_budgets={"tenant": {"test": Budget(bytes_in=10)}})
    with pytest.raises(TimedOut) as late:
        await orchestrator.run(READ, profile, session_id="s")
    assert late.value.code == "LLM.TIMEOUT"
    with pytest.raises(QuotaExceeded, match="bytes_in"):
        await orchestrator.run(READ, profile, session_id="s")


async def test_a_broker_that_breaks_is_a_failure_of_ours_and_shows_nothing_of_why() -> None:
    class Broken(Broker):
        async def execute(self, ctx: ExecCtx, operation: Any) -> BrokerOutcome:
            raise ZeroDivisionError("/host/path")

    with pytest.raises(ExecutionFailed) as failure:
        await orchestrator_over(Broken()).run(READ, standard_profile(READ), session_id="s")
    assert (failure.value.code, failure.value.answer.http_status) == ("TOOL.EXECUTION_FAILED", 500)
    assert "/host" not in str(failure.value)


async def test_what_the_broker_counted_is_charged_and_what_is_left_is_its_cap() -> None:
    broker = Broker(used=Used(bytes_in=6))
    orchestrator = orchestrator_over(broker)
    profile = replace(standard_profile(READ), scope_budgets={"session": {"s": Budget(bytes_in=10)}})
    for _ in range(2):
        await orchestrator.run(READ, profile, session_id="s")
    assert [ctx.profile.limits.max_bytes_in for ctx in broker.asked] == [10, 4]


async def test_a_write_that_does_not_fit_the_budget_is_not_begun() -> None:
    broker = Broker()
    write = FsWrite("work/f", b"12345")
    profile = replace(standard_profile(write), scope_budgets={"tenant": {"*": Budget(bytes_out=4)}})
    with pytest.raises(QuotaExceeded, match="bytes_out"):
        await orchestrator_over(broker).run(write, profile, session_id="s")
    assert broker.asked == []


async def test_a_program_is_one_job_of_the_box_with_its_arguments_as_they_are() -> None:
    box = ScriptedExecutor()
    run = ProcExec("git", ("log", "; id"), timeout_ms=1500)
    policy = load_policy(b"policies: {tools: {proc_exec: {allowed_commands: [git]}}}\n")
    await orchestrator_over(ProcExecutor(box)).run(run, standard_profile(run, policy=policy), session_id="s")
    ((job, profile),) = box.asked
    assert (job.args, dict(job.env), job.session_id) == (("git", "log", "; id"), {}, "s")
    assert profile.limits.wall_seconds == 1.5
    assert str(profile.isolation_floor) == "container"


@pytest.mark.parametrize("error", [CapabilityBlocked("it changed"), InvalidRequest("none"), ExecutionFailed("broke")])
async def test_a_broker_that_looked_and_failed_has_cost_a_call(error: RingfenceError) -> None:
    """Seen red: who asked for what a broker fails at could keep it busy for ever, under any budget of calls."""

    class Failing(Broker):
        async def execute(self, ctx: ExecCtx, operation: Any) -> BrokerOutcome:
            raise error

    orchestrator = orchestrator_over(Failing())
    profile = replace(standard_profile(READ), scope_budgets={"tenant": {"*": Budget(calls=1, bytes_in=10)}})
    with pytest.raises(type(error)):
        await orchestrator.run(READ, profile, session_id="s")
    with pytest.raises(QuotaExceeded, match="calls"):
        await orchestrator.run(READ, profile, session_id="s")
