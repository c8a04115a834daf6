"""A stateful interpreter in a real box: kept variables, judged and recorded cells, and an end that leaves nothing."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from ringfence import SandboxManager
from ringfence.authority.caller import Caller
from ringfence.database.address import open_database
from ringfence.errors import InvalidRequest
from ringfence.journal.reader import reading
from ringfence.outcome import Status

pytestmark = pytest.mark.needs("native")


def record(home: Path, exec_id: str) -> tuple[dict[str, Any], dict[str, Any]]:
    with reading(open_database(home, None)) as reader:
        found = reader.execution(exec_id)
    assert found is not None
    assert found.end is not None
    return json.loads(found.begin.text or ""), json.loads(found.end.text or "")


async def test_cells_share_variables_and_each_is_a_run_on_record(tmp_path: Path) -> None:
    async with SandboxManager(home=tmp_path, pool_size=1) as manager, manager.session() as session:
        await session.run("total = 40")
        cell = await session.run("print('hello'); total + 2")
        process = session.process
    assert (cell.value, cell.stdout, cell.success) == ("42", "hello\n", True)
    assert cell.isolation.seccomp_filters >= 1
    begun, ended = record(tmp_path, cell.exec_id)
    assert begun["process_id"] == process.process_id
    assert begun["op"]["kind"] == "code_run"
    assert ended["outcome"] == "succeeded"
    assert "hello" not in json.dumps([begun, ended])
    assert record(tmp_path, process.exec_id)[1]["outcome"] in ("cancelled", "killed")


async def test_files_of_the_session_are_there_and_its_artifacts_come_with_the_cell(tmp_path: Path) -> None:
    manager = SandboxManager(home=tmp_path, pool_size=1)
    async with manager, manager.session(files={"data.csv": "a,b\n1,2\n"}) as session:
        read = await session.run("open('data.csv').read()")
        table = await session.run("class T:\n    def _repr_html_(self): return '<b>1</b>'\nT()")
    assert read.value == repr("a,b\n1,2\n")
    assert [(artifact.path, artifact.read()) for artifact in table.artifacts] == [("cell-2-1.html", b"<b>1</b>")]


@pytest.mark.timeout(300)
async def test_a_plot_and_a_table_of_the_real_libraries_become_files_of_the_cell() -> None:
    async with (
        SandboxManager(pool_size=0) as manager,
        manager.session(packages=["pandas", "matplotlib"]) as session,
    ):
        plot = await session.run("import matplotlib.pyplot as plt\nplt.plot([1, 4, 9])\nNone")
        assert plot.status is Status.SUCCEEDED
        (picture,) = plot.artifacts
        assert picture.path == "cell-1-1.png"
        assert picture.read().startswith(b"\x89PNG\r\n")
        table = await session.run("import pandas as pd\npd.DataFrame({'a': range(100), 'b': 2})")
        page, rows = table.artifacts
        assert (page.path, rows.path) == ("cell-2-1.html", "cell-2-2.csv")
        assert b"<table" in page.read()
        assert rows.read().splitlines()[::100] == [b",a,b", b"99,99,2"]
        many = await session.run("pd.DataFrame({'a': range(10_001)})")
        assert [each.path for each in many.artifacts] == ["cell-3-1.html"]


async def test_a_cell_the_policy_refuses_does_not_run_and_the_session_goes_on(tmp_path: Path) -> None:
    policy = tmp_path / "policy.yaml"
    policy.write_text("policies: {default: {max_execution_time: 20s}, tools: {code_run: {sandbox_enabled: true}}}")
    manager = SandboxManager(home=tmp_path / "home", pool_size=1, policy_file=policy)
    async with manager, manager.session() as session:
        await session.run("x = 1")
        with pytest.raises(InvalidRequest, match="20"):
            await session.run("x = 2", timeout=3000)
        assert (await session.run("x")).value == "1"


async def test_another_tenant_cannot_run_a_cell_in_it(tmp_path: Path) -> None:
    async with SandboxManager(home=tmp_path, pool_size=1) as manager:
        mine, theirs = manager.acting_for(Caller("acme")), manager.acting_for(Caller("other"))
        async with mine.session() as session:
            await session.run("secret = 'mine'")
            for nobody in (session.process.process_id, "pr_unknown"):
                with pytest.raises(InvalidRequest) as refused:
                    await theirs.run_cell(nobody, "secret")
                assert (refused.value.reason, str(refused.value)) == ("not_found", "there is no such process")


async def test_a_process_that_is_no_interpreter_takes_no_cell(tmp_path: Path) -> None:
    async with SandboxManager(home=tmp_path, pool_size=1) as manager:
        process = await manager.start_process("cat")
        with pytest.raises(InvalidRequest) as refused:
            await manager.run_cell(process.process_id, "1")
        assert refused.value.reason == "no_interpreter"
        await process.kill()


async def test_a_cell_that_uses_up_the_memory_takes_the_session_and_says_why(tmp_path: Path) -> None:
    async with SandboxManager(home=tmp_path, pool_size=1) as manager:
        from ringfence.capability.limits import MIB, Limits

        async with manager.session(limits=Limits(memory_bytes=128 * MIB)) as session:
            cell = await session.run("x = bytearray(1 << 30)\nfor i in range(0, len(x), 4096): x[i] = 1")
            assert cell.status in (Status.KILLED, Status.FAILED)
            if cell.status is Status.KILLED:
                assert cell.killed_by == "memory"
                with pytest.raises(InvalidRequest, match="over"):
                    await session.run("1")


async def test_leaving_the_session_leaves_nothing_running(tmp_path: Path) -> None:
    async with SandboxManager(home=tmp_path, pool_size=1) as manager:
        async with manager.session() as session:
            await session.run("import subprocess\np = subprocess.Popen(['sleep', '1000'])")
        assert session.process.state is not Status.RUNNING


async def test_who_is_cancelled_in_a_cell_finds_the_variables_again(tmp_path: Path) -> None:
    async with SandboxManager(home=tmp_path, pool_size=1) as manager, manager.session() as session:
        await session.run("x = 7")
        is_on = asyncio.Event()
        running = asyncio.ensure_future(
            session.run("import time\nprint('on', flush=True)\ntime.sleep(100)", on_output=lambda *_: is_on.set())
        )
        await is_on.wait()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert (await session.run("x")).value == "7"


async def test_only_python_has_sessions(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="python"):
        SandboxManager(home=tmp_path).session("javascript")
