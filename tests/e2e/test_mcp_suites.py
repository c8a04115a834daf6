"""The programs of the protocol's makers against our server: the inspector as it is, the conformance suite as it grows.

What the suite expects and we do not do is in `mcp_suites/baseline.toml`, each with its reason. The list may only
shrink: whatever fails and is not in it, or is in it and passes, fails here.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.command_line import COMMAND, ringfence, surroundings
from tests.mcp_programs import SUITES, program
from tests.mcp_servers import listening

pytestmark = [pytest.mark.needs("native", "mcp_suites"), pytest.mark.timeout(180)]

REVISIONS = ("2025-11-25", "2026-07-28")
BASELINE: dict[str, dict[str, dict[str, Any]]] = tomllib.loads((SUITES / "baseline.toml").read_text())


@pytest.fixture
def profile(tmp_path: Path) -> Iterator[str]:
    """Start our server with the suite's fixtures, and return its address."""
    process = subprocess.Popen(
        [sys.executable, str(SUITES / "profile.py"), str(tmp_path)],
        env=surroundings(tmp_path, PYTHONPATH=":".join(map(str, (SUITES.parents[2], SUITES.parents[2] / "src")))),
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    try:
        yield f"http://127.0.0.1:{int(process.stdout.readline())}/mcp"
    finally:
        process.terminate()
        process.wait()
        process.stdout.close()


@pytest.mark.parametrize("revision", REVISIONS)
def test_the_server_conforms_but_for_what_the_baseline_gives_a_reason_for(
    profile: str, revision: str, tmp_path: Path
) -> None:
    expected = {name: set(entry["checks"]) for name, entry in BASELINE.get(revision, {}).items()}
    seen = tried(profile, tmp_path / "found", "--requirements", revision)
    assert len(seen) >= 33
    assert sum(status == "SUCCESS" for checks in seen.values() for status in checks.values()) >= 60
    failed = {name: failures(checks) for name, checks in seen.items() if failures(checks)}
    # some checks give an answer half a second, which a busy machine may not keep: those are tried again by themselves
    for name in [name for name in failed if failed[name] - expected.get(name, set())]:
        for attempt in range(3):
            alone = ("--scenario", name, "--spec-version", revision, "--suite", "all")
            again = tried(profile, tmp_path / f"{name}-{attempt}", *alone)
            failed[name] &= failures(again[name])
    assert {name: checks for name, checks in failed.items() if checks} == expected
    # the fixtures went the way of every run: each is in the evidence of the home
    listed = json.loads(ringfence(tmp_path, "evidence", "list", "--json").stdout)
    assert {each["tool_name"] for each in listed["execs"]} >= {"code_run"}


def tried(url: str, found: Path, *words: str) -> dict[str, dict[str, str]]:
    """Run the suite and return the status of every check, by scenario."""
    done = program("conformance", "server", "--url", url, *words, "-o", str(found))
    seen = {
        re.sub(r"-\d{4}-\d\d-\d\dT.*", "", path.parent.name.removeprefix("server-")): {
            check["id"]: check["status"] for check in json.loads(path.read_text())
        }
        for path in found.glob("server-*/checks.json")
    }
    assert seen, done.stdout + done.stderr
    return seen


def failures(checks: dict[str, str]) -> set[str]:
    return {name for name, status in checks.items() if status == "FAILURE"}


def test_every_expected_failure_has_a_reason_and_none_was_added() -> None:
    assert set(BASELINE) <= set(REVISIONS)
    entries = [entry for revision in BASELINE.values() for entry in revision.values()]
    assert [entry for entry in entries if len(entry["reason"]) < 20 or not entry["checks"]] == []
    assert sum(len(entry["checks"]) for entry in entries) <= 25  # lower it with every one that goes


# --- the inspector's command mode ---


def test_the_inspector_calls_a_tool_over_stdio(tmp_path: Path) -> None:
    words = ("--method", "tools/call", "--tool-name", "run_code", "--tool-arg", "code=print(6 * 7)")
    answer = inspected(*COMMAND, "mcp", "--home", str(tmp_path), *words)
    assert answer["structuredContent"]["stdout"] == "42\n"
    assert not answer.get("isError")


def test_the_inspector_finds_no_fault_in_any_schema(tmp_path: Path) -> None:
    done = program(
        "mcp-inspector", "--cli", *COMMAND, "mcp", "--home", str(tmp_path), "--method", "tools/list", "--strict"
    )
    assert done.returncode == 0, done.stderr
    # even what it only warns of is gone from our own; the schemas of a skill are those of its author
    warned = re.findall(r'tool "([^"]+)"', done.stderr)
    assert [name for name in warned if not name.startswith("skill.")] == []
    answer = json.loads(done.stdout)
    assert {"run_code", "read_file"} <= {tool["name"] for tool in answer["tools"]}


def test_the_inspector_calls_a_tool_over_http(tmp_path: Path) -> None:
    with listening(tmp_path) as http:
        key = ("--transport", "http", "--header", f"Authorization: Bearer {http.key}")
        words = ("--method", "tools/call", "--tool-name", "run_shell", "--tool-arg", "command=echo hi")
        answer = inspected(http.url, *key, *words)
    assert answer["structuredContent"]["stdout"] == "hi\n"


def told_in_the_readme() -> dict[str, list[str]]:
    """Return what each client is told to start, by the client's name."""
    page = (SUITES.parents[2] / "README.md").read_text()
    added = re.findall(r"(?m)^claude mcp add ringfence -- (\S.*?) +# (.+)$", page)
    forms = [
        (json.loads(form), client)
        for form, client in re.findall(r'(?m)^(\{"(?:mcpServers|servers)": .*\}) +# (.+)$', page)
    ]
    servers = [(client, (form.get("mcpServers") or form["servers"])["ringfence"]) for form, client in forms]
    assert all(each.get("type", "stdio") == "stdio" for _, each in servers)
    started = {client: [each["command"], *each["args"]] for client, each in servers}
    return {client: command.split() for command, client in added} | started


def test_the_three_lines_of_the_readme_start_a_server_that_answers(tmp_path: Path) -> None:
    lines = told_in_the_readme()
    assert set(lines) == {"Claude Code", "Claude Desktop, Cursor", "VS Code"}
    bin_directory = Path(sys.executable).parent
    for command in {tuple(words) for words in lines.values()}:
        words = (str(bin_directory / command[0]), *command[1:], "--home", str(tmp_path))
        calling = ("--method", "tools/call", "--tool-name", "run_code", "--tool-arg", "code=print(6 * 7)")
        assert inspected(*words, *calling)["structuredContent"]["stdout"] == "42\n"


def inspected(*words: str) -> dict[str, Any]:
    done = program("mcp-inspector", "--cli", *words)
    assert done.returncode == 0, done.stdout + done.stderr
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer
