"""Nothing is carried out before it is written down, and nothing is told before its end is."""

from __future__ import annotations

import asyncio
import errno
import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from ringfence import Correlation
from ringfence.authority.policy_reader import load_policy
from ringfence.budgets.memory import MemoryMeter
from ringfence.capability.budget import Budget
from ringfence.errors import ExecutionFailed, InternalError, QuotaExceeded, RingfenceError, ToolDenied, Unavailable
from ringfence.evidence import records
from ringfence.evidence.documents import Document
from ringfence.interrupted import Interrupted
from ringfence.operation import CodeRun, Language
from ringfence.operation.brokered import FsRead, FsWrite
from ringfence.outcome import BrokerOutcome, Destination, Effect, ExecutionResult, Network, Status
from ringfence.ports import AlsoWrite, ExecCtx
from ringfence.testing import MemorySink, ScriptedExecutor, ended, orchestrator_over, standard_profile

SECRET = "s3cr3t-and-long-enough"
CODE = CodeRun(Language.PYTHON, "print(1)")


@dataclass
class Steps(MemorySink):
    """A sink that notes, with the executor, in which order things happen."""

    steps: list[str] = field(default_factory=list)
    broken: str = ""
    begun: asyncio.Event = field(default_factory=asyncio.Event)

    async def begin(self, ev: records.Members, documents: Sequence[Document] = ()) -> None:
        self._step("begin")
        await super().begin(ev, documents)
        self.begun.set()

    async def end(self, ev: records.Members, also: AlsoWrite | None = None) -> None:
        self._step("end")
        await super().end(ev, also)

    async def record(self, ev: records.Members, documents: Sequence[Document] = ()) -> None:
        self._step("record")
        await super().record(ev, documents)

    def _step(self, name: str) -> None:
        if name == self.broken:
            raise Unavailable("the disk is full")
        self.steps.append(name)

    def execute(self, _: CodeRun) -> ExecutionResult:
        self.steps.append("execute")
        return ExecutionResult(Status.SUCCEEDED, exit_code=0, stdout_raw=b"1\n", stdout_bytes=2)


async def test_the_beginning_is_written_before_and_the_end_after() -> None:
    sink = Steps()
    result = await orchestrator_over(ScriptedExecutor(sink.execute), evidence=sink).run(CODE, standard_profile(CODE))
    assert sink.steps == ["begin", "execute", "end"]
    begin, end = sink.records
    assert begin["type"], end["type"] == ("exec.begin", "exec.end")
    assert begin["envelope_id"] == end["envelope_id"] == result.evidence_id
    assert begin["exec_id"] == end["exec_id"] == result.exec_id
    assert (end["status"], end["outcome"]) == ("ok", "succeeded")


async def test_without_a_beginning_nothing_is_carried_out() -> None:
    sink = Steps(broken="begin")
    with pytest.raises(Unavailable):
        await orchestrator_over(ScriptedExecutor(sink.execute), evidence=sink).run(CODE, standard_profile(CODE))
    assert sink.steps == []


async def test_a_beginning_that_breaks_is_not_tried_again_and_is_an_error_of_ours() -> None:
    class Broken(Steps):
        async def begin(self, ev: records.Members, documents: Sequence[Document] = ()) -> None:
            self.steps.append("begin")
            raise OSError(errno.EIO, "/home/somebody/secret")

    sink = Broken()
    for profile in (standard_profile(CODE), replace(standard_profile(CODE), budget=Budget(calls=9))):
        with pytest.raises(RingfenceError):
            await orchestrator_over(ScriptedExecutor(sink.execute), evidence=sink).run(CODE, profile)
    assert sink.steps == ["begin", "begin"]


async def test_without_an_end_nothing_is_told() -> None:
    sink = Steps(broken="end")
    with pytest.raises(Unavailable):
        await orchestrator_over(ScriptedExecutor(sink.execute), evidence=sink).run(CODE, standard_profile(CODE))
    assert sink.steps == ["begin", "execute"]


async def test_a_refusal_is_one_record_that_says_which_rule() -> None:
    sink = Steps()
    policy = load_policy(b"policies: {tools: {code_run: {supported_languages: [bash]}}}")
    with pytest.raises(RingfenceError) as refused:
        await orchestrator_over(ScriptedExecutor(sink.execute), evidence=sink).run(
            CODE, standard_profile(CODE, policy=policy)
        )
    loaded, record = sink.records
    assert sink.steps == ["record", "record"]
    assert (loaded["type"], loaded["policy_version_hash"]) == ("policy.loaded", policy.policy_version_hash)
    assert (record["type"], record["status"]) == ("decision.denied", "denied")
    assert (record["error_code"], record["reason"]) == (refused.value.code, refused.value.reason)
    assert record["rule"] == refused.value.details["rule"]
    assert record["envelope_id"] == refused.value.details["evidence_id"]
    assert record["answers"]


