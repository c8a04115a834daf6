"""The executor that only remembers: the real pipeline in front of it, recorded results behind it."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from ringfence.authority.profile import Profile
from ringfence.errors import Denied, Unavailable
from ringfence.evidence.recorded import from_bytes, operation_digest, to_bytes
from ringfence.executors.replay import NOTHING_RAN, ReplayExecutor
from ringfence.operation import CodeRun, Language
from ringfence.operation.brokered import FsRead
from ringfence.operation.form import Operation
from ringfence.outcome import BrokerOutcome, ExecutionResult, Outcome, Status
from ringfence.ports import ExecCtx
from ringfence.testing import ScriptedExecutor, orchestrator_over, standard_profile

PRINT = CodeRun(Language.PYTHON, "print(1)")
READ = FsRead("work/a")


class Shelf:
    """Keeps results as the content store does: as bytes, under the name of the operation and the profile."""

    def __init__(self) -> None:
        self.kept: dict[tuple[str, str], bytes] = {}

    def keep(self, operation: Operation, profile: Profile, outcome: Outcome, session_id: str | None = None) -> None:
        self.kept[operation_digest(operation, session_id), profile.profile_hash] = to_bytes(outcome)

    def find(self, op_digest: str, profile_hash: str) -> Outcome | None:
        content = self.kept.get((op_digest, profile_hash))
        if content is None:
            return None
        found = from_bytes(content)
        assert isinstance(found, ExecutionResult | BrokerOutcome)
        return found


def run(shelf: Shelf, operation: Any, profile: Profile, **rest: Any) -> Any:
    pipeline = orchestrator_over(ReplayExecutor("code", shelf), ReplayExecutor("fs", shelf))
    return asyncio.run(pipeline.run(operation, profile, **rest))


def test_a_run_is_answered_as_it_ended_and_says_that_nothing_ran() -> None:
    shelf, profile, heard = Shelf(), standard_profile(PRINT), []
    first = ExecutionResult(Status.FAILED, 3, b"out", b"err", 3, 3, backend="native", sandbox_id="box-1", cpu_ms=9)
    shelf.keep(PRINT, profile, first)
    result = run(shelf, PRINT, profile, on_output=lambda name, data: heard.append((name, data)))
    assert (result.status, result.exit_code, result.stdout, result.stderr) == (Status.FAILED, 3, "out", "err")
    assert heard == [("stdout", b"out"), ("stderr", b"err")]
    assert (result.backend, result.sandbox_id, result.isolation.namespaces) == ("replay", "", ())
    assert NOTHING_RAN in result.notes
    assert result.exec_id.startswith("ex")


def test_what_a_broker_brought_is_brought_again() -> None:
    shelf, profile = Shelf(), standard_profile(READ)
    shelf.keep(READ, profile, BrokerOutcome("fs_read", {"path": "/workspace/work/a"}, b"1"), "s1")
    assert run(shelf, READ, profile, session_id="s1").content == b"1"


@pytest.mark.parametrize(
    ("operation", "session_id", "changes"),
    [
        (replace(PRINT, code="print(2)"), None, {}),
        (replace(PRINT, args=("x",)), None, {}),
        (replace(PRINT, session_id="s2"), "s2", {}),
        (PRINT, None, {"profile_hash": "sha256:other"}),
    ],
    ids=["other code", "other argument", "other session", "other profile"],
)
def test_what_was_never_recorded_is_refused(
    operation: CodeRun, session_id: str | None, changes: dict[str, Any]
) -> None:
    shelf, profile = Shelf(), standard_profile(PRINT)
    shelf.keep(PRINT, profile, ExecutionResult(Status.SUCCEEDED, 0))
    with pytest.raises(Unavailable) as refusal:
        run(shelf, operation, replace(profile, **changes), session_id=session_id)
    assert refusal.value.reason == "not_recorded"
    assert not refusal.value.retryable


def test_a_file_of_one_session_is_not_brought_to_another() -> None:
    shelf, profile = Shelf(), standard_profile(READ)
    shelf.keep(READ, profile, BrokerOutcome("fs_read", {}, b"secret of s1"), "s1")
    with pytest.raises(Unavailable, match="never recorded"):
        run(shelf, READ, profile, session_id="s2")


def test_an_answer_of_another_kind_is_no_answer() -> None:
    shelf, profile = Shelf(), standard_profile(PRINT)
    shelf.keep(PRINT, profile, BrokerOutcome("fs_read"))
    with pytest.raises(Unavailable):
        run(shelf, PRINT, profile)


def test_a_replay_is_allowed_no_more_than_a_run() -> None:
    shelf, profile = Shelf(), replace(standard_profile(PRINT), refusal="tool_not_in_role")
    shelf.keep(PRINT, profile, ExecutionResult(Status.SUCCEEDED, 0))
    with pytest.raises(Denied):
        run(shelf, PRINT, profile)


def test_what_one_executor_did_another_repeats() -> None:
    first = ScriptedExecutor(lambda operation: ExecutionResult(Status.SUCCEEDED, 0, operation.code.encode()))
    profile = standard_profile(PRINT)
    done = asyncio.run(orchestrator_over(first).run(PRINT, profile))
    shelf = Shelf()
    shelf.keep(PRINT, profile, done)
    again = run(shelf, PRINT, profile)
    assert (again.stdout_raw, again.status, again.risk) == (done.stdout_raw, done.status, done.risk)
    assert len(first.asked) == 1


def test_it_answers_for_the_domain_it_was_given() -> None:
    executor = ReplayExecutor("tmp", Shelf())
    assert executor.capability_domain() == "tmp"
    with pytest.raises(Unavailable):
        asyncio.run(executor.execute(ExecCtx("ex_1", Profile()), READ))
