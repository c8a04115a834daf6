"""Operations on files, temporary space and programs through the public names, under the documents' own policy."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import ringfence
from ringfence import AgentWorkspace, BrokerOutcome, InvalidRequest, Limits, SandboxManager
from ringfence.capability.limits import MIB
from ringfence.errors import CapabilityBlocked, PathTraversalError, QuotaExceeded, RingfenceError, ToolDenied
from ringfence.operation.brokered import (
    BrowserNav,
    FsDelete,
    FsList,
    FsMkdir,
    FsRead,
    FsStat,
    FsWrite,
    NetHttp,
    ProcExec,
    TmpAlloc,
    TmpFree,
)

DOCUMENT = Path(__file__).parents[1] / "unit" / "authority" / "sandbox_policy.yaml"
BOX = pytest.mark.needs("native")
PROGRAMS = """
policies:
  tools:
    proc_exec:
      allowed_commands: [printf, cat, env, sleep, missing-tool, sort, bash, head, tail, sha256sum]
      command_templates:
        sort: [{args: [{enum: [-n, -r]}], rest: {regex: "[a-z]+[.]txt"}}]
"""


def policy(at: Path, text: str) -> Path:
    path = at / "policy.yaml"
    path.write_text(text)
    return path


def manager(at: Path, text: str | None = None, session_id: str | None = "s", **options: Any) -> SandboxManager:
    """Return a manager of a home of its own, under `text` or else the documents' example."""
    file = DOCUMENT if text is None else policy(at, text)
    return SandboxManager(session_id, home=at / "home", policy_file=file, pool_size=0, **options)


async def refused(kind: type[RingfenceError], manager: SandboxManager, operation: Any) -> RingfenceError:
    with pytest.raises(kind) as refusal:
        await manager.perform(operation)
    return refusal.value


async def test_files_are_written_read_listed_and_deleted(tmp_path: Path) -> None:
    async with manager(tmp_path) as held:
        written = await held.perform(FsWrite("work/d/f", b"0123456789"))
        assert (written.out["created"], written.used.bytes_out, written.used.file_count) == (True, 10, 1)
        read = await held.perform(FsRead("/workspace/work/d/f", offset=3, len=4))
        assert (read.content, read.used.bytes_in, read.used.calls) == (b"3456", 4, 1)
        assert read.exec_id.startswith("ex_")
        assert (await refused(InvalidRequest, held, FsWrite("work/d/f", b"x"))).reason == "exists"
        assert not (await held.perform(FsWrite("work/d/f", b"9876543210", overwrite=True))).out["created"]
        assert (await held.perform(FsMkdir("work/e"))).out["created"]
        assert (await held.perform(FsStat("work/d/f"))).out["size"] == 10
        first = await held.perform(FsList("work", limit=1))
        second = await held.perform(FsList("work", first.out["cursor"], 1))
        assert [entry["name"] for page in (first, second) for entry in page.out["entries"]] == ["d", "e"]
        assert (await held.perform(FsDelete("work/d/f"))).out["kind"] == "file"
        assert (await refused(InvalidRequest, held, FsRead("work/d/f"))).reason == "not_found"


@pytest.mark.parametrize(
    "path",
    [
        "/workspace/.env",
        "/workspace/.ENV",
        ".env",
        "./.env",
        "/workspace//./.env",
        "work/.env",
        "/workspace/code/.ENV",
        "inputs/.env",
        "/workspace/work/server.key",
        "/workspace/code/server.key",
        "data/server.key",
        "work/a/b/c.KEY",
        "/workspace/server.key/below",
    ],
)
async def test_what_the_document_denies_is_not_read_however_it_is_spelled(tmp_path: Path, path: str) -> None:
    with AgentWorkspace("s", home=tmp_path / "home") as workspace:
        for name in ("server.key", "a/b/c.KEY"):
            workspace.write_file(name, "SECRET")
    async with manager(tmp_path) as held:
        refusal = await refused(CapabilityBlocked, held, FsRead(path))
        assert (refusal.code, refusal.reason) == ("SANDBOX.CAPABILITY_BLOCKED", "blacklist")


