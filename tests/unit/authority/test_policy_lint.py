"""What a policy cannot mean: names that nobody has, rules that refute themselves; and what it may, but in doubt."""

from __future__ import annotations

import pytest
from tests.unit.authority.policy_texts import findings, only_error, place

from ringfence.authority.finding import Severity, errors
from ringfence.authority.policy_lint import lint
from ringfence.authority.policy_reader import load_policy


@pytest.mark.parametrize(
    "rule",
    [
        "path: '/workspace/.en[v]'",
        "domain: 'https://evil.com'",
        "domain: 'evil.com:80'",
        "command: 'git *'",
        "command: 'git push; rm'",
        "command: [git, [push, '*']]",
        "command: /usr/bin/git",
    ],
)
def test_a_rule_that_could_decide_about_nothing_is_an_error(rule: str) -> None:
    finding = only_error(f"rules:\n  - {{id: a, decision: deny, {rule}}}\n")
    assert (finding.line, bool(finding.fix)) == (2, True)


def test_a_circle_of_roles_is_an_error() -> None:
    found = errors(
        findings("policies:\n  agent_roles:\n    a: {inherits: b}\n    b: {inherits: c}\n    c: {inherits: a}\n")
    )
    assert {finding.rule for finding in found} == {"inheritance_cycle"}
    assert (found[0].message, found[0].line) == ("inherits itself: a → b → c → a", 3)


def test_a_role_that_inherits_nobody_is_an_error() -> None:
    finding = only_error("policies:\n  agent_roles:\n    a:\n      inherits: nobody\n")
    assert place(finding) == ("unknown_role", "policies.agent_roles.a.inherits", 4)


def test_a_role_that_names_an_unknown_tool_is_an_error() -> None:
    finding = only_error("policies:\n  agent_roles:\n    a:\n      tools:\n      - file_read\n      - flie_write\n")
    assert (finding.rule, finding.message, finding.line) == ("unknown_tool", "there is no tool 'flie_write'", 6)


def test_a_skill_is_known_by_its_id() -> None:
    text = b"policies: {agent_roles: {a: {tools: [skill.shell.run, text.count]}}}"
    assert lint(text) == []
    assert lint(text, skills=["shell.run", "text.count"]) == []
    assert [finding.rule for finding in lint(text, skills=["shell.run"])] == ["unknown_tool"]


@pytest.mark.parametrize(
    ("rule", "says"),
    [
        ("{command: rm, decision: deny, match: [mv a b]}", "rules-1: match 'mv a b' does not match"),
        ("{command: git, decision: deny, not_match: [git status]}", "rules-1: not_match 'git status' matches"),
        ("{domain: '*.corp', decision: deny, match: [corp]}", "rules-1: match 'corp' does not match"),
        ("{path: '*.sql', decision: ask, match: [work/a/b.sql]}", "rules-1: match 'work/a/b.sql' does not match"),
    ],
)
def test_a_rule_that_its_own_examples_refute_is_an_error(rule: str, says: str) -> None:
    finding = only_error(f"rules:\n  - {rule}\n")
    assert (finding.rule, finding.message, finding.line) == ("example_fails", says, 2)


@pytest.mark.parametrize(
    "rule",
    [
        "{decision: deny}",
        "{command: rm}",
        "{command: rm, domain: x, decision: deny}",
        "{command: [], decision: deny}",
        "{command: rm, decision: perhaps}",
        "{command: rm, decision: deny, effect: x}",
        "rm",
    ],
)
def test_half_a_rule_is_an_error(rule: str) -> None:
    assert [finding.line for finding in errors(findings(f"rules:\n  - {rule}\n"))] == [2]


def test_two_rules_of_one_id_are_an_error() -> None:
    finding = only_error("rules:\n- {id: a, command: x, decision: ask}\n- {id: a, command: y, decision: ask}\n")
    assert place(finding) == ("duplicate_rule", "rules[1]", 3)


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("policies: {tools: {a.b: {network_access: true}}}", "no_domains"),
        ("policies: {tools: {a.b: {allowed_domains: [x.com]}}}", "no_network"),
        ("policies: {default: {max_memory: 100GB}}", "above_ceiling"),
        ("ceilings: {max_memory: 1GB}\npolicies: {tools: {a.b: {max_memory: 2GB}}}", "above_ceiling"),
        ("ceilings: {max_execution_time: 2h}", "above_ceiling"),
        ("policies: {tools: {shel_exec: {denied_commands: [rm]}}}", "unused_tool"),
        ("policies: {tools: {Shell_Exec: {denied_commands: [rm]}}}", "unused_tool"),
        ("policies: {tools: {shell_ex\u0435c: {denied_commands: [rm]}}}", "unused_tool"),
        ("policies: {default: {gpu: [a100]}}", "no_effect"),
        ("policies: {default: {host_paths: [/opt]}}", "no_effect"),
        ("policies: {tools: {a.b: {env_allow: [A]}}, agent_roles: {r: {tools: [a.b], env_allow: [B]}}}",
         "role_widens_tool"),
        ("policies: {tools: {a.b: {output_inline: false}}, agent_roles: {r: {tools: [a.b], output_inline: true}}}",
         "role_widens_tool"),
        ("policies: {tools: {a.b: {network_access: false}}, agent_roles: {r: {tools: [a.b], network_access: true}}}",
         "role_widens_tool"),
        ("policies: {tools: {a.b: {supported_languages: [python]}}, agent_roles: {r: {tools: [a.b],"
         " supported_languages: [bash]}}}", "role_widens_tool"),
        ("policies: {tools: {a.b: {risk_level: high}}, agent_roles: {r: {tools: [a.b: {risk_level: low}]}}}",
         "role_widens_tool"),
    ],
)  # fmt: skip
def test_what_is_doubtful_is_a_warning_and_loads(text: str, rule: str) -> None:
    found = findings(text)
    assert [(finding.severity, finding.rule) for finding in found] == [(Severity.WARNING, rule)]
    assert found[0].line > 0
    assert found[0].fix
    assert load_policy(text.encode()).findings


