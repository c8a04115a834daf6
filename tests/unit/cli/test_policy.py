"""`ringfence policy` as a person meets it: what it says about the policy of document 001, and what it refuses."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ringfence.interfaces.cli.main import main

ROOT = Path(__file__).resolve().parents[3]
DOCUMENT = str(ROOT / "tests/unit/authority/sandbox_policy.yaml")
NETWORK = str(ROOT / "tests/unit/authority/network_policy.yaml")
EXAMPLE = str(ROOT / "examples/sandbox_policy.yaml")

Write = Callable[..., str]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def _write(content: str | bytes | dict[str, Any], name: str = "policy.yaml") -> str:
        path = tmp_path / name
        content = json.dumps(content) if isinstance(content, dict) else content
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return str(path)

    return _write


class Explain:
    """Runs `policy explain --json` and hands out its rows by name."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def __call__(self, policy: str, *words: str) -> dict[str, Any]:
        assert main(["policy", "explain", "--policy", policy, *words, "--json"]) == 0
        said: dict[str, Any] = json.loads(self._capsys.readouterr().out)
        return said | {"by_name": {row["setting"]: row for row in said["rows"]}}


@pytest.fixture
def explain(capsys: pytest.CaptureFixture[str]) -> Explain:
    return Explain(capsys)


# --- lint ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("file", [DOCUMENT, EXAMPLE])
def test_the_policy_of_the_document_and_the_example_have_no_errors(
    file: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["policy", "lint", file]) == 0
    warning, summary = capsys.readouterr().out.splitlines()
    assert warning.startswith(f"{file}:")
    assert "[role_widens_tool]" in warning
    assert summary == f"{file}: no errors, 1 warning"


def test_the_network_policy_of_the_document_has_nothing_to_complain_about(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["policy", "lint", NETWORK]) == 0
    assert capsys.readouterr().out == f"{NETWORK}: no errors, no warnings\n"


def test_an_error_has_its_place_its_rule_and_its_fix_and_gives_2(
    write: Write, capsys: pytest.CaptureFixture[str]
) -> None:
    file = write("policies:\n  default:\n    max_memroy: 1GB\n")
    assert main(["policy", "lint", file]) == 2
    error, summary = capsys.readouterr().out.splitlines()
    assert error == (
        f"{file}:3:5: error: policies.default.max_memroy: 'max_memroy' is not a key here "
        "(fix: did you mean max_memory?) [unknown_key]"
    )
    assert summary == f"{file}: 1 error, no warnings"


@pytest.mark.parametrize(
    ("content", "rule", "line"),
    [
        ("policies: {default: {max_execution_time: 30 parsecs}}\n", "invalid_value", 1),
        ("policies:\n  default: {max_memory: [1]}\n", "invalid_value", 2),
        ("policies:\n  agent_roles: {a: {inherits: b}, b: {inherits: a}}\n", "inheritance_cycle", 2),
        ("policies:\n  agent_roles:\n    a:\n      tools: [teleport]\n", "unknown_tool", 4),
        ("rules:\n- {id: x, command: [git], decision: deny, match: [hg pull]}\n", "example_fails", 2),
        ("policies: {\n", "yaml", 2),
    ],
)
def test_what_is_wrong_is_found_at_its_line(
    write: Write, capsys: pytest.CaptureFixture[str], content: str, rule: str, line: int
) -> None:
    assert main(["policy", "lint", write(content), "--json"]) == 2
    said = json.loads(capsys.readouterr().out)
    assert (said["success"], said["errors"]) == (False, len(said["findings"]))
    assert (rule, line) in [(finding["rule"], finding["line"]) for finding in said["findings"]]


