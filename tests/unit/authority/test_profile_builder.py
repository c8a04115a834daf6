"""A profile is the meet of everybody who has a say: who keeps it from allowing anything, and what it allows then."""

from __future__ import annotations

from typing import Any

import pytest
from tests.unit.authority.profile_voices import POLICY, grant, hosts, manifest

from ringfence.authority.layers import Ceiling, OnExcess, Request
from ringfence.authority.levels import IsolationLevel, NetMode, RiskLevel, SideEffect
from ringfence.authority.manifest import built_in_manifest
from ringfence.authority.policy import BUILT_IN
from ringfence.authority.policy_reader import load_policy
from ringfence.authority.profile import Isolation, Profile, SecurityMode
from ringfence.authority.profile_builder import ProfileBuilder
from ringfence.capability.budget import Budget
from ringfence.capability.capabilities import Capabilities
from ringfence.capability.code import CodeRun
from ringfence.capability.denials import Denials
from ringfence.capability.form import parse
from ringfence.capability.fs import FsRead, FsWrite
from ringfence.capability.limits import MIB, Limits
from ringfence.errors import InvalidRequest
from ringfence.operation import CodeRun as RunCode
from ringfence.operation import Language
from ringfence.operation import brokered as op


def test_no_manifest_or_no_grant_allows_nothing() -> None:
    everything = Capabilities([FsRead("/workspace"), CodeRun(Language.PYTHON)])
    for who in (
        (None, manifest(everything), BUILT_IN),
        (grant(everything), None, BUILT_IN),
        (None, None, BUILT_IN),
    ):
        made = ProfileBuilder().build(*who, tool="web.get")
        assert len(made.capabilities) == 0
        assert made.refusal_of(RunCode(Language.PYTHON, "")) in ("no_manifest", "no_grant")
    assert (
        ProfileBuilder().build(grant(everything), manifest(everything), BUILT_IN).allows(RunCode(Language.PYTHON, ""))
    )


def test_a_role_without_the_tool_or_an_unknown_role_allows_nothing() -> None:
    caps = hosts("a.com")
    snapshot = load_policy(POLICY.text + b"    other: {tools: [file_read]}\n")
    reasons = {
        role: ProfileBuilder().build(grant(caps), manifest(caps), snapshot, role=role).refusal_of(
            op.NetHttp("GET", "https://a.com/")
        )
        for role in ("big", "other", "nobody", None)
    }  # fmt: skip
    assert reasons == {"big": None, "other": "tool_not_in_role", "nobody": "unknown_role", None: None}


def test_a_grant_for_one_tool_does_not_go_with_the_manifest_of_another() -> None:
    caps = hosts("a.com")
    page = op.NetHttp("GET", "https://a.com/")
    reasons = [
        ProfileBuilder().build(grant(caps, tool_name=granted), manifest(caps), POLICY, tool=tool).refusal_of(page)
        for granted, tool in (("web.get", ""), ("skill.web.get", ""), ("web.put", ""), ("web.get", "web.put"))
    ]
    assert reasons == [None, None, "tool_mismatch", "tool_mismatch"]


def test_a_profile_that_is_remembered_is_not_one_of_another_tool() -> None:
    builder, allowed, declared = ProfileBuilder(), hosts("a.com"), manifest(hosts("a.com"))
    assert builder.build(grant(allowed), declared, POLICY, tool="web.get").refusal is None
    mismatched = builder.build(grant(allowed, tool_name="web.put"), declared, POLICY, tool="web.get")
    assert (mismatched.refusal, len(mismatched.capabilities)) == ("tool_mismatch", 0)


def test_a_skill_has_one_name_whoever_writes_it() -> None:
    snapshot = load_policy(
        b"policies:\n  tools: {skill.web.get: {max_memory: 7MB}}\n  agent_roles: {r: {tools: [skill.web.get]}}\n"
        b"secrets: {K: {tools: [skill.web.get]}}\n"
    )
    assert snapshot.view("web.get", "r") is snapshot.view("skill.web.get", "r")
    view = snapshot.view("web.get", "r")
    assert (view.refusal, view.limits["memory_bytes"], len(view.capabilities.of("secret.use"))) == (None, 7 * MIB, 1)


def test_a_request_for_more_capabilities_is_refused_or_clamped() -> None:
    caps = hosts("a.com")
    arguments: Any = (grant(caps), manifest(caps), POLICY)
    request = Request(capabilities=hosts("a.com", "evil.com"))
    with pytest.raises(InvalidRequest) as refused:
        ProfileBuilder().build(*arguments, request=request)
    assert (refused.value.details["setting"], refused.value.details["observed"]) == (
        "net.http", "GET:a.com, GET:evil.com",
    )  # fmt: skip
    made = ProfileBuilder(on_excess=OnExcess.CLAMP).build(*arguments, request=request)
    assert made.capabilities == caps
    assert made.clamped == ("net.http: GET:a.com, GET:evil.com to GET:a.com",)
    narrow = ProfileBuilder().build(*arguments, request=Request(capabilities=Capabilities()))
    assert len(narrow.capabilities) == 0


