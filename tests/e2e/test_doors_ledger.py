"""Documents 003 and 004 word by word over the wire: what a worker that has nothing but an address and a key can see."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.http_service import Answer, Service, serving

from ringfence.evidence.projections.exec_row import COLUMNS

pytestmark = pytest.mark.needs("native")
EXECS = "/sandbox/execs"


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with serving(tmp_path_factory.mktemp("ledger")) as running:
        yield running


def ask(service: Service, kind: str, code: str, *, project: str = "p", **more: Any) -> Answer:
    return service.ask("POST", EXECS, {"project_id": project, "exec": {"kind": kind, "code": code}, **more})


def run(service: Service, kind: str, code: str, *, project: str = "p", **more: Any) -> dict[str, Any]:
    answer = ask(service, kind, code, project=project, **more)
    assert answer.status == 201, answer.body
    ran: dict[str, Any] = answer.json
    return ran


def detail(service: Service, exec_id: str) -> dict[str, Any]:
    found: dict[str, Any] = service.ask("GET", f"{EXECS}/{exec_id}").json
    return found


def files_of(service: Service, ran: dict[str, Any]) -> Path:
    return service.home / "workspace" / str(ran["artifacts_dir"])


def meta_of(service: Service, ran: dict[str, Any]) -> dict[str, Any]:
    meta: dict[str, Any] = json.loads((files_of(service, ran) / "meta.json").read_text())
    return meta


def row_of(service: Service, exec_id: str) -> dict[str, Any]:
    """Read it from the table itself, beside the service."""
    connection = sqlite3.connect(f"file:{service.home}/ringfence.db?mode=ro", uri=True)
    try:
        question = f"SELECT {', '.join(COLUMNS)} FROM sandbox_execs WHERE exec_id = ?"
        (row,) = connection.execute(question, (exec_id,)).fetchall()
    finally:
        connection.close()
    return dict(zip(COLUMNS, row, strict=True))


def ended(service: Service, exec_id: str) -> dict[str, Any]:
    service.ask("GET", f"{EXECS}/{exec_id}/events")  # to its end, which is the execution's
    return detail(service, exec_id)


# --- 003 §5: the request and the answer ---

REQUEST = {
    "project_id": "whole",
    "skill_id": "shell.run",
    "exec": {
        "kind": "shell",
        "command": "bash",
        "args": ["-lc", 'echo "$GREETING $(cat /workspace/inputs/a.txt)"; echo e >&2; exit 3'],
        "cwd": "/workspace/work",
        "env": {"GREETING": "hello"},
    },
    "inputs": [{"path": "a.txt", "content": "world"}],
    "policy_overrides": {"timeout_ms": 5000},
    "task_ref": "task-of-003",
}


def test_the_whole_request_of_003_gives_the_six_fields_of_its_answer(service: Service) -> None:
    answer = service.ask("POST", EXECS, REQUEST)
    assert answer.status == 201, answer.body
    ran = answer.json
    assert (ran["status"], ran["exit_code"]) == ("failed", 3)
    assert ran["exec_id"].startswith("ex_")
    files = files_of(service, ran)
    assert (files / "stdout.txt").read_text() == "hello world\n"
    assert service.home / "workspace" / ran["stdout_path"] == files / "stdout.txt"
    assert service.home / "workspace" / ran["stderr_path"] == files / "stderr.txt"
    assert service.ask("GET", f"{EXECS}/{ran['exec_id']}/stdout").body == b"hello world\n"
    assert service.ask("GET", f"{EXECS}/{ran['exec_id']}/stderr").body == b"e\n"


def test_after_one_request_all_five_duties_of_the_server_have_left_something(service: Service) -> None:
    ran = run(service, "shell", "echo x > /workspace/artifacts/made.txt", project="duties")
    found = detail(service, ran["exec_id"])
    assert found["policy_snapshot"].startswith("sha256:")  # the policy that was checked
    project = service.home / "workspace/projects/duties"
    assert {"inputs", "work", "artifacts"} <= {each.name for each in project.iterdir()}  # the directories
    assert ran["isolation"]["namespaces"]  # the box
    assert (files_of(service, ran) / "made.txt").read_text() == "x\n"  # what was collected
    records = service.ask("GET", f"/evidence/{ran['exec_id']}").json["records"]  # the audit
    assert [each["record"]["type"] for each in records] == ["exec.begin", "exec.end"]


WORKER = """
import http.client, json, sys
connection = http.client.HTTPConnection("127.0.0.1", int(sys.argv[1]))
body = {"project_id": "worker", "exec": {"kind": "python", "code": "print(6 * 7)"}}
headers = {"Authorization": "Bearer " + sys.argv[2], "Content-Type": "application/json"}
connection.request("POST", "/sandbox/execs", json.dumps(body), headers)
print(json.load(connection.getresponse())["stdout"], end="")
"""


def test_a_worker_that_can_only_speak_http_gets_its_task_done(service: Service) -> None:
    words = [sys.executable, "-I", "-S", "-c", WORKER, str(service.port), service.make_key("agent")]
    done = subprocess.run(words, env={"PATH": "/nowhere"}, capture_output=True, text=True, timeout=60, check=False)
    assert (done.stdout, done.stderr) == ("42\n", "")


def test_ids_are_unique_and_sort_by_the_time_they_were_given(service: Service) -> None:
    ids = [run(service, "python", "pass")["exec_id"] for _ in range(3)]
    assert sorted(set(ids)) == ids


def test_an_execution_has_its_conversations_project_where_it_names_no_other(service: Service) -> None:
    body = {"conversation_id": "talk-1", "exec": {"kind": "shell", "code": "echo 1 > a"}}
    ran = service.ask("POST", EXECS, body).json
    assert (service.home / "workspace/projects/talk-1/work/a").read_text() == "1\n"
    assert detail(service, ran["exec_id"])["project_id"] == "talk-1"
    assert detail(service, ran["exec_id"])["conversation_id"] == "talk-1"


@pytest.mark.parametrize("mode", ["safe_retrieval", "allowlist", "unrestricted"])
def test_no_request_can_ask_for_a_network(service: Service, mode: str) -> None:
    answer = ask(service, "python", "print(1)", policy_overrides={"net": {"mode": mode}})
    assert (answer.status, answer.reason) == (403, "not_granted")
    assert answer.json["details"]["limit"] == "none"


# --- 003 §5.1, §6: files and records of an execution ---


def test_the_twenty_fields_are_in_the_answer_in_the_file_and_in_the_database_and_are_the_same(
    service: Service,
) -> None:
    body = json.loads(json.dumps(REQUEST))
    body["exec"]["env"] = {"GREETING": "s3cret-greeting"}
    ran = service.ask("POST", EXECS, body).json
    found, meta = detail(service, ran["exec_id"]), meta_of(service, ran)
    assert len(COLUMNS) == 20
    assert {name: found[name] for name in COLUMNS} == {name: meta[name] for name in COLUMNS}
    row = row_of(service, ran["exec_id"])
    snapshot = f"sha256:{hashlib.sha256(row['policy_snapshot'].encode()).hexdigest()}"  # it has the text itself
    as_told = {**row, "env_keys": json.loads(row["env_keys"]), "policy_snapshot": snapshot}
    assert as_told == {name: found[name] for name in COLUMNS}
    assert (found["project_id"], found["task_id"], found["skill_id"]) == ("whole", "task-of-003", "shell.run")
    assert (found["cmd"], found["cwd"], found["env_keys"]) == ("bash", "/workspace/work", ["GREETING"])
    assert (found["status"], found["exit_code"], found["duration_ms"] >= 0) == ("failed", 3, True)
    assert found["started_at"] <= found["ended_at"]
    assert found["artifacts_path"] == ran["artifacts_dir"]
    assert [each["target"] for each in meta["docker_mounts"]] == [
        f"/workspace/{name}" for name in ("inputs", "work", "artifacts")
    ]
    assert "s3cret" in found["stdout"]  # which is the caller's own, and nowhere else
    assert "s3cret" not in json.dumps([[found[name] for name in COLUMNS], meta, row])


def test_too_much_output_is_cut_in_its_file_and_flagged_everywhere_and_the_program_goes_on(service: Service) -> None:
    code = "import sys; print('x' * 10_000_000); print('y' * 2_000_000, file=sys.stderr); sys.exit(0)"
    ran = run(service, "python", code)
    assert (ran["status"], ran["exit_code"], ran["stdout_bytes"]) == ("succeeded", 0, 10_000_001)
    assert (files_of(service, ran) / "stdout.txt").stat().st_size < 1_100_000
    for told_by in (ran, detail(service, ran["exec_id"]), meta_of(service, ran), row_of(service, ran["exec_id"])):
        assert (told_by["stdout_truncated"], told_by["stderr_truncated"]) == (True, True)
    assert ran["stdout_left_out"] == 10_000_001 - 1024 * 1024
    quiet = run(service, "python", "print(1)")
    for told_by in (quiet, detail(service, quiet["exec_id"]), row_of(service, quiet["exec_id"])):
        assert (told_by["stdout_truncated"], told_by["stderr_truncated"]) == (False, False)


def test_of_what_a_run_writes_only_its_artifacts_are_counted_and_only_its_own(service: Service) -> None:
    code = "open('big', 'wb').write(bytes(60_000_000)); open('/workspace/artifacts/a', 'wb').write(bytes(40_000_000))"
    for _ in range(2):  # twice 40 MB of 50 is too much only for who adds them up
        ran = run(service, "python", code, project="counted")
        assert (ran["status"], ran["reason"], [each["size"] for each in ran["artifacts"]]) == (
            "succeeded", None, [40_000_000],
        )  # fmt: skip
    code = "open('/workspace/artifacts/a', 'wb').write(bytes(51 * 1024 * 1024))"
    over = run(service, "python", code, project="counted")
    assert (over["reason"], over["artifacts"]) == ("artifacts", [])
    assert over["changes"]["uncollected"] or not over["changes"]["complete"]


def test_every_artifact_is_in_the_manifest_with_the_digest_of_what_lies_there(service: Service) -> None:
    code = "mkdir -p /workspace/artifacts/d; echo one > /workspace/artifacts/a; echo two > /workspace/artifacts/d/b"
    ran = run(service, "shell", code)
    listed = service.ask("GET", f"{EXECS}/{ran['exec_id']}/artifacts").json["artifacts"]
    manifest = json.loads((files_of(service, ran) / "manifest.json").read_text())["artifacts"]
    assert sorted(listed, key=str) == sorted(manifest, key=str)
    assert {each["path"] for each in listed} == {"a", "d/b"}
    for each in listed:
        content = (files_of(service, ran) / each["path"]).read_bytes()
        assert (len(content), hashlib.sha256(content).hexdigest()) == (each["size"], each["sha256"])


# --- 003 §4: what the box is ---

BOX = """
id -u; id -g; id -un; pwd; hostname
grep -E '^(CapEff|NoNewPrivs|Seccomp):' /proc/self/status | tr -d '\\t '
touch /workspace/inputs/x || echo inputs-ro
touch /usr/x || echo root-ro
python3 -c 'import socket; socket.create_connection(("192.0.2.1", 80), 2)' 2>/dev/null || echo no-network
echo kept > /workspace/work/kept; ls /workspace | tr '\\n' ' '
"""


def test_the_box_of_a_service_is_the_one_of_003(service: Service) -> None:
    ran = run(service, "shell", BOX, project="box")
    lines = ran["stdout"].splitlines()
    assert lines[:5] == ["1000", "1000", "sandbox", "/workspace/work", ran["sandbox_id"]]
    assert lines[5:8] == ["CapEff:0000000000000000", "NoNewPrivs:1", "Seccomp:2"]
    assert lines[8:11] == ["inputs-ro", "root-ro", "no-network"]
    assert {"inputs", "work", "artifacts"} <= set(lines[11].split())
    assert run(service, "shell", "cat kept", project="box")["stdout"] == "kept\n"


# --- statuses, and who waits ---


@contextmanager
def narrow(tmp_path: Path, sandbox: str, server: str = "", policy: str = "policies: {}\n") -> Iterator[Service]:
    home = tmp_path / "home"
    home.mkdir()
    (home / "config.toml").write_text(f"[sandbox]\n{sandbox}\n[server]\n{server}\n")
    (home / "policy.yaml").write_text(policy)
    with serving(home, "--policy", str(home / "policy.yaml")) as running:
        yield running


SLOW = "import time; print('up', flush=True); time.sleep(600)"


def test_every_status_is_in_the_document_and_is_seen(tmp_path: Path) -> None:
    policy = "policies: {tools: {shell_exec: {denied_commands: [curl]}}}\n"
    with narrow(tmp_path, "max_concurrent_execs = 1", policy=policy) as service:
        schemas = service.ask("GET", "/openapi.json").json["components"]["schemas"]
        documented = set(schemas["ExecView"]["properties"]["status"]["enum"])
        first = ask(service, "python", SLOW, wait=False).json["exec_id"]
        second = ask(service, "python", "print(2)", wait=False).json["exec_id"]
        # one more than may run at once waits
        while (seen := detail(service, first))["status"] == "queued":
            pass
        waiting = detail(service, second)
        assert (seen["status"], seen["exit_code"]) == ("running", None)
        assert (waiting["status"], waiting["exit_code"], waiting["started_at"]) == ("queued", None, None)
        assert service.ask("GET", "/sandbox/health").json["executions"] == {"running": 1, "waiting": 1}
        service.ask("POST", f"{EXECS}/{first}/cancel")
        seen_of = {
            "queued": waiting["status"],
            "running": seen["status"],
            "cancelled": detail(service, first)["status"],
            "succeeded": ended(service, second)["status"],
            "failed": run(service, "shell", "exit 3")["status"],
            "timed_out": run(service, "python", SLOW, policy_overrides={"timeout_ms": 200})["status"],
            "killed": run(service, "python", "b'x' * 10**9", policy_overrides={"memory_mb": 100})["status"],
        }
        assert ask(service, "shell", "curl x", task_ref="denied").status == 403
        (denied,) = service.ask("GET", f"{EXECS}?task_id=denied").json["items"]
        seen_of["denied"] = denied["status"]
        assert seen_of == {status: status for status in seen_of}
        assert documented == {*seen_of, "error"}
        assert service.ask("GET", f"{EXECS}?status=denied").json["items"] == [denied]


@pytest.mark.parametrize(
    ("scope", "setting", "named", "in_line"),
    [("user", "max_concurrent_per_user", "user_id", 1), ("space", "max_concurrent_per_space", "space_id", 2)],
)
def test_a_users_or_a_spaces_crowd_waits_is_sent_away_by_name_and_hinders_nobody_beside_it(
    tmp_path: Path, scope: str, setting: str, named: str, in_line: int
) -> None:
    with narrow(tmp_path, f"max_concurrent_execs = 4\n{setting} = 1", "queue_size = 4") as service:
        crowd = [ask(service, "python", SLOW, wait=False, task_ref={named: "a"}) for _ in range(in_line + 2)]
        assert [answer.status for answer in crowd] == [202] * (in_line + 1) + [429]
        assert (crowd[-1].reason, crowd[-1].json["details"]["scope"]) == ("queue_full", scope)
        assert int(crowd[-1].headers["retry-after"]) >= 1
        assert run(service, "python", "print(1)", task_ref={named: "b"})["success"]
        # who was sent away left nothing: no line in the list, no box
        assert len(service.ask("GET", f"{EXECS}?{named}=a").json["items"]) == in_line + 1
        assert service.ask("GET", "/sandbox/health").json["executions"] == {"running": 1, "waiting": in_line}


def test_when_the_line_of_the_instance_is_full_every_tenant_is_sent_away_with_that_reason(tmp_path: Path) -> None:
    with narrow(tmp_path, "max_concurrent_execs = 1", "queue_size = 1") as service:
        tenants = [f"t{number}" for number in range(6)]
        keys = [service.ask("POST", "/keys", {"access": "agent", "tenant": name}).json["key"] for name in tenants]
        body = {"project_id": "p", "exec": {"kind": "python", "code": SLOW}, "wait": False}
        scopes = []
        for key in keys:
            answers = [service.ask("POST", EXECS, body, key=key) for _ in range(3)]
            scopes.append(next(a.json["details"]["scope"] for a in answers if a.status == 429))
        assert (scopes[0], scopes[-1]) == ("tenant", "instance")


# --- health ---

DOCKER = """#!/bin/sh
case "$1" in version) echo 29.1.0-of-this-test;; context) echo far-away;; *) exit 1;; esac
"""


def test_health_says_of_docker_what_its_command_says(tmp_path: Path) -> None:
    command = tmp_path / "bin" / "docker"
    command.parent.mkdir()
    command.write_text(DOCKER)
    command.chmod(0o755)
    with serving(tmp_path / "home", PATH=f"{command.parent}:{os.environ['PATH']}") as service:
        full = service.ask("GET", "/sandbox/health").json
    assert full["docker_cli_path"] == str(command)
    assert full["docker_version"] == "29.1.0-of-this-test"
    assert full["docker_context"] == "far-away"
    assert {each["name"]: each["status"] for each in full["checks"]}["docker"] == "green"


def test_without_docker_its_fields_are_null_and_its_check_red_and_the_service_well(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with serving(tmp_path / "home", PATH=str(tmp_path / "empty")) as service:
        full = service.ask("GET", "/sandbox/health").json
    assert (full["docker_cli_path"], full["docker_version"], full["docker_context"]) == (None, None, None)
    assert {each["name"]: each["status"] for each in full["checks"]}["docker"] == "red"
    assert full["status"] == "ok"


def test_health_turns_red_where_no_file_can_be_made_and_green_again(tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    with narrow(tmp_path, f'workspace_root = "{root}"') as service:
        ran = run(service, "python", "print(1)")
        assert ran["success"]
        with read_only(root / "workspace"):
            full = service.ask("GET", "/sandbox/health").json
            assert (full["status"], full["writable"]) == ("degraded", False)
            assert {each["name"]: each["status"] for each in full["checks"]}["workspace_writable"] == "red"
        full = service.ask("GET", "/sandbox/health").json
        assert (full["status"], full["writable"]) == ("ok", True)


@contextmanager
def read_only(place: Path) -> Iterator[None]:
    """Let nothing be written there: root needs a mount for that, everybody else the mode."""
    if os.geteuid() != 0:
        mode = place.stat().st_mode
        place.chmod(0o500)
        try:
            yield
        finally:
            place.chmod(mode)
        return
    made = subprocess.run(["mount", "-t", "tmpfs", "-o", "ro", "none", str(place)], capture_output=True, check=False)
    if made.returncode != 0:
        pytest.skip("nothing may be mounted here")
    try:
        yield
    finally:
        subprocess.run(["umount", str(place)], check=True)


# --- the codes of 000 over the wire ---

STRICT = """
policies:
  default: {denied_paths: [work/.env]}
  tools:
    shell_exec: {denied_commands: [curl]}
    code_run: {supported_languages: [python]}
