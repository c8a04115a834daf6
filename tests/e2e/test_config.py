"""A configuration kept as a value: it means what the same arguments mean, and widens nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ringfence import InvalidRequest, Limits, SandboxConfig, SandboxManager, SecurityMode, ToolDenied
from ringfence.capability.limits import MIB

BOX = pytest.mark.needs("native")
DOCUMENT = Path(__file__).parents[1] / "unit" / "authority" / "sandbox_policy.yaml"
ONE_SECOND = "policies: {tools: {code_run: {max_execution_time: 1s}}}\n"


@pytest.fixture
def one_second(tmp_path: Path) -> Path:
    path = tmp_path / "policy.yaml"
    path.write_text(ONE_SECOND)
    return path


@BOX
async def test_a_manager_is_made_from_a_config(tmp_path: Path) -> None:
    config = SandboxConfig(pool_size=1, policy_file=DOCUMENT, role="data_analyst", home=tmp_path)
    async with SandboxManager("s", config=config) as manager:
        assert (await manager.execute_code("python", "print(6 * 7)")).stdout == "42\n"
        with pytest.raises(ToolDenied):  # the role has no shell
            await manager.execute_shell("ls")


@BOX
async def test_what_the_manager_is_told_itself_stands_above_its_config(tmp_path: Path) -> None:
    config = SandboxConfig(role="data_analyst", policy_file=DOCUMENT, home=tmp_path, max_memory="64MB", pool_size=0)
    async with SandboxManager(config=config, role="code_assistant", limits=Limits(memory_bytes=256 * MIB)) as manager:
        assert (await manager.execute_shell("ls")).success
        assert (await manager.execute_code("python", f"print(len(bytearray({100 * MIB})))")).success


@BOX
async def test_its_memory_and_time_hold_for_every_run(tmp_path: Path) -> None:
    config = SandboxConfig(max_execution_time="500ms", max_memory="128MB", max_cpu=0.5, home=tmp_path, pool_size=0)
    async with SandboxManager(config=config) as manager:
        hog = await manager.execute_code("python", f"held = bytearray({512 * MIB}); print('RAN')", 20)
        assert (hog.success, "RAN" in hog.stdout) == (False, False)
        endless = await manager.execute_code("python", "while True: pass")
        assert (endless.status, endless.reason) == ("timed_out", "wall_timeout")


@pytest.mark.parametrize("wanted", ["2s", "60s", "1h"])
async def test_it_cannot_ask_for_more_than_the_policy_gives(wanted: str, one_second: Path, tmp_path: Path) -> None:
    config = SandboxConfig(max_execution_time=wanted, policy_file=one_second, home=tmp_path, pool_size=0)
    async with SandboxManager(config=config) as manager:
        with pytest.raises(InvalidRequest, match="exceeds the policy's 1 s"):
            await manager.execute_code("python", "print('RAN')")


async def test_a_timeout_counts_even_where_it_is_the_systems_default(one_second: Path, tmp_path: Path) -> None:
    async with SandboxManager(policy_file=one_second, home=tmp_path, pool_size=0) as manager:
        with pytest.raises(InvalidRequest, match="exceeds the policy's 1 s"):
            await manager.execute_code("python", "print('RAN')", timeout=60)


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"max_memory": 512}, "invalid_unit"),
        ({"max_memory": "much"}, "invalid_unit"),
        ({"max_execution_time": "0s"}, "invalid_unit"),
        ({"max_cpu": "1"}, "invalid_limit"),
        ({"max_cpu": True}, "invalid_limit"),
        ({"pool_size": -1}, "invalid_pool_size"),
        ({"isolation": "none"}, "unknown_isolation"),
        ({"security_mode": "lenient"}, "unknown_security_mode"),
        ({"packages": "numpy"}, "invalid_packages"),
        ({"role": 3}, "invalid_name"),
        ({"executors": {"everything": True}}, "invalid_name"),
    ],
)
def test_a_field_with_a_value_it_cannot_have_is_refused(fields: dict[str, Any], reason: str) -> None:
    with pytest.raises(InvalidRequest) as refusal:
        SandboxManager(config=SandboxConfig(**fields))
    assert refusal.value.reason == reason


def test_a_field_that_does_not_exist_is_a_mistake() -> None:
    with pytest.raises(TypeError, match="max_memroy"):
        SandboxConfig(max_memroy="512MB")  # type: ignore[call-arg]
    with pytest.raises(InvalidRequest, match="config must be a SandboxConfig"):
        SandboxManager(config={"pool_size": 1})  # type: ignore[arg-type]


def test_without_a_word_it_is_strict() -> None:
    assert SandboxConfig().security_mode is SecurityMode.STRICT
    assert SandboxConfig() == SandboxConfig()
