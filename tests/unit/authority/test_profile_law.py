"""The law behind a profile: it allows what every layer allows and no more, has one hash, and costs a call little."""

from __future__ import annotations

import itertools
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.authority.profile_voices import POLICY, grant, hosts, manifest

from ringfence.authority.layers import OnExcess, Request
from ringfence.authority.levels import RiskLevel
from ringfence.authority.manifest import Manifest
from ringfence.authority.policy import Policy, PolicySnapshot, Role, Scope
from ringfence.authority.policy_reader import load_policy
from ringfence.authority.profile import Isolation
from ringfence.authority.profile_builder import ProfileBuilder
from ringfence.capability.budget import Budget
from ringfence.capability.capabilities import Capabilities
from ringfence.capability.code import CodeRun
from ringfence.capability.denials import Denials
from ringfence.capability.exact import TmpUse
from ringfence.capability.fs import FsRead, FsWrite
from ringfence.capability.limits import MIB, SYSTEM_CEILING
from ringfence.operation import CodeRun as RunCode
from ringfence.operation import Language
from ringfence.operation import brokered as op

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
