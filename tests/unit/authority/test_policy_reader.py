"""A policy with a mistake in it is not used, and says where the mistake is and what would mend it."""

from __future__ import annotations

import subprocess
import sys
from textwrap import dedent

import pytest
import yaml

from ringfence.authority.finding import Finding, Severity, errors
from ringfence.authority.levels import Decision, IsolationLevel, NetMode
from ringfence.authority.policy_lint import lint
from ringfence.authority.policy_reader import load_policy
from ringfence.authority.rule import Subject, strictest
from ringfence.authority.units import seconds, size
from ringfence.authority.yaml_tree import read_yaml
from ringfence.capability.budget import Budget
from ringfence.capability.denials import PRIVATE_NETWORKS
from ringfence.errors import InvalidRequest
from ringfence.operation import brokered as op


def findings(text: str) -> list[Finding]:
    return lint(dedent(text).encode(), "p.yaml")


def only_error(text: str) -> Finding:
    (finding,) = errors(findings(text))
    return finding


def place(finding: Finding) -> tuple[str, str, int]:
    return finding.rule, finding.path, finding.line


# --- YAML itself ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "line", "says"),
    [
        (b"mode: ]", 1, "did not find expected node content"),
        (b"mode: cowork\nmode: ask\n", 2, "'mode' is already on line 1"),
        (b"policies: &all\n  default: {}\n", 1, "anchors and aliases are not read"),
        (b"a: 1\nb: *a\n", 2, "anchors and aliases are not read"),
        (b"mode: !!python/object/apply:os.system [id]\n", 1, "tag"),
        (b"mode: !!str cowork\n", 1, "tag"),
        (b"mode: cowork\n---\nmode: ask\n", 3, "more than one document"),
        (b"1: x\n", 1, "is not text"),
        (b"? [a]\n: x\n", 1, "is not text"),
        (b"mode: \xff\n", 1, "not UTF-8"),
        (b"a: " + b"[" * 40 + b"]" * 40, 1, "nested deeper"),
        (b"x\ty: \x00", 1, ""),
        ("mode: cowork\n# \u0085security_mode: permissive\n".encode(), 2, "U+0085"),
        ("mode: cowork \u2028security_mode: permissive\n".encode(), 1, "U+2028"),
        ("policies: {default: {denied_paths: ['a\u200bb']}}".encode(), 1, "U+200B"),
        ("mode: ask # \u202e krowoc :edom\n".encode(), 1, "U+202E"),
        ("mode: ask\ufeff\n".encode(), 1, "U+FEFF"),
        (b"mode: cowork\n# nothing\rsecurity_mode: permissive\n", 2, "U+000D"),
        ("policies: {default: {denied_paths: ['a\u00adb']}}".encode(), 1, "U+00AD"),
        ("policies: {default: {denied_paths: ['a\U000e0041b']}}".encode(), 1, "U+E0041"),
    ],
)  # fmt: skip
def test_what_is_not_plain_yaml_is_refused_with_its_line(content: bytes, line: int, says: str) -> None:
    finding = errors(lint(content))[0]
    assert (finding.rule, finding.line, finding.fix != "") == ("yaml", line, True)
    assert says in finding.message


def test_the_slow_parser_reads_the_same_tree(monkeypatch: pytest.MonkeyPatch) -> None:
    fast = read_yaml(FULL.encode())
    monkeypatch.delattr(yaml, "CSafeLoader")
    assert read_yaml(FULL.encode()) == fast


def test_a_bomb_of_aliases_is_refused_at_its_first_anchor() -> None:
    bomb = ["a0: &a0 [x, x]"] + [f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}]" for n in range(1, 40)]
    assert only_error("\n".join(bomb)).line == 1


def test_words_that_old_yaml_takes_for_truth_stay_words() -> None:
    tree = read_yaml(b"a: [no, off, yes, 'true', true, 010, 1.0, 0x10, 12:30:00, ~]").value
    assert isinstance(tree, dict)
    items = tree["a"].value
    assert isinstance(items, list)
    assert [item.value for item in items] == [
        "no", "off", "yes", "true", True, "010", 1.0, "0x10", "12:30:00", None,
    ]  # fmt: skip


