"""The executor: a lost worker is replaced, a result says what was seen, and an ending is judged by a table."""

from __future__ import annotations

import asyncio
import errno
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringfence.authority.profile import Isolation, Profile
from ringfence.capability.limits import Limits
from ringfence.errors import ExecutionFailed, InternalError, PathTraversalError, QuotaExceeded
from ringfence.executors.code import CodeExecutor, judge, result_of, worker_spec
from ringfence.interrupted import Interrupted
from ringfence.isolation.pool.decide import PoolPolicy
from ringfence.isolation.pool.keeper import Keeper
from ringfence.isolation.pool.pools import Pools
from ringfence.operation import CodeRun, Language
from ringfence.outcome import Artifact, ExecutionResult, OnOutput, Status
from ringfence.ports import Ending, ExecCtx, Harvest, Job, WorkerLost, WorkerSpec
from ringfence.testing import ScriptedBackend, ScriptedWorker, ended

LIMITS = Limits(wall_seconds=2.5, cpu_seconds=3, memory_bytes=4096)
CODE = CodeRun(Language.PYTHON, "print(1)")


@pytest.mark.parametrize(
    ("ending", "status", "code", "reason", "error"),
    [
        (ended(), Status.SUCCEEDED, None, None, None),
        (ended(exit_code=3), Status.FAILED, None, "exit_code", "the program exited with 3"),
        (ended(exit_code=None, signal=9), Status.FAILED, None, "signal", "the program was ended by SIGKILL"),
        (ended(exit_code=None, signal=40), Status.FAILED, None, "signal", "the program was ended by signal 40"),
        (
            ended(exit_code=None, killed_by="wall_timeout"),
            Status.TIMED_OUT,
            "LLM.TIMEOUT",
            "wall_timeout",
            "the run was ended at its wall-clock limit of 2.5 s",
        ),
        (
            ended(exit_code=None, signal=24, killed_by="cpu_timeout"),
            Status.TIMED_OUT,
            "LLM.TIMEOUT",
            "cpu_timeout",
            "the run was ended at its cpu-time limit of 3 s",
        ),
        (
            ended(exit_code=None, signal=9, killed_by="memory"),
            Status.KILLED,
            "QUOTA.BUDGET_EXCEEDED",
            "memory",
            "the run was ended at its memory limit of 4096 bytes",
        ),
    ],
)
def test_an_ending_is_judged(ending: Ending, status: Status, code: str | None, reason: str | None, error: str) -> None:
    assert judge(ending, LIMITS) == (status, error, code, reason)


def test_a_run_that_somebody_else_ended_is_no_budget_of_the_guest() -> None:
    status, _, code, reason = judge(ended(exit_code=None, killed_by="unknown"), LIMITS)
    assert (status, reason) == (Status.KILLED, "unknown")
    assert code != "QUOTA.BUDGET_EXCEEDED"


@given(st.integers(1, 64))
def test_every_signal_a_guest_can_die_of_has_a_result(number: int) -> None:
    result = result_of("ex_1", worker_of(), ended(exit_code=None, signal=number), Harvest(), Profile(LIMITS))
    assert (result.status, result.exit_code) == (Status.FAILED, 128 + number)


def test_a_result_says_what_was_seen_from_outside() -> None:
    ending = Ending(
        exit_code=0,
        signal=None,
        killed_by=None,
        stdout=b"ab",
        stderr=b"c",
        stdout_bytes=9,
        stderr_bytes=1,
        stdout_left_out=7,
        elapsed_seconds=0.25,
        cpu_ms=12,
        memory_peak_bytes=4096,
    )
    artifact = Artifact("plot.png", 3, "00")
    result = result_of("ex_1", worker_of(), ending, Harvest((artifact,), ("a.txt",), ("a note",)), Profile(LIMITS))
    assert (result.stdout, result.stdout_bytes, result.stdout_truncated) == ("ab", 9, True)
    assert (result.stdout_left_out, result.stderr_left_out) == (7, 0)
    assert (result.stderr, result.stderr_bytes, result.stderr_truncated) == ("c", 1, False)
    assert (result.elapsed_ms, result.cpu_ms, result.memory_peak_bytes) == (250.0, 12, 4096)
    assert (result.artifacts, result.files_written, result.notes) == ((artifact,), ("a.txt",), ("a note",))
    assert (result.sandbox_id, result.backend, result.killed) == ("one", "scripted", False)


def test_python_and_bash_share_workers_and_node_has_its_own() -> None:
    kinds = {language: worker_spec(CodeRun(language, ""), LIMITS, None).runtime for language in Language}
    assert kinds == {
        Language.PYTHON: Language.PYTHON,
        Language.BASH: Language.PYTHON,
        Language.JAVASCRIPT: Language.JAVASCRIPT,
        Language.TYPESCRIPT: Language.TYPESCRIPT,
    }


