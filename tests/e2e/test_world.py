"""An agent's tool calls, through the one interface it has to the world: each is an operation under the policy."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ringfence import (
    BrokerOutcome,
    ExecutionResult,
    InvalidRequest,
    RingfenceError,
    SandboxManager,
    ToolCall,
    ToolDenied,
    WorldInterface,
    act_node,
)
from ringfence.errors import CapabilityBlocked

BOX = pytest.mark.needs("native")
DOCUMENT = Path(__file__).parents[1] / "unit" / "authority" / "sandbox_policy.yaml"


def manager(at: Path, text: str | None = None) -> SandboxManager:
    """Return a manager of a home of its own, under `text` or else the documents' example."""
    file = DOCUMENT
    if text is not None:
        file = at / "policy.yaml"
        file.write_text(text)
    return SandboxManager("s", home=at / "home", policy_file=file, pool_size=0)


@BOX
@pytest.mark.parametrize("tool", ["code_run", "run_code"])
async def test_code_is_python_and_has_30_seconds_unless_it_says_otherwise(tool: str, tmp_path: Path) -> None:
    async with manager(tmp_path, "policies: {tools: {code_run: {max_execution_time: 29s}}}\n") as held:
        world = WorldInterface(held)
        with pytest.raises(InvalidRequest, match=r"30 s.*exceeds the policy's 29 s"):
            await world.execute(ToolCall(tool, {"code": "print('RAN')"}))
        ran = await world.execute(ToolCall(tool, {"code": "print(6 * 7)", "timeout": 29}))
        assert isinstance(ran, ExecutionResult)
        assert ran.stdout == "42\n"


@BOX
async def test_a_shell_has_30_seconds_unless_it_says_otherwise(tmp_path: Path) -> None:
    async with manager(tmp_path, "policies: {tools: {shell_exec: {max_execution_time: 29s}}}\n") as held:
        world = WorldInterface(held)
        with pytest.raises(InvalidRequest, match=r"30 s.*exceeds the policy's 29 s"):
            await world.execute(ToolCall("shell_exec", {"command": "echo RAN"}))
        ran = await world.execute(ToolCall("shell_exec", {"command": "cat f", "timeout": 29, "files": {"f": "here"}}))
        assert isinstance(ran, ExecutionResult)
        assert ran.stdout == "here"


async def test_files_are_handled_by_their_tools(tmp_path: Path) -> None:
    async with manager(tmp_path) as held:
        world = WorldInterface(held)
        await world.execute(ToolCall("file_write", {"path": "work/a.txt", "content": "0123456789"}))
        read = await world.execute({"tool": "file_read", "params": {"path": "work/a.txt", "offset": 3, "len": 4}})
        assert isinstance(read, BrokerOutcome)
        assert (read.content, read.used.calls) == (b"3456", 1)
        listed = await world.execute(ToolCall("file_list", {"path": "work"}))
        assert isinstance(listed, BrokerOutcome)
        assert [entry["name"] for entry in listed.out["entries"]] == ["a.txt"]
        await world.execute(ToolCall("file_delete", {"path": "work/a.txt"}))
        with pytest.raises(InvalidRequest) as refusal:
            await world.execute(ToolCall("fs_stat", {"path": "work/a.txt"}))
        assert refusal.value.reason == "not_found"


async def test_the_policy_holds_for_every_tool(tmp_path: Path) -> None:
    async with manager(tmp_path) as held:
        world = WorldInterface(held)
        with pytest.raises(CapabilityBlocked):
            await world.execute(ToolCall("file_read", {"path": "/workspace/.env"}))
        with pytest.raises(ToolDenied, match="curl"):
            await world.execute(ToolCall("shell_exec", {"command": "ls; curl http://example.com"}))
        with pytest.raises(ToolDenied, match="curl"):  # a shell by another tool's name is a shell
            await world.execute(ToolCall("code_run", {"language": "bash", "code": "curl http://example.com"}))


@pytest.mark.parametrize("tool", ["system_admin", "network_scan", "", "__class__", "execute_code"])
async def test_a_tool_that_is_not_there_is_denied_and_nothing_runs(tool: str, tmp_path: Path) -> None:
    async with manager(tmp_path) as held:
        with pytest.raises(ToolDenied) as refusal:
            await WorldInterface(held).execute(ToolCall(tool, {"code": "print('RAN')"}))
        assert refusal.value.reason == "unknown_tool"


@pytest.mark.parametrize(
    ("call", "field"),
    [
        (None, "tool"),
        (3, "tool"),
        ({"tool": ["code_run"], "params": {}}, "tool"),
        ({"tool": "code_run", "params": []}, "params"),
        ({"tool": "code_run", "params": {1: 2}}, "params"),
        ({"tool": "code_run", "params": {}, "role": "admin"}, "role"),
        (SimpleNamespace(tool="code_run"), "params"),
        (ToolCall("code_run"), "code"),
        (ToolCall("code_run", {"code": "1", "packages": ["numpy"]}), "packages"),
        (ToolCall("code_run", {"code": "1", "limits": None}), "limits"),
        (ToolCall("shell_exec", {"code": "1", "command": "ls"}), "code"),
        (ToolCall("shell_exec", {}), "command"),
        (ToolCall("file_read", {}), "path"),
        (ToolCall("file_read", {"path": "a", "op": "fs_delete"}), "op"),
        (ToolCall("file_write", {"path": "a", "content": "1", "bytes_b64": "MQ=="}), "content"),
    ],
)
async def test_what_is_not_exactly_a_call_is_refused_by_its_field(call: Any, field: str, tmp_path: Path) -> None:
    async with manager(tmp_path) as held:
        with pytest.raises(InvalidRequest) as refusal:
            await WorldInterface(held).execute(call)
        assert (refusal.value.reason, refusal.value.details["field"]) == ("invalid_operation", field)


@BOX
async def test_a_node_carries_out_what_is_pending_in_order(tmp_path: Path) -> None:
    pending = [
        SimpleNamespace(tool="code_run", params={"code": "open('n', 'w').write('1'); print('first')"}),
        SimpleNamespace(tool="shell_exec", params={"command": "cat n"}),
        SimpleNamespace(tool="shell_exec", params={"command": "sudo ls"}),
        SimpleNamespace(tool="file_read", params={"path": "work/n"}),
    ]
    async with manager(tmp_path) as held:
        answer = await act_node({"pending_actions": pending}, {"sandbox_manager": held})
    assert list(answer) == ["tool_results"]
    assert [told(result) for result in answer["tool_results"]] == ["first\n", "1", "POLICY.DENY_TOOL", "1"]


def told(result: object) -> str:
    match result:
        case ExecutionResult():
            return result.stdout
        case BrokerOutcome():
            return (result.content or b"").decode()
        case RingfenceError():
            return result.code
        case _:
            return repr(result)