"""


def test_each_error_of_000_has_its_code_and_status_as_a_problem_with_a_request_id(tmp_path: Path) -> None:
    with narrow(tmp_path, "", policy=STRICT) as service:

        def operation(**words: Any) -> Answer:
            return service.ask("POST", "/sandbox/ops", {"project_id": "p", "operation": words})

        content = base64.b64encode(bytes(17 * 1024 * 1024 // 16)).decode()
        run(service, "shell", "ln -s /etc/passwd link")
        problems = {
            "manifest": (ask(service, "javascript", "1"), 403, "POLICY.DENY_TOOL", "manifest_mismatch"),
            "command": (ask(service, "shell", "curl x"), 403, "POLICY.DENY_TOOL", "argument"),
            "program": (operation(op="proc_exec", tool="rm", args=["-rf"]), 403, "POLICY.DENY_TOOL", None),
            "blacklist": (operation(op="fs_read", path="work/.env"), 403, "SANDBOX.CAPABILITY_BLOCKED", "blacklist"),
            "climbing": (operation(op="fs_read", path="../x"), 403, "SANDBOX.CAPABILITY_BLOCKED", "path_traversal"),
            "link": (operation(op="fs_read", path="work/link"), 403, "SANDBOX.CAPABILITY_BLOCKED", None),
            "outside": (
                operation(op="fs_write", path="/etc/x", bytes_b64=content), 403, "SANDBOX.CAPABILITY_BLOCKED", None,
            ),
            "no grant": (
                service.ask("GET", EXECS, key=None), 401, "SANDBOX.PERMISSION_DENY", "no_key",
            ),
            "not JSON": (
                service.ask("POST", EXECS, b"{", headers={"Content-Type": "application/json"}),
                422, "SCHEMA.VALIDATION_FAILED", "not_json",
            ),
            "wrong type": (ask(service, "python", "1", wait="x"), 422, "SCHEMA.VALIDATION_FAILED", "invalid_request"),
        }  # fmt: skip
        for name, (answer, status, code, reason) in problems.items():
            assert (answer.status, answer.json["code"]) == (status, code), (name, answer.body)
            assert answer.reason == (reason or answer.reason), name
            assert answer.headers["x-request-id"], name
        assert "body" in problems["not JSON"][0].json["detail"]
        assert "wait" in problems["wrong type"][0].json["detail"]


def test_what_a_caller_says_of_a_request_is_in_its_evidence(service: Service) -> None:
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    body = {"project_id": "p", "exec": {"kind": "python", "code": "print(1)"}}
    answer = service.ask("POST", EXECS, body, headers={"traceparent": trace, "X-Request-Id": "req-of-mine"})
    assert answer.headers["x-request-id"] == "req-of-mine"
    for each in service.ask("GET", f"/evidence/{answer.json['exec_id']}").json["records"]:
        record = each["record"]
        assert (record["request_id"], record["traceparent"], record["tenant"]) == ("req-of-mine", trace, "local")
        assert record["subject_id"]


def test_a_budget_that_is_used_up_is_429_with_its_kind(tmp_path: Path) -> None:
    with narrow(tmp_path, "", policy="policies: {}\nbudgets: {tenant: {local: {calls: 1}}}\n") as service:
        assert run(service, "python", "print(1)")["success"]
        answer = ask(service, "python", "print(2)")
        assert (answer.status, answer.json["code"], answer.reason) == (429, "QUOTA.BUDGET_EXCEEDED", "calls")