def test_deny_lists_of_everybody_add_up() -> None:
    caps = Capabilities([FsRead("/workspace")])
    snapshot = load_policy(b"policies: {default: {denied_paths: [a]}}")
    made = ProfileBuilder(Ceiling(denials=Denials(paths=frozenset({"b"})))).build(
        grant(caps, denials=Denials(paths=frozenset({"c"}))), manifest(caps), snapshot
    )
    assert {path: made.refusal_of(op.FsRead(path)) for path in "abcd"} == {
        "a": "denied_path", "b": "denied_path", "c": "denied_path", "d": None,
    }  # fmt: skip


def test_the_highest_safety_class_counts_and_side_effects_are_only_told() -> None:
    snapshot = load_policy(b"policies: {default: {risk_level: high}}")
    mild = manifest(safety_class=RiskLevel.LOW, side_effects=frozenset({SideEffect.NETWORK, SideEffect.READ}))
    made = ProfileBuilder().build(grant(), mild, snapshot)
    assert (made.safety, made.side_effect) == (RiskLevel.HIGH, SideEffect.NETWORK)
    assert not made.allows(op.NetHttp("GET", "https://a.com/"))
    assert ProfileBuilder().build(grant(), mild, BUILT_IN).safety is RiskLevel.LOW
    assert ProfileBuilder().build(grant(safety_floor=RiskLevel.CRITICAL), mild, BUILT_IN).safety is RiskLevel.CRITICAL


def test_the_mode_of_the_network_is_a_ceiling() -> None:
    caps = Capabilities([parse("net.http:GET,POST:a.com"), parse("browser.use:open")])
    snapshot = load_policy(
        b"policies: {default: {network_access: true, allowed_domains: [a.com], allowed_methods: [GET, POST]}}"
    )
    made = {
        mode: ProfileBuilder(Ceiling(net_mode=mode)).build(grant(caps), manifest(caps), snapshot) for mode in NetMode
    }
    assert {mode.value: [str(item) for item in one.capabilities] for mode, one in made.items()} == {
        "none": [],
        "safe_retrieval": ["browser.use:open", "net.http:GET:a.com"],
        "allowlist": ["browser.use:open", "net.http:GET,POST:a.com"],
        "unrestricted": ["browser.use:open", "net.http:GET,POST:a.com"],
    }
    assert [one.net_mode.value for one in made.values()] == ["none", "safe_retrieval", "allowlist", "allowlist"]


def test_a_request_may_do_without_network_and_not_ask_for_more_of_it() -> None:
    caps = hosts("a.com")
    arguments: Any = (grant(caps), manifest(caps), POLICY)
    without = ProfileBuilder().build(*arguments, request=Request(net_mode=NetMode.NONE))
    assert (len(without.capabilities), without.net_mode) == (0, NetMode.NONE)
    wanted = Request(net_mode=NetMode.UNRESTRICTED)
    with pytest.raises(InvalidRequest, match="net_mode unrestricted exceeds allowlist"):
        ProfileBuilder().build(*arguments, request=wanted)
    assert [row.setting for row in ProfileBuilder().explain(*arguments, request=wanted).refused] == ["net_mode"]
    clamped = ProfileBuilder(on_excess=OnExcess.CLAMP).build(*arguments, request=wanted)
    assert (clamped.net_mode, clamped.clamped) == (NetMode.ALLOWLIST, ("net_mode: unrestricted to allowlist",))


@pytest.mark.parametrize(
    ("policy", "request_", "effective"),
    [
        (None, None, "strict"),
        (None, "permissive", "permissive"),
        ("permissive", None, "permissive"),
        ("permissive", "strict", "strict"),
        ("strict", "permissive", "strict"),
    ],
)
def test_a_request_cannot_loosen_a_strict_policy(policy: str | None, request_: str | None, effective: str) -> None:
    snapshot = load_policy(f"security_mode: {policy}\n".encode() if policy else b"{}")
    asked = Request(security_mode=SecurityMode(request_) if request_ else None)
    assert ProfileBuilder().build(grant(), manifest(), snapshot, request=asked).security_mode == effective


def test_budgets_take_the_smallest_and_zero_is_none() -> None:
    snapshot = load_policy(b"policies: {default: {budget: {calls: 10, cpu_ms: unlimited}}}")
    made = ProfileBuilder(Ceiling(budget=Budget(bytes_in=5))).build(
        grant(budget=Budget(calls=0, cpu_ms=100)), manifest(), snapshot, request=Request(budget=Budget(wall_ms=9))
    )
    assert made.budget == Budget(calls=0, cpu_ms=100, bytes_in=5, wall_ms=9)


def test_the_simple_call_needs_no_policy_file_and_no_manifest() -> None:
    view = BUILT_IN.view("code_run")
    tool = built_in_manifest("code_run", view.capabilities)
    made = ProfileBuilder().build(grant(view.capabilities, tool_name="code_run"), tool, BUILT_IN)
    assert all(made.allows(RunCode(language, "")) for language in Language)
    assert not made.allows(op.FsRead("a"))
    assert (made.tool_name, made.isolation_floor, made.net_mode) == ("code_run", IsolationLevel.OS, NetMode.NONE)


