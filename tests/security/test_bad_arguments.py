"""Attack: a request that is wrong in itself; it must be refused by name before a worker is touched."""

from __future__ import annotations

import functools
import math
import os
from pathlib import Path
from typing import Any

import pytest

import ringfence
from ringfence import SandboxManager
from ringfence.capability.limits import Limits
from ringfence.errors import InvalidRequest, PathTraversalError, RingfenceError, Unavailable
from ringfence.facade import ExecutionRequest
from ringfence.operation import MAX_CODE_BYTES, MAX_INPUT_FILES

pytestmark = [pytest.mark.guarantee(14), pytest.mark.needs("native")]

CASES: dict[str, tuple[dict[str, Any], str]] = {
    "unknown language": ({"language": "cobol"}, "unknown_language"),
    "empty language": ({"language": ""}, "unknown_language"),
    "no language": ({"language": None}, "unknown_language"),
    "negative timeout": ({"timeout": -1}, "invalid_limit"),
    "zero timeout": ({"timeout": 0}, "invalid_limit"),
    "timeout that is no number": ({"timeout": math.nan}, "invalid_limit"),
    "endless timeout": ({"timeout": math.inf}, "limit_exceeds_ceiling"),
    "timeout in words": ({"timeout": "5"}, "invalid_limit"),
    "timeout that is true": ({"timeout": True}, "invalid_limit"),
    "timeout beyond every number": ({"timeout": 10**400}, "limit_exceeds_ceiling"),
    "limit beyond every number": ({"limits": Limits(pids=10**5000)}, "limit_exceeds_ceiling"),
    "limits that are none": ({"limits": {"pids": 4}}, "invalid_limit"),
    "limit in words": ({"limits": Limits(memory_bytes="1g")}, "invalid_limit"),  # type: ignore[arg-type]
    "limit that is no whole number": ({"limits": Limits(pids=1.5)}, "invalid_limit"),  # type: ignore[arg-type]
    "limit of nothing": ({"limits": Limits(pids=None)}, "invalid_limit"),  # type: ignore[arg-type]
    "negative limit": ({"limits": Limits(disk_bytes=-1)}, "invalid_limit"),
    "limit that is true": ({"limits": Limits(open_files=True)}, "invalid_limit"),
    "limit beyond the ceiling": ({"limits": Limits(pids=1_000_000)}, "limit_exceeds_ceiling"),
    "limit too small for a box": ({"limits": Limits(open_files=4)}, "invalid_limit"),
    "limit too small for its directories": ({"limits": Limits(inodes=1)}, "invalid_limit"),
    "code that is no text": ({"code": 5}, "invalid_text"),
    "code with a NUL": ({"code": "print(1)\0"}, "nul_byte"),
    "code that is not UTF-8": ({"code": b"\xff\xfe"}, "invalid_text"),
    "code with half a character": ({"code": "\ud800"}, "invalid_text"),
    "huge code": ({"code": "#" * (MAX_CODE_BYTES + 1)}, "too_large"),
    "argument with a NUL": ({"args": ["a\0b"]}, "nul_byte"),
    "argument that is no text": ({"args": [5]}, "invalid_args"),
    "huge stdin": ({"stdin": b"x" * (64 * 1024 * 1024 + 1)}, "too_large"),
    "stdin that is no bytes": ({"stdin": 5}, "invalid_content"),
    "stdin with half a character": ({"stdin": "\ud800"}, "invalid_text"),
    "content with half a character": ({"files": {"a": "\udcff"}}, "invalid_text"),
    "absolute path": ({"files": {"/etc/passwd": b""}}, "path_traversal"),
    "climbing path": ({"files": {"../x": b""}}, "path_traversal"),
    "hidden climbing path": ({"inputs": {"a/../../x": b""}}, "path_traversal"),
    "path with a NUL": ({"files": {"a\0b": b""}}, "invalid_path"),
    "empty path": ({"files": {"": b""}}, "invalid_path"),
    "path with a newline": ({"inputs": {"a\nb": b""}}, "invalid_path"),
    "path with half a character": ({"inputs": {"\udcff": b""}}, "invalid_path"),
    "path that is no text": ({"files": {5: b""}}, "invalid_name"),
    "file below a file": ({"files": {"a": b"", "a/b": b""}}, "invalid_path"),
    "too many files": ({"files": {f"f{n}": b"" for n in range(MAX_INPUT_FILES + 1)}}, "too_many_files"),
    "content that is no bytes": ({"files": {"a": 5}}, "invalid_content"),
    "variable with a sign": ({"env": {"A=B": "x"}}, "invalid_env"),
    "variable with a NUL": ({"env": {"A": "x\0"}}, "nul_byte"),
    "variable without a name": ({"env": {"": "x"}}, "invalid_env"),
    "variable that is no text": ({"env": {"A": 5}}, "invalid_env"),
    "huge environment": ({"env": {"A": "x" * 200_000}}, "too_large"),
    "packages for a language that has none": ({"language": "javascript", "packages": ["six"]}, "invalid_packages"),
    "preload that is code": ({"preload": ["os; import sys"]}, "invalid_preload"),
}