async def test_what_is_switched_off_is_a_refusal_too() -> None:
    sink = Steps()
    operation = FsRead("work/a")
    with pytest.raises(RingfenceError):
        await orchestrator_over(ScriptedExecutor(), evidence=sink).run(
            operation, standard_profile(operation), session_id="s"
        )
    (record,) = sink.records
    assert (record["type"], record["reason"]) == ("decision.denied", "executor_disabled")


async def test_a_budget_that_is_used_up_is_a_beginning_and_an_end_that_was_denied() -> None:
    sink = Steps()
    profile = replace(standard_profile(CODE), budget=Budget(calls=0))
    with pytest.raises(QuotaExceeded):
        await orchestrator_over(ScriptedExecutor(sink.execute), evidence=sink).run(CODE, profile)
    assert sink.steps == ["begin", "end"]
    assert (sink.records[1]["status"], sink.records[1]["error_code"]) == ("denied", "QUOTA.BUDGET_EXCEEDED")


async def test_what_an_executor_did_without_having_it_written_down_is_told_to_nobody() -> None:
    class Hasty(ScriptedExecutor):
        async def execute(self, ctx: ExecCtx, operation: Any) -> ExecutionResult:
            return ExecutionResult(Status.SUCCEEDED, exec_id=ctx.exec_id)

    sink = Steps()
    with pytest.raises(InternalError, match="not written down"):
        await orchestrator_over(Hasty(), evidence=sink).run(CODE, standard_profile(CODE))
    assert sink.steps == ["begin", "end"]  # it did happen
    assert sink.records[1]["error_code"] == "UNKNOWN.INTERNAL"


@dataclass
class Broken:
    """An executor of files that raises, or never comes back."""

    error: Exception | None

    def capability_domain(self) -> str:
        return "fs"

    async def execute(self, ctx: ExecCtx, operation: Any) -> BrokerOutcome:
        if self.error is None:
            await asyncio.Event().wait()
        raise self.error or AssertionError


@pytest.mark.parametrize(
    ("error", "status", "outcome", "code"),
    [
        (ToolDenied("no"), "denied", "denied", "POLICY.DENY_TOOL"),
        (Unavailable("gone"), "error", "error", "PROVIDER.UNAVAILABLE"),
        (ValueError("ours"), "error", "error", "TOOL.EXECUTION_FAILED"),
    ],
)
async def test_whatever_an_executor_raises_is_an_end(error: Exception, status: str, outcome: str, code: str) -> None:
    sink = Steps()
    operation = FsRead("work/a")
    with pytest.raises(RingfenceError) as raised:
        await orchestrator_over(Broken(error), evidence=sink).run(
            operation, standard_profile(operation), session_id="s"
        )
    end = sink.records[1]
    assert (end["status"], end["outcome"], end["error_code"]) == (status, outcome, code)
    assert raised.value.details["evidence_id"] == end["envelope_id"]
    assert isinstance(raised.value, type(error) if isinstance(error, RingfenceError) else ExecutionFailed)


async def test_what_breaks_under_a_run_in_a_box_is_an_error_of_ours_and_no_cancellation() -> None:
    """Seen red: with no descriptor left, a caller got a bare `OSError` and the record said that he had cancelled."""

    def broken(_: CodeRun) -> ExecutionResult:
        raise OSError(errno.EMFILE, "/home/somebody/secret")

    sink = Steps()
    with pytest.raises(ExecutionFailed) as raised:
        await orchestrator_over(ScriptedExecutor(broken), evidence=sink).run(CODE, standard_profile(CODE))
    end = sink.records[1]
    assert (end["outcome"], end["error_code"], end["reason"]) == ("error", raised.value.code, raised.value.reason)
    assert raised.value.details["evidence_id"] == end["envelope_id"]
    assert "secret" not in str(raised.value)


