"""`ringfence policy check` and `policy test`: the guard's word about an operation, which nobody carries out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.unit.cli.policy_files import DOCUMENT, EXAMPLE, Write
from tests.unit.cli.policy_files import write as write

from ringfence.interfaces.cli.main import main

READ = {"op": "fs_read", "path": "work/notes.txt"}
GRANT = {
    "tenant": "t",
    "subject_id": "s",
    "tool_name": "file_read",
    "call_id": "c",
    "capabilities": [{"FsRead": {"path": "/workspace/inputs"}}],
    "expires_at": 1 << 52,
    "budget": {"calls": 1},
    "decision_key_fingerprint": "f",
    "nonce": "n",
}


def check(
    capsys: pytest.CaptureFixture[str], operation: dict[str, Any], *words: str, policy: str = DOCUMENT
) -> tuple[int, dict[str, Any]]:
    code = main(["policy", "check", "--policy", policy, "--op", json.dumps(operation), "--json", *words])
    return code, json.loads(capsys.readouterr().out)


def test_what_is_allowed_is_allowed_by_every_rule(capsys: pytest.CaptureFixture[str]) -> None:
    code, said = check(capsys, READ)
    assert (code, said["decision"], said["risk"], said["tool"]) == (0, "allow", "low", "file_read")
    assert said["operation"] == "fs.read:/workspace/work/notes.txt"
    assert [answer["rule"] for answer in said["answers"]] == [
        *("tool", "time", "place", "manifest", "grant", "deny_lists", "capability", "consent")
    ]
    assert (said["code"], said["reason"]) == (None, None)


@pytest.mark.parametrize(
    ("operation", "words", "code", "reason"),
    [
        ({"op": "fs_read", "path": "work/server.key"}, [], "SANDBOX.CAPABILITY_BLOCKED", "blacklist"),
        ({"op": "fs_read", "path": "inputs/../../etc/passwd"}, [], "SANDBOX.CAPABILITY_BLOCKED", "path_traversal"),
        (
            {"op": "fs_write", "path": "a", "bytes_b64": ""},
            ["--role", "data_analyst"],
            "POLICY.DENY_TOOL",
            "tool_denied",
        ),
        ({"op": "proc_exec", "tool": "id"}, [], "POLICY.DENY_TOOL", "manifest_mismatch"),
        ({"op": "code_run", "language": "bash", "code": "sudo ls"}, [], "POLICY.DENY_TOOL", "argument"),
        (
            {"op": "fs_write", "path": "a", "bytes_b64": ""},
            ["--tool", "file_read"],
            "POLICY.DENY_TOOL",
            "manifest_mismatch",
        ),
    ],
)
def test_what_is_denied_has_its_code_and_its_reason(
    operation: dict[str, Any], words: list[str], code: str, reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    exit_code, said = check(capsys, operation, *words)
    assert (exit_code, said["decision"], said["code"], said["reason"]) == (3, "deny", code, reason)


def test_code_is_judged_and_not_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    witness = tmp_path / "ran"
    operation = {"op": "code_run", "language": "python", "code": f"open({str(witness)!r}, 'w')"}
    assert check(capsys, operation)[0] == 0
    assert not witness.exists()


def test_where_somebody_has_to_agree_the_exit_code_says_so(write: Write, capsys: pytest.CaptureFixture[str]) -> None:
    code, said = check(capsys, READ, policy=write("mode: strict-ask\npolicies: {}\n"))
    assert (code, said["decision"], said["reason"]) == (4, "ask", "consent_required")


@pytest.mark.parametrize(
    ("change", "path", "exit_code", "reason"),
    [
        ({}, "inputs/a", 0, None),
        ({}, "work/a", 3, "not_granted"),
        ({"expires_at": 1}, "inputs/a", 3, "expired"),
        ({"tool_name": "file_write"}, "inputs/a", 3, "manifest_mismatch"),
    ],
)
def test_a_grant_takes_away(
    change: dict[str, Any],
    path: str,
    exit_code: int,
    reason: str | None,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    grant = tmp_path / "grant.json"
    grant.write_text(json.dumps(GRANT | change))
    code, said = check(capsys, {"op": "fs_read", "path": path}, "--grant", str(grant))
    assert (code, said["reason"]) == (exit_code, reason)


def test_a_person_reads_every_answer(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["policy", "check", "--policy", DOCUMENT, "--op", json.dumps({"op": "fs_read", "path": ".env"})]
    assert main(words) == 3
    head, *answers = capsys.readouterr().out.splitlines()
    assert head == "deny: fs.read:/workspace/.env (low risk)"
    told = "the policy keeps everybody from this path: see denied_paths"
    assert f"  deny_lists   deny  SANDBOX.CAPABILITY_BLOCKED blacklist: {told}" in answers
    assert len(answers) == 8


TESTS = """
policies:
  tools:
    file_read: {denied_paths: ["/workspace/**/*.key"]}
    my_tool: {risk_level: low}
  agent_roles:
    reader: {tools: [file_read]}
tests:
  - {name: notes may be read, tool: file_read, role: reader, op: {op: fs_read, path: work/notes}, expect: allow}
  - {name: keys may not, tool: file_read, op: {op: fs_read, path: work/a.key}, expect: deny}
  - {tool: file_write, role: reader, op: {op: fs_write, path: work/a, bytes_b64: ""}, expect: deny}
  - {tool: my_tool, op: {op: fs_read, path: work/a}, expect: allow}
"""


def test_a_policy_that_does_what_its_tests_say_passes(write: Write, capsys: pytest.CaptureFixture[str]) -> None:
    file = write(TESTS)
    assert main(["policy", "test", file]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "ok      notes may be read",
        "ok      keys may not",
        "ok      test 3",
        "ok      test 4",
        f"{file}: 4 tests, 0 failed",
    ]


def test_a_test_that_the_policy_fails_is_named_with_its_line(write: Write, capsys: pytest.CaptureFixture[str]) -> None:
    file = write(TESTS.replace("*.key", "*.pem"))
    assert main(["policy", "test", file]) == 1
    assert f"FAILED  keys may not ({file}:10): expected deny, the guard says allow" in capsys.readouterr().out
    assert main(["policy", "test", file, "--json"]) == 1
    said = json.loads(capsys.readouterr().out)
    assert (said["success"], said["failed"], [each["decision"] for each in said["tests"]]) == (
        *(False, 1),
        ["allow", "allow", "deny", "allow"],
    )


def test_what_is_judged_is_written_once(write: Write, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    # one reader takes the first of two, another the last: who was told "allow" must have asked about the same
    twice = '{"op": "fs_read", "path": "work/.env", "path": "work/a"}'
    assert main(["policy", "check", "--policy", DOCUMENT, "--op", twice]) == 2
    assert "written twice" in capsys.readouterr().err
    (tmp_path / "grant.json").write_text('{"tool_name": "a", "tool_name": "b"}')
    assert main(["policy", "explain", "--policy", DOCUMENT, "--grant", str(tmp_path / "grant.json")]) == 2
    assert "written twice" in capsys.readouterr().err


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
