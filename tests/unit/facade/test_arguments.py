"""What a caller gets wrong is said in words, before anything starts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import ringfence
from ringfence import Correlation, ExecutionRequest, InvalidRequest, Limits, SandboxManager, engines, wiring
from ringfence.authority.profile import Isolation
from ringfence.capability.limits import MIB
from ringfence.clock import SystemClock
from ringfence.executors.code import CodeExecutor
from ringfence.isolation.pool.decide import PoolPolicy
from ringfence.isolation.pool.keeper import Keeper
from ringfence.isolation.pool.pools import Pools
from ringfence.operation import CodeRun
from ringfence.outcome import ExecutionResult, Status
from ringfence.ports import WorkerSpec
from ringfence.testing import ScriptedBackend, ScriptedExecutor, ended, orchestrator_over


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[CodeRun]:
    """What reaches the executor of engines built during the test."""
    seen: list[CodeRun] = []

    def answer(operation: CodeRun) -> ExecutionResult:
        seen.append(operation)
        return ExecutionResult(Status.SUCCEEDED, exit_code=0, stdout_raw=b"answer")

    def build(settings: wiring.Settings) -> wiring.Engine:
        keeper = Keeper(ScriptedBackend(), PoolPolicy(min_idle=0), default=WorkerSpec())
        pools = Pools(Isolation.AUTO, lambda _: keeper)
        return wiring.Engine(
            orchestrator_over(ScriptedExecutor(answer)),
            pools,
            wiring.make_authority(None, SystemClock()),
        )

    monkeypatch.setattr(wiring, "build", build)
    monkeypatch.setattr(engines, "_engines", {})
    monkeypatch.setattr(engines, "_kept", {})
    return seen


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"language": "ruby"}, "unknown_language"),
        ({"language": None}, "unknown_language"),
        ({"code": 3}, "invalid_text"),
        ({"code": b"\xff"}, "invalid_text"),
        ({"timeout": 0}, "invalid_limit"),
        ({"timeout": "5"}, "invalid_limit"),
        ({"timeout": True}, "invalid_limit"),
        ({"timeout": float("nan")}, "invalid_limit"),
        ({"timeout": float("inf")}, "limit_exceeds_ceiling"),
        ({"memory_mb": "512"}, "invalid_limit"),
        ({"memory_mb": 0}, "invalid_limit"),
        ({"memory_mb": 10**9}, "limit_exceeds_ceiling"),
        ({"limits": Limits(pids=0)}, "invalid_limit"),
        ({"args": "one two"}, "invalid_args"),
        ({"args": [1]}, "invalid_args"),
        ({"packages": "pandas"}, "invalid_packages"),
        ({"preload": "json"}, "invalid_preload"),
        ({"preload": ["a b"]}, "invalid_preload"),
        ({"files": ["a.txt"]}, "invalid_content"),
        ({"files": {"a.txt": 3}}, "invalid_content"),
        ({"files": {3: b""}}, "invalid_name"),
        ({"files": {"../a": b""}}, "path_traversal"),
        ({"inputs": {"/etc/passwd": b""}}, "path_traversal"),
        ({"stdin": 3}, "invalid_content"),
        ({"env": {"A": 1}}, "invalid_env"),
        ({"env": {1: "A"}}, "invalid_name"),
        ({"env": ["A=1"]}, "invalid_env"),
        ({"session_id": "../x"}, "invalid_session_id"),
        ({"session_id": 7}, "invalid_session_id"),
        ({"isolation": "docker!"}, "unknown_isolation"),
        ({"security_mode": "lax"}, "unknown_security_mode"),
        ({"pool_size": -1}, "invalid_pool_size"),
        ({"pool_size": "2"}, "invalid_pool_size"),
    ],
)
def test_a_wrong_argument_is_refused_and_nothing_runs(
    asked: list[CodeRun], arguments: dict[str, Any], reason: str
) -> None:
    with pytest.raises(InvalidRequest) as refusal:
        ringfence.run(**{"code": "print(1)", **arguments})
    assert refusal.value.reason == reason
    assert asked == []


@pytest.mark.parametrize("correlation", [{"task_id": "T-7"}, "T-7", None, Correlation])
def test_a_correlation_of_another_type_is_refused_when_a_manager_is_made(correlation: Any) -> None:
    """Seen red: it was taken, and the first run ended with an `AttributeError`."""
    with pytest.raises(InvalidRequest, match="correlation must be a Correlation") as refusal:
        SandboxManager(correlation=correlation)
    assert refusal.value.reason == "invalid_value"


async def test_a_correlation_of_another_type_is_nobody_to_act_for(asked: list[CodeRun]) -> None:
    wrong: Any = {"task_id": "T-7"}
    async with SandboxManager() as manager:
        with pytest.raises(InvalidRequest, match="correlation must be a Correlation"):
            manager.acting_for(correlation=wrong)
    assert asked == []


def test_what_comes_later_says_so_and_what_never_comes_is_a_mistake() -> None:
    with pytest.raises(InvalidRequest, match="confirmation_service is not available in this version"):
        SandboxManager(confirmation_service=object())
    with pytest.raises(TypeError, match="unexpected keyword argument 'sesion_id'"):
        SandboxManager(sesion_id="a")


@pytest.mark.parametrize("url", [1, "", "/var/run/docker.sock", "--host"])
def test_an_engine_is_where_an_address_says(url: Any) -> None:
    with pytest.raises(InvalidRequest):
        SandboxManager(docker_url=url)
    SandboxManager(docker_url="unix:///var/run/docker.sock", pool_size=5)


def test_text_and_bytes_mean_the_same(asked: list[CodeRun]) -> None:
    ringfence.run("print('ä')", stdin="ä", files={"a": "ä"}, inputs={"b": "b"})
    ringfence.run("print('ä')".encode(), stdin="ä".encode(), files={"a": "ä".encode()}, inputs={"b": b"b"})
    assert asked[0] == asked[1]


async def test_a_request_overrides_what_its_manager_was_made_with(asked: list[CodeRun]) -> None:
    async with SandboxManager("s", packages=["numpy"], preload=["json"]) as manager:
        await manager.execute(ExecutionRequest("1"))
        await manager.execute(ExecutionRequest("1", packages=["pandas"], preload=["re"]))
        await manager.execute_shell("ls", {"a": "1"}, 5, env={"K": "v"})
    assert [(each.packages, each.preload, each.session_id) for each in asked] == [
        (("numpy",), ("json",), "s"),
        (("pandas",), ("re",), "s"),
        (("numpy",), ("json",), "s"),
    ]
    assert (asked[2].language, asked[2].files, asked[2].env) == ("bash", {"a": b"1"}, {"K": "v"})


async def test_code_alone_is_no_request(asked: list[CodeRun]) -> None:
    manager: Any = SandboxManager()
    with pytest.raises(InvalidRequest, match="ExecutionRequest, not str") as refused:
        await manager.execute("print(1)")
    assert (refused.value.reason, asked) == ("invalid_value", [])


async def test_a_stream_ends_with_the_result(asked: list[CodeRun]) -> None:
    async with SandboxManager() as manager:
        stream = manager.stream(ExecutionRequest("1"))
        assert [chunk async for chunk in stream] == [("stdout", b"answer")]
        assert stream.result is not None
        assert stream.result.success


async def test_a_stream_raises_what_the_run_raises(asked: list[CodeRun]) -> None:
    async with SandboxManager() as manager:
        with pytest.raises(InvalidRequest):
            assert [chunk async for chunk in manager.stream(ExecutionRequest("1", language="ruby"))] == []


class TestEngines:
    """Managers with the same settings share one engine; the last one out ends it."""

    @pytest.fixture
    def built(self, monkeypatch: pytest.MonkeyPatch) -> list[ScriptedBackend]:
        backends: list[ScriptedBackend] = []

        def build(settings: wiring.Settings) -> wiring.Engine:
            backend = ScriptedBackend(lambda _: ended(b"1"))
            backends.append(backend)
            keeper = Keeper(backend, settings.pool, default=WorkerSpec())
            pools = Pools(Isolation.AUTO, lambda _: keeper)
            executor = CodeExecutor(pools, lambda *_: "/nowhere")
            return wiring.Engine(
                orchestrator_over(executor),
                Pools(Isolation.AUTO, lambda _: keeper),
                wiring.make_authority(None, SystemClock()),
            )

        monkeypatch.setattr(wiring, "build", build)
        monkeypatch.setattr(engines, "_engines", {})
        monkeypatch.setattr(engines, "_kept", {})
        return backends

    async def test_equal_managers_share_and_the_last_one_ends_it(self, built: list[ScriptedBackend]) -> None:
        first, second = SandboxManager("a"), SandboxManager("b")
        async with first:
            async with second:
                await first.execute_code("python", "1")
                await second.execute_code("python", "1")
            assert len(built) == 1
            assert not built[0].closed
        assert built[0].closed

    async def test_other_settings_mean_another_engine(self, built: list[ScriptedBackend], tmp_path: Path) -> None:
        small = Limits(memory_bytes=64 * MIB)
        async with SandboxManager(), SandboxManager(limits=small), SandboxManager(home=tmp_path):
            assert len(built) == 3
        assert all(backend.closed for backend in built)

    async def test_cleaning_up_twice_takes_nothing_from_others(self, built: list[ScriptedBackend]) -> None:
        first, second = SandboxManager(), SandboxManager()
        async with first:
            await second.execute_code("python", "1")
            await second.cleanup()
            await second.cleanup()
            assert not built[0].closed

    async def test_a_manager_can_be_used_again_after_its_cleanup(self, built: list[ScriptedBackend]) -> None:
        manager = SandboxManager()
        for _ in range(2):
            assert (await manager.execute_code("python", "1")).success
            await manager.cleanup()
        assert [backend.closed for backend in built] == [True, True]

    def test_the_one_line_api_keeps_its_engine(self, built: list[ScriptedBackend]) -> None:
        try:
            for _ in range(3):
                assert ringfence.run("1").stdout == "1"
            assert len(built) == 1
            assert not built[0].closed
        finally:
            engines._end_all()
        assert built[0].closed


def test_a_stream_runs_nothing_before_it_is_read(asked: list[CodeRun]) -> None:
    manager = SandboxManager()
    manager.stream(ExecutionRequest("1"))
    assert asked == []
