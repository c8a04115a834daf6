"""The code examples of documents 001 and 002, as they are printed there, run with their import lines changed.

`documents/` has them letter by letter. Those with a confirmation service wait for approvals, the one with a browser is
with the browser.
"""

from __future__ import annotations

import ast
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests import aio_service

from ringfence import (
    AgentWorkspace,
    BrokerOutcome,
    ExecutionRequest,
    IsolationUnavailable,
    PathTraversalError,
    SandboxType,
    WorldInterface,
)

pytestmark = [pytest.mark.needs("native")]

DOCUMENTS = Path(__file__).parent / "documents"
POLICY = Path(__file__).parents[1] / "unit" / "authority" / "sandbox_policy.yaml"


@pytest.fixture(autouse=True)
def somewhere_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stand where the examples expect their policy file, with a home of our own."""
    monkeypatch.setenv("RINGFENCE_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sandbox_policy.yaml").write_bytes(POLICY.read_bytes())


def printed(example: str) -> str:
    """Return the example with its import lines changed, and nothing else."""
    text = (DOCUMENTS / f"{example}.txt").read_text()
    return re.sub(r"^from (?:src|app)\.[\w.]+ import ", "from ringfence import ", text, flags=re.MULTILINE)


async def execute(program: str, names: dict[str, Any]) -> None:
    """Run a program that may await at its top level, as the documents' do."""
    # not this module's future imports: the examples have none
    code = compile(program, "<example>", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
    waiting = eval(code, names)
    if waiting is not None:
        await waiting


@asynccontextmanager
async def executed(*programs: str) -> AsyncIterator[dict[str, Any]]:
    """Run examples one after another in one module, and give its names."""
    names: dict[str, Any] = {}
    try:
        for program in programs:
            await execute(program, names)
        yield names
    finally:
        if "manager" in names:
            await names["manager"].cleanup()


async def test_001_code_is_run_as_in_5_1(capsys: pytest.CaptureFixture[str]) -> None:
    async with executed(printed("001_5_1")) as names:
        assert capsys.readouterr().out == "Pi = 3.141592653589793\nSum = 4950\n\n0\n"
        assert names["result"].risk == "high"


async def test_001_a_shell_gets_its_files_as_in_5_2() -> None:
    async with executed(printed("001_5_1"), printed("001_5_2")) as names:
        # the example's program wants pandas, which is not in the box: it was found there, and ran up to that line
        assert names["result"].exit_code == 1
        assert "analyze.py" in names["result"].stderr
        assert "pandas" in names["result"].stderr


async def test_001_a_node_acts_as_in_5_3() -> None:
    pending = [
        SimpleNamespace(tool="code_run", params={"code": "print('Python, unless it says otherwise')"}),
        SimpleNamespace(tool="shell_exec", params={"command": "ls -d /workspace"}),
        SimpleNamespace(tool="file_list", params={"path": "work"}),
    ]
    async with executed(printed("001_5_1")) as names:
        manager = type(names["manager"])("session", policy_file="sandbox_policy.yaml", pool_size=0)
        # what the example takes from the agent around it: the type of its state, and what carries out its other tools
        names |= {"AgentState": dict, "execute_tool": WorldInterface(manager).execute}
        await execute(printed("001_5_3"), names)
        try:
            answer = await names["act_node"]({"pending_actions": pending}, {"sandbox_manager": manager})
        finally:
            await manager.cleanup()
    code, shell, listed = answer["tool_results"]
    assert (code.stdout, shell.stdout) == ("Python, unless it says otherwise\n", "/workspace\n")
    assert isinstance(listed, BrokerOutcome)
    assert listed.out["entries"] == []


async def test_002_the_manager_as_in_4_1(capsys: pytest.CaptureFixture[str]) -> None:
    async with executed(printed("002_4_1")):
        assert capsys.readouterr().out == "True Hello\n\n"


async def test_002_risk_as_in_4_2(capsys: pytest.CaptureFixture[str]) -> None:
    async with executed(printed("002_4_2")) as names:
        assert "import os" in capsys.readouterr().out
        assert names["sandbox_type"] is SandboxType.NATIVE  # a box of ours is what a container is there


async def test_002_no_path_leads_out_of_the_workspace_as_in_4_3() -> None:
    names: dict[str, Any] = {}
    with pytest.raises(PathTraversalError):
        await execute(printed("002_4_3"), names)
    assert names["content"] == "Hello"


@contextmanager
def services(directory: Path, count: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Run as many AIO services as an example's pool wants, where the environment says a pool finds them."""
    with ExitStack() as running:
        urls = [running.enter_context(aio_service.running(directory / str(at))).url for at in range(count)]
        monkeypatch.setenv("RINGFENCE_AIO_INSTANCES", ",".join(urls))
        yield


async def test_002_a_pool_of_services_as_in_4_4(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with services(tmp_path, 2, monkeypatch):
        names: dict[str, Any] = {"request": ExecutionRequest(code="print('in a service')", language="python")}
        await execute(printed("002_4_4"), names)
        assert (names["result"].success, names["result"].stdout) == (True, "in a service\n")
        assert names["result"].sandbox_type is SandboxType.AIO
        await names["pool"].stop()


async def test_002_a_manager_with_a_pool_as_in_9(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before, after = printed("002_9_pool").split("# ... 执行代码 ...")
    with services(tmp_path, 2, monkeypatch):
        async with executed(printed("002_9_basic"), before) as names:
            # strict is the default, and nobody here has seen how a service isolates: who accepts that says so
            with pytest.raises(IsolationUnavailable, match="aio gives os at most"):
                await names["manager"].execute_code("python", "print('pooled')")
            permissive = type(names["manager"])("session_123", aio_pool=names["pool"], security_mode="permissive")
            result = await permissive.execute_code("python", "print('pooled')")
            assert (result.stdout, result.sandbox_type) == ("pooled\n", SandboxType.AIO)
            await permissive.cleanup()
            await execute(after, names)


async def test_002_a_session_runs_and_is_cleaned_up_as_in_9(capsys: pytest.CaptureFixture[str]) -> None:
    async with executed(printed("002_9_basic")) as names:
        await names["execute_code"]()  # there is no pandas in the box, which is the example's other branch
        assert capsys.readouterr().out == "错误: the program exited with 1\n"
        AgentWorkspace("user_session_123").write_file("pandas.py", "__version__ = 'of the session'")
        await names["execute_code"]()
        assert capsys.readouterr().out == "输出: of the session\n\n使用的 Sandbox: native\n"


async def test_002_the_tool_for_code_as_in_6() -> None:
    async with executed(printed("002_6")) as names:
        assert (names["result"].success, names["result"].stdout) == (True, "Hello\n")
        assert names["result"].sandbox_type is SandboxType.NATIVE
