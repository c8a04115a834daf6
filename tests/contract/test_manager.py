"""A manager with an address and one with an engine of its own are the same to whoever uses them."""

from __future__ import annotations

import asyncio
import hashlib
import json
from typing import Any

import pytest
from tests.manager_doors import Door

import ringfence
from ringfence import (
    Artifact,
    BrokerOutcome,
    Budget,
    CapabilityBlocked,
    Correlation,
    Denied,
    ExecutionRequest,
    ExecutionResult,
    InvalidRequest,
    Layers,
    Limits,
    PathTraversalError,
    RingfenceError,
    RunCodeTool,
    SandboxType,
    Status,
)
from ringfence.operation.brokered import (
    Brokered,
    FsDelete,
    FsList,
    FsMkdir,
    FsOperation,
    FsRead,
    FsStat,
    FsWrite,
    ProcExec,
    TmpAlloc,
    TmpFree,
)
from ringfence.outcome_form import broker_form, result_form

pytestmark = [pytest.mark.needs("native"), pytest.mark.timeout(120), pytest.mark.once]
OF_THIS_RUN = frozenset(
    {"exec_id", "evidence_id", "sandbox_id", "elapsed_ms", "cpu_ms", "memory_peak_bytes", "used", "tasks_peak"}
)


def told(result: ExecutionResult) -> dict[str, Any]:
    """Return every field that two runs of the same thing share."""
    form = {name: value for name, value in result_form(result).items() if name not in OF_THIS_RUN}
    form["isolation"] = {**form["isolation"], "host_uid": 0, "cgroup": ""}
    if result.kept_in is not None:  # named after the execution
        form["kept_in"], form["out"] = "", {**form["out"], "handle": form["out"]["handle"].replace(result.kept_in, "")}
    return form


REQUESTS = {
    "python": ExecutionRequest("print(6 * 7)"),
    "bash": ExecutionRequest("echo $((6 * 7)); echo no >&2; exit 3", "bash"),
    "a failure": ExecutionRequest("raise SystemExit('so')"),
    "arguments": ExecutionRequest("import sys; print(sys.argv[1:])", args=("a", "--b", "ä")),
    "stdin": ExecutionRequest("import sys; sys.stdout.buffer.write(sys.stdin.buffer.read())", stdin=b"\xff\x00\xfe"),
    "files": ExecutionRequest("print(open('a/b.txt').read())", files={"a/b.txt": "ä"}),
    "inputs": ExecutionRequest("print(open('/workspace/inputs/c').read())", inputs={"c": b"d"}),
    "environment": ExecutionRequest("import os; print(os.environ['NAME'])", env={"NAME": "value"}),
    "output that is no text": ExecutionRequest(r"import sys; sys.stdout.buffer.write(bytes(range(256)))"),
    "artifacts": ExecutionRequest("open('/workspace/artifacts/x.bin', 'wb').write(bytes(1000))"),
    "files it writes": ExecutionRequest("open('new.txt', 'w').write('n')"),
    "too much output": ExecutionRequest("print('x' * 3_000_000)"),
    "a time limit": ExecutionRequest("while True: pass", timeout=0.5),
    "a memory limit": ExecutionRequest("x = bytearray(10**9)", limits=Limits(memory_bytes=64 * 1024 * 1024)),
    "a kill by itself": ExecutionRequest("import os; os.kill(os.getpid(), 9)"),
}


@pytest.mark.parametrize("name", REQUESTS)
async def test_a_run_gives_the_same_result_field_by_field(door: Door, name: str) -> None:
    async with door.manager() as manager, door.embedded() as embedded:
        result = await manager.execute(REQUESTS[name])
        expected = await embedded.execute(REQUESTS[name])
    assert told(result) == told(expected)
    assert result.stdout_raw == expected.stdout_raw


async def test_a_result_has_the_very_types(door: Door) -> None:
    async with door.manager() as manager:
        result = await manager.execute_code("python", "open('/workspace/artifacts/a', 'w').write('b')")
    assert type(result) is ExecutionResult
    assert (type(result.status), type(result.isolation)) == (Status, Layers)
    assert (type(result.sandbox_type), type(result.used).__name__) == (SandboxType, Budget.__name__)
    assert isinstance(result.artifacts[0], Artifact)
    assert result.exec_id.startswith("ex_")
    assert result.evidence_id is not None


