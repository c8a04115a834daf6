"""The limits of a profile: the table of the model, who may raise which, and what a request asks for beyond them."""

from __future__ import annotations

from typing import Any

import pytest
from tests.unit.authority.profile_voices import CEILING, POLICY, grant, hosts, manifest

from ringfence.authority.layers import OnExcess, Request, read_overrides
from ringfence.authority.levels import NetMode
from ringfence.authority.limit_names import FIELDS, read_limit
from ringfence.authority.policy import BUILT_IN
from ringfence.authority.policy_reader import load_policy
from ringfence.authority.profile_builder import ProfileBuilder
from ringfence.capability.capabilities import Capabilities
from ringfence.capability.exact import TmpUse
from ringfence.capability.limits import MIB, Limits
from ringfence.errors import InvalidRequest
from ringfence.operation import brokered as op

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


@pytest.mark.parametrize("value", [float("nan"), 0, -1, True, "5", None])
def test_a_limit_that_is_no_number_above_zero_is_within_no_ceiling(value: Any) -> None:
    with pytest.raises(InvalidRequest):
        Request(limits={"wall_seconds": value})
    with pytest.raises(InvalidRequest):
        grant(limits={"wall_seconds": value})


def test_a_limit_that_nobody_knows_is_refused_and_not_ignored() -> None:
    with pytest.raises(InvalidRequest):
        Request(limits={"timeout": 5})


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


# --- names and values ---------------------------------------------------------------------------


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
