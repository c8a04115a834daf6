"""The policy of document 001 loads as it stands, byte for byte, and means what the document says."""

from __future__ import annotations

from pathlib import Path

import pytest

from ringfence.authority.finding import Severity
from ringfence.authority.levels import FilesystemAccess, IsolationLevel, NetMode, RiskLevel
from ringfence.authority.policy import PolicySnapshot
from ringfence.authority.policy_lint import lint
from ringfence.authority.policy_reader import load_policy
from ringfence.capability.denials import PRIVATE_NETWORKS
from ringfence.operation import CodeRun, Language
from ringfence.operation import brokered as op

HERE = Path(__file__).parent
TOOLS = (HERE / "sandbox_policy.yaml").read_bytes()
NETWORK = (HERE / "network_policy.yaml").read_bytes()
MIB = 1024 * 1024


@pytest.fixture(scope="module")
def policy() -> PolicySnapshot:
    return load_policy(TOOLS, "sandbox_policy.yaml")


@pytest.mark.parametrize("content", [TOOLS, NETWORK, TOOLS + NETWORK], ids=["tools", "network", "both"])
def test_the_document_has_no_errors(content: bytes) -> None:
    assert [finding for finding in lint(content) if finding.severity is Severity.ERROR] == []


def test_the_one_warning_is_that_a_role_widens_a_tool() -> None:
    (finding,) = lint(TOOLS, "sandbox_policy.yaml")
    assert str(finding) == (
        "sandbox_policy.yaml:74: warning: policies.agent_roles.data_analyst.max_memory: "
        "gives code_run more than policies.tools.code_run.max_memory does (fix: lower it if that is not meant) "
        "[role_widens_tool]"
    )


def test_the_defaults(policy: PolicySnapshot) -> None:
    unlisted = policy.view("something_else")
    assert unlisted.limits == {"wall_seconds": 30.0, "memory_bytes": 512 * MIB, "cpus": 1.0}
    assert (unlisted.isolation, unlisted.net_mode) == (IsolationLevel.OS, NetMode.NONE)
    assert policy.policy.default.values["filesystem_access"] is FilesystemAccess.WORKSPACE_ONLY
    assert set(unlisted.origin.values()) == {"default"}


def test_file_read_is_low_brokered_and_kept_from_secrets(policy: PolicySnapshot) -> None:
    view = policy.view("file_read")
    assert (view.risk, view.isolation) == (RiskLevel.LOW, IsolationLevel.BROKER)
    assert view.capabilities.allows(op.FsRead("/workspace/a"))
    assert not view.capabilities.allows(op.FsRead("/etc/hosts"))
    for hidden in (".env", "./.env", "/workspace/.env", "sub/deep/id.key", "id.key", ".ENV", "work/ID.KEY", ".env/x"):
        assert view.denials.refusal(op.FsRead(hidden)) == "denied_path"
    assert view.denials.refusal(op.FsRead("keys.txt")) is None


def test_shell_exec_has_its_commands_and_its_minute(policy: PolicySnapshot) -> None:
    view = policy.view("shell_exec")
    assert view.limits["wall_seconds"] == 60.0
    assert [item.resource() for item in view.capabilities.of("proc.exec")] == [
        "cat", "find", "grep", "ls", "node", "python",
    ]  # fmt: skip
    assert view.denials.commands == {"rm -rf", "sudo", "curl", "wget", "nc", "ssh"}
    assert not view.capabilities.allows(op.ProcExec("curl", ("x",)))


def test_code_run_has_its_languages_time_and_memory(policy: PolicySnapshot) -> None:
    view = policy.view("code_run")
    assert (view.limits["wall_seconds"], view.limits["memory_bytes"]) == (120.0, 1024 * MIB)
    assert [language for language in Language if view.capabilities.allows(CodeRun(language, ""))] == [
        "python", "javascript", "typescript",
    ]  # fmt: skip


def test_the_browser_reaches_its_domains_and_deny_wins(policy: PolicySnapshot) -> None:
    view = policy.view("browser_automation")
    assert view.capabilities.allows(op.BrowserNav("https://a.example.com/"))
    for url in ("https://example.com/", "https://example.com.evil.test/", "https://a.example.com:8443/"):
        assert not view.capabilities.allows(op.BrowserNav(url))
    assert view.denials.refusal(op.BrowserNav("https://x.internal.company.com/")) == "denied_domain"


@pytest.mark.parametrize(
    ("role", "tools"),
    [
        ("code_assistant", {"file_read", "file_write", "code_run", "shell_exec"}),
        ("data_analyst", {"file_read", "code_run"}),
        ("web_scraper", {"browser_automation"}),
    ],
)
def test_a_role_may_use_exactly_its_tools(policy: PolicySnapshot, role: str, tools: set[str]) -> None:
    everything = {"file_read", "file_write", "code_run", "shell_exec", "browser_automation", "system_admin"}
    assert {tool for tool in everything if policy.view(tool, role).refusal is None} == tools


def test_the_role_overrides_the_tool_and_the_tool_the_default(policy: PolicySnapshot) -> None:
    analyst = policy.view("code_run", "data_analyst")
    assert (analyst.limits["memory_bytes"], analyst.origin["memory_bytes"]) == (2048 * MIB, "role data_analyst")
    assert (analyst.limits["wall_seconds"], analyst.origin["wall_seconds"]) == (120.0, "tool code_run")
    assert (analyst.limits["cpus"], analyst.origin["cpus"]) == (1.0, "default")


def test_the_network_document_allows_and_denies_what_it_lists() -> None:
    view = load_policy(TOOLS + NETWORK + b"mode: cowork\n").policy.network
    assert view.default is NetMode.NONE
    assert view.allowed == ("api.openai.com", "api.anthropic.com", "*.githubusercontent.com")
    assert view.denials.ports == {22, 3306, 5432, 6379}
    assert view.denials.domains == {"*.internal.*", "localhost", "127.*", "10.*", "192.168.*"}
    assert view.denials.networks == PRIVATE_NETWORKS


def test_the_network_document_applies_to_who_has_network() -> None:
    content = NETWORK + b"policies: {tools: {fetcher: {network_access: true, allowed_ports: [443, 22]}}}\n"
    view = load_policy(content).view("fetcher")
    assert view.capabilities.allows(op.NetHttp("GET", "https://raw.githubusercontent.com/x"))
    assert not view.capabilities.allows(op.NetHttp("POST", "https://api.openai.com/"))
    assert view.denials.refusal(op.NetHttp("GET", "https://api.openai.com:22/")) == "denied_port"
    assert view.denials.refusal(op.NetHttp("GET", "https://db.internal.corp/")) == "denied_domain"
    assert view.denials.refusal(op.NetHttp("GET", "https://10.1.2.3/")) == "denied_domain"
    assert view.denials.refusal(op.NetHttp("GET", "https://172.16.0.1/")) == "denied_address"
    assert view.denials.refusal(op.NetHttp("GET", "http://[::ffff:127.0.0.1]/")) == "denied_address"
