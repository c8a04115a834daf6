"""The difference of two policies is what a call may do more or less, not which lines changed."""

from __future__ import annotations

import pytest

from ringfence.authority.policy_diff import Direction, diff
from ringfence.authority.policy_reader import load_policy

BASE = "policies: {tools: {a.b: {%s}}}"


def changes(before: str, after: str) -> set[tuple[str, str]]:
    found = diff(load_policy((BASE % before).encode()), load_policy((BASE % after).encode()))
    return {(change.direction.value, change.setting) for change in found if change.tool == "a.b"}


def test_comments_and_order_are_no_difference() -> None:
    one = load_policy(b"policies:\n  tools: {a.b: {max_memory: 1GB, max_cpu: 2}}\nmode: ask\n")
    other = load_policy(b"# why\nmode: ask\npolicies:\n  tools: {a.b: {max_cpu: 2.0, max_memory: 1024MB}}\n")
    assert diff(one, other) == []
    assert one.policy_version_hash != other.policy_version_hash


def test_a_rule_that_only_moved_is_no_difference() -> None:
    rule = b"rules: [{id: a, command: [git, push], decision: deny}]\n"
    assert diff(load_policy(rule), load_policy(b"# why\n\n" + rule)) == []


def test_a_secret_that_outlives_its_task_is_widened() -> None:
    task, conversation = (
        load_policy(b"secrets: {TOKEN: {scope: %s}}\n" % scope) for scope in (b"task", b"conversation")
    )
    wider, narrower = diff(task, conversation), diff(conversation, task)
    assert {(change.direction, change.setting) for change in wider} == {(Direction.WIDENED, "lasting_secrets")}
    assert {(change.direction, change.setting) for change in narrower} == {(Direction.NARROWED, "lasting_secrets")}


@pytest.mark.parametrize(
    ("narrow", "wide", "setting"),
    [
        ("max_memory: 1GB", "max_memory: 2GB", "max_memory"),
        ("max_execution_time: 30s", "", "max_execution_time"),
        ("supported_languages: [python]", "supported_languages: [python, bash]", "code.run"),
        ("allowed_paths: [inputs]", "", "fs.read"),
        ("denied_paths: [.env]", "", "denied_paths"),
        (
            "network_access: true, allowed_domains: [x.a.com]",
            "network_access: true, allowed_domains: ['*.a.com']",
            "net.http",
        ),
        ("", "net_mode: allowlist", "net_mode"),
        ("isolation: container", "", "isolation"),
        ("risk_level: high", "risk_level: low", "risk"),
        ("output_inline: false", "", "output_inline"),
        ("env_allow: [PATH]", "env_allow: [PATH, LANG]", "env_allow"),
        ("env_allow: [PATH]", "", "env_allow"),
        ("mime_allow: [text/html]", "", "mime_allow"),
        ("budget: {calls: 1}", "budget: {calls: unlimited}", "budget.calls"),
        ("budget: {calls: 1}", "", "budget.calls"),
    ],
)
def test_every_change_has_a_direction(narrow: str, wide: str, setting: str) -> None:
    assert ("widened", setting) in changes(narrow, wide)
    assert ("narrowed", setting) in changes(wide, narrow)
    assert not any(direction == "narrowed" for direction, _ in changes(narrow, wide))
    assert changes(narrow, narrow) == set()


def test_a_list_that_loses_one_and_gains_another_is_changed() -> None:
    assert ("changed", "code.run") in changes("supported_languages: [python]", "supported_languages: [bash]")


def test_a_role_that_gains_a_tool_is_widened_and_named() -> None:
    one = load_policy(b"policies: {agent_roles: {r: {tools: [file_read]}}}")
    other = load_policy(b"policies: {agent_roles: {r: {tools: [file_read, code_run]}}}")
    (found,) = diff(one, other)
    assert str(found) == "widened: r, code_run: access: tool_not_in_role → —"
    assert [change.direction for change in diff(other, one)] == [Direction.NARROWED]


def test_a_new_default_shows_at_every_tool_it_reaches_and_at_no_other() -> None:
    one = load_policy(b"policies: {tools: {a.b: {max_memory: 1GB}, c.d: {}}}")
    other = load_policy(b"policies: {default: {max_memory: 2GB}, tools: {a.b: {max_memory: 1GB}, c.d: {}}}")
    tools = {change.tool for change in diff(one, other)}
    assert "c.d" in tools
    assert "a.b" not in tools


def test_rules_modes_and_ceilings_are_compared_too() -> None:
    one = load_policy(b"mode: ask\nrules: [{command: rm, decision: ask}]\nceilings: {max_cpu: 2}\n")
    other = load_policy(b"mode: auto\nrules: [{command: rm, decision: deny}]\n")
    assert {change.setting for change in diff(one, other) if change.tool == "every tool"} == {
        "mode",
        "rules",
        "ceilings",
    }


def test_what_is_widened_comes_first() -> None:
    order = list(Direction)
    found = diff(
        load_policy((BASE % "max_memory: 2GB, max_cpu: 1").encode()),
        load_policy((BASE % "max_memory: 1GB, max_cpu: 2").encode()),
    )
    assert [change.setting for change in found if change.tool == "a.b"] == ["max_cpu", "max_memory"]
    assert [order.index(change.direction) for change in found] == sorted(
        order.index(change.direction) for change in found
    )