def test_what_a_sealed_worker_cannot_be_given_any_more_is_in_its_spec() -> None:
    operation = CodeRun(Language.PYTHON, "", preload=("json",), session_id="s")
    limits = Limits(disk_bytes=1, inodes=2, open_files=3, file_bytes=4, pids=5)
    assert worker_spec(operation, limits, "/env") == WorkerSpec(
        Language.PYTHON, "/env", ("json",), "s", disk_bytes=1, inodes=2, open_files=3, file_bytes=4, pids=5
    )


@pytest.mark.parametrize(
    ("operation", "fixes_limits", "order"),
    [
        (CODE, False, ["started", "begun", "job"]),
        # what a session's box is started over, or what an engine starts, is more than a parked process
        (CodeRun(Language.PYTHON, "", session_id="s"), False, ["begun", "started", "job"]),
        (CODE, True, ["begun", "started", "job"]),
    ],
)
async def test_a_plain_box_is_started_while_its_beginning_is_written_and_has_no_job_before(
    operation: CodeRun, fixes_limits: bool, order: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []

    def script(_: Job) -> Ending:
        seen.append("job")
        return ended()

    async def begin() -> None:
        if order[0] == "started":
            await eventually(lambda: bool(seen))
        if "begun" not in seen:
            seen.append("begun")

    monkeypatch.setattr(ScriptedBackend, "fixes_limits", fixes_limits)
    backend = ScriptedBackend(script, on_start=lambda _: seen.append("started"))
    keeper = Keeper(backend, PoolPolicy(min_idle=0, max_idle=0), default=worker_spec(CODE, LIMITS, None))
    code = CodeExecutor(Pools(Isolation.AUTO, lambda _: keeper), lambda *_: pytest.fail("no packages"))
    try:
        await code.execute(ExecCtx("ex_1", Profile(LIMITS), begin=begin), operation)
    finally:
        keeper.close()
    assert seen == order


async def test_a_lost_worker_is_replaced_by_another() -> None:
    losses = iter([WorkerLost("first"), WorkerLost("second")])

    def script(_: Job) -> Ending:
        for loss in losses:
            raise loss
        return ended(b"third")

    with executor(script) as (run, backend):
        assert (await run(CODE)).stdout == "third"
        used = [worker for worker in backend.started if worker.jobs]
        assert [len(worker.jobs) for worker in used] == [1, 1, 1]


async def test_what_lost_one_worker_is_not_trusted_to_have_spared_its_siblings() -> None:
    def script(_: Job) -> Ending:
        return dead()

    def dead() -> Ending:
        raise WorkerLost("the zygote was killed")

    with executor(script, PoolPolicy(min_idle=5)) as (run, backend):
        await eventually(lambda: len(backend.started) >= 5)
        parked = set(backend.alive())
        with pytest.raises(InternalError):
            await run(CODE)
        assert sum(1 for worker in parked if worker.jobs) == 1


async def test_three_lost_workers_are_our_failure_and_not_the_guests() -> None:
    def script(_: Job) -> Ending:
        raise WorkerLost("gone")

    with executor(script) as (run, backend):
        with pytest.raises(InternalError, match="3 workers in a row failed before the code started: gone"):
            await run(CODE)
        assert sum(len(worker.jobs) for worker in backend.started) == 3


async def test_a_worker_is_given_back_however_the_run_ends() -> None:
    def script(_: Job) -> Ending:
        raise PathTraversalError("bad name")

    with executor(script) as (run, backend):
        with pytest.raises(PathTraversalError):
            await run(CODE)
        await eventually(lambda: not any(worker.jobs for worker in backend.alive()))


async def test_a_worker_is_not_given_back_while_its_files_are_being_placed_however_often_one_cancels(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    placing, go_on = threading.Event(), threading.Event()

    def place(*_: object) -> None:
        placing.set()
        go_on.wait(10)

    monkeypatch.setattr(ScriptedWorker, "place", place)
    with executor(lambda _: ended()) as (run, backend):
        running = run(CodeRun(Language.PYTHON, "", files={"a": b"1"}))
        await eventually(placing.is_set)
        for _ in range(3):
            # as the end of a loop does it: every task, also those the executor made
            for task in asyncio.all_tasks() - {asyncio.current_task()}:
                task.cancel()
            for _ in range(10):
                await asyncio.sleep(0)
        early = running.done() or any(worker.discarded for worker in backend.started)
        go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert not early


async def test_a_session_that_changed_its_files_gets_a_new_worker_for_the_next_run() -> None:
    operation = CodeRun(Language.PYTHON, "", session_id="s")
    with executor(lambda _: ended(), harvest=Harvest(changed=True)) as (run, backend):
        for _ in range(4):
            await run(operation)
        used = [worker for worker in backend.started if worker.jobs]
        assert len(used) == 4


async def test_the_job_and_the_files_are_the_operations() -> None:
    operation = CodeRun(Language.BASH, "cat", ("x",), b"in", files={"a": b"1"}, inputs={"b": b"2"}, env={"K": "v"})
    with executor(lambda _: ended(b"out")) as (run, backend):
        heard: list[tuple[str, bytes]] = []
        await run(operation, lambda name, data: heard.append((name, data)))
        (worker,) = (worker for worker in backend.started if worker.jobs)
        assert worker.jobs == [Job(Language.BASH, "cat", ("x",), {"K": "v"}, b"in", LIMITS)]
        assert worker.placed == {"a": b"1", "inputs/b": b"2"}
        assert heard == [("stdout", b"out")]


async def test_packages_are_built_once_for_each_run_and_name_the_worker() -> None:
    asked: list[tuple[tuple[str, ...], str]] = []

    def environment(packages: tuple[str, ...], tenant: str) -> str:
        asked.append((packages, tenant))
        return "/environments/1"

    backend = ScriptedBackend()
    keeper = Keeper(backend, PoolPolicy(min_idle=0), default=WorkerSpec())
    code = CodeExecutor(Pools(Isolation.AUTO, lambda _: keeper), environment)
    try:
        operation = CodeRun(Language.PYTHON, "", packages=("pandas",))
        await code.execute(ExecCtx("ex_1", Profile(LIMITS, tenant="acme")), operation)
    finally:
        keeper.close()
    assert asked == [(("pandas",), "acme")]
    assert {worker.spec.packages for worker in backend.started if worker.jobs} == {"/environments/1"}


async def eventually(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110  other threads make it true
        await asyncio.sleep(0.001)


Run = Callable[..., "asyncio.Future[ExecutionResult]"]


@contextmanager
def executor(
    script: Callable[[Job], Ending],
    policy: PoolPolicy = PoolPolicy(),  # noqa: B008
    harvest: Harvest = Harvest(),  # noqa: B008
) -> Iterator[tuple[Run, ScriptedBackend]]:
    backend = ScriptedBackend(script, harvest=harvest)
    limits = LIMITS
    keeper = Keeper(backend, policy, default=worker_spec(CODE, limits, None))
    code = CodeExecutor(
        Pools(Isolation.AUTO, lambda _: keeper), lambda packages, _: pytest.fail(f"nobody asked for {packages}")
    )

    def run(operation: CodeRun, on_output: OnOutput | None = None) -> asyncio.Future[ExecutionResult]:
        return asyncio.ensure_future(code.execute(ExecCtx("ex_1", Profile(limits), on_output=on_output), operation))

    try:
        yield run, backend
    finally:
        keeper.close()


def worker_of() -> ScriptedWorker:
    return ScriptedWorker("one", WorkerSpec(), lambda _: ended())


async def test_a_run_whose_files_cannot_be_kept_says_what_it_used(monkeypatch: pytest.MonkeyPatch) -> None:
    def harvest(*_: object) -> Harvest:
        raise QuotaExceeded("the disk is too full", reason="disk")

    monkeypatch.setattr(ScriptedWorker, "harvest", harvest)
    with executor(lambda _: ended(b"out")) as (run, _), pytest.raises(QuotaExceeded) as refused:
        await run(CODE)
    assert isinstance(refused.value.done, ExecutionResult)
    assert refused.value.done.stdout_raw == b"out"


@pytest.mark.parametrize("step", ["left_files", "harvest"])
async def test_a_disk_that_fails_under_what_a_run_left_is_no_fault_of_the_run(
    step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> Harvest:
        raise OSError(errno.ENOSPC, "No space left on device", "/home/somebody/secret")

    monkeypatch.setattr(ScriptedWorker, step, full)
    with executor(lambda _: ended(b"out")) as (run, _), pytest.raises(ExecutionFailed) as failed:
        await run(CODE)
    assert failed.value.reason == "io"
    assert "secret" not in str(failed.value)
    assert isinstance(failed.value.done, ExecutionResult)
    assert (failed.value.done.stdout_raw, failed.value.done.cpu_ms) == (b"out", 1)


async def test_a_cancelled_run_whose_files_nobody_can_look_at_is_still_a_cancelled_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def cut(_: Job) -> Ending:
        raise Interrupted(ended(b"out", exit_code=None, killed_by="cancelled"))

    def broken(_: object) -> bool:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(ScriptedWorker, "left_files", broken)
    with executor(cut) as (run, _), pytest.raises(asyncio.CancelledError) as cancelled:
        await run(CODE)
    assert isinstance(cancelled.value, Interrupted)
    assert isinstance(cancelled.value.result, ExecutionResult)
    assert str(cancelled.value.result.error).endswith("what it wrote to files was not kept")
