"""What the keys of a policy mean for a tool and a role, and which of two words about the same thing counts."""

from __future__ import annotations

from textwrap import dedent

import pytest
from tests.unit.authority.policy_texts import FULL

from ringfence.authority.levels import Decision, IsolationLevel, NetMode
from ringfence.authority.policy_reader import load_policy
from ringfence.authority.rule import Subject, strictest
from ringfence.capability.budget import Budget
from ringfence.capability.denials import PRIVATE_NETWORKS
from ringfence.operation import brokered as op


def test_every_additive_key_is_read() -> None:
    snapshot = load_policy(FULL.encode(), "p.yaml")
    policy = snapshot.policy
    assert (str(policy.mode), policy.security_mode) == ("strict-ask", "permissive")
    assert policy.ceilings == {"wall_seconds": 600.0, "memory_bytes": 4 * 2**30}
    assert policy.budget_of("tenant", "acme") == Budget(calls="unlimited")
    assert policy.budget_of("tenant", "other") == Budget(calls=100)
    assert policy.budget_of("instance") == Budget(concurrent=8)
    assert policy.budget_of("user", "x") == Budget()
    assert snapshot.view("build").budget == Budget(calls=3, bytes_out=10 * 2**20, wall_ms=120_000, cpu_ms="unlimited")
    assert snapshot.view("build").isolation is IsolationLevel.CONTAINER
    assert [rule.id for rule in policy.rules] == ["no-push", "rules-2", "rules-3", "rules-4"]
    assert (policy.approvals[0].decision, policy.approvals[0].scope) == (Decision.ASK, "session")
    assert policy.tests[0].operation == op.NetHttp("GET", "https://a.com/")


def test_methods_and_ports_and_programs_are_what_is_written() -> None:
    snapshot = load_policy(FULL.encode())
    fetcher, build = snapshot.view("fetcher").capabilities, snapshot.view("build").capabilities
    assert fetcher.allows(op.NetHttp("POST", "https://a.com:8443/"))
    assert not fetcher.allows(op.NetHttp("GET", "http://a.com/"))
    assert build.allows(op.ProcExec("git", ("status", "-s")))
    assert not build.allows(op.ProcExec("git", ("push",)))
    assert build.allows(op.ProcExec("make", ("test",)))
    assert not build.allows(op.ProcExec("make", ("install",)))
    assert not build.allows(op.ProcExec("make"))
    assert not build.allows(op.ProcExec("bash", ("-c", "id")))


def test_the_words_and_the_templates_of_a_program_both_hold() -> None:
    text = """
        policies:
          default:
            allowed_commands: [git status, git log]
            command_templates: {git: [{args: [{enum: [status, log]}, {enum: ["-s"]}]}]}
        """
    git = load_policy(dedent(text).encode()).view("proc_exec").capabilities
    assert git.allows(op.ProcExec("git", ("status", "-s")))
    assert not git.allows(op.ProcExec("git", ("status", "--work-tree=/")))
    assert not git.allows(op.ProcExec("git", ("push", "-s")))


def test_a_rule_about_a_path_sees_it_in_every_part_and_in_any_case() -> None:
    text = b"rules: [{id: a, decision: deny, path: /workspace/.env}]"
    for path in (".env", "work/.env", "code/.ENV", "/output/.env"):
        assert strictest(load_policy(text).policy.rules, Subject.PATH, path) is not None
    assert strictest(load_policy(text).policy.rules, Subject.PATH, "work/a/.env") is None


