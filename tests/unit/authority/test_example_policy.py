"""The policy we ship as an example is one that can be used as it is."""

from __future__ import annotations

from pathlib import Path

from ringfence.authority.catalogue import TOOLS
from ringfence.authority.finding import errors
from ringfence.authority.grant import Grant
from ringfence.authority.levels import Decision
from ringfence.authority.manifest import built_in_manifest
from ringfence.authority.policy_lint import lint
from ringfence.authority.policy_reader import load_policy
from ringfence.authority.profile_builder import ProfileBuilder
from ringfence.capability.budget import Budget

FILE = Path(__file__).resolve().parents[3] / "examples" / "sandbox_policy.yaml"
# The names that the documents use.
NAMED = (
    "file_read", "search", "file_write", "file_edit", "shell_exec", "code_run", "browser_automation", "system_admin",
    "network_scan",
)  # fmt: skip


def test_it_has_no_errors_and_one_warning_that_is_meant() -> None:
    findings = lint(FILE.read_bytes(), FILE.name)
    assert errors(findings) == []
    assert [finding.rule for finding in findings] == ["role_widens_tool"]


def test_it_gives_every_named_tool_the_risk_of_the_catalogue() -> None:
    policy = load_policy(FILE.read_bytes()).policy
    assert {name: policy.tools[name].values["risk_level"] for name in NAMED} == {
        name: TOOLS[name].risk for name in NAMED
    }


def test_its_own_tests_hold() -> None:
    snapshot = load_policy(FILE.read_bytes())
    answers = {}
    for test in snapshot.policy.tests:
        view = snapshot.view(test.tool, test.role)
        grant = Grant("t", "s", test.tool, "c", view.capabilities, 1, Budget(), "f")
        made = ProfileBuilder().build(grant, built_in_manifest(test.tool, view.capabilities), snapshot, role=test.role)
        answers[test.name] = Decision.ALLOW if made.allows(test.operation) else Decision.DENY
    assert answers == {test.name: test.expect for test in snapshot.policy.tests}
