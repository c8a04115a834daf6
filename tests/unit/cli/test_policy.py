"""`ringfence policy` as a person meets it: what it finds wrong, what differs, what a mode means, what it refuses."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from tests.unit.cli.policy_files import DOCUMENT, EXAMPLE, NETWORK, ROOT, Write
from tests.unit.cli.policy_files import write as write

from ringfence.interfaces.cli.main import main

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
