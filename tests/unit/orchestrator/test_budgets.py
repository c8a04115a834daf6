"""A call with a budget reserves before it runs, runs under what it reserved, and settles with what was measured."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringfence.authority.profile import Profile
from ringfence.budgets.reservation import Reservation
from ringfence.capability.budget import Budget
from ringfence.capability.limits import Limits
from ringfence.errors import ExecutionFailed, IsolationUnavailable, QuotaExceeded
from ringfence.interrupted import Interrupted
from ringfence.operation import CodeRun, Language
from ringfence.orchestrator import spending
from ringfence.outcome import Artifact, ExecutionResult, FileChanges, Status
from ringfence.ports import Ending
from ringfence.testing import MemorySink, ScriptedExecutor, orchestrator_over, standard_profile

CODE = CodeRun(Language.PYTHON, "print(1)")


def with_budget(scope: str, name: str, budget: Budget) -> Profile:
    return replace(standard_profile(CODE), scope_budgets={scope: {name: budget}})


def used(cpu_ms: int) -> ExecutionResult:
    return ExecutionResult(Status.SUCCEEDED, exit_code=0, cpu_ms=cpu_ms, elapsed_ms=cpu_ms)


async def test_calls_are_counted_for_the_tenant_and_the_one_too_many_does_not_run() -> None:
    executor = ScriptedExecutor()
    orchestrator = orchestrator_over(executor)
    profile = with_budget("tenant", "test", Budget(calls=2))
    for _ in range(2):
        await orchestrator.run(CODE, profile)
    with pytest.raises(QuotaExceeded) as refusal:
        await orchestrator.run(CODE, profile)
    assert (refusal.value.reason, refusal.value.details["scope"]) == ("calls", "tenant")
    assert len(executor.asked) == 2


async def test_what_was_not_used_is_given_back_and_what_is_left_is_the_cap() -> None:
    executor = ScriptedExecutor(lambda _: used(cpu_ms=600))
    orchestrator = orchestrator_over(executor)
    profile = with_budget("tenant", "*", Budget(cpu_ms=1000))
    await orchestrator.run(CODE, profile)
    await orchestrator.run(CODE, profile)
    assert [asked.limits.cpu_seconds for _, asked in executor.asked] == [1.0, 0.4]
    with pytest.raises(QuotaExceeded, match="cpu_ms"):
        await orchestrator.run(CODE, profile)


async def test_a_budget_of_something_else_lowers_nothing() -> None:
    executor = ScriptedExecutor()
    profile = with_budget("tenant", "*", Budget(calls=9))
    await orchestrator_over(executor).run(CODE, profile)
    assert [asked.limits for _, asked in executor.asked] == [profile.limits]


@pytest.mark.parametrize(
    ("budget", "lowered"),
    [
        (Budget(disk_bytes=5000), {"disk_bytes": 5000, "artifact_bytes": 5000}),
        (Budget(file_count=3), {"artifact_count": 3, "inodes": 19}),
        (Budget(bytes_in=7), {"max_bytes_in": 0}),  # it asks for no host
    ],
)
async def test_disk_and_files_are_capped_at_what_is_left(budget: Budget, lowered: dict[str, int]) -> None:
    executor = ScriptedExecutor()
    profile = with_budget("session", "*", budget)
    await orchestrator_over(executor).run(replace(CODE, session_id="s"), profile)
    assert [asked.limits for _, asked in executor.asked] == [replace(profile.limits, **lowered)]


async def test_what_a_run_left_is_charged_and_where_nothing_is_left_nothing_is_begun() -> None:
    left = ExecutionResult(
        Status.SUCCEEDED,
        artifacts=(Artifact("a", 3000, "x"),),
        files_written=("f",),
        changes=FileChanges(sizes=(2000,)),
    )
    for budget, reason in ((Budget(disk_bytes=5000), "disk"), (Budget(file_count=2), "file_count")):
        executor = ScriptedExecutor(lambda _: left)
        orchestrator = orchestrator_over(executor)
        operation = replace(CODE, session_id="s")
        await orchestrator.run(operation, with_budget("session", "*", budget))
        with pytest.raises(QuotaExceeded) as refusal:
            await orchestrator.run(operation, with_budget("session", "*", budget))
        assert (refusal.value.reason, len(executor.asked)) == (reason, 1)


@given(st.integers(1, 100_000), st.integers(1, 64 * 1024), st.floats(0.001, 3600))
def test_memory_for_all_of_the_time_is_no_more_than_is_held(held: int, memory_mb: int, seconds: float) -> None:
    limits = Limits(memory_bytes=memory_mb * 1024 * 1024, wall_seconds=seconds)
    profile = replace(standard_profile(CODE), limits=limits)
    narrowed = spending.within(profile, Reservation("e", Budget(memory_mb_s=held))).limits
    assert narrowed.memory_bytes * narrowed.wall_seconds <= held * 1_000_000 * 1.000001
    assert narrowed.memory_bytes <= limits.memory_bytes
    assert 0 < narrowed.wall_seconds <= limits.wall_seconds
    if limits.memory_bytes * limits.wall_seconds <= held * 1_000_000:
        assert narrowed == limits


async def test_what_we_refuse_costs_nothing() -> None:
    def refuse(_: CodeRun) -> ExecutionResult:
        raise IsolationUnavailable("no box")

    orchestrator = orchestrator_over(ScriptedExecutor(refuse))
    profile = with_budget("tenant", "*", Budget(calls=1))
    for _ in range(3):
        with pytest.raises(IsolationUnavailable):
            await orchestrator.run(CODE, profile)


async def test_a_call_that_was_cancelled_is_charged_in_full() -> None:
    started = asyncio.Event()

    class Endless(ScriptedExecutor):
        async def execute(self, *_: object) -> ExecutionResult:
            started.set()
            await asyncio.Event().wait()
            raise AssertionError

    orchestrator = orchestrator_over(Endless())
    profile = with_budget("tenant", "*", Budget(cpu_ms=1000))
    run = asyncio.ensure_future(orchestrator.run(CODE, profile))
    await started.wait()
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run
    with pytest.raises(QuotaExceeded, match="cpu_ms"):
        await orchestrator.run(CODE, profile)


async def test_a_run_that_was_cancelled_is_charged_what_it_used() -> None:
    class Cut(ScriptedExecutor):
        async def execute(self, *_: object) -> ExecutionResult:
            cut = Interrupted(Ending(None, 9, "cancelled", b"", b"", 0, 0, 0.4, 400, None))
            cut.result = ExecutionResult(Status.CANCELLED, cpu_ms=400)
            raise cut

    orchestrator = orchestrator_over(Cut())
    profile = with_budget("tenant", "*", Budget(cpu_ms=1000))
    for _ in range(2):
        with pytest.raises(asyncio.CancelledError) as cancelled:
            await orchestrator.run(CODE, profile)
        assert type(cancelled.value) is asyncio.CancelledError


async def test_the_budget_of_one_session_is_not_anothers() -> None:
    orchestrator = orchestrator_over(ScriptedExecutor())
    profile = with_budget("session", "*", Budget(calls=1))
    for session in ("a", "b"):
        await orchestrator.run(replace(CODE, session_id=session), profile)
        with pytest.raises(QuotaExceeded):
            await orchestrator.run(replace(CODE, session_id=session), profile)


async def test_what_ran_and_failed_afterwards_is_charged_and_recorded_as_what_ran() -> None:
    """Seen red: a guest whose leftovers could not be kept had run for nothing, as often as it liked."""

    def fail(_: CodeRun) -> ExecutionResult:
        failed = QuotaExceeded("the disk is too full", reason="disk")
        failed.done = used(cpu_ms=600)
        raise failed

    journal = MemorySink()
    orchestrator = orchestrator_over(ScriptedExecutor(fail), evidence=journal)
    profile = with_budget("tenant", "*", Budget(cpu_ms=1000))
    for _ in range(2):
        with pytest.raises(QuotaExceeded, match="too full"):
            await orchestrator.run(CODE, profile)
    with pytest.raises(QuotaExceeded, match="cpu_ms"):
        await orchestrator.run(CODE, profile)
    ended = next(record for record in journal.records if record["type"] == "exec.end")
    assert (ended["outcome"], ended["reason"], ended["budget_used"]["cpu_ms"]) == ("error", "disk", 600)


async def test_what_broke_under_a_run_is_charged_in_full_because_nobody_knows_how_long_it_ran() -> None:
    def broken(_: CodeRun) -> ExecutionResult:
        raise OSError

    orchestrator = orchestrator_over(ScriptedExecutor(broken))
    profile = with_budget("tenant", "*", Budget(cpu_ms=1000))
    with pytest.raises(ExecutionFailed):
        await orchestrator.run(CODE, profile)
    with pytest.raises(QuotaExceeded, match="cpu_ms"):
        await orchestrator.run(CODE, profile)


def test_a_subject_that_a_door_knows_is_charged_whatever_it_calls_its_user() -> None:
    def names(subject: str, **known: str) -> dict[str, str]:
        chain = spending.chain_of(Profile(tenant="acme", subject_id=subject), None, known)
        return {str(account.scope.kind): account.scope.name for account in chain.accounts}

    assert names("key-1", user_id="somebody else", space_id="s")["user"] == "key-1"
    assert names("local", user_id="ann")["user"] == "ann"
    assert names("local")["user"] == "local"
    assert names("key-1", space_id="s")["space"] == "s"
    assert "space" not in names("key-1")
