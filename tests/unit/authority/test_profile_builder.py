"""A profile is the meet of everybody who has a say: the table of the model, and the law behind it."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ringfence.authority.grant import Grant
from ringfence.authority.layers import Ceiling, OnExcess, Request, read_overrides
from ringfence.authority.levels import IsolationLevel, NetMode, RiskLevel, SideEffect
from ringfence.authority.limit_names import FIELDS, read_limit
from ringfence.authority.manifest import Manifest, built_in_manifest
from ringfence.authority.policy import BUILT_IN, Policy, PolicySnapshot, Role, Scope
from ringfence.authority.policy_reader import load_policy
from ringfence.authority.profile import Isolation, Profile, SecurityMode
from ringfence.authority.profile_builder import ProfileBuilder
from ringfence.capability.budget import Budget
from ringfence.capability.capabilities import Capabilities
from ringfence.capability.code import CodeRun
from ringfence.capability.denials import Denials
from ringfence.capability.exact import TmpUse
from ringfence.capability.form import parse
from ringfence.capability.fs import FsRead, FsWrite
from ringfence.capability.limits import MIB, SYSTEM_CEILING, Limits
from ringfence.errors import InvalidRequest
from ringfence.operation import CodeRun as RunCode
from ringfence.operation import Language
from ringfence.operation import brokered as op

CEILING = Ceiling(limits=replace(SYSTEM_CEILING, wall_seconds=600.0, memory_bytes=4096 * MIB))


def hosts(*names: str) -> Capabilities:
    return Capabilities(parse(f"net.http:GET:{name}") for name in names)


def grant(capabilities: Capabilities | None = None, **fields: Any) -> Grant:
    stated = {"tenant": "t", "subject_id": "s", "tool_name": "web.get", "call_id": "c-1", "expires_at": 2**40,
              "budget": Budget(), "decision_key_fingerprint": "f"}  # fmt: skip
    return Grant(**{**stated, "capabilities": Capabilities() if capabilities is None else capabilities, **fields})


def manifest(capabilities: Capabilities | None = None, **fields: Any) -> Manifest:
    return Manifest("web.get", capabilities=Capabilities() if capabilities is None else capabilities, **fields)


POLICY = load_policy(
    b"""
policies:
  tools:
    web.get: {max_execution_time: 120s, network_access: true, allowed_domains: [a.com, b.com]}
  agent_roles:
    big: {tools: [web.get], max_memory: 2GB}
