"""What a process can do and what can be done to it, whichever backend built its box."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from ringfence import Process, SandboxManager, Status
from ringfence.database.address import open_database
from ringfence.errors import CapabilityBlocked, Denied, InvalidRequest, QuotaExceeded, RingfenceError, Unavailable
from ringfence.journal.reader import reading
from ringfence.processes.running import MOST_SENT

pytestmark = pytest.mark.timeout(60)
OPEN_PORTS = """
policies:
  tools:
    shell_exec: {open_ports: [8000]}
"""


@pytest.fixture(
    params=[
        pytest.param("native", marks=pytest.mark.needs("native")),
        pytest.param("bwrap", marks=pytest.mark.needs("bwrap")),
        pytest.param("docker", marks=pytest.mark.needs("docker")),
    ]
)
def isolation(request: pytest.FixtureRequest) -> str:
    """Each kind of box in turn, but gVisor: a terminal of Debian's ignores the end of input."""
    name: str = request.param
    if name == "docker":
        request.getfixturevalue("docker_engine")
    return name


@asynccontextmanager
async def opened(isolation: str, home: Path, **options: object) -> AsyncIterator[SandboxManager]:
    async with SandboxManager(isolation=isolation, home=home, pool_size=1, **options) as manager:  # type: ignore[arg-type]
        yield manager


async def until(process: Process, words: bytes, stream: str = "stdout") -> bytes:
    """Poll until `words` were said, and return everything up to then."""
    seen, offset = b"", {"stdout": 0, "stderr": 0}
    while words not in seen:
        said = await process.poll(offset["stdout"], offset["stderr"], wait_seconds=20)
        piece = getattr(said, stream)
        seen += piece.data
        offset = {"stdout": said.stdout.next_offset, "stderr": said.stderr.next_offset}
        if said.state is not Status.RUNNING and words not in seen and not piece.data:
            raise AssertionError(f"{said.state} before {words!r}: {seen!r}")
    return seen


async def test_a_process_is_sent_lines_answers_them_and_ends_with_its_input(isolation: str, tmp_path: Path) -> None:
    code = "import sys\nprint('ready')\nfor line in sys.stdin: print('got', line.strip())\nprint('bye')"
    async with opened(isolation, tmp_path) as manager:
        process = await manager.start_process(code=code, language="python")
        assert process.state is Status.RUNNING
        await until(process, b"ready\n")
        await process.send("one\n")
        await until(process, b"got one\n")
        await process.send(b"two\n", end=True)
        result = await process.wait()
        assert (result.status, result.exit_code) == (Status.SUCCEEDED, 0)
        assert result.stdout == "ready\ngot one\ngot two\nbye\n"
        assert (process.state, process.exit_code) == (Status.SUCCEEDED, 0)
        with pytest.raises(InvalidRequest) as refused:
            await process.send(b"three\n")
        assert refused.value.reason == "process_ended"


async def test_a_poll_gives_both_streams_from_their_offsets_and_the_exit_code(isolation: str, tmp_path: Path) -> None:
    async with opened(isolation, tmp_path) as manager:
        process = await manager.start_process("echo out; echo err >&2; exit 3")
        await process.wait()
        said = await process.poll()
        assert (said.state, said.exit_code) == (Status.FAILED, 3)
        assert (said.stdout.data, said.stdout.next_offset, said.stderr.data) == (b"out\n", 4, b"err\n")
        later = await process.poll(said.stdout.next_offset - 2, said.stderr.next_offset)
        assert (later.stdout.data, later.stdout.offset, later.stderr.data) == (b"t\n", 2, b"")


async def test_a_stream_has_everything_in_order_and_ends_with_the_process(isolation: str, tmp_path: Path) -> None:
    async with opened(isolation, tmp_path) as manager:
        process = await manager.start_process("for i in $(seq 2000); do echo line $i; done")
        seen = b"".join([data async for _, _, data in process.stream()])
        assert seen == b"".join(b"line %d\n" % i for i in range(1, 2001))


async def test_a_terminal_is_one_has_a_size_and_can_be_given_another(isolation: str, tmp_path: Path) -> None:
    async with opened(isolation, tmp_path) as manager:
        process = await manager.start_process("PS1='$ ' bash --norc --noediting -i", terminal=(24, 80))
        await until(process, b"$ ")
        await process.send("tty; stty size; test -t 0 -a -t 1 -a -t 2 && echo all-$((40+2))\n")
        said = await until(process, b"all-42")
        assert b"pts/0" in said
        assert b"24 80" in said
        await process.resize(50, 132)
        await process.send("stty size\n")
        await until(process, b"50 132")
        await process.send(b"", end=True)
        assert (await process.wait()).exit_code == 0
        assert (await process.poll()).stderr.data == b""


async def test_what_is_wrong_with_a_text_is_told_on_its_terminal(isolation: str, tmp_path: Path) -> None:
    async with opened(isolation, tmp_path) as manager:
        process = await manager.start_process(code="1 is 1\nx = = 1", language="python", terminal=(24, 80))
        assert (await process.wait()).exit_code == 1
        said = await process.poll()
        assert b"SyntaxError" in said.stdout.data
        assert said.stderr.data == b""
        process = await manager.start_process(code="print(1 is 1)", language="python", terminal=(24, 80))
        assert (await process.wait()).exit_code == 0
        said = await process.poll()
        assert b"SyntaxWarning" in said.stdout.data
        assert said.stderr.data == b""


async def test_an_interrupt_reaches_what_is_in_the_foreground_and_the_shell_lives_on(
    isolation: str, tmp_path: Path
) -> None:
    async with opened(isolation, tmp_path) as manager:
        process = await manager.start_process("PS1='$ ' bash --norc --noediting -i", terminal=(24, 80))
        await process.send(
            "bash -c 'trap \"echo caught; exit 7\" INT; echo wait-$((1+1)); while :; do sleep 0.05; done'\n"
        )
        await until(process, b"wait-2")
        await process.signal("INT")
        await until(process, b"caught")
        await process.send("echo code-$?; exit 5\n")
        await until(process, b"code-7")
        assert (await process.wait()).exit_code == 5


async def test_without_a_terminal_a_signal_reaches_the_whole_group(isolation: str, tmp_path: Path) -> None:
    async with opened(isolation, tmp_path) as manager:
        process = await manager.start_process("trap 'echo told; exit 4' TERM; echo up; sleep 100 & wait")
        await until(process, b"up\n")
        await process.signal("SIGTERM")
        result = await process.wait()
        assert (result.exit_code, result.stdout) == (4, "up\ntold\n")
        with pytest.raises(InvalidRequest):
            await process.signal("KILL")


async def test_a_killed_process_says_by_whom_and_keeps_what_it_had_said(isolation: str, tmp_path: Path) -> None:
    async with opened(isolation, tmp_path) as manager:
        process = await manager.start_process("echo before; sleep 100")
        await until(process, b"before\n")
        await process.kill()
        await process.kill()
        result = await process.wait()
        assert (result.status, result.killed_by, result.stdout) == (Status.CANCELLED, "cancelled", "before\n")
        assert (await process.poll()).stdout.data == b"before\n"


async def test_silence_and_time_are_limits_of_their_own(isolation: str, tmp_path: Path) -> None:
    async with opened(isolation, tmp_path) as manager:
        silent = await manager.start_process("echo once; sleep 100", idle_timeout=1)
        busy = await manager.start_process("while :; do echo again; sleep 0.1; done", idle_timeout=1, timeout=2)
        ended, timed = await silent.wait(), await busy.wait()
        assert (ended.status, ended.killed_by) == (Status.TIMED_OUT, "idle_timeout")
        assert (timed.status, timed.killed_by) == (Status.TIMED_OUT, "wall_timeout")


async def test_what_is_typed_breaks_the_silence_too(isolation: str, tmp_path: Path) -> None:
    async with opened(isolation, tmp_path) as manager:
        process = await manager.start_process("cat > /dev/null; echo done", idle_timeout=1)
        for _ in range(6):
            await asyncio.sleep(0.3)
            await process.send(b"x")
        await process.send(b"", end=True)
        assert (await process.wait()).stdout == "done\n"


@pytest.mark.needs("node")
async def test_a_javascript_process_has_pipes_and_no_terminal(isolation: str, tmp_path: Path) -> None:
    code = (
        "process.stdin.on('data', d => { console.log('got ' + String(d).trim()); process.exit(0) }); console.log('up')"
    )
    async with opened(isolation, tmp_path) as manager:
        process = await manager.start_process(code=code, language="javascript")
        await until(process, b"up\n")
        await process.send(b"one\n")
        assert (await process.wait()).stdout == "up\ngot one\n"
        with pytest.raises(InvalidRequest) as refused:
            await manager.start_process(code=code, language="javascript", terminal=(24, 80))
        assert refused.value.reason == "no_terminal"
        assert len(await manager.processes()) == 1