KINDS = (FsRead, FsWrite, FsList, FsStat, FsMkdir, FsDelete)
OUTSIDE = ("../../etc/passwd", "/etc/passwd", "work/../../x", "//etc/passwd", "work/\0", "work/link/passwd")


@pytest.mark.parametrize(
    ("kind", "path"),
    # a link's own name is in the workspace: it may be looked at and deleted, and nothing more
    [
        *((kind, path) for kind in KINDS for path in OUTSIDE),
        *((kind, "work/link") for kind in (FsRead, FsWrite, FsList)),
    ],
)
async def test_no_path_leads_out_of_the_workspace(tmp_path: Path, kind: Any, path: str) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "passwd").write_text("SECRET")
    AgentWorkspace("s", home=tmp_path / "home").close()
    (work,) = (tmp_path / "home").rglob("work")
    (work / "link").symlink_to(outside)
    async with manager(tmp_path, "policies: {}\n") as held:
        with pytest.raises((CapabilityBlocked, PathTraversalError, InvalidRequest)) as refusal:
            await held.perform(kind(path))
        wanted = "SCHEMA.VALIDATION_FAILED" if "\0" in path else "SANDBOX.CAPABILITY_BLOCKED"
        assert refusal.value.code == wanted
        assert "SECRET" not in str(refusal.value)
        assert str(tmp_path) not in str(refusal.value)
    assert [(entry.name, entry.read_text()) for entry in outside.iterdir()] == [("passwd", "SECRET")]


async def test_a_role_uses_its_own_tools_and_no_other(tmp_path: Path) -> None:
    async with manager(tmp_path, role="data_analyst") as held:  # file_read and code_run
        refusal = await refused(ToolDenied, held, FsWrite("work/f", b"x"))
        assert refusal.reason == "tool_denied"
        assert (await refused(InvalidRequest, held, FsRead("work/f"))).reason == "not_found"
    async with manager(tmp_path, role="code_assistant") as held:
        assert (await held.perform(FsWrite("work/f", b"x"))).out["created"]
        for operation in (FsDelete("work/f"), TmpAlloc(1), ProcExec("ls")):
            assert (await refused(ToolDenied, held, operation)).reason == "tool_denied"


async def test_writing_is_not_reading_and_each_path_is_its_own(tmp_path: Path) -> None:
    text = """
policies:
  tools:
    file_read: {allowed_paths: [inputs]}
    file_list: {allowed_paths: [work]}
    file_write: {allowed_paths: [work/out]}
"""
    async with manager(tmp_path, text) as held:
        await held.perform(FsWrite("work/out/f", b"x"))
        assert [entry["name"] for entry in (await held.perform(FsList("work"))).out["entries"]] == ["out"]
        assert (await refused(InvalidRequest, held, FsRead("inputs/none"))).reason == "not_found"
        for operation in (FsRead("work/out/f"), FsList("inputs"), FsWrite("work/f", b"x"), FsWrite("inputs/f", b"x")):
            refusal = await refused(CapabilityBlocked, held, operation)
            assert (refusal.code, refusal.reason) == ("SANDBOX.CAPABILITY_BLOCKED", "path")


async def test_the_limits_of_the_policy_are_the_brokers_caps(tmp_path: Path) -> None:
    text = "policies: {default: {max_bytes_in: 4B, max_bytes_out: 6B, max_files: 2, max_depth: 3}}\n"
    async with manager(tmp_path, text) as held:
        assert (await refused(CapabilityBlocked, held, FsWrite("work/f", b"1234567"))).reason == "too_large"
        await held.perform(FsWrite("work/f", b"123456"))
        read = await held.perform(FsRead("work/f"))
        assert (read.content, read.out["truncated"]) == (b"1234", True)
        assert (await refused(CapabilityBlocked, held, FsRead("work/f", len=5))).reason == "too_large"
        assert (await refused(CapabilityBlocked, held, FsMkdir("work/a/b/c"))).reason == "max_depth"
        await held.perform(FsMkdir("work/a"))
        assert (await refused(CapabilityBlocked, held, FsWrite("work/g", b"x"))).reason == "max_files"


