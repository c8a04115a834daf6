"""Requirements about evidence that take a story of their own: grants, budgets, metrics, files of a run, collectors."""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from tests.command_line import ringfence, said, surroundings, told
from tests.e2e.test_observe import collector

from ringfence import Denied, QuotaExceeded, SandboxManager
from ringfence.clock import SystemClock
from ringfence.operation.brokered import FsRead, FsWrite

pytestmark = pytest.mark.needs("native")

SECRET = "correct-horse-battery-staple"
BASH_ONLY = "policies: {tools: {code_run: {supported_languages: [bash]}}}\n"
MANIFEST = {
    "schema_version": 1,
    "id": "code.run",
    "name": "Code",
    "description": "Runs a program.",
    "interface": {"inputs": {"type": "object"}, "outputs": {"type": "object"}},
    "runtime": {"kind": "docker", "image": "python:3.12-slim", "entrypoint": ["python"]},
    "permissions": {"fs": {"read": ["inputs/**"], "write": ["work/**"]}, "net": {"mode": "none"}},
}


def written(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def log_of(home: Path) -> list[dict[str, Any]]:
    """Return what is on record about calls, in order, as the command exports it."""
    lines = [json.loads(line) for line in said(home, "evidence", "export", "--format", "log").splitlines()]
    return [line for line in lines if line["type"] in ("exec.begin", "exec.end", "decision.denied")]


def audit_lines(home: Path) -> list[dict[str, Any]]:
    """Return the audit log of 001, oldest first."""
    lines = said(home, "evidence", "export", "--format", "audit-json").splitlines()
    return [json.loads(line) for line in reversed(lines)]


# --- grants ---


@pytest.fixture
def keyed(tmp_path: Path) -> Path:
    """Return a home with a key that signs grants."""
    home = tmp_path / "home"
    said(home, "key", "create")
    return home


def issued(home: Path, *more: str) -> str:
    return said(home, "grant", "issue", "--tool", "code_run", "--call", "c1", *more).strip()


UNDER_A_GRANT = """
import asyncio, sys
from ringfence import Denied, SandboxManager
async def main():
    async with SandboxManager(home=sys.argv[1]) as manager:
        async with manager.under(sys.argv[2], call_id="c1") as governed:
            try:
                print((await governed.execute_code("python", "print(1)")).evidence_id)
            except Denied as refused:
                print(refused.code, refused.reason)
asyncio.run(main())
"""


def in_a_process_of_its_own(home: Path, token: str) -> str:
    command = [sys.executable, "-c", UNDER_A_GRANT, str(home), token]
    done = subprocess.run(command, env=surroundings(home), capture_output=True, text=True, timeout=60, check=True)
    return done.stdout.strip()


@pytest.mark.needs("biscuit")
def test_a_grant_that_was_used_is_refused_as_replayed_by_every_later_process(keyed: Path) -> None:
    token = issued(keyed)
    assert in_a_process_of_its_own(keyed, token).startswith("ev_")
    assert in_a_process_of_its_own(keyed, token) == "SANDBOX.PERMISSION_DENY replayed"
    assert [record["type"] for record in log_of(keyed)] == ["exec.begin", "exec.end", "decision.denied"]
    assert log_of(keyed)[2]["reason"] == "replayed"


@pytest.mark.needs("biscuit")
async def test_a_grant_that_expired_is_refused_at_execution(keyed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    token = issued(keyed, "--ttl", "60s")
    later = SystemClock().now_ms() + 61_000
    async with SandboxManager(home=keyed) as manager, manager.under(token, call_id="c1") as governed:
        assert (await governed.execute_code("python", "print(1)")).success
        monkeypatch.setattr(SystemClock, "now_ms", lambda _: later)
        with pytest.raises(Denied) as refused:
            await governed.execute_code("python", "print('RAN')")
    assert (refused.value.code, refused.value.reason) == ("SANDBOX.PERMISSION_DENY", "expired")


@pytest.mark.needs("biscuit")
async def test_of_the_grants_budget_and_the_tenants_the_smaller_one_counts(keyed: Path, tmp_path: Path) -> None:
    token = issued(keyed, "--budget", "calls=10")
    policy = written(tmp_path / "policy.yaml", "policies: {}\nbudgets: {tenant: {local: {calls: 1}}}\n")
    governing = SandboxManager(home=keyed, policy_file=policy)
    async with governing as manager, manager.under(token, call_id="c1") as governed:
        assert (await governed.execute_code("python", "print(1)")).success
        with pytest.raises(QuotaExceeded) as refused:
            await governed.execute_code("python", "print('RAN')")
    assert (refused.value.code, refused.value.reason) == ("QUOTA.BUDGET_EXCEEDED", "calls")


@pytest.mark.needs("biscuit")
def test_from_a_manifest_over_a_grant_and_a_run_to_evidence_that_verifies(keyed: Path, tmp_path: Path) -> None:
    policy = written(tmp_path / "policy.yaml", "policies: {}\n")
    manifest = written(tmp_path / "manifest.json", json.dumps(MANIFEST))
    operation = json.dumps({"op": "code_run", "language": "python", "code": "print(1)"})
    judged = told(keyed, "policy", "check", "--policy", str(policy), "--manifest", str(manifest), "--op", operation)
    assert judged["decision"] == "allow"
    token = issued(keyed)
    grant_id = told(keyed, "grant", "inspect", token)["grant_id"]
    evidence_id = in_a_process_of_its_own(keyed, token)
    begin = told(keyed, "evidence", "show", evidence_id)["records"][0]["record"]
    assert begin["grant_id"] == grant_id
    assert told(keyed, "grant", "inspect", token, code=3)["reason"] == "replayed"
    assert begin["manifest_version"]
    for name in ("policy_version_hash", "profile_hash", "decision_key_fingerprint"):
        assert re.fullmatch(r"sha256:[0-9a-f]{64}", begin[name]), name
    assert told(keyed, "evidence", "verify")["verdict"] == "proven"


# --- budgets ---


async def test_one_call_more_than_may_run_at_once_waits_and_is_then_refused(tmp_path: Path) -> None:
    policy = written(tmp_path / "policy.yaml", "policies: {}\nbudgets: {tenant: {local: {concurrent: 1}}}\n")
    started = asyncio.Event()
    async with SandboxManager(home=tmp_path / "home", policy_file=policy) as manager:
        first = asyncio.create_task(
            manager.execute_code(
                "python", "print('here', flush=True)\nimport time; time.sleep(30)", on_output=lambda *_: started.set()
            )
        )
        await started.wait()
        with pytest.raises(QuotaExceeded) as refused:
            await manager.execute_code("python", "print('RAN')", timeout=0.2)
        first.cancel()
        await asyncio.wait([first])
        assert (await manager.execute_code("python", "print(1)")).success
    assert (refused.value.reason, refused.value.answer.http_status) == ("concurrency", 429)


async def test_a_program_is_stopped_where_the_cpu_time_of_its_budget_ends(tmp_path: Path) -> None:
    policy = written(tmp_path / "policy.yaml", "policies: {}\nbudgets: {tenant: {local: {cpu_ms: 500}}}\n")
    async with SandboxManager(home=tmp_path / "home", policy_file=policy) as manager:
        result = await manager.execute_code("python", "while True: pass", timeout=30)
        assert (result.status, result.reason) == ("timed_out", "cpu_timeout")
        with pytest.raises(QuotaExceeded) as refused:
            await manager.execute_code("python", "print('RAN')")
    assert refused.value.reason == "cpu_ms"


@pytest.mark.parametrize("isolation", ["native", pytest.param("bwrap", marks=pytest.mark.needs("bwrap"))])
async def test_a_program_is_stopped_where_the_output_of_its_budget_ends(tmp_path: Path, isolation: str) -> None:
    policy = written(tmp_path / "policy.yaml", "policies: {}\nbudgets: {tenant: {local: {bytes_out: 1000000}}}\n")
    endless = "import sys\nfor n in range(10_000): sys.stdout.write('x' * 1000)"
    async with SandboxManager(home=tmp_path / "home", policy_file=policy, isolation=isolation) as manager:
        within = await manager.execute_code("python", "print('x' * 400_000)")
        stopped = await manager.execute_code("python", endless)
        with pytest.raises(QuotaExceeded) as refused:
            await manager.execute_code("python", "print(1)")
    assert within.success
    assert (stopped.killed_by, stopped.reason, stopped.error_code) == ("budget", "budget", "QUOTA.BUDGET_EXCEEDED")
    assert 599_000 < stopped.stdout_bytes < 900_000
    assert refused.value.reason == "bytes_out"


def test_one_is_allowed_one_denied_one_beyond_the_budget_and_all_three_are_evidence(tmp_path: Path) -> None:
    home = tmp_path / "home"
    policy = written(tmp_path / "p.yaml", "policies: {}\nbudgets: {tenant: {local: {calls: 1}}}\n")
    said(home, "run", "--policy", str(policy), "-c", "print(1)")
    said(home, "run", "--policy", str(written(tmp_path / "bash.yaml", BASH_ONLY)), "-c", "print(1)", code=3)
    said(home, "run", "--policy", str(policy), "-c", "print(1)", code=5)
    assert [line["result"] for line in audit_lines(home)] == ["success", "denied", "denied"]
    assert [line["error"] for line in audit_lines(home)] == [None, "POLICY.DENY_TOOL", "QUOTA.BUDGET_EXCEEDED"]


# --- what was observed, as 001's audit log tells it ---


def test_processor_time_counts_what_children_used(tmp_path: Path) -> None:
    burn = "import time\nwhile time.process_time() < 0.5: pass"
    program = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {burn!r}])"
    said(tmp_path, "run", "-c", program)
    (line,) = audit_lines(tmp_path)
    assert 450 <= line["cpu_time_ms"] < 5000