def test_the_names_of_skills_are_held_against_the_skills_there_are(
    write: Write, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    policy = write(
        "policies:\n  tools:\n    text.cuont: {max_memory: 1GB}\n  agent_roles:\n    a:\n      tools:\n"
        "      - text.count\n      - skill.file.search\n      - file.serach\n"
    )
    assert main(["policy", "lint", policy]) == 0
    assert main(["skill", "new", "text.count", "--skills", str(tmp_path / "mine")]) == 0
    capsys.readouterr()
    assert main(["policy", "lint", policy, "--skills", str(tmp_path / "mine"), "--json"]) == 2
    found = [(each["rule"], each["line"], each["fix"]) for each in json.loads(capsys.readouterr().out)["findings"]]
    assert found == [
        ("unused_tool", 3, "did you mean text.count?"),
        ("unknown_tool", 9, "add it under policies.tools, or correct its name"),
    ]
    assert main(["policy", "lint", policy, "--skills", str(tmp_path / "nowhere")]) == 2
    assert "is no directory" in capsys.readouterr().err


def test_lint_in_json_is_one_object(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["policy", "lint", DOCUMENT, "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["success"], said["file"], said["errors"], said["warnings"]) == (True, DOCUMENT, 0, 1)
    assert said["policy_version_hash"].startswith("sha256:")
    assert said["findings"][0].keys() == {
        "severity", "rule", "path", "message", "fix", "file", "line", "column",
    }  # fmt: skip


def test_whoever_wrote_the_policy_does_not_drive_the_terminal_of_who_checks_it(
    write: Write, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["policy", "lint", write('"\\e[2J\\nok": 1\n')]) == 2
    said = capsys.readouterr().out
    assert "\x1b" not in said
    assert "\\x1b[2J\\nok" in said


# --- explain -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tool", "role", "setting", "value", "origin"),
    [
        ("something.else", None, "wall_seconds", 30.0, "default"),
        ("something.else", None, "memory_bytes", 512 * 2**20, "default"),
        ("something.else", None, "cpus", 1.0, "default"),
        ("something.else", None, "isolation", "os", "default"),
        ("shell_exec", None, "wall_seconds", 60.0, "tool shell_exec"),
        ("code_run", None, "wall_seconds", 120.0, "tool code_run"),
        ("code_run", None, "memory_bytes", 1024 * 2**20, "tool code_run"),
        ("code_run", "data_analyst", "memory_bytes", 2048 * 2**20, "role data_analyst"),
        ("code_run", None, "isolation", "os", "tool code_run"),
        ("file_read", None, "isolation", "broker", "tool file_read"),
    ],
)
def test_a_value_of_the_document_is_shown_with_where_it_came_from(
    explain: Explain, tool: str, role: str | None, setting: str, value: Any, origin: str
) -> None:
    words = ("--tool", tool, *(("--role", role) if role else ()))
    row = explain(DOCUMENT, *words)["by_name"][setting]
    assert (row["policy"], row["value"], row["layer"], row["origin"]) == (value, value, "policy", origin)


@pytest.mark.parametrize(
    ("tool", "risk"),
    [
        ("file_read", "low"),
        ("search", "low"),
        ("file_write", "medium"),
        ("file_edit", "medium"),
        ("shell_exec", "high"),
        ("code_run", "high"),
        ("browser_automation", "high"),
        ("system_admin", "critical"),
        ("network_scan", "critical"),
    ],
)
def test_every_tool_the_document_names_has_its_risk(explain: Explain, tool: str, risk: str) -> None:
    assert explain(DOCUMENT, "--tool", tool)["by_name"]["safety"]["value"] == risk
    row = explain(EXAMPLE, "--tool", tool)["by_name"]["safety"]
    assert (row["value"], row["origin"]) == (risk, f"tool {tool}")


def test_what_file_read_may_see_and_what_it_may_not(explain: Explain) -> None:
    rows = explain(DOCUMENT, "--tool", "file_read")["by_name"]
    assert rows["fs.read"]["value"] == ["/workspace"]
    assert set(rows["denied_paths"]["value"]) == {"/workspace/.env", "/workspace/**/*.key"}


def test_the_commands_of_shell_exec_and_the_languages_of_code_run(explain: Explain) -> None:
    shell = explain(DOCUMENT, "--tool", "shell_exec")["by_name"]
    assert shell["proc.exec"]["policy"] == ["cat", "find", "grep", "ls", "node", "python"]
    assert set(shell["denied_commands"]["value"]) == {"rm -rf", "sudo", "curl", "wget", "nc", "ssh"}
    assert explain(DOCUMENT, "--tool", "code_run")["by_name"]["code.run"]["value"] == [
        "javascript", "python", "typescript",
    ]  # fmt: skip


def test_the_browser_has_its_domains_and_everybody_else_no_network(explain: Explain) -> None:
    browser = explain(DOCUMENT, "--tool", "browser_automation")["by_name"]
    assert browser["net.http"]["value"] == ["GET,HEAD:*.example.com"]
    assert browser["net_mode"]["value"] == "allowlist"
    assert browser["denied_domains"]["value"] == ["*.internal.company.com"]
    assert explain(DOCUMENT, "--tool", "code_run")["by_name"]["net_mode"]["value"] == "none"


def test_the_network_policy_of_the_document_is_shown_where_there_is_network(explain: Explain, write: Write) -> None:
    fetcher = "policies: {tools: {http_request: {network_access: true}}}\n"
    rows = explain(write(fetcher + Path(NETWORK).read_text()), "--tool", "http_request")["by_name"]
    assert rows["net.http"]["value"] == [
        "GET,HEAD:*.githubusercontent.com", "GET,HEAD:api.anthropic.com", "GET,HEAD:api.openai.com",
    ]  # fmt: skip
    assert set(rows["denied_domains"]["value"]) == {"*.internal.*", "localhost", "127.*", "10.*", "192.168.*"}
    assert sorted(rows["denied_ports"]["value"], key=int) == ["22", "3306", "5432", "6379"]
    assert {"10.0.0.0/8", "127.0.0.0/8", "169.254.0.0/16"} <= set(rows["denied_networks"]["value"])
    assert explain(NETWORK, "--tool", "http_request")["by_name"]["net_mode"]["value"] == "none"


@pytest.mark.parametrize(
    ("role", "tools"),
    [
        ("code_assistant", {"file_read", "file_write", "code_run", "shell_exec"}),
        ("data_analyst", {"file_read", "code_run"}),
        ("web_scraper", {"browser_automation"}),
    ],
)
def test_a_role_may_use_exactly_the_tools_of_the_document(explain: Explain, role: str, tools: set[str]) -> None:
    every = {"file_read", "file_write", "code_run", "shell_exec", "browser_automation", "system_admin"}
    refusals = {tool: explain(DOCUMENT, "--tool", tool, "--role", role)["profile"]["refusal"] for tool in every}
    assert refusals == {tool: None if tool in tools else "tool_not_in_role" for tool in every}


def test_a_role_inherits_from_a_role(explain: Explain, write: Write) -> None:
    chain = "policies: {agent_roles: {a: {max_memory: 64MB, tools: [code_run]}, b: {inherits: a}, c: {inherits: b}}}\n"
    row = explain(write(chain), "--tool", "code_run", "--role", "c")["by_name"]["memory_bytes"]
    assert (row["value"], row["origin"]) == (64 * 2**20, "role a")


def test_without_a_policy_of_its_own_a_call_has_the_defaults_of_the_system(explain: Explain, write: Write) -> None:
    rows = explain(write("policies: {}\n"), "--tool", "code_run")["by_name"]
    values = {
        "net_mode": "none",
        "wall_seconds": 60.0,
        "stdout_bytes": 2**20,
        "stderr_bytes": 2**20,
        "artifact_bytes": 50 * 2**20,
        "memory_bytes": 1024 * 2**20,
        "cpus": 1.0,
        "pids": 256,
    }
    assert {name: rows[name]["value"] for name in values} == values
    assert all(rows[name]["layer"] == "default" for name in values if name != "net_mode")


MANIFEST: dict[str, Any] = {
    "schema_version": 1,
    "id": "web.get",
    "name": "Get",
    "description": "Fetches a page.",
    "interface": {"inputs": {"type": "object"}, "outputs": {"type": "object"}},
    "runtime": {"kind": "docker", "image": "python:3.12-slim", "entrypoint": ["python3", "get.py"]},
    "permissions": {"fs": {"read": ["inputs/**"], "write": ["work/**"]}, "net": {"mode": "none"}},
    "limits": {"timeout_ms": 90_000},
    "safety_class": "low",
}
TABLE = """\
ceilings: {max_execution_time: 10m, max_memory: 4GB}
policies:
  default: {max_memory: 512MB}
  tools: {web.get: {max_execution_time: 120s, allowed_paths: [inputs, artifacts]}}
  agent_roles: {big: {tools: [web.get], max_memory: 2GB}}
"""


def test_the_table_of_the_model(explain: Explain, write: Write) -> None:
    words = (write(TABLE), "--role", "big", "--manifest", write(MANIFEST, "manifest.json"))
    narrowed = explain(*words, "--override", "timeout_ms=30000")["by_name"]
    timeout = narrowed["wall_seconds"]
    assert [timeout[layer] for layer in ("default", "ceiling", "policy", "manifest", "grant", "request", "value")] == [
        60.0, 600.0, 120.0, 90.0, None, 30.0, 30.0,
    ]  # fmt: skip
    assert (timeout["layer"], timeout["why"], timeout["refused"]) == ("request", "the request narrows", False)
    memory = narrowed["memory_bytes"]
    assert (memory["default"], memory["ceiling"], memory["policy"], memory["value"], memory["origin"]) == (
        1024 * 2**20, 4096 * 2**20, 2048 * 2**20, 2048 * 2**20, "role big",
    )  # fmt: skip
    reads = narrowed["fs.read"]
    assert (reads["policy"], reads["manifest"], reads["value"]) == (
        ["/workspace/artifacts", "/workspace/inputs"], ["/workspace/inputs"], ["/workspace/inputs"],
    )  # fmt: skip


def test_an_override_beyond_a_ceiling_is_refused_and_the_ceiling_named(
    explain: Explain, write: Write, capsys: pytest.CaptureFixture[str]
) -> None:
    words = (write(TABLE), "--manifest", write(MANIFEST, "manifest.json"), "--override", "timeout_ms=300000")
    said = explain(*words)
    assert said["profile"] is None
    assert said["refused"] == {
        "code": "SCHEMA.VALIDATION_FAILED",
        "reason": "limit_exceeds_ceiling",
        "error": "wall_seconds of 300 s exceeds the manifest's 90 s",
    }
    assert said["by_name"]["wall_seconds"]["refused"]
    assert main(["policy", "explain", "--policy", *words]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "refused   wall_seconds of 300 s exceeds the manifest's 90 s (fix: ask for at most 90 s)" in lines
    (row,) = (line.split() for line in lines if line.startswith("wall_seconds"))
    assert " ".join(row[1:]) == "60 s 600 s 120 s 90 s — 300 s refused exceeds the manifest's 90 s host"


def test_an_override_beyond_a_ceiling_is_clamped_on_opt_in_and_that_is_said(explain: Explain, write: Write) -> None:
    words = (write(TABLE), "--manifest", write(MANIFEST, "manifest.json"), "--override", "timeout_ms=300000", "--clamp")
    profile = explain(*words)["profile"]
    assert (profile["timeout_ms"], profile["clamped"]) == (90_000, ["wall_seconds: 300 s to 90 s (manifest)"])


def test_overrides_may_be_words_and_objects_too(explain: Explain, write: Write) -> None:
    capabilities = 'capabilities=[{"FsRead": {"path": "/workspace/inputs"}}]'
    said = explain(EXAMPLE, "--tool", "file_read", "--override", capabilities, "--override", "net.mode=none")
    assert (said["by_name"]["fs.read"]["value"], said["by_name"]["fs.list"]["value"]) == (["/workspace/inputs"], [])
    assert said["by_name"]["net_mode"]["request"] == "none"


def test_a_grant_narrows_what_the_policy_gives(explain: Explain, write: Write) -> None:
    grant = {
        "tenant": "t",
        "subject_id": "s",
        "tool_name": "file_read",
        "call_id": "c",
        "capabilities": [{"FsRead": {"path": "/workspace/inputs"}}],
        "expires_at": 1_000,
        "budget": {"calls": 2},
        "decision_key_fingerprint": "f",
        "safety_floor": "high",
    }
    said = explain(DOCUMENT, "--grant", write(grant, "grant.json"))
    rows = said["by_name"]
    assert (said["tool"], rows["fs.read"]["value"], rows["fs.list"]["value"]) == (
        "file_read", ["/workspace/inputs"], [],
    )  # fmt: skip
    assert (rows["budget.calls"]["value"], rows["budget.calls"]["layer"]) == (2, "grant")
    assert (rows["safety"]["value"], said["profile"]["expires_at"]) == ("high", 1_000)
    assert {
        "tenant", "subject_id", "tool_name", "call_id", "capabilities", "safety", "side_effect", "limits",
        "whitelists", "mappings", "timeout_ms", "profile_hash", "policy_version_hash",
    } <= said["profile"].keys()  # fmt: skip


def test_the_highest_safety_counts_and_side_effects_give_nothing(explain: Explain, write: Write) -> None:
    def said(policy: str, manifest: str, grant: str) -> dict[str, Any]:
        held = {
            "tenant": "t", "subject_id": "s", "tool_name": "web.get", "call_id": "c", "expires_at": 2**40, "budget": {},
            "capabilities": [{"FsRead": {"path": "inputs"}}], "decision_key_fingerprint": "f", "safety_floor": grant,
        }  # fmt: skip
        words = (
            *(write(TABLE.replace("web.get: {", f"web.get: {{risk_level: {policy}, ")), "--tool", "web.get"),
            *("--grant", write(held, "grant.json")),
            *("--manifest", write(MANIFEST | {"safety_class": manifest, "side_effect": ["write"]}, "manifest.json")),
        )
        return explain(*words)

    highest = [said(*levels) for levels in (("high", "low", "low"), ("low", "high", "low"), ("low", "low", "high"))]
    assert [each["by_name"]["safety"]["value"] for each in highest] == ["high"] * 3
    lowest = said("low", "low", "low")
    assert lowest["by_name"]["safety"]["value"] == "low"
    # the manifest says that it writes, and may: the grant gives no writing
    assert (lowest["profile"]["side_effect"], lowest["by_name"]["fs.write"]["value"]) == ("write", [])


def test_the_hash_of_a_profile_is_of_policy_and_manifest_too(explain: Explain, write: Write) -> None:
    def hashed(policy: str, manifest: dict[str, Any]) -> str:
        said = explain(write(policy), "--tool", "web.get", "--manifest", write(manifest, "manifest.json"))
        return str(said["profile"]["profile_hash"])

    first = hashed(TABLE, MANIFEST)
    assert hashed(TABLE, MANIFEST) == first
    others = {hashed(TABLE + "# another version\n", MANIFEST), hashed(TABLE, MANIFEST | {"version": "2.0.0"})}
    others.add(hashed(TABLE.replace("120s", "80s"), MANIFEST))
    assert len(others | {first}) == 4


def test_without_a_word_about_files_a_call_has_those_of_the_workspace_and_no_other(
    explain: Explain, write: Write
) -> None:
    rows = explain(DOCUMENT, "--tool", "file_write")["by_name"]
    assert rows["fs.write"]["value"] == ["/workspace"]
    assert "fs.host" not in rows
    none = explain(write("policies: {default: {filesystem_access: none}}\n"), "--tool", "file_write")["by_name"]
    assert none.get("fs.write", {"value": []})["value"] == []


def test_what_is_judged_is_written_once(write: Write, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    # one reader takes the first of two, another the last: who was told "allow" must have asked about the same
    twice = '{"op": "fs_read", "path": "work/.env", "path": "work/a"}'
    assert main(["policy", "check", "--policy", DOCUMENT, "--op", twice]) == 2
    assert "written twice" in capsys.readouterr().err
    (tmp_path / "grant.json").write_text('{"tool_name": "a", "tool_name": "b"}')
    assert main(["policy", "explain", "--policy", DOCUMENT, "--grant", str(tmp_path / "grant.json")]) == 2
    assert "written twice" in capsys.readouterr().err


def test_who_holds_a_value_is_in_a_column_of_its_own(explain: Explain, capsys: pytest.CaptureFixture[str]) -> None:
    rows = explain(DOCUMENT, "--tool", "browser_automation")["by_name"]
    holders = {"memory_bytes": "kernel", "net.http": "proxy", "fs.read": "guard", "wall_seconds": "host"}
    assert {name: rows[name]["held_by"] for name in holders} == holders
    shell = explain(DOCUMENT, "--tool", "shell_exec")["by_name"]
    assert shell["denied_commands"]["held_by"] == "best-effort"
    assert {row["held_by"] for row in (rows | shell).values()} == {"kernel", "host", "proxy", "guard", "best-effort"}
    assert main(["policy", "explain", "--policy", DOCUMENT, "--tool", "shell_exec"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert any(line.endswith("held by") for line in lines)
    assert any(line.startswith("denied_commands") and line.endswith("best-effort") for line in lines)


def test_what_is_dangerous_is_listed(explain: Explain, write: Write, capsys: pytest.CaptureFixture[str]) -> None:
    dangerous = write(
        "policies: {tools: {"
        "code_run: {filesystem_access: host, host_paths: [/srv/data]}, "
        "http_request: {net_mode: unrestricted, allowed_domains: [a.example]}}}\n"
        "secrets: {TOKEN: {scope: conversation, tools: [code_run]}}\n"
    )
    assert explain(dangerous, "--tool", "code_run")["profile"]["dangers"] == ["host_files", "lasting_secret"]
    assert explain(dangerous, "--tool", "http_request")["profile"]["dangers"] == [
        "unrestricted_network", "private_network",
    ]  # fmt: skip
    assert main(["policy", "explain", "--policy", dangerous, "--tool", "code_run"]) == 0
    assert "dangers   host_files, lasting_secret: each takes the word of a person\n" in capsys.readouterr().out
    assert main(["policy", "explain", "--policy", DOCUMENT, "--tool", "code_run"]) == 0
    assert "dangers   none\n" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "refusal"),
    [
        (("--tool", "code_run", "--role", "nobody"), "unknown_role"),
        (("--tool", "code_run", "--role", "web_scraper"), "tool_not_in_role"),
        (("--tool", "some.skill"), "no_manifest"),
    ],
)
def test_a_call_that_may_do_nothing_says_why(
    explain: Explain, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], refusal: str
) -> None:
    assert explain(DOCUMENT, *words)["profile"]["refusal"] == refusal
    assert main(["policy", "explain", "--policy", DOCUMENT, *words]) == 0
    (line,) = (line for line in capsys.readouterr().out.splitlines() if line.startswith("nothing"))
    assert line.endswith(f"({refusal})")


def test_a_manifest_of_another_tool_does_not_count(explain: Explain, write: Write) -> None:
    said = explain(write(TABLE), "--tool", "code_run", "--manifest", write(MANIFEST, "manifest.json"))
    assert said["profile"]["refusal"] == "tool_mismatch"


# --- diff ----------------------------------------------------------------------------------------


def test_a_difference_is_told_with_its_direction_and_each_change_once(
    write: Write, capsys: pytest.CaptureFixture[str]
) -> None:
    old = write("policies: {tools: {a.b: {max_memory: 1GB}, a.c: {max_memory: 1GB}, a.d: {max_cpu: 2}}}", "old")
    new = write("policies: {tools: {a.b: {max_memory: 2GB}, a.c: {max_memory: 2GB}, a.d: {max_cpu: 1}}}", "new")
    assert main(["policy", "diff", old, new]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "widened: max_memory: 1024 MB → 2048 MB",
        "    no role: a.b, a.c",
        "narrowed: max_cpu: 2 → 1",
        "    no role: a.d",
        "2 widened, 1 narrowed, 0 changed",
    ]
    assert main(["policy", "diff", old, new, "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["widened"], said["narrowed"], said["changed"]) == (2, 1, 0)
    assert said["changes"][0] == {
        "direction": "widened", "role": None, "tool": "a.b", "setting": "max_memory",
        "before": 2**30, "after": 2**31,
    }  # fmt: skip
    assert said["old"]["policy_version_hash"] != said["new"]["policy_version_hash"]


def test_the_same_policy_is_no_difference(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["policy", "diff", DOCUMENT, DOCUMENT, "--fail-on-widening"]) == 0
    assert capsys.readouterr().out == "no call may do more or less than before\n"


@pytest.mark.parametrize(
    ("old", "new", "code"),
    [
        ("max_memory: 1GB", "max_memory: 2GB", 1),
        ("max_memory: 2GB", "max_memory: 1GB", 0),
        ("supported_languages: [python]", "supported_languages: [bash]", 1),
        ("max_memory: 2GB, env_allow: []", "max_memory: 1GB, env_allow: [PATH]", 1),
    ],
)
def test_only_what_narrows_passes_where_widening_fails(write: Write, old: str, new: str, code: int) -> None:
    one, other = (
        write(f"policies: {{tools: {{a.b: {{{text}}}}}}}", name) for name, text in (("old", old), ("new", new))
    )
    assert main(["policy", "diff", one, other]) == 0
    assert main(["policy", "diff", one, other, "--fail-on-widening"]) == code


def test_a_changed_rule_does_not_pass_for_narrower_and_is_shown_in_its_own_words(
    write: Write, capsys: pytest.CaptureFixture[str]
) -> None:
    old = write("rules: [{id: a, command: [git, push], decision: deny}]", "old")
    new = write("rules: [{id: a, command: [git, push], decision: allow}]\nbudgets: {tenant: {'*': {calls: 1}}}", "new")
    assert main(["policy", "diff", old, new, "--fail-on-widening"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith('changed: rules: [{"id": "a", "decision": "deny", "subject": "command", "pattern": ')
    assert lines[1:4] == [
        "    every role: every tool",
        'changed: budgets: {} → {"tenant": {"*": {"calls": 1}}}',
        "    every role: every tool",
    ]


# --- what is refused -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ([], "usage"),
        (["shine"], "usage"),
        (["lint"], "usage"),
        (["lint", DOCUMENT, "--fix"], "usage"),
        (["lint", "no/such/file"], "policy_unreadable"),
        (["lint", "nul\0byte"], "policy_unreadable"),
        (["explain", "--tool", "code_run"], "usage"),
        (["explain", "--policy", DOCUMENT], "usage"),
        (["explain", "--policy", "no/such/file", "--tool", "code_run"], "policy_unreadable"),
        (["explain", "--policy", DOCUMENT, "--manifest", "no/such/file"], "unreadable"),
        (["explain", "--policy", DOCUMENT, "--manifest", DOCUMENT], "invalid_manifest"),
        (["explain", "--policy", DOCUMENT, "--grant", DOCUMENT], "invalid_grant"),
        (["explain", "--policy", DOCUMENT, "--tool", "code_run", "--override", "timeout_ms"], "usage"),
        (["explain", "--policy", DOCUMENT, "--tool", "x", *["--override", "pids=1"] * 2], "usage"),
        (["explain", "--policy", DOCUMENT, "--tool", "x", "--override", "power=1"], "invalid_limit"),
        (["explain", "--policy", DOCUMENT, "--tool", "x", "--override", "net.mode=some"], "invalid_overrides"),
        (["explain", "--policy", DOCUMENT, "--tool", "x", "--override", "timeout_ms=soon"], "invalid_limit"),
        (["diff", DOCUMENT], "usage"),
        (["diff", DOCUMENT, "no/such/file"], "policy_unreadable"),
        (["check"], "usage"),
        (["check", "--policy", DOCUMENT], "usage"),
        (["check", "--policy", DOCUMENT, "--op", "ls"], "invalid_operation"),
        (["check", "--policy", DOCUMENT, "--op", "[]"], "invalid_operation"),
        (["check", "--policy", DOCUMENT, "--op", '{"op": "code_run", "code": "1"}'], "invalid_operation"),
        (
            ["check", "--policy", DOCUMENT, "--op", '{"op": "code_run", "language": "c", "code": ""}'],
            "unknown_language",
        ),
        (["check", "--policy", "no/such/file", "--op", '{"op": "tmp_free", "handle": "x"}'], "policy_unreadable"),
        (["test"], "usage"),
        (["test", "no/such/file"], "policy_unreadable"),
        (["replay"], "usage"),
        (["show"], "usage"),
    ],
)
def test_what_cannot_be_done_is_one_line_with_a_code_a_reason_and_a_fix(
    words: list[str], reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["policy", *words]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith(f"ringfence: SCHEMA.VALIDATION_FAILED {reason}: ")
    assert said.err.count("\n") == 1


def test_a_broken_policy_is_explained_to_nobody(write: Write, capsys: pytest.CaptureFixture[str]) -> None:
    broken = write("policies:\n  default: {max_memory: much}\n")
    for words in (["explain", "--policy", broken, "--tool", "code_run"], ["diff", DOCUMENT, broken]):
        assert main(["policy", *words, "--json"]) == 2
        said = json.loads(capsys.readouterr().out)
        assert (said["reason"], said["details"]["line"]) == ("invalid_policy", 2)


def test_the_manual_has_them_all(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["policy", "lint", "--help"]) == 0
    manual = capsys.readouterr().out
    actions = ("lint", "explain", "check", "test", "diff", "replay", "show")
    assert all(f"ringfence policy {action}" in manual for action in actions)


def test_whoever_runs_something_else_does_not_pay_for_the_law() -> None:
    program = (
        "import sys; from ringfence.interfaces.cli.main import main; main(['policy', '--help']); main(['--version']); "
        "sys.exit(any(name.startswith(('ringfence.authority', 'yaml', 'argparse')) for name in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", program], stdout=subprocess.DEVNULL, check=False).returncode == 0


# --- what a mode means ---------------------------------------------------------------------------


def test_the_page_about_permissions_says_of_every_mode_what_the_guard_says() -> None:
    from ringfence.authority.levels import ApprovalMode
    from ringfence.interfaces.cli.policy_modes import decisions

    page = (ROOT / "docs/permissions.md").read_text()
    rows = [line.strip("| ").split(" | ") for line in page.splitlines() if line.startswith("| ")]
    modes = [ApprovalMode(cell.strip("`")) for cell in rows[0][1:]]
    assert modes == list(ApprovalMode)
    words = {"allow": "allowed", "ask": "asked, and denied where nobody can be asked"}
    for at, mode in enumerate(modes, 1):
        told = {row[0]: row[at] for row in rows[1:]}
        decided = decisions(mode)
        assert told.keys() == decided.keys()
        for action, answer in decided.items():
            assert answer.startswith(words.get(told[action], "denied")), (mode, action)


def test_a_mode_is_shown_as_it_decides(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["policy", "show", "--mode", "cowork"]) == 0
    shown = capsys.readouterr().out
    assert "run code                                 allowed\n" in shown
    assert "files of the host                        asked, and denied where nobody can be asked\n" in shown
    assert main(["policy", "show", "--mode", "never-ask", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["mode"], told["actions"]["files of the host"]) == ("never-ask", "denied: nobody is asked")
    assert main(["policy", "show", "--mode", "yolo"]) == 2
    assert main(["policy", "show"]) == 2
    assert main(["policy", "show", "--mode", "ask", "--hash", "x"]) == 2


def test_what_the_policy_says_of_every_call_is_explained_too(explain: Explain) -> None:
    told = explain(EXAMPLE, "--tool", "shell_exec")
    assert told["by_name"]["allowed_commands"]["value"] == ["ls", "cat", "grep", "find", "python", "node"]
    assert told["by_name"]["allowed_commands"]["held_by"] == "best-effort"
    assert told["by_name"]["mode"]["value"] == "cowork"
    assert told["by_name"]["rule no-force-push"]["value"] == "deny command git push --force|-f"
    assert told["consent"] == "policy: high risk: somebody has to agree (given by mode cowork)"


def test_the_hosts_of_code_that_asks_for_some_are_explained(explain: Explain, write: Write) -> None:
    file = write("policies: {tools: {code_run: {network_access: true, allowed_domains: [a.com]}}}")
    told = explain(file, "--tool", "code_run")["by_name"]
    assert told["net.http"]["value"] != []
    assert told["net_mode"]["value"] == "allowlist"


@pytest.mark.parametrize(
    ("field", "value", "expected"),
    [
        ("domains", ["a.com"], "allow"),
        ("domains", ["b.com"], "deny"),
        ("ports", [8080], "allow"),
        ("ports", [8081], "deny"),
        ("secrets", ["KEY"], "allow"),
        ("secrets", ["OTHER"], "deny"),
        ("env", {"LANG": "C"}, "allow"),
        ("env", {"PATH": "."}, "deny"),
        ("args", ["a"], "allow"),
    ],
)
def test_what_code_asks_for_is_judged_by_check_and_by_the_policys_own_tests(
    write: Write, capsys: pytest.CaptureFixture[str], field: str, value: Any, expected: str
) -> None:
    operation = {"op": "code_run", "language": "bash", "code": "ls", field: value}
    policy = {
        "policies": {
            "tools": {
                "shell_exec": {
                    "network_access": True, "allowed_domains": ["a.com"], "open_ports": [8080], "env_allow": ["LANG"],
                }
            }
        },
        "secrets": {"KEY": {}},
        "tests": [{"tool": "shell_exec", "op": operation, "expect": expected}],
    }  # fmt: skip
    file = write(policy)
    assert main(["policy", "test", file]) == 0, capsys.readouterr().out
    assert main(["policy", "check", "--policy", file, "--op", json.dumps(operation)]) == (
        3 if expected == "deny" else 0
    )


@pytest.mark.parametrize(
    "operation",
    [
        {"op": "code_run", "language": "bash"},
        {"op": "code_run", "language": "bash", "code": 1},
        {"op": "code_run", "language": "bash", "code": "", "files": {}},
        {"op": "code_run", "language": "bash", "code": "", "ports": 80},
        {"op": "code_run", "language": "bash", "code": "", "ports": ["80"]},
        {"op": "code_run", "language": "bash", "code": "", "env": []},
        {"op": "code_run", "language": "bash", "code": "", "secrets": [1]},
        {"op": "code_run", "language": "cobol", "code": ""},
    ],
    ids=str,
)
def test_code_that_is_not_written_so_is_not_judged(
    operation: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["policy", "check", "--policy", EXAMPLE, "--op", json.dumps(operation)]) == 2
    assert "SCHEMA.VALIDATION_FAILED" in capsys.readouterr().err