async def test_a_port_that_was_asked_for_and_granted_is_reached_and_no_other(isolation: str, tmp_path: Path) -> None:
    policy = tmp_path / "policy.yaml"
    policy.write_text(OPEN_PORTS)
    server = "exec python3 -u -m http.server 8000 --bind 127.0.0.1"
    async with opened(isolation, tmp_path / "home", policy_file=policy) as manager:
        process = await manager.start_process(server, ports=[8000], files={"hello.txt": b"hello from inside"})
        await until(process, b"Serving HTTP")
        with await process.connect(8000) as connected:
            connected.settimeout(20)
            connected.sendall(b"GET /hello.txt HTTP/1.0\r\n\r\n")
            answer = b""
            while chunk := connected.recv(4096):
                answer += chunk
        assert answer.endswith(b"hello from inside")
        with pytest.raises(CapabilityBlocked) as refused:
            await process.connect(8001)
        assert refused.value.reason == "port"
        with pytest.raises(Denied):
            await manager.start_process(server, ports=[8001])
        silent = await manager.start_process("sleep 100", ports=[8000])
        with pytest.raises(Unavailable) as nobody:
            await silent.connect(8000)
        assert nobody.value.reason == "connect_failed"


async def test_processes_are_listed_found_and_forgotten_by_their_manager(isolation: str, tmp_path: Path) -> None:
    async with opened(isolation, tmp_path) as manager:
        process = await manager.start_process("echo hi; sleep 100", env={"A": "b"})
        (listed,) = await manager.processes()
        assert (listed.process_id, listed.exec_id, listed.state) == (
            process.process_id,
            process.exec_id,
            Status.RUNNING,
        )
        again = await manager.process(process.process_id)
        await until(again, b"hi\n")
        with pytest.raises(InvalidRequest) as unknown:
            await manager.process("pr_nonsense")
        assert unknown.value.reason == "not_found"
    assert process.state is Status.CANCELLED


async def test_there_are_only_so_many_and_one_that_ended_makes_room(isolation: str, tmp_path: Path) -> None:
    async with opened(isolation, tmp_path) as manager:
        manager._engine().processes()._bounds = type(manager._engine().processes()._bounds)(alive_per_tenant=1)
        first = await manager.start_process("sleep 100")
        with pytest.raises(QuotaExceeded) as full:
            await manager.start_process("sleep 100")
        assert full.value.reason == "concurrency"
        await first.kill()
        await (await manager.start_process("true")).wait()


async def test_its_start_and_end_are_in_evidence_without_what_it_said(isolation: str, tmp_path: Path) -> None:
    async with opened(isolation, tmp_path) as manager:
        process = await manager.start_process("cat; echo loud-secret")
        await process.send(b"quiet-secret\n", end=True)
        await process.wait()
    with reading(open_database(tmp_path, None)) as reader:
        texts = [place.text or "" for log in reader.logs() for place in reader.records(log.number)]
    kept = [(json.loads(text)["type"], text) for text in texts]
    assert [kind for kind, _ in kept] == ["exec.begin", "process.started", "exec.end", "process.ended"]
    started, ended = json.loads(kept[1][1]), json.loads(kept[3][1])
    assert {started["process_id"], ended["process_id"]} == {process.process_id}
    assert {started["exec_id"], ended["exec_id"]} == {process.exec_id}
    assert (ended["outcome"], ended["exit_code"], ended["stdin_bytes"], ended["stdout_bytes"]) == (
        "succeeded",
        0,
        13,
        25,
    )
    assert "secret" not in kept[1][1] + kept[3][1]


async def test_a_request_that_cannot_be_is_refused_before_anything_runs(isolation: str, tmp_path: Path) -> None:
    async with opened(isolation, tmp_path) as manager:
        for wrong in (
            {},
            {"command": "true", "code": "1"},
            {"command": "true", "language": "python"},
            {"command": "true", "terminal": (0, 80)},
            {"command": "true", "terminal": (24, 80, 1)},
            {"command": "true", "terminal": "24x80"},
            {"command": "true", "idle_timeout": 0},
            {"command": "true", "idle_timeout": float("nan")},
            {"command": "true", "ports": [0]},
            {"command": "true", "ports": [70000]},
            {"command": "true", "timeout": 1e9},
        ):
            with pytest.raises(RingfenceError):
                await manager.start_process(**wrong)
        assert await manager.processes() == []
        process = await manager.start_process("sleep 100")
        with pytest.raises(InvalidRequest) as huge:
            await process.send(b"x" * (MOST_SENT + 1))
        assert huge.value.reason == "too_large"
        with pytest.raises(InvalidRequest) as pipes:
            await process.resize(1, 1)
        assert pipes.value.reason == "no_terminal"