async def test_files_are_exact_for_operations_and_marked_where_a_process_read_them(tmp_path: Path) -> None:
    async with SandboxManager("s", home=tmp_path) as manager:
        await manager.perform(FsWrite("work/a.txt", b"x"))
        await manager.perform(FsRead("work/a.txt"))
        program = "open('/workspace/inputs/in.txt').read(); open('b.txt', 'w').write('x')"
        await manager.execute_code("python", program, inputs={"in.txt": "1"})
    ends = [record for record in log_of(tmp_path) if record["type"] == "exec.end"]
    assert [end["files_read"] for end in ends] == [
        {"paths": [], "complete": True},
        {"paths": ["work/a.txt"], "complete": True},
        {"paths": ["inputs/in.txt"], "complete": False},
    ]
    lines = audit_lines(tmp_path)
    assert [line["files_read"] for line in lines] == [[], ["/workspace/work/a.txt"], ["/workspace/inputs/in.txt"]]
    assert [line["files_written"] for line in lines] == [["/workspace/work/a.txt"], [], ["/workspace/work/b.txt"]]


async def test_two_busy_threads_get_one_core(tmp_path: Path) -> None:
    policy = written(tmp_path / "policy.yaml", "policies: {default: {max_cpu: 1.0}}\n")
    busy = """
import multiprocessing, time
def burn():
    until = time.monotonic() + 1.5
    while time.monotonic() < until: pass
workers = [multiprocessing.get_context("fork").Process(target=burn) for _ in range(2)]
for worker in workers: worker.start()
for worker in workers: worker.join()
"""
    async with SandboxManager(home=tmp_path / "home", policy_file=policy) as manager:
        result = await manager.execute_code("python", busy)
    assert result.success, result.stderr
    if result.isolation.cgroup == "none":
        pytest.skip("without a cgroup nothing holds several processes to one share")
    # on more cores than one, two that were not held back would have used twice what passed
    assert result.used.cpu_ms is not None
    assert result.used.cpu_ms <= result.elapsed_ms * 1.25