async def test_where_the_policy_keeps_content_back_there_is_a_digest_and_a_handle(tmp_path: Path) -> None:
    async with manager(tmp_path, "policies: {default: {output_inline: false}}\n") as held:
        await held.perform(FsWrite("work/f", b"CONFIDENTIAL"))
        read = await held.perform(FsRead("work/f"))
        assert read.content is None
        assert "CONFIDENTIAL" not in repr(read)
        assert hashlib.sha256(b"CONFIDENTIAL").hexdigest() in read.out["handle"]


async def test_where_the_policy_keeps_content_back_nobody_hears_what_a_program_says(tmp_path: Path) -> None:
    heard: list[bytes] = []
    async with manager(tmp_path, "policies: {default: {output_inline: false}}\n") as held:
        result = await held.execute_code(
            "python", "import sys; print('CONFIDENTIAL'); print('HIDDEN', file=sys.stderr)",
            on_output=lambda _, chunk: heard.append(chunk),
        )  # fmt: skip
        assert (result.success, result.stdout, result.stderr, heard) == (True, "", "", [])
        assert result.out["stdout_sha256"] == hashlib.sha256(b"CONFIDENTIAL\n").hexdigest()
        assert (result.out["stdout_bytes"], result.out["stderr_bytes"], result.out["preview"]) == (13, 7, "")
        assert "CONFIDENTIAL" not in repr(result)
        with pytest.raises(CapabilityBlocked):
            await held.redeem(result.out["handle"])
        with pytest.raises(CapabilityBlocked, match="a process is listened to"):
            await held.start_process("echo CONFIDENTIAL")
    async with manager(tmp_path) as another:  # under a policy that shows it
        assert await another.redeem(result.out["handle"]) == b"CONFIDENTIAL\n"


async def test_the_output_of_a_run_has_a_handle_that_brings_it_back_or_nothing(tmp_path: Path) -> None:
    async with manager(tmp_path) as held:
        result = await held.execute_code("python", "print('x' * 1000)")
        assert {"handle", "stdout_sha256", "stdout_bytes", "preview"} <= result.out.keys()
        assert await held.redeem(result.out["handle"]) == result.stdout_raw
        written = await held.perform(FsWrite("work/f", b"0123456789"))
        assert await held.redeem(written.out["handle"]) == b"0123456789"
        await held.perform(FsWrite("work/f", b"changed", overwrite=True))
        with pytest.raises(CapabilityBlocked) as changed:
            await held.redeem(written.out["handle"])
        assert changed.value.reason == "changed"
        for wrong in ("", "fs:0+1", "net:0+1:" + "0" * 64 + ":work/f", "fs:0+1:" + "0" * 64 + ":../../etc/passwd"):
            with pytest.raises(RingfenceError):
                await held.redeem(wrong)


async def test_a_run_without_a_session_is_kept_nowhere_and_has_no_handle(tmp_path: Path) -> None:
    async with SandboxManager(home=tmp_path / "home", pool_size=0) as alone:
        result = await alone.execute_code("python", "print(1)")
        assert "handle" not in result.out


@pytest.mark.parametrize(
    ("budget", "operations", "reason"),
    [
        ("calls: 2", [FsWrite("work/f", b"x"), FsStat("work/f"), FsStat("work/f")], "calls"),
        ("bytes_out: 5", [FsWrite("work/f", b"123"), FsWrite("work/g", b"123")], "bytes_out"),
        ("file_count: 1", [FsWrite("work/f", b"1"), FsMkdir("work/g")], "file_count"),
        ("bytes_in: 4", [FsWrite("work/f", b"123456"), FsRead("work/f", len=3), FsRead("work/f", len=3)], "bytes_in"),
        ("disk_bytes: 9", [TmpAlloc(5), TmpAlloc(5)], "disk"),
    ],
)
async def test_a_budget_counts_what_the_brokers_move(
    tmp_path: Path, budget: str, operations: list[Any], reason: str
) -> None:
    async with manager(tmp_path, f"policies: {{}}\nbudgets: {{tenant: {{local: {{{budget}}}}}}}\n") as held:
        for operation in operations[:-1]:
            await held.perform(operation)
        refusal = await refused(QuotaExceeded, held, operations[-1])
        assert (refusal.code, refusal.reason) == ("QUOTA.BUDGET_EXCEEDED", reason)


