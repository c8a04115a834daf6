"""G37: a caller may ask for more caution than the service has, and for the role of its key, never for less."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.command_line import said, told
from tests.http_service import Answer, Service, serving

from ringfence import SandboxManager
from ringfence.errors import IsolationUnavailable

pytestmark = [pytest.mark.needs("native"), pytest.mark.guarantee(21, 37)]
POLICY = """
policies:
  agent_roles:
    reader: {tools: [file_read, file_list]}
    runner: {tools: [code_run, shell_exec]}
"""


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    home = tmp_path_factory.mktemp("home")
    (home / "policy.yaml").write_text(POLICY)
    with serving(home, "--policy", str(home / "policy.yaml")) as running:
        yield running


@pytest.fixture(scope="module")
def keys(service: Service) -> dict[str, str]:
    made = {}
    for role in ("reader", "runner", "nobody"):
        body = {"access": "agent", "tenant": "acme", "role": role}
        made[role] = service.ask("POST", "/keys", body).json["key"]
    return {**made, "none": service.make_key("agent", "acme")}


def run(service: Service, key: str, **overrides: Any) -> Answer:
    body = {"project_id": "p", "exec": {"kind": "python", "code": "print(1)"}, "policy_overrides": overrides}
    return service.ask("POST", "/sandbox/execs", body, key=key)


def test_a_key_acts_in_its_role_at_every_door(service: Service, keys: dict[str, str]) -> None:
    assert run(service, keys["runner"]).json["stdout"] == "1\n"
    for role in ("reader", "nobody"):
        refused = run(service, keys[role])
        assert refused.status == 403, refused.body
        start = {"project_id": "p", "exec": {"kind": "python", "code": "print(1)"}}
        assert service.ask("POST", "/sandbox/processes", start, key=keys[role]).status == 403
    written = service.ask("PUT", "/sandbox/workspaces/p/files?path=work/a", b"1", key=keys["reader"])
    assert written.status == 403
    assert service.ask("GET", "/sandbox/workspaces/p/files?path=work", key=keys["reader"]).status == 200
    call = {"jsonrpc": "2.0", "id": 1, "method": "tools/call"}
    called = {**call, "params": {"name": "run_code", "arguments": {"code": "print(1)"}}}
    headers = {"Accept": "application/json, text/event-stream", "MCP-Protocol-Version": "2025-11-25"}
    told = service.ask("POST", "/mcp", called, key=keys["reader"], headers=headers).body.decode()
    assert "print" not in told
    assert '"stdout": "1' not in told


def test_a_request_names_the_role_of_its_key_and_no_other(service: Service, keys: dict[str, str]) -> None:
    assert run(service, keys["runner"], role="runner").status == 201
    for key, role in (("reader", "runner"), ("none", "runner"), ("runner", "reader"), ("runner", "no such")):
        refused = run(service, keys[key], role=role)
        assert (refused.status, refused.reason) == (403, "role"), (key, role)


@pytest.mark.parametrize(
    ("overrides", "status", "reason"),
    [
        ({"isolation": "auto", "security_mode": "strict"}, 201, None),
        ({"isolation": "native"}, 201, None),
        ({"isolation": "docker"}, 403, "not_granted"),
        ({"isolation": "bwrap"}, 403, "not_granted"),
        ({"isolation": "aio"}, 403, "not_granted"),
        ({"isolation": "process"}, 422, "unknown_isolation"),
        ({"security_mode": "permissive"}, 403, "not_granted"),
        ({"security_mode": "lax"}, 422, "unknown_security_mode"),
    ],
)
def test_more_caution_is_given_and_less_is_refused(
    service: Service, keys: dict[str, str], overrides: dict[str, Any], status: int, reason: str | None
) -> None:
    answer = run(service, keys["none"], **overrides)
    assert answer.status == status, answer.body
    assert reason is None or answer.reason == reason
    start = {"project_id": "p", "exec": {"kind": "python", "code": "print(1)"}, "policy_overrides": overrides}
    started = service.ask("POST", "/sandbox/processes", start, key=keys["none"])
    assert started.status == status


def test_gvisor_is_given_where_it_is_asked_for_or_nothing_runs(service: Service, keys: dict[str, str]) -> None:
    answer = run(service, keys["none"], isolation="gvisor")
    if answer.status == 201:
        assert answer.json["backend"] == "gvisor"
    else:
        assert (answer.status, answer.reason) == (503, "isolation_unavailable")


def test_cgroups_are_there_where_they_are_asked_for_or_nothing_runs(service: Service, keys: dict[str, str]) -> None:
    answer = run(service, keys["none"], require_cgroups=True)
    if answer.status == 201:
        assert answer.json["isolation"]["memory_limit"] == "cgroup"
    else:
        assert (answer.status, answer.reason) == (503, "cgroups_missing")


@pytest.mark.parametrize("role", [None, "lax"])
async def test_a_policy_has_memory_held_by_a_cgroup_or_nothing_runs(tmp_path: Path, role: str | None) -> None:
    policy = tmp_path / "policy.yaml"
    lax = "{tools: [code_run], require_cgroups: false}"
    policy.write_text(f"policies: {{default: {{require_cgroups: true}}, agent_roles: {{lax: {lax}}}}}\n")
    async with SandboxManager(home=tmp_path / "home", policy_file=policy, role=role, pool_size=0) as manager:
        try:
            seen = (await manager.execute_code("python", "print(1)")).isolation.memory_limit
        except IsolationUnavailable as refused:
            seen = refused.reason
    assert seen in (("cgroup", "cgroups_missing") if role is None else ("cgroup", "sampled"))


def test_the_command_makes_and_shows_a_key_of_a_role(service: Service) -> None:
    made = told(service.home, "key", "create", "--access", "agent", "--tenant", "acme", "--role", "runner")
    assert made["role"] == "runner"
    assert run(service, made["key"], role="runner").status == 201
    assert "agent of acme  as runner" in said(service.home, "key", "list")
