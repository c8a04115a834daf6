"""`ringfence policy explain`: what the policy of document 001 gives whom, where it comes from and who holds it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.unit.cli.policy_files import DOCUMENT, EXAMPLE, NETWORK, Explain, Write
from tests.unit.cli.policy_files import explain as explain
from tests.unit.cli.policy_files import write as write

from ringfence.interfaces.cli.main import main


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


def test_without_a_word_about_files_a_call_has_those_of_the_workspace_and_no_other(
    explain: Explain, write: Write
) -> None:
    rows = explain(DOCUMENT, "--tool", "file_write")["by_name"]
    assert rows["fs.write"]["value"] == ["/workspace"]
    assert "fs.host" not in rows
    none = explain(write("policies: {default: {filesystem_access: none}}\n"), "--tool", "file_write")["by_name"]
    assert none.get("fs.write", {"value": []})["value"] == []


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
