"""The law behind the surface for AIO clients: every command is judged as it is written, and is one run on record."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from tests.http_service import Service, serving

pytestmark = [pytest.mark.needs("native"), pytest.mark.once]
POLICY = """
policies:
  tools:
    shell_exec: {denied_commands: [curl], max_execution_time: 5s}
    code_run: {supported_languages: [python]}
    file_read: {denied_paths: ["/workspace/**/*.key"]}
"""


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    home = tmp_path_factory.mktemp("aio-law")
    (home / "policy.yaml").write_text(POLICY)
    with serving(home, "--policy", str(home / "policy.yaml"), RINGFENCE_SERVER_AIO="true") as running:
        yield running


def told(service: Service, path: str, **body: Any) -> Any:
    answer = service.ask("POST", f"/v1/{path}", body, headers={"X-Ringfence-Project": "law"})
    assert answer.status == 200, answer.body
    return answer.json


@pytest.mark.parametrize(("path", "name"), [("bash/exec", "session_id"), ("shell/exec", "id")])
def test_a_command_that_the_policy_denies_does_not_run_in_any_session(service: Service, path: str, name: str) -> None:
    first = told(service, path, command="echo allowed > kept.txt", **{name: "s"})
    assert first["success"], first
    refused = told(service, path, command="echo reached > reached.txt; curl http://example.org", **{name: "s"})
    assert (refused["success"], refused["data"]["error_type"]) == (False, "permission_denied")
    assert refused["data"]["code"] == "POLICY.DENY_TOOL"
    seen = told(service, path, command="ls", **{name: "s"})["data"]
    assert "kept.txt" in (seen.get("stdout") or seen["output"])
    assert "reached.txt" not in (seen.get("stdout") or seen["output"])


def test_a_tool_is_held_to_the_policy_too(service: Service) -> None:
    for path, name in (("bash/exec", "session_id"), ("shell/exec", "id")):
        beyond = told(service, path, command="true", hard_timeout=6, **{name: "s"})
        assert (beyond["success"], beyond["data"]["reason"]) == (False, "limit_exceeds_ceiling")
    refused = told(service, "code/execute", language="javascript", code="1")
    assert (refused["success"], refused["data"]["error_type"]) == (False, "permission_denied")
    assert told(service, "file/write", file="a.key", content="private")["success"]
    for path, body in (
        ("file/read", {"file": "a.key"}),
        ("file/replace", {"file": "a.key", "old_str": "p", "new_str": "q"}),
    ):
        kept_back = told(service, path, **body)
        assert (kept_back["success"], kept_back["data"]["error_type"]) == (False, "permission_denied")
    headers = {"X-Ringfence-Project": "law"}
    assert service.ask("GET", "/v1/file/download?path=a.key", headers=headers).status == 403


def test_every_command_and_cell_is_a_run_of_the_record(service: Service) -> None:
    command = told(service, "bash/exec", command="echo recorded")["data"]["command_id"]
    cell = told(service, "jupyter/execute", code="1 + 1")["data"]["msg_id"]
    for exec_id in (command, cell):
        shown = service.ask("GET", f"/sandbox/execs/{exec_id}").json
        assert (shown["exec_id"], shown["status"], shown["project_id"]) == (exec_id, "succeeded", "law")
