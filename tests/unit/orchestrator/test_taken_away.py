"""Everything is allowed but one thing, taken away by one of the three: nothing of that runs, and all the rest does."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from tests.unit.orchestrator.test_anything import ALL, DOMAINS, NOW, OPERATIONS, TOOL, Recorder

from ringfence.authority.grant import Grant
from ringfence.authority.manifest import Manifest
from ringfence.authority.policy_reader import load_policy
from ringfence.authority.profile_builder import ProfileBuilder
from ringfence.capability.budget import Budget
from ringfence.capability.capabilities import Capabilities
from ringfence.capability.denials import NO_DENIALS, Denials
from ringfence.capability.form import KINDS
from ringfence.capability.net import NetHttp
from ringfence.errors import CapabilityBlocked, Denied, RingfenceError, ToolDenied
from ringfence.operation import CodeRun, Language
from ringfence.operation.brokered import BrowserScreenshot, FsRead
from ringfence.testing import orchestrator_over

About = Callable[[Any], bool]
HOSTS = ("a.com", "*.a.com", "b.com")
WIDEST: dict[str, Any] = {
    "network_access": True,
    "net_mode": "allowlist",
    "allowed_domains": [*HOSTS],
    "allowed_methods": ["GET", "POST"],
    "allowed_ports": [443, 8080],
    "allowed_commands": ["git", "ls"],
    "browser_scope": ["open", "extract", "screenshot", "click", "type"],
    "open_ports": [80, 8080],
}
MOST = ALL.join(
    Capabilities(NetHttp(host, port, methods=frozenset({"GET", "POST"})) for host in HOSTS for port in (None, 8080))
)
LENT: dict[str, Any] = {"KEY": {}, "OTHER": {}}


def document(said: dict[str, Any] | None = None, **top: Any) -> bytes:
    scope = {name: value for name, value in (WIDEST | (said or {})).items() if value is not None}
    roles = {"r": {"tools": [TOOL]}, "barred": {"tools": ["code_run"]}}
    policies = {"tools": {TOOL: scope}, "agent_roles": roles}
    return json.dumps({"secrets": LENT, "policies": policies} | top).encode()


def running(
    policy: bytes,
    operations: Sequence[Any],
    *,
    granted: Capabilities = MOST,
    declared: Capabilities = MOST,
    expires_at: int = NOW + 1,
    tools: tuple[str, str] = (TOOL, TOOL),
    role: str = "r",
    denied: Denials = NO_DENIALS,
    suppressed: tuple[type[RingfenceError], ...] = (RingfenceError,),
) -> list[Any]:
    """Return those of the operations that get as far as an executor."""
    recorders = [Recorder(domain) for domain in DOMAINS]
    pipeline = orchestrator_over(*recorders)
    grant = Grant("t", "s", tools[0], "c", granted, expires_at, Budget(), "f", denials=denied)
    manifest = Manifest(tools[1], capabilities=declared)
    profile = ProfileBuilder().build(grant, manifest, load_policy(policy), tool=TOOL, role=role)

    async def each() -> list[Any]:
        ran = []
        for operation in operations:
            with contextlib.suppress(*suppressed):
                await pipeline.run(operation, profile, session_id="s")
                ran.append(operation)
        return ran

    ran = asyncio.run(each())
    assert sorted(map(repr, ran)) == sorted(repr(each) for recorder in recorders for each in recorder.ran)
    return ran


RUNS = running(document(), [*OPERATIONS, BrowserScreenshot()])


def everything(_: Any) -> bool:
    return True


def kind(*names: str) -> About:
    return lambda operation: operation.kind in names


def hosts(operation: Any) -> list[str]:
    """Return whom it would reach."""
    if isinstance(operation, CodeRun):
        return list(operation.domains)
    url = getattr(operation, "url", None)
    return [] if url is None else [url.split("/")[2].partition(":")[0]]


def outward(operation: Any) -> bool:
    return bool(hosts(operation)) or operation.domain == "browser"


def url(of: str) -> About:
    return lambda operation: of in getattr(operation, "url", "")


def on_files(operation: Any) -> bool:
    return operation.domain in ("fs", "workspace", "proposals")


def changes_files(operation: Any) -> bool:
    return operation.kind in ("fs_write", "fs_mkdir", "fs_delete")


def brings(operation: Any) -> bool:
    return operation.kind == "net_http" and bool(operation.headers or operation.body or operation.method == "POST")


def below(*path: str) -> About:
    return lambda operation: operation.kind.startswith("fs_") and operation.path.startswith(path)


# what a policy's key takes away, and which operations that is about; `None` for the key leaves it unsaid
BY_POLICY: dict[str, tuple[bytes, About]] = {
    "network_access": (document({"network_access": False, "net_mode": None}), outward),
    "net_mode none": (document({"net_mode": "none"}), outward),
    "net_mode safe_retrieval": (
        document({"net_mode": "safe_retrieval"}),
        lambda each: brings(each) or (isinstance(each, CodeRun) and bool(each.domains)),
    ),
    "allowed_domains": (
        document({"allowed_domains": ["b.com"]}),
        lambda each: any(host != "b.com" for host in hosts(each)),
    ),
    "denied_domains": (
        document({"denied_domains": ["a.com"]}),
        lambda each: "a.com" in hosts(each),
    ),
    "network denylist": (
        document(network={"denylist": {"domains": ["a.com"]}}),
        lambda each: "a.com" in hosts(each),
    ),
    "denied_ports": (document({"denied_ports": [8080]}), url(":8080")),
    "allowed_ports": (document({"allowed_ports": [443]}), url(":8080")),
    "allowed_methods": (document({"allowed_methods": ["GET"]}), lambda each: getattr(each, "method", "") == "POST"),
    "allowed_url_paths": (
        document({"allowed_url_paths": ["/v1/**"]}),
        lambda each: hasattr(each, "url") and "/v1/" not in each.url,
    ),
    "supported_languages": (
        document({"supported_languages": ["bash"]}),
        lambda each: isinstance(each, CodeRun) and each.language is not Language.BASH,
    ),
    "allowed_paths": (
        document({"allowed_paths": ["/workspace/inputs"]}),
        lambda each: on_files(each) and not below("inputs")(each),
    ),
    "denied_paths": (
        document({"denied_paths": ["/workspace/work/a", "/workspace/work/a/**"]}),
        below("work/a", "code/a"),
    ),
    "denied_changes": (
        document({"denied_changes": ["**"]}),
        lambda each: changes_files(each) and below("work", "code")(each),
    ),
    "filesystem_access": (document({"filesystem_access": "none"}), on_files),
    "allowed_commands": (document({"allowed_commands": ["ls"]}), lambda each: getattr(each, "tool", "") == "git"),
    "denied_commands": (document({"denied_commands": ["git"]}), lambda each: getattr(each, "tool", "") == "git"),
    "browser_scope": (
        document({"browser_scope": ["open"]}),
        kind("browser_extract", "browser_screenshot", "browser_click", "browser_type"),
    ),
    "open_ports": (document({"open_ports": [8080]}), lambda each: 80 in getattr(each, "ports", ())),
    "env_allow": (document({"env_allow": ["B*"]}), lambda each: bool(getattr(each, "env", {}))),
    "secrets": (
        document(secrets={"OTHER": {}}),
        lambda each: "KEY" in str(getattr(each, "secrets", "")) or "secret:KEY" in str(getattr(each, "headers", "")),
    ),
    "secrets of another tool": (
        document(secrets={"OTHER": {}, "KEY": {"tools": ["code_run"]}}),
        lambda each: "KEY" in str(getattr(each, "secrets", "")) or "secret:KEY" in str(getattr(each, "headers", "")),
    ),
    "a rule": (
        document(rules=[{"id": "r1", "domain": "a.com", "decision": "deny"}]),
        lambda each: "a.com" in [host.removeprefix("*.") for host in hosts(each)],
    ),
    "a risk that a person answers for": (document({"risk_level": "critical"}), everything),
}


def by_one_of_the_other_two(name: str) -> dict[str, tuple[dict[str, Any], About]]:
    """Return what a grant or a manifest takes away by leaving out all capabilities of one kind."""
    taken: dict[str, tuple[dict[str, Any], About]] = {}
    for tag, about in WITHOUT.items():
        left = Capabilities(item for item in MOST if item.tag != tag)
        assert left != MOST
        taken[f"{name} without {tag}"] = ({name: left}, about)
    return taken


WITHOUT: dict[str, About] = {
    "FsRead": kind("fs_read", "ws_diff", "ws_pending"),
    "FsWrite": lambda each: changes_files(each) or each.kind in ("ws_snapshot", "ws_reset", "ws_checkout"),
    "FsList": kind("fs_list", "fs_stat"),
    "NetHttp": lambda each: bool(hosts(each)),
    "BrowserUse": lambda each: each.domain == "browser",
    "ProcExec": kind("proc_exec"),
    "TmpUse": lambda each: each.domain == "tmp",
    "CodeRun": kind("code_run"),
    "SecretUse": lambda each: bool(getattr(each, "secrets", ())) or "secret:" in str(getattr(each, "headers", "")),
    "PortOpen": lambda each: bool(getattr(each, "ports", ())),
}
BY_OTHERS: dict[str, tuple[dict[str, Any], About]] = {
    **by_one_of_the_other_two("granted"),
    **by_one_of_the_other_two("declared"),
    "a grant whose time is over": ({"expires_at": NOW}, everything),
    "a grant for another tool": ({"tools": ("other", TOOL)}, everything),
    "a manifest of another tool": ({"tools": (TOOL, "other")}, everything),
    "a role that nobody knows": ({"role": "stranger"}, everything),
    "a role without the tool": ({"role": "barred"}, everything),
    "a path that the grant denies": (
        {"denied": Denials(paths=frozenset({"/workspace/work/a"}))},
        below("work/a", "code/a"),
    ),
    "a host that the grant denies": (
        {"denied": Denials(domains=frozenset({"a.com"}))},
        lambda each: "a.com" in hosts(each),
    ),
}


def test_with_everything_allowed_operations_of_every_kind_run() -> None:
    assert {operation.kind for operation in RUNS} == {operation.kind for operation in OPERATIONS}
    assert WITHOUT.keys() == set(KINDS) - {"FsHost", "SysGpu"}  # which take a person's word


def nobody_gives(operation: Any) -> bool:
    """Whether an operation is beyond the widest of policies, or none."""
    if isinstance(operation, CodeRun):
        lasting = any(ask.lasting or ask.name == "THIRD" for ask in operation.secrets)
        unlisted = operation.language is Language.BASH  # whose script is no command of the list
        return lasting or unlisted or 9000 in operation.ports or "c.com" in operation.domains
    return (
        getattr(operation, "path", "work/x") in ("", "../x", "/etc/passwd", "work/../../x")
        or bool({"10.0.0.1", "127.0.0.1"}.intersection(hosts(operation)))
        or getattr(operation, "tool", "ls") not in ("git", "ls")
        or (getattr(operation, "width", None) or 0) > 1920
    )


def test_what_nobody_gives_does_not_run_where_everything_is_allowed() -> None:
    assert [each for each in OPERATIONS if each not in RUNS] == [each for each in OPERATIONS if nobody_gives(each)]


@pytest.mark.parametrize(("policy", "about"), BY_POLICY.values(), ids=BY_POLICY)
def test_what_the_policy_takes_away_does_not_run_and_the_rest_does(policy: bytes, about: About) -> None:
    assert any(about(operation) for operation in RUNS)
    assert running(policy, RUNS) == [each for each in RUNS if not about(each)]


@pytest.mark.parametrize(("changed", "about"), BY_OTHERS.values(), ids=BY_OTHERS)
def test_what_grant_or_manifest_takes_away_does_not_run_and_the_rest_does(
    changed: dict[str, Any], about: About
) -> None:
    assert any(about(operation) for operation in RUNS)
    assert running(document(), RUNS, **changed) == [each for each in RUNS if not about(each)]


@pytest.mark.parametrize(
    ("policy", "changed", "told"),
    [
        (document(), {"granted": Capabilities()}, (Denied.code, "not_granted")),
        (document(), {"declared": Capabilities()}, (ToolDenied.code, "manifest_mismatch")),
        (document({"allowed_paths": ["/workspace/work"]}), {}, (CapabilityBlocked.code, "path")),
        (document({"denied_paths": ["/workspace/inputs"]}), {}, (CapabilityBlocked.code, "blacklist")),
        (document(), {"expires_at": NOW}, (Denied.code, "expired")),
        (document(), {"role": "barred"}, (ToolDenied.code, "tool_denied")),
    ],
)
def test_each_says_no_in_its_own_name(policy: bytes, changed: dict[str, Any], told: tuple[str, str]) -> None:
    with pytest.raises(Denied) as refused:
        running(policy, [FsRead("inputs/x")], suppressed=(), **changed)
    assert (refused.value.code, refused.value.reason) == told