@pytest.mark.parametrize("broken", ["reserve", "grant", "admission"])
async def test_what_breaks_before_a_run_has_begun_is_an_error_of_ours_and_costs_nothing(
    broken: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seen red: the caller got a bare exception, and the record said that he had cancelled."""

    def breaks(*_: object, **__: object) -> None:
        raise OSError(errno.EMFILE, "/home/somebody/secret")

    sink = Steps()
    orchestrator = orchestrator_over(ScriptedExecutor(sink.execute), evidence=sink)
    profile = replace(standard_profile(CODE), scope_budgets={"tenant": {"*": Budget(calls=1)}})
    with monkeypatch.context() as patched:
        if broken == "reserve":
            patched.setattr(MemoryMeter, "reserve", breaks)
        if broken == "admission":
            patched.setattr(orchestrator, "_admission", breaks)
        with pytest.raises(InternalError) as raised:
            await orchestrator.run(CODE, profile, still_granted=breaks if broken == "grant" else None)
    assert sink.steps == ["begin", "end"]
    end = sink.records[1]
    assert (end["status"], end["outcome"], end["error_code"]) == ("error", "error", "UNKNOWN.INTERNAL")
    assert raised.value.details["evidence_id"] == end["envelope_id"]
    assert "secret" not in str(raised.value)
    assert (await orchestrator.run(CODE, profile)).success


async def test_an_executor_that_cannot_be_made_is_an_error_of_ours_on_record(monkeypatch: pytest.MonkeyPatch) -> None:
    def breaks() -> ScriptedExecutor:
        raise ImportError("/home/somebody/secret")

    sink = Steps()
    orchestrator = orchestrator_over(ScriptedExecutor(), evidence=sink)
    monkeypatch.setattr(orchestrator, "_executors", {"code": breaks})
    with pytest.raises(InternalError) as raised:
        await orchestrator.run(CODE, standard_profile(CODE))
    assert (sink.steps, sink.records[0]["error_code"]) == (["record"], "UNKNOWN.INTERNAL")
    assert raised.value.details["evidence_id"] == sink.records[0]["envelope_id"]
    assert "secret" not in str(raised.value)


async def test_keeping_that_breaks_is_said_in_the_record_and_in_the_result_and_the_run_stays_what_it_was() -> None:
    """Seen red: the record said that it had succeeded, and the caller got a bare exception."""

    async def breaks(_: object, ended: records.Members, *__: object) -> ExecutionResult:
        ended["artifacts_path"] = "half of it"
        raise KeyError("/home/somebody/secret")

    sink = Steps()
    result = await orchestrator_over(ScriptedExecutor(sink.execute), evidence=sink, keep=breaks).run(
        CODE, standard_profile(CODE)
    )
    assert (result.status, result.stdout, result.notes) == (Status.SUCCEEDED, "1\n", ("not kept: KeyError",))
    end = sink.records[1]
    assert (end["status"], end["not_kept"], "artifacts_path" in end) == ("ok", ["KeyError"], False)


async def test_what_a_listener_raises_is_his_own_and_the_run_is_one_that_he_ended() -> None:
    class Mine(Exception):
        pass

    def listen(_: str, __: bytes) -> None:
        raise Mine

    sink = Steps()
    with pytest.raises(Mine):
        await orchestrator_over(ScriptedExecutor(sink.execute), evidence=sink).run(CODE, standard_profile(CODE), listen)
    assert (sink.records[1]["outcome"], sink.records[1]["reason"]) == ("cancelled", "cancelled")


async def test_a_run_that_is_cancelled_ends_as_cancelled() -> None:
    sink = Steps()
    operation = FsRead("work/a")
    task = asyncio.ensure_future(
        orchestrator_over(Broken(None), evidence=sink).run(operation, standard_profile(operation), session_id="s")
    )
    await sink.begun.wait()
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert [(each["type"], each.get("outcome")) for each in sink.records] == [
        ("exec.begin", None),
        ("exec.end", "cancelled"),
    ]


@dataclass
class Slow(Steps):
    """A sink whose disk answers when it is told to."""

    asked: asyncio.Event = field(default_factory=asyncio.Event)
    answers: asyncio.Event = field(default_factory=asyncio.Event)

    async def on_disk(self) -> None:
        self.asked.set()
        await self.answers.wait()


class Unwanted:
    """A run that is cut off, or fails, before anybody has asked for its beginning to be on the disk."""

    def __init__(self, error: BaseException) -> None:
        self._error = error

    def capability_domain(self) -> str:
        return "code"

    async def execute(self, ctx: ExecCtx, _: CodeRun) -> ExecutionResult:
        if ctx.note is not None:
            await ctx.note()
        raise self._error


@pytest.mark.parametrize("everything", [False, True])
@pytest.mark.parametrize("error", [asyncio.CancelledError(), ExecutionFailed("it broke")])
async def test_however_often_one_cancels_an_execution_has_an_end(error: BaseException, everything: bool) -> None:
    """Seen red: cancelled again while its beginning was written, it stayed open and held its budget."""
    sink = Slow()
    running = asyncio.ensure_future(orchestrator_over(Unwanted(error), evidence=sink).run(CODE, standard_profile(CODE)))
    await sink.asked.wait()
    for _ in range(3):
        # as a cancel scope does it, and the end of a loop: that cancels every task, also those of the pipeline
        for task in (asyncio.all_tasks() - {asyncio.current_task()}) if everything else {running}:
            task.cancel()
        await asyncio.sleep(0)
    early = running.done() and not everything
    sink.answers.set()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert not early
    assert [each["type"] for each in sink.records] == ["exec.begin", "exec.end"]


async def test_what_an_interrupted_run_had_said_is_told_however_often_one_cancels() -> None:
    cut = Interrupted(ended(b"out", exit_code=None, killed_by="cancelled"))
    cut.result = ExecutionResult(Status.CANCELLED, stdout_raw=b"out")
    sink = Slow()
    running = asyncio.ensure_future(orchestrator_over(Unwanted(cut), evidence=sink).run(CODE, standard_profile(CODE)))
    await sink.asked.wait()
    for _ in range(3):
        running.cancel()
        await asyncio.sleep(0)
    sink.answers.set()
    with pytest.raises(asyncio.CancelledError) as cancelled:
        await running
    assert cancelled.value.__cause__ is cut
    assert (sink.records[1]["outcome"], cut.result.evidence_id) == ("cancelled", sink.records[1]["envelope_id"])


class Reaching:
    """A run that has sent something out, and is ended before it can tell."""

    def __init__(self, error: Exception | None) -> None:
        self._error = error

    def capability_domain(self) -> str:
        return "code"

    async def execute(self, ctx: ExecCtx, _: CodeRun) -> ExecutionResult:
        await ctx.begun()
        try:
            if self._error is not None:
                raise self._error
            await asyncio.get_running_loop().create_future()
            raise AssertionError("nobody ends it but whoever cancels it")
        finally:
            ctx.reached.append(Network((Destination("example.com", 443, "allowed", bytes_out=7, count=1),)))


@pytest.mark.parametrize("error", [None, ExecutionFailed("it broke")])
async def test_where_a_run_without_a_result_had_gone_is_in_its_end(error: Exception | None) -> None:
    # otherwise whoever sends something out and hangs up has been nowhere
    sink = Steps()
    task = asyncio.ensure_future(orchestrator_over(Reaching(error), evidence=sink).run(CODE, standard_profile(CODE)))
    await sink.begun.wait()
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    network = sink.records[-1]["network"]
    assert [(place["host"], place["bytes_out"]) for place in network["destinations"]] == [("example.com", 7)]
    assert network["complete"] is False


async def test_nothing_that_a_run_was_given_or_gave_back_is_in_its_records() -> None:
    sink = Steps()
    operation = CodeRun(
        Language.PYTHON,
        f"print('{SECRET}')",
        args=(SECRET,),
        stdin=SECRET.encode(),
        files={"a": SECRET.encode()},
        inputs={"b": SECRET.encode()},
        env={"TOKEN": SECRET},
    )
    answer = ExecutionResult(Status.FAILED, exit_code=1, stdout_raw=SECRET.encode(), stderr_raw=SECRET.encode())
    await orchestrator_over(ScriptedExecutor(lambda _: answer), evidence=sink).run(
        operation, standard_profile(operation)
    )
    text = json.dumps(sink.records) + json.dumps([each.body for each in sink.documents.values()])
    assert SECRET not in text
    assert "TOKEN" in text
    assert sink.records[0]["args"] == [f"[{len(SECRET)} bytes]"]


async def test_the_callers_own_names_are_in_both_records() -> None:
    sink = Steps()
    names = {name: f"the-{name}" for name in ("user_id", "space_id", "conversation_id", "turn_id", "task_id")}
    await orchestrator_over(ScriptedExecutor(sink.execute), evidence=sink).run(
        CODE, standard_profile(CODE), correlation=Correlation(**names)
    )
    for record in sink.records:
        assert {name: record[name] for name in names} == names


async def test_an_executor_is_told_what_it_may_use_and_where_to_write_down_what_only_it_sees() -> None:
    sink = Steps()
    told: list[ExecCtx] = []

    @dataclass
    class Curious:
        def capability_domain(self) -> str:
            return "fs"

        async def execute(self, ctx: ExecCtx, operation: FsWrite) -> BrokerOutcome:
            told.append(ctx)
            assert not ctx.cancelled()
            return BrokerOutcome("fs_write", effects=(Effect("write", {"path": operation.path, "bytes": 3}),))

    operation = FsWrite("work/a", b"abc")
    profile = replace(standard_profile(operation), budget=Budget(calls=5))
    outcome = await orchestrator_over(Curious(), evidence=sink).run(operation, profile, session_id="s")
    (ctx,) = told
    assert ctx.evidence is sink
    assert ctx.envelope_id == outcome.evidence_id
    assert ctx.reserved is not None
    assert ctx.reserved.calls == 1
    assert ctx.profile.tool_name == "file_write"
    assert ctx.cancelled()
    end = sink.records[1]
    assert end["side_effects"] == [{"kind": "write", "meta": {"path": "work/a", "bytes": 3}}]
    assert set(end["budget_used"]) == {"calls", "bytes_in", "bytes_out", "cpu_ms", "gpu_ms", "file_count"}