@pytest.mark.parametrize("case", CASES)
async def test_it_is_refused_by_name_and_no_worker_is_touched(case: str) -> None:
    wrong, reason = CASES[case]
    async with SandboxManager(isolation="native") as manager:
        await manager.execute(ExecutionRequest("pass"))
        before = manager.pool_status()["busy"]
        with pytest.raises(RingfenceError) as refusal:
            await manager.execute(ExecutionRequest(**{"code": "print(1)", **wrong}))
        assert isinstance(refusal.value, InvalidRequest)
        assert (refusal.value.code, refusal.value.reason) == ("SCHEMA.VALIDATION_FAILED", reason)
        assert isinstance(refusal.value, PathTraversalError) == (reason == "path_traversal")
        assert manager.pool_status()["busy"] <= before
        assert manager.pool_status()["waiting"] == 0


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        ({"isolation": "none"}, "unknown_isolation"),
        ({"isolation": ""}, "unknown_isolation"),
        ({"security_mode": "off"}, "unknown_security_mode"),
        ({"pool_size": -1}, "invalid_pool_size"),
        ({"pool_size": "2"}, "invalid_pool_size"),
        ({"limits": {"pids": 4}}, "invalid_limit"),
        ({"limits": Limits(memory_bytes=10**5000)}, "limit_exceeds_ceiling"),
        ({"home": "a\0b"}, "invalid_value"),
        ({"home": ""}, "invalid_value"),
        ({"home": 5}, "invalid_value"),
        ({"home": "\ud800"}, "invalid_value"),
        ({"policy_file": "a\0b"}, "invalid_value"),
        ({"policy_file": ""}, "invalid_value"),
    ],
)
def test_a_manager_cannot_be_asked_for_less_isolation_or_nonsense(wrong: dict[str, Any], reason: str) -> None:
    with pytest.raises(InvalidRequest) as refusal:
        SandboxManager(**wrong)
    assert refusal.value.reason == reason


async def _never(name: str, data: bytes) -> None:
    """Be called, and never awaited."""


@pytest.mark.parametrize("listener", [5, "print", _never, functools.partial(_never, "x")])
async def test_a_listener_that_cannot_be_called_is_refused_before_anything_runs(listener: Any) -> None:
    async with SandboxManager(isolation="native", pool_size=0) as manager:
        with pytest.raises(InvalidRequest) as refusal:
            await manager.execute(ExecutionRequest("print(1)"), on_output=listener)
        assert refusal.value.reason == "invalid_value"


def test_a_relative_home_means_nothing_where_the_directory_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (gone := tmp_path / "gone").mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    with pytest.raises(InvalidRequest) as refusal:
        SandboxManager(home="here")
    assert refusal.value.reason == "invalid_value"


def test_a_user_without_a_home_is_told_to_name_one(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HOME", "RINGFENCE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(os, "getuid", lambda: 0x7246_FFFF)  # nobody's, and so without an entry
    with pytest.raises(InvalidRequest) as refusal:
        SandboxManager()
    assert refusal.value.reason == "invalid_value"
    assert "RINGFENCE_HOME" in str(refusal.value.fix)


def test_a_home_that_cannot_be_is_named_with_what_helps(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(Unavailable) as refusal:
        ringfence.run("print(1)", isolation="native", home=tmp_path / "file", pool_size=0)
    assert str(tmp_path / "file") in str(refusal.value.fix)


async def test_what_a_caller_wrote_makes_no_message_without_end() -> None:
    async with SandboxManager(isolation="native", pool_size=0) as manager:
        with pytest.raises(InvalidRequest) as refusal:
            await manager.execute(ExecutionRequest("print(1)", "x" * 1_000_000))
    assert len(str(refusal.value)) < 5000


@pytest.mark.parametrize("name", ["..", ".", "a/b", "", "x" * 129, "a\0b", "-", "é", 5])
async def test_a_session_name_cannot_be_a_path(name: Any) -> None:
    with pytest.raises(InvalidRequest) as refusal:
        async with SandboxManager(name, isolation="native") as manager:
            await manager.execute(ExecutionRequest("print(1)"))
    assert refusal.value.reason == "invalid_session_id"


@pytest.mark.needs("root")
async def test_a_memory_limit_below_what_the_empty_box_uses_is_said_and_the_pool_lives_on() -> None:
    async with SandboxManager(isolation="native") as manager:
        try:
            result = await manager.execute(ExecutionRequest("print(1)", limits=Limits(memory_bytes=4096)))
        except InvalidRequest as refusal:  # version 1 of cgroups refuses the number
            assert refusal.reason == "invalid_limit"  # noqa: PT017  or it runs and ends, see below
        else:  # version 2 takes it and ends the run; without cgroups the guest cannot allocate
            assert result.killed_by == "memory" or result.exit_code == 1
        assert (await manager.execute(ExecutionRequest("print(1)"))).stdout == "1\n"