def test_the_shell_tool_is_for_bash_alone_and_nobody_knows_what_administration_needs() -> None:
    view = BUILT_IN.view("shell_exec")
    shell = built_in_manifest("shell_exec", view.capabilities)
    assert shell is not None
    assert [item.resource() for item in shell.capabilities.of("code.run")] == ["bash"]
    admin = built_in_manifest("system_admin", view.capabilities)
    assert admin is not None
    assert (len(admin.capabilities), admin.safety_class) == (0, RiskLevel.CRITICAL)
    assert built_in_manifest("web.get", view.capabilities) is None


def test_a_profile_made_by_nobody_allows_nothing() -> None:
    made = Profile()
    assert not made.allows(RunCode(Language.PYTHON, ""))
    assert (made.limits, made.isolation, made.timeout_ms) == (Limits(), Isolation.AUTO, 60_000)


def test_the_whitelists_show_the_capabilities() -> None:
    caps = Capabilities([*hosts("a.com"), FsRead("inputs"), FsWrite("work"), parse("proc.exec:git")])
    lists = Profile(capabilities=caps, mime_allow=frozenset({"text/html"})).whitelists
    assert (lists.domains, lists.paths, lists.tools, lists.methods, lists.mime_allow) == (
        ("a.com",), ("/workspace/inputs", "/workspace/work"), ("git",), ("GET",), ("text/html",),
    )  # fmt: skip


def test_what_takes_the_word_of_a_person_is_named() -> None:
    caps = Capabilities(map(parse, ["fs.host:/opt", "net.http:GET:a.com", "secret.use:K", "code.run:python"]))
    opened = {
        text: ProfileBuilder().build(grant(caps), manifest(caps), load_policy(text.encode())).dangers
        for text in (
            "policies: {default: {network_access: true, allowed_domains: [a.com]}}\nsecrets: {K: {}}",
            "policies: {default: {filesystem_access: host, host_paths: [/opt]}}",
            "policies: {default: {host_paths: [/opt]}}",
            "policies: {default: {net_mode: unrestricted, allowed_domains: [a.com]}}",
            "policies: {default: {net_mode: allowlist, allowed_domains: [a.com]}}\nnetwork: {denylist: {networks: []}}",
            "secrets: {K: {scope: conversation}}",
        )
    }
    assert list(opened.values()) == [
        (), ("host_files",), (), ("unrestricted_network", "private_network"), ("private_network",), ("lasting_secret",),
    ]  # fmt: skip


def test_deny_lists_and_budgets_are_explained_too() -> None:
    snapshot = load_policy(b"policies: {default: {denied_paths: [a], denied_commands: [rm], budget: {calls: 5}}}")
    explained = ProfileBuilder().explain(
        grant(denials=Denials(paths=frozenset({"b"})), budget=Budget(calls=3)), manifest(), snapshot
    )
    paths, calls = explained.row("denied_paths"), explained.row("budget.calls")
    assert (paths.policy, paths.grant, paths.value) == (
        ("/workspace/a",), ("/workspace/b",), ("/workspace/a", "/workspace/b"),
    )  # fmt: skip
    assert (calls.policy, calls.grant, calls.value, calls.layer) == (5, 3, 3, "grant")
    held = {row["setting"]: row["held_by"] for row in explained.to_json()["rows"]}
    assert (held["denied_paths"], held["denied_commands"], held["denied_networks"]) == ("guard", "best-effort", "proxy")


def test_the_table_and_the_profile_agree_whatever_the_request_leaves_out() -> None:
    caps = hosts("a.com")
    snapshot = load_policy(POLICY.text + b"security_mode: permissive\n")
    for request in (Request(), Request(capabilities=Capabilities()), Request(security_mode=SecurityMode.STRICT)):
        made = ProfileBuilder().build(grant(caps), manifest(caps), snapshot, request=request)
        explained = ProfileBuilder().explain(grant(caps), manifest(caps), snapshot, request=request)
        assert explained.row("net_mode").value == str(made.net_mode)
        assert explained.row("security_mode").value == str(made.security_mode)
        assert explained.row("safety").value == str(made.safety)
        assert explained.row("isolation").value == str(made.isolation_floor)


def test_what_the_policy_alone_decides_is_in_the_table_too() -> None:
    text = b"policies: {default: {env_allow: [LANG, A_*], mime_allow: [text/html], output_inline: false}}"
    told, silent = (
        ProfileBuilder().explain(grant(), manifest(), load_policy(each)) for each in (text, b"policies: {}")
    )
    names = ("env_allow", "mime_allow", "output_inline")
    assert [(told.row(name).value, told.row(name).layer, told.row(name).origin) for name in names] == [
        (("A_*", "LANG"), "policy", "default"), (("text/html",), "policy", "default"), (False, "policy", "default"),
    ]  # fmt: skip
    assert [(silent.row(name).value, silent.row(name).layer) for name in names] == [
        (None, "default"), (None, "default"), (True, "default"),
    ]  # fmt: skip
