"""What 000, 003 and 004 rule, seen from outside: manifests that are none, variables, grants, consent, hosts."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.command_line import ringfence, said, told
from tests.http_service import Answer, Service, serving
from tests.unit.skills.example import changed

pytestmark = pytest.mark.needs("native")
POLICY = "policies: {default: {env_allow: ['APP_*']}}\n"
TRAVERSALS = ("../x", "work/../../x", "/etc/passwd", "work/link", "work/link/x", "a\0b", "")


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    home = tmp_path_factory.mktemp("rules")
    (home / "policy.yaml").write_text(POLICY)
    with serving(home, "--policy", str(home / "policy.yaml")) as running:
        yield running


def shell(service: Service, code: str, headers: dict[str, str] | None = None, **more: Any) -> Answer:
    body = {"project_id": "p", "exec": {"kind": "shell", "code": code, **more}}
    return service.ask("POST", "/sandbox/execs", body, headers=headers)


def operation(service: Service, **words: Any) -> Answer:
    return service.ask("POST", "/sandbox/ops", {"project_id": "p", "operation": words})


# --- skills, by the command that checks them (003 §7) ---

MISTAKES: list[tuple[str, Any]] = [
    *((name, ...) for name in ("schema_version", "id", "name", "description")),
    *((f"interface.{name}", ...) for name in ("inputs", "outputs")),
    *((f"runtime.{name}", ...) for name in ("kind", "image", "entrypoint")),
    *(("id", name) for name in ("Shell", "shell", "shell..run")),
    ("runtime.kind", "process"),
    ("permissions.net.mode", "allowlist"),
    *(("permissions.fs.read", [glob]) for glob in ("../x", "/etc/**", "work/../x")),
    *(("permissions.fs.write", [glob]) for glob in ("../x", "/etc/**", "work/../x")),
    ("limits.memory_mb", 0),
    ("limits.no_such", 1),
]


@pytest.mark.parametrize(("field", "value"), MISTAKES, ids=lambda value: str(value))
def test_the_command_names_the_field_of_a_manifest_that_is_wrong(tmp_path: Path, field: str, value: Any) -> None:
    place = tmp_path / "skills" / "add.one"
    place.mkdir(parents=True)
    (place / "main.py").write_text("print('{}')")
    (place / "manifest.json").write_text(json.dumps(changed({field: value})))
    done = ringfence(tmp_path / "home", "skill", "validate", str(place))
    assert done.returncode == 2
    assert any(f": {field}" in line and "(fix: " in line for line in done.stderr.splitlines()), done.stderr


def test_a_skill_whose_directory_has_another_name_is_none(tmp_path: Path) -> None:
    place = tmp_path / "skills" / "other.name"
    place.mkdir(parents=True)
    (place / "main.py").write_text("print('{}')")
    (place / "manifest.json").write_text(json.dumps(changed({})))
    done = ringfence(tmp_path / "home", "skill", "validate", str(place))
    assert (done.returncode, "directory" in done.stderr) == (2, True)
    place.rename(place.with_name("add.one"))
    assert said(tmp_path / "home", "skill", "validate", str(place.with_name("add.one"))) == "add.one: valid\n"


def test_what_a_skill_may_do_is_shown_and_its_limits_hold_for_its_calls(service: Service) -> None:
    shown = service.ask("GET", "/skills/shell.run").json
    assert shown["capabilities"]
    limits = shown["limits"]
    body = {"project_id": "p", "inputs": {"command": "true"}}
    result = service.ask("POST", "/skills/shell.run/invoke", body).json["result"]
    records = service.ask("GET", f"/evidence/{result['exec_id']}").json["records"]
    assert records[0]["record"]["limits"]["wall_ms"] == limits["timeout_ms"]
    assert records[0]["record"]["image"] == shown["runtime"]["image"]


# --- variables (S4-3) ---


def test_a_variable_that_the_policy_does_not_name_does_not_get_in(service: Service) -> None:
    assert "APP_A=1" in shell(service, "env", env={"APP_A": "1"}).json["stdout"].splitlines()
    refused = shell(service, "env", env={"APP_A": "1", "LD_PRELOAD": "x"})
    assert (refused.status, refused.json["code"]) == (403, "SANDBOX.CAPABILITY_BLOCKED")
    assert "LD_PRELOAD" in refused.json["detail"]


# --- what is kept of a run (C16) ---


def test_what_is_kept_of_a_run_is_shown_as_long_as_the_policy_shows_it(service: Service) -> None:
    exec_id = shell(service, "echo CONFIDENTIAL; echo HIDDEN >&2").json["exec_id"]
    place = f"/sandbox/execs/{exec_id}"
    policy = service.home / "policy.yaml"
    assert service.ask("GET", f"{place}/stdout").body == b"CONFIDENTIAL\n"
    try:
        policy.write_text("policies: {default: {output_inline: false, env_allow: ['APP_*']}}\n")
        for stream in ("stdout", "stderr"):
            refused = service.ask("GET", f"{place}/{stream}")
            assert (refused.status, refused.json["code"]) == (403, "SANDBOX.CAPABILITY_BLOCKED")
        shown = service.ask("GET", place)
        assert (shown.json["stdout"], shown.json["out"]["preview"], shown.json["out"]["stdout_bytes"]) == ("", "", 13)
        for answer in (shown, service.ask("GET", f"{place}/events"), service.ask("POST", f"{place}/cancel")):
            assert b"CONFIDENTIAL" not in answer.body
            assert b"HIDDEN" not in answer.body
    finally:
        policy.write_text(POLICY)
    assert service.ask("GET", place).json["stdout"] == "CONFIDENTIAL\n"


# --- consent and hosts (S4-15, S4-41, S4-42, S4-44) ---


def test_reading_writing_and_running_in_the_workspace_ask_nobody_and_a_repository_is_no_exception(
    service: Service,
) -> None:
    content = base64.b64encode(b"x").decode()
    answers = [
        operation(service, op="fs_write", path="work/a.txt", bytes_b64=content),
        operation(service, op="fs_write", path="work/repo/.git/config", bytes_b64=content),
        operation(service, op="fs_read", path="work/a.txt"),
        shell(service, "cat a.txt repo/.git/config"),
    ]
    assert [answer.status for answer in answers] == [200, 200, 200, 201]
    for answer in answers:
        begun = service.ask("GET", f"/evidence/{answer.json['exec_id']}").json["records"][0]["record"]
        assert begun.get("consent", {"source": "policy"}) == {"source": "policy"}


def test_files_of_the_host_are_for_nobody_who_was_not_given_them(service: Service) -> None:
    for words in (
        {"op": "fs_read", "path": "/etc/hostname"},
        {"op": "fs_list", "path": "/etc"},
        {"op": "fs_write", "path": "/etc/x", "bytes_b64": ""},
    ):
        answer = operation(service, **words)
        assert (answer.status, answer.json["code"]) == (403, "SANDBOX.CAPABILITY_BLOCKED")
    told(service.home, "key", "create")
    wanted = {"tool": "file_read", "call_id": "c", "allow": ["fs.host:/etc"]}
    assert service.ask("POST", "/grants", wanted).reason == "limit_exceeds_ceiling"


@pytest.mark.parametrize("path", TRAVERSALS)
def test_a_path_that_leads_out_gets_the_same_answer_from_every_way_to_a_file(service: Service, path: str) -> None:
    assert shell(service, "ln -sfn /etc link").json["success"]
    by_operation = operation(service, op="fs_read", path=path)
    quoted = path.replace("\0", "%00")
    by_file = service.ask("GET", f"/sandbox/workspaces/p/files?path={quoted}")
    assert by_operation.status in (400, 403, 422), by_operation.body
    if path:  # a file of no name is the list of the project, where one asks for files
        assert (by_file.status, by_file.json["code"]) == (by_operation.status, by_operation.json["code"])


# --- grants (S0-125) ---


@pytest.mark.needs("biscuit")
def test_no_grant_is_401_and_one_that_is_revoked_or_too_small_403(service: Service) -> None:
    told(service.home, "key", "create")
    assert service.ask("GET", "/sandbox/execs", key=None).status == 401
    nonsense = shell(service, "true", {"X-Ringfence-Grant": "x", "X-Ringfence-Call": "c"})
    assert (nonsense.status, nonsense.json["code"]) == (401, "SANDBOX.PERMISSION_DENY")

    (key,) = service.ask("GET", "/keys").json["keys"]
    subject = key["name"] or key["key_id"]

    def granted(call: str, tool: str) -> tuple[str, dict[str, str]]:
        wanted = {"tool": tool, "call_id": call, "subject_id": subject}
        made = service.ask("POST", "/grants", wanted)
        assert made.status == 201, made.body
        return made.json["grant_id"], {"X-Ringfence-Grant": made.json["token"], "X-Ringfence-Call": call}

    other = shell(service, "true", granted("c1", "file_read")[1])
    assert (other.status, other.json["code"]) == (403, "SANDBOX.PERMISSION_DENY")
    assert shell(service, "true", granted("c0", "shell_exec")[1]).status == 201
    grant_id, headers = granted("c2", "shell_exec")
    assert service.ask("POST", f"/grants/{grant_id}/revoke", {}).status == 200
    revoked = shell(service, "true", headers)
    assert (revoked.status, revoked.json["code"]) == (403, "SANDBOX.PERMISSION_DENY")


# --- what each box uses (S1-123, S1-124) ---


def test_memory_and_processor_time_of_a_box_are_told_while_it_is_there(service: Service) -> None:
    hold = 'hostname; exec python3 -c \'held = bytearray(b"x") * 100_000_000; print("up", flush=True); input()\''
    process = service.ask(
        "POST", "/sandbox/processes", {"ephemeral": True, "exec": {"kind": "shell", "code": hold}, "wait_ms": 8000}
    ).json
    place = f"/sandbox/processes/{process['process_id']}"
    while "up" not in (text := service.ask("GET", f"{place}?wait_ms=8000").json["stdout"]["text"]):
        assert service.ask("GET", place).json["state"] == "running"
    sandbox = text.split()[0]
    told_of = {name: number for name, number in gauges(service) if sandbox in name}
    assert told_of[f'sandbox_memory_usage_bytes{{sandbox_id="{sandbox}"}}'] >= 100_000_000
    assert told_of[f'sandbox_cpu_usage_seconds{{sandbox_id="{sandbox}"}}'] >= 0
    service.ask("POST", f"{place}/kill", {})
    assert [name for name, _ in gauges(service) if sandbox in name] == []


def test_the_memory_of_a_python_box_is_counted_once(service: Service) -> None:
    code = 'import os; held = bytearray(b"x") * 100_000_000; print(os.uname().nodename, "up", flush=True); input()'
    process = service.ask(
        "POST", "/sandbox/processes", {"ephemeral": True, "exec": {"kind": "python", "code": code}, "wait_ms": 8000}
    ).json
    place = f"/sandbox/processes/{process['process_id']}"
    while "up" not in (text := service.ask("GET", f"{place}?wait_ms=8000").json["stdout"]["text"]):
        assert service.ask("GET", place).json["state"] == "running"
    told_of = dict(gauges(service))
    assert 100_000_000 <= told_of[f'sandbox_memory_usage_bytes{{sandbox_id="{text.split()[0]}"}}'] < 150_000_000
    service.ask("POST", f"{place}/kill", {})


def gauges(service: Service) -> list[tuple[str, float]]:
    lines = service.ask("GET", "/metrics").body.decode().splitlines()
    return [(line.rpartition(" ")[0], float(line.rpartition(" ")[2])) for line in lines if not line.startswith("#")]