async def test_an_artifact_can_be_read_also_when_the_manager_is_gone(door: Door) -> None:
    content = bytes(range(256)) * 500
    code = """import os
os.makedirs('/workspace/artifacts/d')
open('/workspace/artifacts/d/é ?#%.bin', 'wb').write(bytes(range(256)) * 500)"""
    async with door.manager("artifacts") as manager:
        result = await manager.execute_code("python", code)
    (artifact,) = result.artifacts
    assert (artifact.path, artifact.size) == ("d/é ?#%25.bin", len(content))
    assert await asyncio.to_thread(artifact.read) == artifact.content == content
    assert artifact.sha256 == hashlib.sha256(content).hexdigest()


async def test_a_session_keeps_its_files_and_a_run_without_one_leaves_none(door: Door) -> None:
    async with door.manager("kept") as manager, door.manager() as other:
        assert (await manager.execute_shell("echo here > a.txt")).files_written == ("a.txt",)
        assert (await manager.execute_shell("cat a.txt")).stdout == "here\n"
        assert (await other.execute_shell("ls")).stdout == ""


async def test_a_session_keeps_directories_though_nothing_is_in_them(door: Door) -> None:
    async with door.manager("directories") as manager:
        assert (await manager.execute_shell("mkdir -p made/below")).success
        assert (await manager.execute_shell("ls", cwd="/workspace/work/made")).stdout == "below\n"


async def test_options_of_the_manager_go_with_every_run(door: Door) -> None:
    limits = Limits(wall_seconds=0.5)
    async with door.manager(limits=limits, correlation=Correlation(task_id="t-1")) as manager:
        assert (await manager.execute_code("python", "while True: pass")).status is Status.TIMED_OUT


async def test_output_is_told_while_it_comes_on_the_loop_and_in_order(door: Door) -> None:
    pieces: list[tuple[str, bytes]] = []
    loop = asyncio.get_running_loop()

    def on_output(name: str, data: bytes) -> None:
        assert asyncio.get_running_loop() is loop
        pieces.append((name, data))

    code = "import sys\nfor i in range(500): print(i)\nprint('end', file=sys.stderr)"
    async with door.manager() as manager:
        result = await manager.execute_code("python", code, on_output=on_output)
    assert b"".join(data for name, data in pieces if name == "stdout") == result.stdout_raw
    assert b"".join(data for name, data in pieces if name == "stderr") == b"end\n"


@pytest.mark.parametrize("failure", [ValueError("mine"), InvalidRequest("mine")], ids=repr)
async def test_a_listener_that_fails_ends_the_run_and_is_heard_of(door: Door, failure: Exception) -> None:
    def on_output(*_: object) -> None:
        raise failure

    session = f"failing-{door.name}-{type(failure).__name__}"
    async with door.manager(session) as manager:
        async with asyncio.timeout(20):
            with pytest.raises(type(failure)) as raised:
                await manager.execute_code("python", "print(1, flush=True)\nwhile True: pass", on_output=on_output)
        assert raised.value is failure
        assert (await manager.execute_code("python", "print(2)")).stdout == "2\n"
    if door.name == "embedded":
        return
    kept = [json.loads(found.read_bytes()) for found in door.state.glob(f"**/{session}/artifacts/*/meta.json")]
    assert sorted(each["status"] for each in kept) == ["cancelled", "succeeded"]


async def test_a_stream_has_every_byte_of_much_output(door: Door) -> None:
    async with door.manager() as manager:
        stream = manager.stream(ExecutionRequest("for i in range(100_000): print(i)"))
        seen = b"".join([data async for _, data in stream])
    assert seen == b"".join(b"%d\n" % i for i in range(100_000))
    assert stream.result is not None
    assert stream.result.stdout_raw == seen


async def test_a_stream_begins_before_the_run_ends(door: Door) -> None:
    async with door.manager() as manager:
        async for name, data in manager.stream(ExecutionRequest("print('go', flush=True)\nwhile True: pass")):
            assert (name, data) == ("stdout", b"go\n")
            break