"""
)


# --- the table of the model ----------------------------------------------------------------------


def test_the_request_narrows() -> None:
    arguments: Any = (grant(), manifest(limits={"wall_seconds": 90.0}), POLICY)
    request = Request(limits={"wall_seconds": 30.0})
    assert ProfileBuilder(CEILING).build(*arguments, request=request).limits.wall_seconds == 30.0
    row = ProfileBuilder(CEILING).explain(*arguments, request=request).row("wall_seconds")
    assert (row.default, row.ceiling, row.policy, row.manifest, row.grant, row.request, row.value, row.why) == (
        60.0, 600.0, 120.0, 90.0, None, 30.0, 30.0, "the request narrows",
    )  # fmt: skip


def test_a_request_beyond_a_ceiling_is_refused_and_says_whose_it_was() -> None:
    arguments: Any = (grant(), manifest(limits={"wall_seconds": 90.0}), POLICY)
    request = Request(limits={"wall_seconds": 300.0})
    with pytest.raises(InvalidRequest) as refused:
        ProfileBuilder(CEILING).build(*arguments, request=request)
    assert refused.value.reason == "limit_exceeds_ceiling"
    assert refused.value.details == {
        "setting": "wall_seconds", "limit": "90.0", "observed": "300.0", "layer": "manifest",
    }  # fmt: skip
    explained = ProfileBuilder(CEILING).explain(*arguments, request=request)
    assert [row.setting for row in explained.refused] == ["wall_seconds"]
    assert (explained.outcome(explained.row("wall_seconds")), explained.row("wall_seconds").why) == (
        "refused", "exceeds the manifest's 90 s",
    )  # fmt: skip


def test_a_request_beyond_a_ceiling_is_clamped_on_opt_in_and_that_is_recorded() -> None:
    builder = ProfileBuilder(CEILING, on_excess=OnExcess.CLAMP)
    made = builder.build(
        grant(), manifest(limits={"wall_seconds": 90.0}), POLICY, request=Request(limits={"wall_seconds": 300.0})
    )
    assert (made.limits.wall_seconds, made.clamped) == (90.0, ("wall_seconds: 300 s to 90 s (manifest)",))


def test_the_most_specific_value_counts_under_all_ceilings() -> None:
    builder = ProfileBuilder(CEILING)
    row = builder.explain(grant(), manifest(), POLICY, role="big").row("memory_bytes")
    assert (row.default, row.ceiling, row.policy, row.value, row.layer, row.origin) == (
        1024 * MIB, 4096 * MIB, 2048 * MIB, 2048 * MIB, "policy", "role big",
    )  # fmt: skip
    assert builder.build(grant(), manifest(), POLICY, role="big").limits.memory_bytes == 2048 * MIB


def test_hosts_intersect() -> None:
    arguments: Any = (grant(hosts("a.com", "c.com")), manifest(hosts("a.com")), POLICY)
    row = ProfileBuilder(CEILING).explain(*arguments).row("net.http")
    assert (row.policy, row.manifest, row.grant, row.value, row.why) == (
        ("GET,HEAD:a.com", "GET,HEAD:b.com"), ("GET:a.com",), ("GET:a.com", "GET:c.com"), ("GET:a.com",),
        "intersection",
    )  # fmt: skip
    made = ProfileBuilder(CEILING).build(*arguments)
    allowed = [name for name in ("a.com", "b.com", "c.com") if made.allows(op.NetHttp("GET", f"https://{name}/"))]
    assert allowed == ["a.com"]


def test_the_table_prints_with_units_and_says_who_holds_each_value() -> None:
    text = ProfileBuilder(CEILING).explain(
        grant(hosts("a.com")), manifest(hosts("a.com"), limits={"wall_seconds": 90.0}), POLICY,
        request=Request(limits={"wall_seconds": 300.0}),
    ).render()  # fmt: skip
    lines = {line.split()[0]: line.split() for line in text.splitlines()}
    assert " ".join(lines["wall_seconds"][1:]) == (
        "60 s 600 s 120 s 90 s — 300 s refused exceeds the manifest's 90 s host"
    )
    assert lines["net.http"][-1] == "proxy"
    assert lines["memory_bytes"][-1] == "kernel"


# --- C1, case by case ----------------------------------------------------------------------------


def test_inside_one_authority_the_specific_entry_may_raise_the_default() -> None:
    snapshot = load_policy(b"policies: {default: {max_memory: 512MB}, tools: {web.get: {max_memory: 1GB}}}")
    assert ProfileBuilder().build(grant(), manifest(), snapshot).limits.memory_bytes == 1024 * MIB


def test_across_authorities_the_smallest_counts_and_a_declaration_beyond_it_is_no_error() -> None:
    snapshot = load_policy(b"policies: {default: {max_bytes_in: 1MB}}")
    arguments: Any = (grant(), manifest(limits={"max_bytes_in": 2 * MIB}), snapshot)
    assert ProfileBuilder().build(*arguments).limits.max_bytes_in == MIB
    row = ProfileBuilder().explain(*arguments).row("max_bytes_in")
    assert (row.layer, row.excess) == ("policy", None)
    assert row.why == "the manifest states 2 MB, the policy allows 1 MB"


def test_no_authority_gets_past_the_ceiling() -> None:
    made = ProfileBuilder(CEILING).build(
        grant(limits={"wall_seconds": 10_000.0}), manifest(limits={"wall_seconds": 5000.0}), BUILT_IN
    )
    assert made.limits.wall_seconds == 600.0


def test_the_ceilings_of_the_policy_lower_those_of_the_system() -> None:
    snapshot = load_policy(b"ceilings: {max_execution_time: 10s}")
    assert ProfileBuilder().build(grant(), manifest(), snapshot).limits.wall_seconds == 10.0
    with pytest.raises(InvalidRequest):
        ProfileBuilder().build(grant(), manifest(), snapshot, request=Request(limits={"wall_seconds": 11.0}))


def test_where_nobody_says_anything_the_system_defaults_count() -> None:
    assert ProfileBuilder().build(grant(), manifest(), BUILT_IN).limits == Limits()


def test_a_run_may_compute_as_long_as_it_may_take_unless_somebody_says_otherwise() -> None:
    long = load_policy(b"policies: {default: {max_execution_time: 5m, max_cpu: 2.0}}")
    assert ProfileBuilder().build(grant(), manifest(), long).limits.cpu_seconds == 600.0
    both = load_policy(b"policies: {default: {max_execution_time: 5m, max_cpu_time: 7s}}")
    assert ProfileBuilder().build(grant(), manifest(), both).limits.cpu_seconds == 7.0


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


@pytest.mark.parametrize("value", [float("nan"), 0, -1, True, "5", None])
def test_a_limit_that_is_no_number_above_zero_is_within_no_ceiling(value: Any) -> None:
    with pytest.raises(InvalidRequest):
        Request(limits={"wall_seconds": value})
    with pytest.raises(InvalidRequest):
        grant(limits={"wall_seconds": value})


def test_a_limit_that_nobody_knows_is_refused_and_not_ignored() -> None:
    with pytest.raises(InvalidRequest):
        Request(limits={"timeout": 5})


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


def test_the_overrides_of_003_are_read() -> None:
    form = {"timeout_ms": 500, "memory_mb": 64, "net": {"mode": "none"}, "capabilities": ["TmpUse"]}
    assert read_overrides(form) == Request(
        limits={"wall_seconds": 0.5, "memory_bytes": 64 * MIB},
        capabilities=Capabilities([TmpUse()]),
        net_mode=NetMode.NONE,
    )


@pytest.mark.parametrize(
    "form", [[], {"speed": 1}, {"timeout_ms": "1"}, {"net": "none"}, {"net": {"mode": "full"}}, {"net": {}}, {5: 5},
             {"capabilities": ["All"]}], ids=str,
)  # fmt: skip
def test_an_override_of_something_else_is_refused(form: Any) -> None:
    with pytest.raises(InvalidRequest):
        read_overrides(form)


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


# --- the hash ------------------------------------------------------------------------------------


def test_the_hash_is_of_what_may_be_done_and_not_of_who_or_when() -> None:
    caps = hosts("a.com")
    one = ProfileBuilder().build(grant(caps), manifest(caps), POLICY)
    other = ProfileBuilder().build(
        grant(caps, call_id="c-2", tenant="u", subject_id="x", expires_at=1, nonce="n"), manifest(caps), POLICY
    )
    assert one.profile_hash == other.profile_hash
    assert (other.tenant, other.subject_id, other.call_id, other.expires_at) == ("u", "x", "c-2", 1)


def test_whatever_may_be_done_changes_the_hash() -> None:
    caps = hosts("a.com")
    variants: list[Any] = [
        (grant(caps), manifest(caps), POLICY, Request()),
        (grant(hosts()), manifest(caps), POLICY, Request()),
        (grant(caps, budget=Budget(calls=1)), manifest(caps), POLICY, Request()),
        (grant(caps, limits={"pids": 10}), manifest(caps), POLICY, Request()),
        (grant(caps, denials=Denials(ports=frozenset({1}))), manifest(caps), POLICY, Request()),
        (grant(caps, safety_floor=RiskLevel.CRITICAL), manifest(caps), POLICY, Request()),
        (grant(caps), manifest(caps, version="2"), POLICY, Request()),
        (grant(caps), manifest(caps, side_effects=frozenset()), POLICY, Request()),
        (grant(caps), manifest(caps), load_policy(POLICY.text + b"# read again\n"), Request()),
        (grant(caps), manifest(caps), POLICY, Request(limits={"wall_seconds": 1.0})),
        (grant(caps), manifest(caps), POLICY, Request(isolation=Isolation.BWRAP)),
        (grant(caps), manifest(caps), POLICY, Request(require_cgroups=True)),
    ]
    builder = ProfileBuilder()
    hashes = [builder.build(*three, request=request).profile_hash for *three, request in variants]
    assert len(set(hashes)) == len(variants)
    assert hashes == [ProfileBuilder().build(*three, request=request).profile_hash for *three, request in variants]


# --- what a call costs ---------------------------------------------------------------------------


class LookupOnly(dict[str, Any]):
    """A mapping that may be asked for one key, never for all of them."""

    def _no(self, *_: Any) -> Any:
        raise AssertionError("a call walks over the whole policy")

    __iter__ = items = values = keys = _no


def test_a_call_looks_up_its_own_tool_and_role_and_no_other() -> None:
    tools = LookupOnly({f"t.x{n}": Scope(f"tool {n}", {"max_memory": (n + 1) * MIB}) for n in range(1000)})
    roles = LookupOnly({f"r{n}": Role(f"r{n}", Scope(f"role r{n}"), tools=("t.x7",)) for n in range(200)})
    snapshot = PolicySnapshot(Policy(tools=tools, roles=roles), b"large")
    made = ProfileBuilder().build(grant(tool_name="t.x7"), Manifest("t.x7"), snapshot, role="r199")
    assert made.refusal is None
    assert made.limits.memory_bytes == 8 * MIB
    assert snapshot.view("t.x7", "r199") is snapshot.view("t.x7", "r199")


def test_the_same_voices_are_heard_once() -> None:
    caps = hosts("a.com")
    builder, tool = ProfileBuilder(), manifest(caps)
    first = builder.build(grant(caps, call_id="1"), tool, POLICY)
    second = builder.build(grant(hosts("a.com"), call_id="2"), tool, POLICY)
    assert first.limits is second.limits
    assert (first.call_id, second.call_id) == ("1", "2")


def test_neither_names_nor_requests_can_fill_the_memory() -> None:
    snapshot, builder = PolicySnapshot(Policy(), b""), ProfileBuilder()
    for n in range(5000):
        snapshot.view(f"t.x{n}")
    for n in range(1100):
        builder.build(grant(), manifest(), snapshot, request=Request(limits={"wall_seconds": 1 + n / 1000}))
    assert len(snapshot._views) <= 4096
    assert len(builder._kept) <= 1024


# --- the law -------------------------------------------------------------------------------------

POOL = (FsRead("/workspace"), FsRead("inputs"), FsWrite("work"), FsWrite("work/a"), TmpUse(),
        CodeRun(Language.PYTHON), CodeRun(Language.BASH), *hosts("a.com", "b.com", "*.a.com"))  # fmt: skip
OPERATIONS: tuple[Any, ...] = (
    *(op.FsRead(path) for path in ("inputs/x", "work/x", "../x")),
    *(op.FsWrite(path, b"") for path in ("work/a/b", "work/c")),
    op.TmpAlloc(1),
    *(RunCode(language, "") for language in Language),
    *(op.NetHttp("GET", f"https://{host}/") for host in ("a.com", "x.a.com", "b.com", "c.com")),
)
sets = st.frozensets(st.sampled_from(POOL)).map(Capabilities)
stated = st.dictionaries(st.sampled_from(["wall_seconds", "memory_bytes", "pids"]), st.integers(1, 2000), max_size=3)
policies = st.builds(
    lambda limits, languages, paths, domains: PolicySnapshot(
        Policy(
            default=Scope("default", {"network_access": True, "supported_languages": languages, "allowed_paths": paths,
                                      "allowed_domains": domains} | limits)
        ), repr((limits, languages, paths, domains)).encode(),
    ),
    st.dictionaries(st.sampled_from(["max_execution_time", "max_memory", "max_processes"]), st.integers(1, 2000)),
    st.lists(st.sampled_from(list(Language)), unique=True).map(tuple),
    st.lists(st.sampled_from(["/workspace", "/workspace/inputs", "/workspace/work/a"])).map(tuple),
    st.lists(st.sampled_from(["a.com", "*.a.com", "c.com"])).map(tuple),
)  # fmt: skip


@given(sets, sets, policies, st.one_of(st.none(), sets), stated, stated, stated)
@settings(max_examples=80)
def test_nothing_outside_any_of_the_layers_is_ever_allowed(
    granted: Capabilities, declared: Capabilities, policy: PolicySnapshot, wanted: Capabilities | None,
    grant_limits: dict[str, int], manifest_limits: dict[str, int], request_limits: dict[str, int],
) -> None:  # fmt: skip
    view = policy.view("web.get")
    made = ProfileBuilder(on_excess=OnExcess.CLAMP).build(
        grant(granted, limits=grant_limits),
        manifest(declared, limits=manifest_limits),
        policy,
        request=Request(limits=request_limits, capabilities=wanted),
    )
    layers = [granted, declared, view.capabilities, *([] if wanted is None else [wanted])]
    for operation in OPERATIONS:
        assert made.capabilities.allows(operation) == all(layer.allows(operation) for layer in layers)
    for name, most in itertools.chain(
        grant_limits.items(), manifest_limits.items(), request_limits.items(), view.limits.items()
    ):
        assert getattr(made.limits, name) <= most
    assert made.limits.exceeding(SYSTEM_CEILING) == ()


@given(sets, sets, policies)
@settings(max_examples=40)
def test_attenuating_a_grant_never_widens_the_profile(
    granted: Capabilities, narrower: Capabilities, policy: PolicySnapshot
) -> None:
    everything = Capabilities(POOL)
    wide = ProfileBuilder().build(grant(granted), manifest(everything), policy)
    narrow = ProfileBuilder().build(grant(granted).attenuate(capabilities=narrower), manifest(everything), policy)
    assert wide.capabilities.covers(narrow.capabilities)
    assert (wide.profile_hash == narrow.profile_hash) == (wide.normal_form() == narrow.normal_form())


@pytest.mark.parametrize(
    ("name", "value", "limit"),
    [
        ("timeout_ms", 1500, ("wall_seconds", 1.5)),
        ("memory_mb", 2, ("memory_bytes", 2 * MIB)),
        ("cpu_cores", 0.5, ("cpus", 0.5)),
        ("pids", 3, ("pids", 3)),
        ("max_artifacts_bytes_total", 9, ("artifact_bytes", 9)),
    ],
)
def test_the_names_of_003_lead_to_the_limits(name: str, value: float, limit: tuple[str, float]) -> None:
    assert read_limit(name, value) == limit


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("memory", 1),
        ("pids", 0),
        ("pids", -1),
        ("pids", 1.5),
        ("pids", True),
        ("pids", "9"),
        ("timeout_ms", float("nan")),
    ],
)
def test_what_is_no_limit_is_refused(name: str, value: Any) -> None:
    with pytest.raises(InvalidRequest):
        read_limit(name, value)


def test_every_limit_can_be_set_in_a_policy() -> None:
    from ringfence.authority.policy_keys import LIMIT_KEYS

    assert {limit for limit, _ in LIMIT_KEYS.values()} == FIELDS.keys()