def test_the_more_specific_entry_wins_and_denials_add_up() -> None:
    snapshot = load_policy(FULL.encode())
    views = {role: snapshot.view("build", role) for role in ("base", "child", "grandchild")}
    memory = {role: (view.limits["memory_bytes"] // 2**30, view.origin["memory_bytes"]) for role, view in views.items()}
    assert memory == {
        "base": (1, "role base"),
        "child": (1, "role base"),
        "grandchild": (3, "role grandchild, tool build"),
    }
    assert snapshot.view("build", "grandchild").denials.paths == {"/workspace/secret", "/workspace/*.pem"}
    assert snapshot.view("build", "base").denials.paths == {"/workspace/secret"}


def test_a_tool_outranks_what_a_role_inherits_but_not_the_role() -> None:
    snapshot = load_policy(
        b"policies:\n  tools: {t.x: {max_memory: 2GB}}\n  agent_roles:\n"
        b"    parent: {tools: [t.x], max_memory: 1GB}\n    child: {inherits: parent}\n"
    )
    gib = {role: snapshot.view("t.x", role).limits["memory_bytes"] // 2**30 for role in ("parent", "child")}
    assert gib == {"parent": 1, "child": 2}


def test_what_a_role_says_about_one_tool_outranks_what_it_says_about_all() -> None:
    snapshot = load_policy(
        b"policies:\n  agent_roles:\n    r: {max_memory: 1GB, tools: [code_run: {max_memory: 3GB}, file_read]}\n"
    )
    gib = {tool: snapshot.view(tool, "r").limits["memory_bytes"] // 2**30 for tool in ("code_run", "file_read")}
    assert gib == {"code_run": 3, "file_read": 1}


def test_a_secret_is_for_whom_it_is_listed() -> None:
    snapshot = load_policy(FULL.encode())
    names = {
        (tool, role): [item.resource() for item in snapshot.view(tool, role).capabilities.of("secret.use")]
        for tool, role in (("fetcher", "base"), ("fetcher", None), ("build", "base"))
    }
    assert names == {
        ("fetcher", "base"): ["SHARED", "TOKEN"],
        ("fetcher", None): ["SHARED"],
        ("build", "base"): ["SHARED"],
    }


def test_safe_retrieval_is_a_mode_of_its_own() -> None:
    view = load_policy(b"policies: {default: {net_mode: safe_retrieval, allowed_domains: ['*']}}").view("x")
    assert view.net_mode is NetMode.SAFE_RETRIEVAL
    assert view.capabilities.allows(op.NetHttp("GET", "https://anything.org/"))
    assert not view.capabilities.allows(op.NetHttp("GET", "https://93.184.216.34/"))


@pytest.mark.parametrize(
    ("default", "tool", "mode"),
    [
        ("", "", "none"),
        ("network_access: false", "net_mode: safe_retrieval", "safe_retrieval"),
        ("net_mode: safe_retrieval", "network_access: true", "safe_retrieval"),
        ("net_mode: safe_retrieval", "network_access: false", "none"),
        ("network_access: true", "", "allowlist"),
        ("network_access: true", "network_access: false", "none"),
        ("network_access: false", "network_access: true", "allowlist"),
        ("network_access: true", "net_mode: none", "none"),
        ("", "network_access: false, net_mode: unrestricted", "none"),
        ("", "network_access: true, net_mode: unrestricted", "unrestricted"),
    ],
)
def test_the_most_specific_word_about_the_network_counts(default: str, tool: str, mode: str) -> None:
    text = f"policies: {{default: {{{default}}}, tools: {{a.b: {{{tool}}}}}}}"
    assert str(load_policy(text.encode()).view("a.b").net_mode) == mode


@pytest.mark.parametrize(
    ("default", "tool", "level"),
    [
        ("", "", "os"),
        ("isolation: container", "sandbox_enabled: false", "broker"),
        ("isolation: container", "sandbox_enabled: true", "container"),
        ("isolation: broker", "sandbox_enabled: true", "os"),
        ("sandbox_enabled: false", "isolation: gvisor", "gvisor"),
        ("sandbox_enabled: false", "sandbox_enabled: true", "os"),
        ("", "sandbox_enabled: false, isolation: container", "container"),
    ],
)
def test_the_most_specific_word_about_the_isolation_counts(default: str, tool: str, level: str) -> None:
    text = f"policies: {{default: {{{default}}}, tools: {{a.b: {{{tool}}}}}}}"
    assert str(load_policy(text.encode()).view("a.b").isolation) == level


def test_one_more_network_is_closed_beside_the_private_ones_by_their_name() -> None:
    snapshot = load_policy(b"network: {denylist: {networks: [private, 8.8.8.0/24]}}")
    assert snapshot.policy.network.denials.networks == PRIVATE_NETWORKS | {"8.8.8.0/24"}
    assert load_policy(b"network: {denylist: {networks: [8.8.8.0/24]}}").policy.network.denials.networks == {
        "8.8.8.0/24"
    }


def test_unrestricted_lifts_private_networks_and_nothing_else() -> None:
    text = b"policies: {default: {net_mode: %s}}\nnetwork: {denylist: {ports: [22]}}"
    allowlist = load_policy(text % b"allowlist").view("x").denials
    unrestricted = load_policy(text % b"unrestricted").view("x").denials
    assert allowlist.denies_address("10.0.0.1")
    assert not unrestricted.denies_address("10.0.0.1")
    assert unrestricted.ports == {22}


def test_of_all_rules_that_match_the_strictest_counts() -> None:
    rules = load_policy(
        b"rules:\n- {id: a, command: git, decision: allow}\n- {id: d, command: git push, decision: deny}\n"
        b"- {id: q, command: git, decision: ask}\n"
    ).policy.rules
    decided = {text: strictest(rules, Subject.COMMAND, text) for text in ("git push x", "git log", "ls")}
    assert {text: rule and rule.id for text, rule in decided.items()} == {"git push x": "d", "git log": "q", "ls": None}


def test_a_snapshot_cannot_be_changed() -> None:
    snapshot = load_policy(FULL.encode())
    for mapping in (
        snapshot.policy.tools, snapshot.policy.roles, snapshot.policy.default.values, snapshot.policy.ceilings,
        snapshot.policy.budgets, snapshot.policy.budgets["tenant"], snapshot.view("build").limits,
    ):  # fmt: skip
        with pytest.raises(TypeError):
            mapping["x"] = 1  # type: ignore[index]


def test_one_hash_for_one_text() -> None:
    one, same, other = (load_policy(text) for text in (b"mode: ask\n", b"mode: ask\n", b"mode: ask # really\n"))
    assert one.policy_version_hash == same.policy_version_hash != other.policy_version_hash
    assert one.text == b"mode: ask\n"
