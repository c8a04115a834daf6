"""`AIOSandboxClient` against a service with the shapes of the published interface, and against one that misbehaves."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests import aio_service
from tests.aio_service import AIOService, Raw

from ringfence.errors import CapabilityBlocked, Denied, ExecutionFailed, InvalidRequest, RingfenceError, Unavailable
from ringfence.isolation.aio.client import AIOSandboxClient
from ringfence.outcome import SandboxType, Status
from ringfence.requests import ExecutionRequest

pytestmark = pytest.mark.needs("bwrap")


@pytest.fixture
def service(tmp_path: Path) -> Iterator[AIOService]:
    with aio_service.running(tmp_path / "home") as running:
        yield running


async def use(service: AIOService, call: Callable[[AIOSandboxClient], Any]) -> Any:
    async with AIOSandboxClient(service.url, timeout=10) as client:
        return await call(client)


async def test_it_knows_where_the_service_is_at_home(service: AIOService) -> None:
    assert await use(service, lambda client: client.home()) == str(service.home)


async def test_a_bash_command_has_its_two_streams_apart(service: AIOService) -> None:
    done = await use(service, lambda client: client.bash.exec("echo out; echo err >&2; exit 3"))
    assert (done.status, done.exit_code, done.stdout, done.stderr) == ("completed", 3, "out\n", "err\n")


async def test_a_command_in_the_background_is_followed_by_its_offsets(service: AIOService) -> None:
    async with AIOSandboxClient(service.url) as client:
        begun = await client.bash.exec("echo one; read _ < <(sleep 0.05); echo two", in_background=True)
        said = ""
        while begun.is_under_way or begun.stdout:
            begun = await client.bash.output(begun, wait_seconds=5)
            said += begun.stdout
        assert (said, begun.exit_code) == ("one\ntwo\n", 0)


async def test_a_terminal_is_typed_into_and_looked_at(service: AIOService) -> None:
    async with AIOSandboxClient(service.url) as client:
        done = await client.shell.exec("echo hi", session_id="t1")
        assert (done.session_id, done.status, done.output) == ("t1", "completed", "hi\n")
        assert (await client.shell.view("t1")).output == "hi\n"
        assert await client.shell.wait("t1", 1) == "completed"
        await client.shell.kill("t1")


async def test_files_go_there_and_come_back_as_they_were(service: AIOService) -> None:
    content = bytes(range(256)) * 10
    path = f"{service.home}/a/b.bin"
    async with AIOSandboxClient(service.url) as client:
        await client.file.write(path, content)
        assert await client.file.download(path) == content
        await client.file.write(f"{service.home}/a/t.txt", "one\ntwo\nthree\n")
        await client.file.write(f"{service.home}/a/t.txt", "four\n", append=True)
        assert await client.file.read(f"{service.home}/a/t.txt", start_line=1, end_line=3) == "two\nthree\n"
        assert await client.file.replace(f"{service.home}/a/t.txt", "two", "2") == 1
        assert await client.file.search(f"{service.home}/a/t.txt", "thr") == ("three",)
        assert await client.file.find(f"{service.home}/a", "*.bin") == (path,)
        listed = await client.file.list(f"{service.home}/a")
        assert [(entry.name, entry.is_directory) for entry in listed] == [("b.bin", False), ("t.txt", False)]


async def test_code_and_cells_run(service: AIOService) -> None:
    async with AIOSandboxClient(service.url) as client:
        done = await client.code.execute("print(6*7)")
        assert (done.status, done.stdout, done.exit_code) == ("ok", "42\n", 0)
        session = await client.jupyter.create_session()
        await client.jupyter.execute("x = 20", session_id=session)
        cell = await client.jupyter.execute("print(x + 1)", session_id=session)
        assert (cell.stdout, cell.outputs[0].output_type) == ("21\n", "stream")
        failed = await client.jupyter.execute("1/0", session_id=session)
        assert (failed.status, failed.outputs[0].ename) == ("error", "ZeroDivisionError")
        assert session in await client.jupyter.sessions()
        await client.jupyter.end_session(session)
        assert session not in await client.jupyter.sessions()


async def test_the_browser_is_seen_and_moved(service: AIOService) -> None:
    async with AIOSandboxClient(service.url) as client:
        info = await client.browser.info()
        assert (info.user_agent, info.width) == ("Chrome", 1280)
        assert await client.browser.screenshot() == aio_service.PNG
        await client.browser.act("CLICK", x=1, y=2)
        assert service.requests[-1] == ("POST", "browser/actions", {"action_type": "CLICK", "x": 1, "y": 2})
        await client.browser.navigate("http://127.0.0.1/")
        assert await client.browser.text() == "a page"
        with pytest.raises(InvalidRequest):
            await client.browser.act("EXPLODE")
        with pytest.raises(InvalidRequest):
            await client.browser.page("../../file/write", {})


async def test_the_example_of_the_document_runs(service: AIOService) -> None:
    request = ExecutionRequest(
        "import sys; print(open('in.txt').read(), sys.argv[1:], sys.stdin.read())",
        args=("a b",),
        stdin="typed",
        files={"in.txt": "read"},
        env={"X": "1"},
    )
    result = await use(service, lambda client: client.execute(request))
    assert (result.status, result.stdout) == (Status.SUCCEEDED, "read ['a b'] typed\n")
    assert (result.sandbox_type, result.isolation.namespaces) == (SandboxType.AIO, ())


@pytest.mark.parametrize(
    ("code", "language", "limit", "status", "exit_code", "killed_by"),
    [
        ("exit 4", "bash", 30, Status.FAILED, 4, None),
        ("import os, signal; os.kill(os.getpid(), signal.SIGTERM)", "python", 30, Status.FAILED, 143, None),
        ("while True: pass", "python", 1, Status.TIMED_OUT, None, "wall_timeout"),
    ],
)
async def test_how_a_program_ended_is_told(
    service: AIOService,
    code: str,
    language: str,
    limit: float,
    status: Status,
    exit_code: int | None,
    killed_by: str | None,
) -> None:
    result = await use(service, lambda client: client.execute(ExecutionRequest(code, language, limit)))
    assert (result.status, result.exit_code, result.killed_by) == (status, exit_code, killed_by)


async def test_output_is_told_as_it_comes(service: AIOService) -> None:
    heard: list[tuple[str, bytes]] = []
    request = ExecutionRequest("echo 1; read _ < <(sleep 0.1); echo 2", "bash")
    async with AIOSandboxClient(service.url) as client:
        result = await client.execute(request, on_output=lambda name, data: heard.append((name, data)))
    assert (b"".join(data for _, data in heard), result.stdout) == (b"1\n2\n", "1\n2\n")
    assert len(heard) == 2


async def test_a_cancelled_run_is_killed_there(service: AIOService) -> None:
    started = asyncio.Event()
    request = ExecutionRequest("echo here; exec sleep 1000", "bash")
    async with AIOSandboxClient(service.url) as client:
        task = asyncio.create_task(client.execute(request, on_output=lambda *_: started.set()))
        await started.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    (command,) = (each for each in service.commands.values() if "main.sh" in each.line)
    assert command.process.wait(10) == -9


# --- what it says when it cannot ---

DOCUMENTED = {"path": "/x", "operation": "read", "message": "no such file", "error_type": "not_found", "errno": 2}


@pytest.mark.parametrize(
    ("data", "kind", "reason"),
    [
        (DOCUMENTED, InvalidRequest, "not_found"),
        ({**DOCUMENTED, "content": "", "file": "/x"}, InvalidRequest, "not_found"),
        (None, ExecutionFailed, "refused_there"),
        ({**DOCUMENTED, "error_type": "permission_denied"}, CapabilityBlocked, "unreadable"),
        ({"error_type": ["not", "text"]}, ExecutionFailed, "refused_there"),
    ],
)
async def test_each_form_of_a_refusal_is_one(
    service: AIOService, data: Any, kind: type[RingfenceError], reason: str
) -> None:
    service.scripted["file/read"] = lambda _: {"success": False, "message": "it was\x1b[2J not", "data": data}
    with pytest.raises(kind) as refused:
        await use(service, lambda client: client.file.read("/x"))
    assert refused.value.reason == reason
    assert str(refused.value).isprintable()


async def test_the_missing_file_of_the_service_itself_is_refused(service: AIOService) -> None:
    with pytest.raises(InvalidRequest, match="no such file") as refused:
        await use(service, lambda client: client.file.read("/nowhere/at all"))
    assert refused.value.reason == "not_found"
    with pytest.raises(InvalidRequest) as refused:
        await use(service, lambda client: client.file.download("/nowhere/at all"))
    assert refused.value.reason == "not_found"


async def test_an_error_that_claims_success_is_still_one(service: AIOService) -> None:
    service.scripted["file/read"] = lambda _: {"success": True, "data": DOCUMENTED}
    with pytest.raises(InvalidRequest, match="no such file"):
        await use(service, lambda client: client.file.read("/x"))


@pytest.mark.parametrize(
    ("answer", "kind", "reason"),
    [
        (Raw(b'{"detail": "Unauthorized"}', 401), Denied, "no_key"),
        (Raw(b"no", 403), Denied, "no_key"),
        (Raw(b'{"detail": [{"msg": "Field required"}]}', 422), InvalidRequest, "invalid_request"),
        (Raw(b'{"detail": "Not Found"}', 404), Unavailable, "bad_answer"),
        (Raw(b'{"message": "worker died"}', 500), Unavailable, "unavailable"),
        (Raw(b"<html>", 200, {"Content-Type": "text/html"}), Unavailable, "bad_answer"),
        (Raw(b"", 302, {"Location": "http://127.0.0.1:1/"}), Unavailable, "bad_answer"),
        (Raw(b'{"success": tru', 200, {"Content-Type": "application/json"}), Unavailable, "bad_answer"),
        (Raw(b"[" * 200_000, 200, {"Content-Type": "application/json"}), Unavailable, "bad_answer"),
        (Raw(b'{"a":' + b"[" * 200_000, 200, {"Content-Type": "application/json"}), Unavailable, "bad_answer"),
        ({"success": True, "data": {"file": "/x"}}, Unavailable, "bad_answer"),
        ({"success": True, "data": {"content": 7, "file": "/x"}}, Unavailable, "bad_answer"),
        ({"success": True, "data": [1]}, Unavailable, "bad_answer"),
    ],
)
async def test_what_is_no_answer_is_one_error_with_a_reason(
    service: AIOService, answer: Any, kind: type[RingfenceError], reason: str
) -> None:
    service.scripted["file/read"] = lambda _: answer
    with pytest.raises(kind) as refused:
        await use(service, lambda client: client.file.read("/x"))
    assert refused.value.reason == reason


@pytest.mark.parametrize("home", ["relative", "/a/../b", "/a\nb", "", "/" + "a" * 2000, 7])
async def test_a_home_that_no_service_has_is_not_believed(service: AIOService, home: object) -> None:
    service.scripted["sandbox"] = lambda _: {"success": True, "home_dir": home}
    with pytest.raises(Unavailable):
        await use(service, lambda client: client.home())


@pytest.mark.parametrize("padding", ["", "# " + "x" * 40_000, "# é"])
async def test_a_program_is_the_same_as_a_word_and_as_a_file(service: AIOService, padding: str) -> None:
    code = f"import sys, beside\nprint(beside.x, sys.argv[1:])\n{padding}"
    request = ExecutionRequest(code, args=("--a", "b c"), files={"beside.py": "x = 1"})
    result = await use(service, lambda client: client.execute(request))
    assert (result.stdout, result.stderr) == ("1 ['--a', 'b c']\n", "")


@pytest.mark.needs("node")
@pytest.mark.parametrize("padding", ["", "// " + "x" * 40_000])
async def test_javascript_runs_there(service: AIOService, padding: str) -> None:
    request = ExecutionRequest(f"console.log(require('os').EOL === '\\n', 6*7)\n{padding}", "javascript", args=("a",))
    result = await use(service, lambda client: client.execute(request))
    assert (result.stdout, result.stderr) == ("true 42\n", "")
