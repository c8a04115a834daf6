"""What whoever deploys says for all calls: ceilings, the network, and how strong the box of critical code is."""

from __future__ import annotations

from typing import Any

import pytest

from ringfence.authority.grant import Grant
from ringfence.authority.layers import Request
from ringfence.authority.levels import IsolationLevel, NetMode, RiskLevel
from ringfence.authority.manifest import Manifest
from ringfence.authority.policy import BUILT_IN
from ringfence.authority.policy_diff import Direction, diff
from ringfence.authority.policy_reader import load_policy
from ringfence.authority.profile_builder import ProfileBuilder
from ringfence.authority.request_form import request_from_json, request_to_json
from ringfence.capability.budget import Budget
from ringfence.capability.capabilities import Capabilities
from ringfence.capability.form import parse
from ringfence.errors import InvalidRequest
from ringfence.guard.policy_guard import isolation_for
from ringfence.operation import CodeRun, Language

MIB = 1024 * 1024
CODE = CodeRun(Language.PYTHON, "print(1)")
GVISOR = load_policy(b"policies: {tools: {code_run: {critical_isolation: gvisor}}}")


def grant(tool: str, capabilities: Capabilities | None = None) -> Grant:
    who: dict[str, Any] = {"tenant": "t", "subject_id": "s", "call_id": "c-1", "decision_key_fingerprint": "f"}
    return Grant(tool_name=tool, expires_at=2**40, budget=Budget(), capabilities=capabilities or Capabilities(), **who)


def test_no_run_gets_more_than_the_deployment_gives() -> None:
    held = Request(ceilings={"memory_bytes": 64 * MIB, "cpus": 0.5})
    profile = ProfileBuilder().build(grant("code_run"), Manifest("code_run"), BUILT_IN, request=held)
    assert (profile.limits.memory_bytes, profile.limits.cpus) == (64 * MIB, 0.5)
    greedy = Request(ceilings=held.ceilings, limits={"memory_bytes": 65 * MIB})
    with pytest.raises(InvalidRequest):
        ProfileBuilder().build(grant("code_run"), Manifest("code_run"), BUILT_IN, request=greedy)


def test_a_ceiling_raises_nothing() -> None:
    wide = Request(ceilings={"memory_bytes": 10**15})
    plain = ProfileBuilder().build(grant("code_run"), Manifest("code_run"), BUILT_IN)
    assert (
        ProfileBuilder().build(grant("code_run"), Manifest("code_run"), BUILT_IN, request=wide).limits == plain.limits
    )


def test_a_deployment_without_network_has_none_whatever_policy_and_grant_say() -> None:
    web = Capabilities([parse("net.http:GET:a.com")])
    policy = load_policy(b"policies: {default: {network_access: true, allowed_domains: [a.com]}}")
    for ceiling, left in ((None, ["net.http:GET:a.com"]), (NetMode.NONE, [])):
        request = Request(net_ceiling=ceiling)
        profile = ProfileBuilder().build(
            grant("web.get", web), Manifest("web.get", capabilities=web), policy, request=request
        )
        assert [str(one) for one in profile.capabilities] == left


def test_what_the_deployment_said_is_in_the_record_of_the_request() -> None:
    said = Request(ceilings={"memory_bytes": 64 * MIB}, net_ceiling=NetMode.NONE)
    assert request_from_json(request_to_json(said)) == said


@pytest.mark.parametrize(("risk", "least"), [(RiskLevel.HIGH, "container"), (RiskLevel.CRITICAL, "gvisor")])
def test_a_policy_gives_critical_code_a_stronger_box(risk: RiskLevel, least: str) -> None:
    profile = ProfileBuilder().build(grant("code_run"), Manifest("code_run"), GVISOR)
    assert str(isolation_for(profile, CODE, risk).least) == least


def test_nobody_lowers_the_box_of_critical_code_below_a_container() -> None:
    low = load_policy(b"policies: {tools: {code_run: {critical_isolation: process}}}")
    profile = ProfileBuilder().build(grant("code_run"), Manifest("code_run"), low)
    assert isolation_for(profile, CODE, RiskLevel.CRITICAL).least is IsolationLevel.CONTAINER


def test_a_profile_without_the_key_keeps_its_hash_and_one_with_it_has_another() -> None:
    plain = ProfileBuilder().build(grant("code_run"), Manifest("code_run"), BUILT_IN)
    assert "critical_isolation" not in plain.normal_form()
    made = ProfileBuilder().build(grant("code_run"), Manifest("code_run"), GVISOR)
    assert made.normal_form()["critical_isolation"] == "gvisor"


def test_a_policy_that_no_longer_asks_for_it_is_wider() -> None:
    found = [one for one in diff(GVISOR, BUILT_IN) if "critical_isolation" in str(one)]
    assert [one.direction for one in found] == [Direction.WIDENED] * len(found)
    assert found


def test_cgroups_are_required_by_the_policy_or_by_the_request_and_by_neither_taken_back() -> None:
    policy = load_policy(b"policies: {tools: {code_run: {require_cgroups: true}}}")
    for said, asked, required in (
        (policy, False, True),
        (policy, True, True),
        (BUILT_IN, True, True),
        (BUILT_IN, False, False),
    ):
        request = Request(require_cgroups=asked)
        profile = ProfileBuilder().build(grant("code_run"), Manifest("code_run"), said, request=request)
        assert profile.require_cgroups is required
    assert [str(one.direction) for one in diff(policy, BUILT_IN) if one.setting == "require_cgroups"] == ["widened"]
    assert [str(one.direction) for one in diff(BUILT_IN, policy) if one.setting == "require_cgroups"] == ["narrowed"]