async def test_a_caller_who_waits_only_so_long_gets_a_timeout_of_his_own(door: Door) -> None:
    async with door.manager(f"patience-{door.name}") as manager:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1):
                await manager.execute_code("python", "print(1, flush=True)\nwhile True: pass")


@pytest.mark.parametrize("streaming", [False, True])
async def test_cancelling_the_task_ends_the_run(door: Door, streaming: bool) -> None:
    begun = asyncio.Event()
    code = "import time\nopen('begun', 'w').close()\nwhile True: time.sleep(0.01)"
    session = f"cancelled-{door.name}-{streaming}"
    async with door.manager(session) as manager:
        on_output = (lambda *_: begun.set()) if streaming else None
        task = asyncio.ensure_future(
            manager.execute_code("python", f"print(1, flush=True)\n{code}", on_output=on_output)
        )
        if streaming:
            await begun.wait()
        else:
            await asyncio.sleep(0.3)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        # its turn, its box and its session are free again, and what it said is kept with its record
        assert (await manager.execute_code("python", "print(2)")).stdout == "2\n"
    if not streaming:  # it may not have begun
        return
    kept = [json.loads(found.read_bytes()) for found in door.state.glob(f"**/{session}/artifacts/*/meta.json")]
    assert sorted(each["status"] for each in kept) == ["cancelled", "succeeded"]
    said = [found.read_text() for found in door.state.glob(f"**/{session}/artifacts/*/stdout.txt")]
    assert sorted(said) == ["1\n", "2\n"]


async def test_many_runs_at_once_get_their_own_answers(door: Door) -> None:
    async with door.manager() as manager:
        results = await asyncio.gather(*(manager.execute_code("python", f"print({n})") for n in range(24)))
    assert [result.stdout for result in results] == [f"{n}\n" for n in range(24)]


def test_a_manager_serves_several_event_loops(door: Door) -> None:
    manager = door.manager()

    async def once() -> str:
        return (await manager.execute_code("python", "print(1)")).stdout

    assert [asyncio.run(once()) for _ in range(2)] == ["1\n"] * 2
    asyncio.run(manager.cleanup())


async def test_the_tool_that_runs_code_takes_either(door: Door) -> None:
    async with door.manager() as manager:
        result = await RunCodeTool(manager).execute(code="print('Hello')", language="python", timeout=30)
    assert result.stdout == "Hello\n"


def test_one_line_takes_an_address_too(door: Door) -> None:
    where = {name: value for name, value in door.arguments.items() if name != "pool_size"}
    assert ringfence.run("print(1)", **where).stdout == "1\n"
    written = ringfence.perform(FsWrite("work/one", b"1", overwrite=True), session_id="one-line", **where)
    assert isinstance(written, BrokerOutcome)
    assert ringfence.perform(FsRead("work/one"), session_id="one-line", **where).content == b"1"  # type: ignore[union-attr]


# --- what is refused ---

REFUSED: dict[str, tuple[ExecutionRequest, type[RingfenceError]]] = {
    "an unknown language": (ExecutionRequest("1", "cobol"), InvalidRequest),
    "a path out of the workspace": (ExecutionRequest("1", files={"../x": b""}), PathTraversalError),
    "an input out of its place": (ExecutionRequest("1", inputs={"/etc/x": b""}), PathTraversalError),
    "a variable that is none": (ExecutionRequest("1", env={"A=B": "c"}), InvalidRequest),
    "a NUL": (ExecutionRequest("1\0"), InvalidRequest),
    "a limit beyond the ceiling": (ExecutionRequest("1", timeout=10**6), InvalidRequest),
    "a limit below zero": (ExecutionRequest("1", timeout=-1), InvalidRequest),
    "a package that is no name": (ExecutionRequest("1", packages=["../x"]), InvalidRequest),
}


@pytest.mark.parametrize("name", REFUSED)
async def test_a_refusal_is_the_same_error(door: Door, name: str) -> None:
    request, kind = REFUSED[name]
    async with door.manager() as manager, door.embedded() as embedded:
        with pytest.raises(kind) as refused:
            await manager.execute(request)
        with pytest.raises(kind) as expected:
            await embedded.execute(request)
    assert same(refused.value) == same(expected.value)