def test_a_tool_of_another_spelling_is_told_which_one_was_meant() -> None:
    for name in ("shel_exec", "Shell_Exec", "shell_ex\u0435c"):
        (finding,) = findings(f"policies:\n  tools:\n    {name}: {{max_cpu: 1}}\n")
        assert (finding.line, finding.fix) == (3, "did you mean shell_exec?")


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("mode: ]", 1),
        ("policies:\n\tdefault: {}", 2),
        ("mode: yolo", 1),
        ("policies:\n  - default", 2),
        ("policies:\n  agent_roles:\n    a: {inherits: b}\n", 3),
        ("policies:\n  agent_roles:\n    a: {inherits: a}\n", 3),
        ("policies:\n  agent_roles:\n    a:\n      tools:\n        - frobnicate\n", 5),
        ("network:\n  denylist:\n    networks:\n      - 10.0.0.0/33\n", 4),
        ("network:\n  denylist:\n    domains:\n      - http://x.com\n", 4),
        ("network: {allowlist: {enabled: maybe}}", 1),
        ("budgets:\n  tenant:\n    acme: {callz: 1}\n", 3),
        ("budgets:\n  tenant:\n    acme: {calls: 999999999999999999999}\n", 3),
        ("budgets:\n  tenant:\n    acme: {bytes_out: 999999999999TB}\n", 3),
        ("budgets:\n  tenant:\n    acme: {wall_ms: 999999999999h}\n", 3),
        ("policies:\n  default:\n    max_memory: 0.000001B\n", 3),
        ("secrets:\n  'a b': {}\n", 2),
        ("secrets:\n  a: {scope: forever}\n", 2),
        ("rules:\n  - {id: a, command: git push}\n", 2),
        ("rules:\n  - {id: a, command: git push, decision: maybe}\n", 2),
        ("rules:\n  - {id: a, command: git, decision: deny, match: [ls]}\n", 2),
        ("approvals:\n  - {id: a, command: git, scope: forever}\n", 2),
        ("tests:\n  - {tool: code_run}\n", 2),
        ("tests:\n  - {tool: code_run, op: {op: nothing}, expect: allow}\n", 2),
        ("taint: {reach: moon}", 1),
        ("policies:\n  agent_roles:\n    default: {tools: [code_run]}\n", 3),
        ("policies:\n  agent_roles:\n    'admin ': {tools: [code_run]}\n", 3),
        ("policies:\n  agent_roles:\n    '': {tools: [code_run]}\n", 3),
        ("ceilings:\n  max_memory: lots\n", 2),
        ("security_mode: paranoid", 1),
    ],
)
def test_whatever_is_broken_has_its_file_its_line_and_what_mends_it(text: str, line: int) -> None:
    found = errors(lint(text.encode(), "p.yaml"))
    assert [(finding.file, finding.line, finding.fix != "") for finding in found] == [("p.yaml", line, True)]
    assert str(found[0]).startswith(f"p.yaml:{line}:")
    assert ": : " not in str(found[0])


@pytest.mark.parametrize(
    "text",
    [
        "secrets: {K: {tools: [nothing]}}",
        "secrets: {K: {roles: [nobody]}}",
        "secrets: {'a b': {}}",
        "secrets: {K: {value: hunter2}}",
        "tests: [{tool: nothing, op: {op: fs_read, path: a}, expect: deny}]",
        "tests: [{tool: file_read, op: {op: fs_reed, path: a}, expect: deny}]",
        "tests: [{tool: file_read, expect: deny}]",
    ],
)
def test_secrets_and_tests_refer_to_what_there_is(text: str) -> None:
    assert len(errors(findings(text))) == 1


def test_one_skill_under_both_its_names_is_an_error() -> None:
    finding = only_error("policies:\n  tools:\n    shell.run: {max_cpu: 1}\n    skill.shell.run: {max_cpu: 2}\n")
    assert place(finding) == ("duplicate_tool", "policies.tools.skill.shell.run", 4)