def test_without_the_parser_the_answer_names_what_is_missing() -> None:
    program = (
        "import sys; sys.modules['yaml'] = None\n"
        "from ringfence.authority.policy_reader import load_policy\n"
        "try: load_policy(b'mode: ask')\n"
        "except Exception as e: print(type(e).__name__, e.reason, e.fix)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "RuntimeMissing extra_missing pip install 'ringfence[law]'\n"


def test_the_built_in_policy_needs_no_parser() -> None:
    program = (
        "import sys; sys.modules['yaml'] = None\n"
        "from ringfence.authority.policy import BUILT_IN\n"
        "print(BUILT_IN.view('code_run').refusal, BUILT_IN.policy_version_hash)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == f"None {load_policy(b'policies: {}' + bytes([10])).policy_version_hash}\n"


# --- keys and values -----------------------------------------------------------------------------


def test_an_unknown_key_is_an_error_at_its_line_that_names_the_nearest() -> None:
    finding = only_error(
        """\
        policies:
          default:
            max_memry: 1GB
        """
    )
    assert place(finding) == ("unknown_key", "policies.default.max_memry", 3)
    assert finding.column == 5
    assert finding.fix == "did you mean max_memory?"
    assert finding.file == "p.yaml"


@pytest.mark.parametrize(
    "key", ["polices", "policies.default.x", "network.allowlist.hosts", "network.x", "budgets.team"]
)
def test_no_level_takes_an_unknown_key(key: str) -> None:
    text, path = "", key.split(".")
    for depth, part in enumerate(path):
        text += "  " * depth + part + ":" + (" {}" if depth == len(path) - 1 else "") + "\n"
    assert only_error(text).rule == "unknown_key"


@pytest.mark.parametrize(
    "line",
    [
        "max_execution_time: 30 parsecs",
        "max_execution_time: 30",
        "max_execution_time: 0s",
        "max_execution_time: -5s",
        "max_execution_time: .inf",
        "max_memory: 512",
        "max_memory: 1e9B",
        "max_memory: many",
        "max_cpu: fast",
        "max_cpu: 0",
        "max_cpu: true",
        "max_processes: 1.5",
        "max_processes: 010",
        "max_processes: 0x10",
        "max_processes: 1:30",
        "max_processes: 1_000",
        "max_cpu: 01.5",
        "max_cpu: 1e3",
        "sandbox_enabled: yes",
        "sandbox_enabled: 1",
        "network_access: 'true'",
        "filesystem_access: everything",
        "risk_level: extreme",
        "net_mode: full",
        "isolation: none",
        "allowed_paths: /workspace",
        "allowed_paths: [/etc]",
        "allowed_paths: [../x]",
        "allowed_paths: ['a[bc]*']",
        "denied_paths: ['a**b']",
        "denied_paths: ['.env{,.local}']",
        "denied_paths: ['.en[v]']",
        "denied_changes: ['.git/{a,b}']",
        "denied_domains: ['https://evil.com']",
        "denied_domains: ['evil.com:8080']",
        "denied_domains: ['10.0.0.0/8']",
        "denied_commands: ['curl *']",
        "denied_commands: ['curl | sh']",
        "denied_commands: [/usr/bin/curl]",
        "allowed_domains: ['*.*.com']",
        "allowed_domains: ['ex*mple.com']",
        "allowed_domains: ['http://example.com']",
        "allowed_domains: ['*.1.2.3']",
        "allowed_commands: [/bin/ls]",
        "allowed_commands: ['']",
        "allowed_methods: [get]",
        "allowed_ports: [0]",
        "denied_ports: ['22']",
        "supported_languages: [cobol]",
        "browser_scope: [evaluate]",
        "mime_allow: [json]",
        "env_allow: ['A=B']",
        "open_ports: [70000]",
        "host_paths: [relative]",
        "budget: {calls: -1}",
        "budget: {calls: lots}",
        "budget: {money: 1}",
        "command_templates: {git: [{args: [{regex: '(?=a)a'}]}]}",
        "command_templates: {git: [{words: []}]}",
    ],
)
def test_a_value_that_means_nothing_is_an_error_at_its_line(line: str) -> None:
    found = errors(findings(f"policies:\n  default:\n    {line}\n"))
    assert [(finding.line, finding.fix != "") for finding in found] == [(3, True)]
    with pytest.raises(InvalidRequest) as refused:
        load_policy(f"policies:\n  default:\n    {line}\n".encode(), "p.yaml")
    assert (refused.value.reason, refused.value.details["line"]) == ("invalid_policy", 3)


def test_all_mistakes_are_found_at_once() -> None:
    found = findings("mode: maybe\npolicies:\n  default:\n    max_cpu: x\n  tools: [a]\nnetwork: 5\n")
    assert [(finding.path, finding.line) for finding in found] == [
        ("mode", 1), ("policies.default.max_cpu", 4), ("policies.tools", 5), ("network", 6),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "number"),
    [("30s", 30), ("500ms", 0.5), ("2m", 120), ("1.5h", 5400), ("1min", 60)],
)
def test_times(text: str, number: float) -> None:
    assert seconds(text) == number


@pytest.mark.parametrize(
    ("text", "number"),
    [("512MB", 512 * 2**20), ("1GB", 2**30), ("1.5GiB", 3 * 2**29), ("64kb", 65536), ("1TB", 2**40), ("10B", 10)],
)
def test_sizes_count_in_1024s(text: str, number: int) -> None:
    assert size(text) == number


# --- the additive keys ---------------------------------------------------------------------------

FULL = """\
mode: strict-ask
security_mode: permissive
ceilings: {max_execution_time: 10m, max_memory: 4GB}
policies:
  default: {network_access: false}
  tools:
    fetcher: {network_access: true, allowed_domains: [a.com], allowed_methods: [GET, POST], allowed_ports: [443, 8443]}
    build: {isolation: container, allowed_commands: [git status, make, bash], command_templates:
      {make: [{args: [{enum: [all, test]}]}]}, budget: {calls: 3, bytes_out: 10MB, wall_ms: 2m, cpu_ms: unlimited}}
  agent_roles:
    base: {tools: [fetcher, build], max_memory: 1GB, denied_paths: [secret]}
    child:
      inherits: base
      denied_paths: ['*.pem']
    grandchild:
      inherits: child
      tools:
        - fetcher
        - build: {max_memory: 3GB}
budgets:
  instance: {concurrent: 8}
  tenant:
    '*': {calls: 100}
    acme: {calls: unlimited}
secrets:
  TOKEN: {tools: [fetcher], roles: [base], scope: conversation}
  SHARED: {}
rules:
  - {id: no-push, command: git push, decision: deny, match: [git push origin], not_match: [git status]}
  - {command: [git, [fetch, pull]], decision: ask, match: [git pull], not_match: [git push]}
  - {domain: '*.corp', decision: deny, match: [x.corp], not_match: [corp.com]}
  - {path: 'work/**/*.sql', decision: ask, match: [work/a/b.sql], not_match: [inputs/a.sql]}
approvals:
  - {id: ask-make, command: make, scope: session, match: [make all]}
tests:
  - {tool: fetcher, role: base, op: {op: net_http, method: GET, url: 'https://a.com/'}, expect: allow}
"""


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


# --- lint ----------------------------------------------------------------------------------------


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


def test_of_all_rules_that_match_the_strictest_counts() -> None:
    rules = load_policy(
        b"rules:\n- {id: a, command: git, decision: allow}\n- {id: d, command: git push, decision: deny}\n"
        b"- {id: q, command: git, decision: ask}\n"
    ).policy.rules
    decided = {text: strictest(rules, Subject.COMMAND, text) for text in ("git push x", "git log", "ls")}
    assert {text: rule and rule.id for text, rule in decided.items()} == {"git push x": "d", "git log": "q", "ls": None}


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