def same(error: RingfenceError) -> tuple[object, ...]:
    details = {name: value for name, value in error.details.items() if name != "evidence_id"}
    return type(error), str(error), error.code, error.reason, error.retryable, details


async def test_a_session_that_is_no_name_is_refused(door: Door) -> None:
    async with door.manager("../x") as manager:
        with pytest.raises(InvalidRequest) as refused:
            await manager.execute_code("python", "1")
    assert refused.value.reason == "invalid_session_id"


# --- operations ---


async def test_files_are_written_read_listed_and_deleted_alike(door: Door) -> None:
    operations: list[FsOperation] = [
        FsMkdir("work/d"),
        FsWrite("work/d/a.bin", b"\xff\x00", overwrite=False),
        FsRead("work/d/a.bin"),
        FsRead("work/d/a.bin", offset=1, len=1),
        FsList("work/d"),
        FsStat("work/d/a.bin"),
        FsDelete("work/d/a.bin"),
    ]
    session = f"operations-{door.name}"
    async with door.manager(session) as manager, door.embedded(session) as embedded:
        for operation in operations:
            outcome = broker_form(await manager.perform(operation))
            expected = broker_form(await embedded.perform(operation))
            for form in (outcome, expected):
                form["used"]["wall_ms"] = form["used"]["cpu_ms"] = 0
                _forget_times(form)
            assert {**outcome, "exec_id": "", "evidence_id": ""} == {**expected, "exec_id": "", "evidence_id": ""}


def _forget_times(form: dict[str, Any]) -> None:
    for entry in (form["out"], *form["out"].get("entries", [])):
        for name in entry.keys() & {"mtime_ns", "mtime_ms", "modified_ms", "modified_ns", "mtime"}:
            entry[name] = 0


FAILING: dict[str, Brokered] = {
    "a file that is not there": FsRead("work/none"),
    "a path that leads out": FsRead("work/../../x"),
    "a place for reading": FsWrite("inputs/x", b""),
    "space that was never given": TmpFree("tmp_none"),
    "a program that is not allowed": ProcExec("/bin/sh", ("-c", "1")),
}


@pytest.mark.parametrize("name", FAILING)
async def test_a_failing_operation_is_the_same_error(door: Door, name: str) -> None:
    async with door.manager("failing") as manager, door.embedded("failing") as embedded:
        with pytest.raises(RingfenceError) as failed:
            await manager.perform(FAILING[name])
        with pytest.raises(RingfenceError) as expected:
            await embedded.perform(FAILING[name])
    assert same(failed.value) == same(expected.value)


async def test_a_program_is_a_result(door: Door) -> None:
    async with door.manager("programs") as manager, door.embedded("programs") as embedded:
        operation = ProcExec("ls", ("/workspace",))
        result = await manager.perform(operation)
        assert told(result) == told(await embedded.perform(operation))


async def test_temporary_space_is_given_and_given_back(door: Door) -> None:
    async with door.manager("space") as manager:
        handle = (await manager.perform(TmpAlloc(1024))).out["handle"]
        assert (await manager.perform(TmpFree(handle))).operation
        with pytest.raises(RingfenceError):
            await manager.perform(TmpFree(handle))


async def test_space_that_nobody_freed_goes_with_the_manager(door: Door) -> None:
    async with door.manager("space") as manager:
        handle = (await manager.perform(TmpAlloc(1024))).out["handle"]
    async with door.manager("space") as manager:
        with pytest.raises(RingfenceError):
            await manager.perform(TmpFree(handle))


async def test_operations_without_a_session_are_refused(door: Door) -> None:
    async with door.manager() as manager:
        with pytest.raises(InvalidRequest):
            await manager.perform(FsRead("work/a"))


async def test_whoever_is_denied_can_catch_it_as_a_denial(door: Door) -> None:
    async with door.manager("denied") as manager:
        with pytest.raises(Denied) as denied:
            await manager.perform(FsWrite("inputs/x", b""))
    assert isinstance(denied.value, CapabilityBlocked)