async def test_what_is_left_of_a_budget_is_the_most_that_a_read_brings(tmp_path: Path) -> None:
    async with manager(tmp_path, "policies: {}\nbudgets: {session: {s: {bytes_in: 8}}}\n") as held:
        await held.perform(FsWrite("work/f", b"123456"))
        assert [(await held.perform(FsRead("work/f"))).content for _ in range(2)] == [b"123456", b"12"]
        assert (await refused(QuotaExceeded, held, FsRead("work/f"))).reason == "bytes_in"


async def test_what_the_guard_refuses_costs_nothing_and_what_a_broker_took_on_its_call(tmp_path: Path) -> None:
    async with manager(tmp_path, "policies: {}\nbudgets: {tenant: {local: {calls: 2}}}\n") as held:
        for _ in range(3):
            await refused(ToolDenied, held, NetHttp("GET", "https://example.com/"))
        await refused(InvalidRequest, held, FsRead("work/none"))
        await held.perform(FsWrite("work/f", b"x"))
        await refused(QuotaExceeded, held, FsRead("work/f"))


async def test_temporary_space_is_one_managers_and_ends_with_it(tmp_path: Path) -> None:
    async with manager(tmp_path) as held, manager(tmp_path) as other:
        handle = (await held.perform(TmpAlloc(100))).out["handle"]
        await held.perform(FsWrite(f"{handle}/f", b"x"))
        assert (await held.perform(FsRead(f"{handle}/f"))).content == b"x"
        assert (await refused(QuotaExceeded, held, FsWrite(f"{handle}/g", bytes(200)))).reason == "disk"
        assert (await refused(InvalidRequest, other, TmpFree(handle))).reason == "invalid_handle"
        assert (await refused(CapabilityBlocked, other, FsRead(f"{handle}/f"))).reason == "path"
        await held.cleanup()
        assert (await refused(CapabilityBlocked, held, FsRead(f"{handle}/f"))).reason == "path"
        second = (await other.perform(TmpAlloc(100))).out["handle"]
        assert (await other.perform(TmpFree(second))).out == {"handle": second}
    assert list((tmp_path / "home" / "tmp").iterdir()) == []


async def test_a_forked_child_takes_no_space_from_its_parent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with manager(tmp_path), manager(tmp_path) as held:
        await held.perform(TmpAlloc(100))
        with monkeypatch.context() as child:
            child.setattr(os, "getpid", lambda: -1)
            await held.cleanup()
        (holder,) = (tmp_path / "home" / "tmp").iterdir()
        assert len(list(holder.iterdir())) == 1


def held_below(root: Path) -> list[str]:
    links = [f"/proc/self/fd/{name}" for name in os.listdir("/proc/self/fd")]
    return [target for link in links if os.path.lexists(link) and (target := os.readlink(link)).startswith(str(root))]


async def test_nothing_is_held_open_after_the_last_manager(tmp_path: Path) -> None:
    async with manager(tmp_path, "policies: {}\nbudgets: {tenant: {local: {calls: 9}}}\n") as held:
        handle = (await held.perform(TmpAlloc(100))).out["handle"]
        await held.perform(FsWrite(f"{handle}/f", b"x"))
        await refused(InvalidRequest, held, FsRead("work/none"))
        assert held_below(tmp_path)
    assert held_below(tmp_path) == []