# --- metrics ---


@pytest.fixture(scope="module")
def counted(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the metrics of a home in which a program ran, one timed out, files moved, and one call was denied."""
    home = tmp_path_factory.mktemp("metrics")

    async def live() -> None:
        policy = written(home / "policy.yaml", "policies: {tools: {file_read: {denied_paths: ['**/*.key']}}}\n")
        async with SandboxManager("s", home=home, policy_file=policy) as manager:
            burnt = "import time\nwhile time.process_time() < 0.15: pass\nprint(1)"
            assert (await manager.execute_code("python", burnt)).success
            assert (await manager.execute_code("python", "while True: pass", timeout=0.3)).timed_out
            await manager.perform(FsWrite("work/a.txt", b"12345"))
            await manager.perform(FsRead("work/a.txt"))
            with pytest.raises(Denied):
                await manager.perform(FsRead("work/own.key"))

    asyncio.run(live())
    return said(home, "metrics")


@pytest.mark.parametrize(
    "sample",
    [
        'sandbox_exec_total{domain="code",tool="code_run",safety="high",side_effect="process",tenant="local"} 2',
        'sandbox_exec_total{domain="fs",tool="file_read",safety="low",side_effect="read",tenant="local"} 1',
        'sandbox_denied_total{code="SANDBOX.CAPABILITY_BLOCKED"} 1',
        'sandbox_errors_total{code="LLM.TIMEOUT",retryable="false"} 1',
        'sandbox_budget_used_bytes{direction="in"} 5',
        'sandbox_budget_used_bytes{direction="out"} 7',
        "sandbox_gpu_ms 0",
        'sandbox_latency_ms_count{domain="code"} 2',
        'sandbox_latency_ms_count{domain="fs"} 2',
        'sandbox_execution_duration_seconds_count{tool="code_run",domain="code"} 2',
        'sandbox_policy_violations_total{tool="file_read",reason="blacklist",code="SANDBOX.CAPABILITY_BLOCKED"} 1',
    ],
)
def test_both_metric_sets_count_what_happened(sample: str, counted: str) -> None:
    assert sample in counted.splitlines()


@pytest.mark.parametrize("family", ["sandbox_profile_build_ms", "sandbox_guard_validate_ms"])
def test_how_long_a_decision_took_is_counted_for_every_call(family: str, counted: str) -> None:
    assert f"{family}_count 5" in counted.splitlines()
    (spent,) = re.findall(rf"^{family}_sum (\S+)$", counted, re.MULTILINE)
    assert float(spent) > 0


def test_processor_time_is_counted_in_milliseconds(counted: str) -> None:
    found = re.search(r"^sandbox_cpu_ms (\d+)$", counted, re.MULTILINE)
    assert found is not None
    assert 150 <= int(found[1]) < 5000


def test_executions_are_counted_by_tool_language_and_status(counted: str) -> None:
    found = re.findall(
        r'^sandbox_executions_total\{tool="code_run",language="python",status="(\w+)".*\} 1$', counted, re.MULTILINE
    )
    assert sorted(found) == ["error", "ok"]


def test_the_least_labels_are_there_and_no_others_that_grow(counted: str) -> None:
    labels = set(re.findall(r'[{,](\w+)="', counted))
    least = {"tenant", "tool", "domain", "safety", "side_effect", "code", "retryable"}
    assert labels - {"le"} == least | {"language", "status", "reason", "direction"}


# --- the files of a run (003) ---


@pytest.fixture(scope="module")
def filed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, dict[str, Any]]:
    """Return a home, the directory of the files of its one run, and the row that the database has of it."""
    home = tmp_path_factory.mktemp("files")
    program = "import sys; open('/workspace/artifacts/report.csv', 'w').write('a,b'); print('out'); sys.exit('err')"
    whose = ("--project", "p1", "--correlate", "task=T-7", "--correlate", "conversation=conv-3")
    said(home, "run", "-c", program, *whose, "--env", f"TOKEN={SECRET}", "--", SECRET, code=1)
    with closing(sqlite3.connect(home / "ringfence.db")) as file:
        file.row_factory = sqlite3.Row
        (row,) = file.execute("SELECT * FROM sandbox_execs").fetchall()
    return home, home / "workspace" / row["artifacts_path"], dict(row)


def test_a_run_has_a_directory_with_its_four_files(filed: tuple[Path, Path, dict[str, Any]]) -> None:
    _, directory, row = filed
    assert directory.name == row["exec_id"]
    assert {path.name for path in directory.iterdir()} >= {"stdout.txt", "stderr.txt", "manifest.json", "meta.json"}
    assert (directory / "stdout.txt").read_text() == "out\n"
    assert (directory / "stderr.txt").read_text() == "err\n"


def test_the_manifest_of_a_run_lists_what_lies_there(filed: tuple[Path, Path, dict[str, Any]]) -> None:
    _, directory, _ = filed
    manifest = json.loads((directory / "manifest.json").read_text())
    (artifact,) = manifest["artifacts"]
    for entry in (artifact, manifest["stdout"], manifest["stderr"]):
        content = (directory / entry["path"]).read_bytes()
        assert (entry["size"], entry["sha256"]) == (len(content), hashlib.sha256(content).hexdigest())


def test_what_the_meta_file_says_is_what_the_database_says(filed: tuple[Path, Path, dict[str, Any]]) -> None:
    _, directory, row = filed
    meta = json.loads((directory / "meta.json").read_text())
    assert len(row) == 20
    assert isinstance(meta["docker_mounts"], list)
    assert (row["status"], row["exit_code"], row["task_id"], row["conversation_id"]) == ("failed", 1, "T-7", "conv-3")
    for name, value in row.items():
        if name in ("args", "env_keys"):
            assert meta[name] == json.loads(value), name
        elif (
            name == "policy_snapshot"
        ):  # by its digest beside the files, where an agent may read; in full in the database
            assert meta[name] == f"sha256:{hashlib.sha256(value.encode()).hexdigest()}"
        else:
            assert meta[name] == value, name


def test_of_variables_and_arguments_only_names_and_lengths_are_kept(filed: tuple[Path, Path, dict[str, Any]]) -> None:
    home, directory, row = filed
    assert json.loads(row["env_keys"]) == ["TOKEN"]
    assert json.loads(row["args"]) == [f"[{len(SECRET)} bytes]"]
    assert json.loads((directory / "meta.json").read_text())["env_keys"] == ["TOKEN"]
    for path in home.rglob("*"):
        if path.is_file():
            assert SECRET.encode() not in path.read_bytes(), path


# --- collectors ---


def watched_by(home: Path, url: str) -> None:
    home.mkdir(exist_ok=True)
    (home / "config.toml").write_text(f'[observe]\nsinks = [{{kind = "webhook", url = "{url}"}}]\n')


def exported_ids(home: Path) -> set[str]:
    lines = said(home, "evidence", "export", "--format", "cloudevents").splitlines()
    return {json.loads(line)["id"] for line in lines}


def received(told_of: Callable[..., dict[str, Any]], count: int) -> list[dict[str, Any]]:
    return [told_of(timeout=30) for _ in range(count)]


def test_a_collector_is_sent_an_envelope_of_every_record(tmp_path: Path) -> None:
    home = tmp_path / "home"
    with collector() as (url, queue):
        watched_by(home, url)
        said(home, "run", "-c", "print(1)")
        events = received(queue.get, 2)
        assert queue.empty()
    assert [event["data"]["type"] for event in events] == ["exec.begin", "exec.end"]
    assert {event["specversion"] for event in events} == {"1.0"}
    assert {event["id"] for event in events} == exported_ids(home)


def test_what_a_collector_missed_while_it_was_down_it_is_sent_later(tmp_path: Path) -> None:
    home = tmp_path / "home"
    with collector() as (gone, _):
        pass  # nobody listens there any more
    watched_by(home, gone)
    said(home, "run", "-c", "print(1)")
    waiting = {check["id"]: check for check in told(home, "doctor")["checks"]}["S1-149"]
    assert " 2 not sent," in waiting["found"]
    port = int(gone.rpartition(":")[2].partition("/")[0])
    with collector(port) as (_, queue):
        said(home, "run", "-c", "print(2)")
        events = received(queue.get, 4)
    assert {event["id"] for event in events} == exported_ids(home)


def test_switched_off_nothing_is_sent_and_the_journal_is_written(tmp_path: Path) -> None:
    home = tmp_path / "home"
    with collector() as (url, queue):
        watched_by(home, url)
        said(home, "run", "-c", "print(1)", RINGFENCE_OBSERVE="off")
        assert queue.empty()
    assert [record["type"] for record in log_of(home)] == ["exec.begin", "exec.end"]
    assert told(home, "evidence", "verify")["verdict"] == "proven"


# --- what a caller sees ---


def test_a_result_says_whether_it_worked_with_what_code_and_what_it_used(tmp_path: Path) -> None:
    answer = told(tmp_path, "run", "-c", "print(1)")
    assert (answer["success"], answer["error_code"], answer["error"]) == (True, None, None)
    assert answer["out"]["stdout_sha256"] == hashlib.sha256(b"1\n").hexdigest()
    assert answer["used"].keys() >= {"calls", "bytes_out", "bytes_in", "cpu_ms", "gpu_ms", "file_count"}


def test_a_message_names_neither_what_was_given_nor_where_the_host_keeps_it(tmp_path: Path) -> None:
    policy = written(tmp_path / "policy.yaml", "policies: {tools: {shell_exec: {denied_commands: [sudo]}}}\n")
    home = tmp_path / "home"
    for words, code in (
        (("shell", "--policy", str(policy), "--json", "--", f"sudo cat {SECRET}"), 3),
        (("run", "--policy", str(policy), "--json", "-c", f"raise SystemExit('{SECRET}')"), 1),
    ):
        done = ringfence(home, *words)
        answer = json.loads(done.stdout)
        assert done.returncode == code
        message = f"{answer.get('message')} {answer.get('error')} {done.stderr if code == 3 else ''}"
        assert SECRET not in message
        assert str(tmp_path) not in message
