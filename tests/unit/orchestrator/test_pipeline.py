"""The pipeline refuses what is wrong before anything acts, and names what it lets through."""

from __future__ import annotations

import math
from dataclasses import fields, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringfence.authority.levels import IsolationLevel
from ringfence.authority.profile import Profile
from ringfence.capability.limits import SYSTEM_CEILING, SYSTEM_FLOOR, Limits, check_limits
from ringfence.errors import InvalidRequest, PathTraversalError
from ringfence.operation import CodeRun, Language
from ringfence.outcome import ExecutionResult, Status
from ringfence.testing import ScriptedExecutor, orchestrator_over, standard_profile

CODE = CodeRun(Language.PYTHON, "print(1)")
NAMES = [field.name for field in fields(Limits)]


def limited(name: str, value: object) -> Limits:
    return replace(Limits(), **{name: value})  # type: ignore[arg-type]


async def refused(operation: CodeRun, profile: Profile = Profile()) -> InvalidRequest:  # noqa: B008
    executor = ScriptedExecutor()
    with pytest.raises(InvalidRequest) as refusal:
        await orchestrator_over(executor).run(operation, profile)
    assert executor.asked == []
    return refusal.value


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("value", [0, -1, math.nan, "1", None, True])
async def test_a_limit_that_is_no_positive_number_is_refused_by_name(name: str, value: object) -> None:
    refusal = await refused(CODE, Profile(limited(name, value)))
    assert refusal.reason == "invalid_limit"
    assert name in str(refusal)


@pytest.mark.parametrize("name", NAMES)
async def test_a_limit_above_the_ceiling_is_refused_by_name(name: str) -> None:
    refusal = await refused(CODE, Profile(limited(name, getattr(SYSTEM_CEILING, name) + 1)))
    assert refusal.reason == "limit_exceeds_ceiling"
    assert name in str(refusal)
    endless = "limit_exceeds_ceiling" if isinstance(getattr(SYSTEM_CEILING, name), float) else "invalid_limit"
    assert (await refused(CODE, Profile(limited(name, math.inf)))).reason == endless


@given(st.sampled_from(NAMES), st.floats(0.01, 1))
def test_every_limit_up_to_the_ceiling_is_allowed(name: str, share: float) -> None:
    most = getattr(SYSTEM_CEILING, name)
    value = max(SYSTEM_FLOOR.get(name, 1), int(most * share)) if isinstance(most, int) else most * share
    check_limits(limited(name, value))


@pytest.mark.parametrize(
    ("operation", "reason"),
    [
        (replace(CODE, code="a\0b"), "nul_byte"),
        (replace(CODE, code="\ud800"), "invalid_text"),
        (replace(CODE, args=("a\0",)), "nul_byte"),
        (replace(CODE, env={"A=B": "x"}), "invalid_env"),
        (replace(CODE, preload=("os; import sys",)), "invalid_preload"),
        (replace(CODE, session_id="../other"), "invalid_session_id"),
        (replace(CODE, stdin=bytes(64 * 1024 * 1024 + 1)), "too_large"),
    ],
)
async def test_an_operation_that_cannot_be_meant_is_refused(operation: CodeRun, reason: str) -> None:
    assert (await refused(operation)).reason == reason


@pytest.mark.parametrize("name", ["/etc/passwd", "../up", "a/../../b", "", "a/", "a\0b"])
@pytest.mark.parametrize("field", ["files", "inputs"])
async def test_a_path_that_leaves_the_workspace_is_refused(name: str, field: str) -> None:
    operation = replace(CODE, files={name: b""}) if field == "files" else replace(CODE, inputs={name: b""})
    refusal = await refused(operation)
    if name.startswith(("/", "..")):
        assert isinstance(refusal, PathTraversalError)


async def test_every_result_has_a_name_of_its_own() -> None:
    orchestrator = orchestrator_over(ScriptedExecutor())
    names = [(await orchestrator.run(CODE, standard_profile(CODE))).exec_id for _ in range(50)]
    assert len(set(names)) == 50
    assert all(name.startswith("ex_") for name in names)


async def test_what_the_executor_says_is_passed_on_unchanged() -> None:
    answer = ExecutionResult(Status.FAILED, exit_code=3, stdout_raw=b"x")
    heard: list[tuple[str, bytes]] = []
    executor = ScriptedExecutor(lambda _: answer)
    profile = standard_profile(CODE, Limits(wall_seconds=1))
    orchestrator = orchestrator_over(executor)
    result = await orchestrator.run(CODE, profile, lambda name, data: heard.append((name, data)))
    assert replace(result, exec_id="", risk=None, evidence_id=None) == answer
    assert result.risk == "high"
    assert executor.asked == [(CODE, replace(profile, isolation_floor=IsolationLevel.CONTAINER))]
    assert heard == [("stdout", b"x")]