async def test_without_a_session_there_are_no_files(tmp_path: Path) -> None:
    async with manager(tmp_path, session_id=None) as held:
        for operation in (FsRead("work/f"), TmpAlloc(1)):
            refusal = await refused(InvalidRequest, held, operation)
            assert (refusal.reason, refusal.fix) == ("invalid_session_id", "give a session_id")


@pytest.mark.parametrize(
    ("switch", "operation"),
    [
        ("fs", FsRead("work/f")),
        ("tmp", TmpAlloc(1)),
        ("proc", ProcExec("cat")),
        ("net", NetHttp("GET", "https://example.com/")),
        ("browser", BrowserNav("https://example.com/")),
    ],
)
async def test_each_executor_can_be_switched_off(tmp_path: Path, switch: str, operation: Any) -> None:
    text = (
        PROGRAMS
        + "    http_request: &net {network_access: true, allowed_domains: [example.com]}\n"
        + ("    browser_automation: {network_access: true, allowed_domains: [example.com]}\n")
    )
    text = text.replace("&net ", "")
    async with manager(tmp_path, text, executors={switch: False}) as held:
        refusal = await refused(CapabilityBlocked, held, operation)
        assert (refusal.code, refusal.reason) == ("SANDBOX.CAPABILITY_BLOCKED", "executor_disabled")
        if switch != "fs":
            assert (await held.perform(FsWrite("work/f", b"x"))).out["created"]


async def test_running_code_can_be_switched_off(tmp_path: Path) -> None:
    async with manager(tmp_path, executors={"code": False}) as held:
        with pytest.raises(CapabilityBlocked, match="switched off"):
            await held.execute_code("python", "print('RAN')")


@pytest.mark.parametrize("executors", [{"fs": 0}, {"files": False}, ["fs"], {1: True}])
def test_a_switch_that_is_none_is_refused(executors: Mapping[str, bool]) -> None:
    with pytest.raises(InvalidRequest):
        SandboxManager(executors=executors)


@pytest.mark.parametrize("operation", [None, "fs_read", {"op": "fs_read"}, FsRead, FsRead(""), FsRead(7)])  # type: ignore[arg-type]
async def test_what_is_no_operation_is_refused(tmp_path: Path, operation: Any) -> None:
    async with manager(tmp_path) as held:
        assert (await refused(InvalidRequest, held, operation)).reason in ("unknown_operation", "invalid_operation")


def test_one_operation_in_one_line(tmp_path: Path) -> None:
    where: dict[str, Any] = {"session_id": "s", "home": tmp_path, "policy_file": DOCUMENT}
    ringfence.perform(FsWrite("work/f", b"x"), **where)
    read = ringfence.perform(FsRead("work/f"), **where)
    assert isinstance(read, BrokerOutcome)
    assert read.content == b"x"
    with pytest.raises(CapabilityBlocked):
        ringfence.perform(FsRead("work/f.key"), **where)
    taken = ringfence.perform(TmpAlloc(10), **where)
    assert isinstance(taken, BrokerOutcome)
    ringfence.perform(FsWrite(f"{taken.out['handle']}/f", b"x"), **where)
    ringfence.perform(TmpFree(taken.out["handle"]), **where)


@BOX
async def test_a_run_sees_what_was_written_and_what_it_left_is_read(tmp_path: Path) -> None:
    async with manager(tmp_path) as held:
        await held.perform(FsWrite("work/f", b"1"))
        assert (await held.execute_code("python", "open('g', 'w').write(open('f').read() + '2')")).success
        assert (await held.perform(FsRead("work/g"))).content == b"12"


@BOX
async def test_an_argument_stays_one_argument_whatever_a_shell_would_read_in_it(tmp_path: Path) -> None:
    hostile = ("; id", "$(id)", "`id`", "a\nb", "| id", "&& id", "*", "", "'\"", "\\", "--", "ä€")
    async with manager(tmp_path, PROGRAMS) as held:
        result = await held.perform(ProcExec("printf", ("%s\\0", *hostile)))
        assert result.stdout.split("\0")[:-1] == list(hostile)
        assert (result.exit_code, result.stderr, result.risk) == (0, "", "high")


