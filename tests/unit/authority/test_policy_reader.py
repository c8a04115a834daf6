"""A policy with a mistake in it is not used, and says where the mistake is and what would mend it."""

from __future__ import annotations

import subprocess
import sys

import pytest
import yaml
from tests.unit.authority.policy_texts import FULL, findings, only_error, place

from ringfence.authority.finding import errors
from ringfence.authority.policy_lint import lint
from ringfence.authority.policy_reader import load_policy
from ringfence.authority.units import seconds, size
from ringfence.authority.yaml_tree import read_yaml
from ringfence.errors import InvalidRequest

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
