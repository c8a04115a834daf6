"""Our AIO client against our own AIO surface: two Ringfences, one of which believes the other in nothing."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests import service_process
from tests.command_line import told

from ringfence import AIOSandboxClient, AIOSandboxPool, CommandStarter, ExecutionRequest, PoolConfig, SandboxManager
from ringfence.errors import Denied, InvalidRequest, Unavailable
from ringfence.outcome import Status

pytestmark = [pytest.mark.needs("native"), pytest.mark.timeout(120)]


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[service_process.ServiceProcess]:
    with service_process.running(tmp_path_factory.mktemp("service"), "--aio") as running:
        yield running


async def test_each_kind_of_call_is_answered(service: service_process.ServiceProcess) -> None:
    async with AIOSandboxClient(service.url, api_key=service.key) as client:
        home = await client.home()
        done = await client.bash.exec("echo out; echo err >&2; exit 3")
        assert (done.status, done.exit_code, done.stdout, done.stderr) == ("completed", 3, "out\n", "err\n")
        assert "hi" in (await client.shell.exec("echo hi")).output
        content = bytes(range(256))
        await client.file.write(f"{home}/d/b.bin", content)
        assert await client.file.download(f"{home}/d/b.bin") == content
        await client.file.write(f"{home}/t.txt", "one\ntwo\nthree\n")
        assert await client.file.read(f"{home}/t.txt", start_line=1, end_line=2) == "two\n"
        assert await client.file.replace(f"{home}/t.txt", "two", "2") == 1
        assert "t.txt" in {entry.name for entry in await client.file.list(home)}
        assert await client.file.find(home, "*.txt") == (f"{home}/t.txt",)
        assert (await client.code.execute("print(6*7)")).stdout == "42\n"
        session = await client.jupyter.create_session()
        await client.jupyter.execute("x = 20", session_id=session)
        assert (await client.jupyter.execute("print(x + 1)", session_id=session)).stdout == "21\n"
        await client.jupyter.end_session(session)


async def test_refusals_keep_their_reason(service: service_process.ServiceProcess) -> None:
    async with AIOSandboxClient(service.url, api_key=service.key) as client:
        with pytest.raises(InvalidRequest) as refused:
            await client.file.read(f"{await client.home()}/nowhere")
        assert refused.value.reason == "not_found"
        with pytest.raises(InvalidRequest) as refused:
            await client.file.download(f"{await client.home()}/nowhere")
        assert refused.value.reason == "not_found"
    async with AIOSandboxClient(service.url, api_key="rfk_wrong") as stranger:
        with pytest.raises(Denied) as denied:
            await stranger.home()
        assert denied.value.reason == "no_key"


async def test_a_program_runs_with_its_files_and_streams(service: service_process.ServiceProcess) -> None:
    request = ExecutionRequest(
        "import sys; print(open('in.txt').read(), sys.argv[1:], sys.stdin.read())",
        args=("a b",),
        stdin="typed",
        files={"in.txt": "read"},
    )
    async with AIOSandboxClient(service.url, api_key=service.key) as client:
        result = await client.execute(request)
        assert (result.status, result.stdout) == (Status.SUCCEEDED, "read ['a b'] typed\n"), result.stderr
        slow = await client.execute(ExecutionRequest("while True: pass", timeout=1))
        assert (slow.status, slow.killed_by) == (Status.TIMED_OUT, "wall_timeout")


async def test_a_manager_runs_in_the_service_and_keeps_its_own_files(
    service: service_process.ServiceProcess, tmp_path: Path
) -> None:
    pool = AIOSandboxPool(PoolConfig(1, 0), instances=[service.url], api_key=service.key)
    async with pool, SandboxManager("s1", aio_pool=pool, home=tmp_path, security_mode="permissive") as manager:
        wrote = await manager.execute_code(
            "bash", "echo one >f; mkdir d; echo 1 >../artifacts/a; cat ../inputs/i", inputs={"i": "in\n"}
        )
        assert (wrote.stdout, wrote.files_written) == ("in\n", ("f",)), wrote
        assert [(each.path, each.read()) for each in wrote.artifacts] == [("a", b"1\n")]
        again = await manager.execute_code("bash", "cat f; ls -d d; rm f")
        assert (again.stdout, again.changes.deleted) == ("one\nd\n", ("f",))
        assert (await manager.execute_code("bash", "ls")).stdout == "d\n"


async def test_a_pool_starts_a_service_of_its_own_and_ends_it(tmp_path: Path) -> None:
    home = tmp_path / "instance"
    key: str = told(home, "key", "create", "--access", "agent")["key"]
    words = [sys.executable, "-m", "ringfence", "serve", "--aio", "--port", "{port}"]
    starter = CommandStarter(["env", f"RINGFENCE_HOME={home}", *words])
    async with AIOSandboxPool(PoolConfig(1, 1), starter=starter, api_key=key) as pool:
        sandbox = await pool.acquire("session_123")
        assert (await sandbox.bash.exec("echo hi")).stdout == "hi\n"
    with pytest.raises(Unavailable, match="takes no connection"):
        await sandbox.home()