@BOX
async def test_a_program_gets_nothing_of_the_hosts_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOST_SECRET", "leaked")
    async with manager(tmp_path, PROGRAMS, session_id=None) as held:
        names = [line.partition("=")[0] for line in (await held.perform(ProcExec("env"))).stdout.splitlines()]
        assert sorted(names) == ["HOME", "LANG", "LOGNAME", "PATH", "TMPDIR", "USER"]


@BOX
async def test_a_program_works_on_the_sessions_files_and_ends_at_its_time(tmp_path: Path) -> None:
    async with manager(tmp_path, PROGRAMS) as held:
        await held.perform(FsWrite("work/in.txt", b"2\n10\n1\n"))
        heard: list[bytes] = []
        result = await held.perform(ProcExec("sort", ("-n", "in.txt")), on_output=lambda _, data: heard.append(data))
        assert (result.stdout, b"".join(heard)) == ("1\n2\n10\n", b"1\n2\n10\n")
        late = await held.perform(ProcExec("sleep", ("60",), timeout_ms=300))
        assert (late.status, late.reason) == ("timed_out", "wall_timeout")
        with pytest.raises(InvalidRequest, match="wall_seconds"):
            await held.perform(ProcExec("sleep", ("0",), timeout_ms=10**9))
        missing = await held.perform(ProcExec("missing-tool"))
        assert (missing.exit_code, missing.stderr) == (127, "missing-tool: No such file or directory\n")


@BOX
@pytest.mark.parametrize(
    ("operation", "killed_by", "truncated"),
    [
        (ProcExec("sha256sum", ("/dev/zero",)), "cpu_timeout", False),
        (ProcExec("tail", ("/dev/zero",)), "memory", False),
        (ProcExec("head", ("-c", "10000000", "/dev/zero")), None, True),
    ],
    ids=["cpu", "memory", "output"],
)
async def test_a_program_is_held_to_its_limits(
    tmp_path: Path, operation: ProcExec, killed_by: str | None, truncated: bool
) -> None:
    limits = Limits(cpu_seconds=1, memory_bytes=64 * MIB, wall_seconds=30)
    async with manager(tmp_path, PROGRAMS, limits=limits) as held:
        result = await held.perform(operation)
        # where no cgroup counts memory, the kernel refuses it, and the program gives up by itself
        refused_memory = killed_by == "memory" and "memory" in result.stderr
        assert (result.killed_by, result.stdout_truncated) == (None if refused_memory else killed_by, truncated)
        assert result.success is (killed_by is None)
        assert result.stdout_bytes - result.stdout_left_out <= limits.stdout_bytes
        if truncated:
            assert (result.out["stdout_bytes"], len(result.out["preview"])) == (10_000_000, 200)


@pytest.mark.parametrize(
    "operation",
    [
        ProcExec("id"),
        ProcExec("bash", ("-c", "id")),
        ProcExec("/bin/cat"),
        ProcExec("./cat"),
        ProcExec("../bin/cat"),
        ProcExec("cat; id"),
        ProcExec("sort", ("-o", "x.txt")),
        ProcExec("sort", ("-n", "../x.txt")),
        ProcExec("sort", ("-n", "a.txt\n")),
        ProcExec("sort"),
    ],
    ids=str,
)
async def test_a_program_or_an_argument_that_the_policy_does_not_name_is_refused(
    tmp_path: Path, operation: ProcExec
) -> None:
    async with manager(tmp_path, PROGRAMS) as held:
        refusal = await refused(ToolDenied, held, operation)
        assert (refusal.code, refusal.reason) == ("POLICY.DENY_TOOL", "argument")


@pytest.mark.parametrize("operation", [ProcExec("cat", ("\ud800",)), ProcExec("cat", (), 0)], ids=["text", "time"])
async def test_an_argument_that_no_program_can_have_is_refused(tmp_path: Path, operation: ProcExec) -> None:
    async with manager(tmp_path, PROGRAMS) as held:
        await refused(InvalidRequest, held, operation)
