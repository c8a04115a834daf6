"""A profile is remembered for whoever asks the same under the same law, and for nobody else."""

from __future__ import annotations

from typing import Any

import pytest

from ringfence.authority.caller import Caller
from ringfence.authority.layers import Request
from ringfence.authority.policy_reader import load_policy
from ringfence.capability.capabilities import Capabilities
from ringfence.capability.form import parse
from ringfence.clock import SystemClock
from ringfence.dataclass import replace
from ringfence.operation import CodeRun, Language
from ringfence.operation.brokered import FsRead
from ringfence.wiring import authority_over

READ = FsRead("work/a")
CODE = CodeRun(Language.PYTHON, "1")
WIDE = load_policy(b"policies: {default: {network_access: true, allowed_domains: [a.com]}}")
NARROW = load_policy(b"policies: {tools: {file_read: {allowed_paths: [/workspace/inputs]}}}")


def test_a_changed_policy_is_not_answered_from_memory() -> None:
    policies = [WIDE, NARROW, WIDE]
    authority = authority_over(lambda: policies[0], SystemClock())
    seen = []
    while policies:
        profile = authority.profile(READ, call_id="c")
        seen.append((profile.policy_version_hash == policies[0].policy_version_hash, profile.capabilities.allows(READ)))
        policies.pop(0)
    assert seen == [(True, True), (True, False), (True, True)]


def test_a_grant_is_heard_also_where_the_same_was_asked_without_one() -> None:
    authority = authority_over(lambda: WIDE, SystemClock())
    own = authority.profile(READ, call_id="c")
    assert own.capabilities.allows(READ)
    elsewhere = Capabilities([parse("fs.read:/workspace/inputs")])
    granted = authority._issue(WIDE, "file_read", None, "c", Caller("t", "s"))  # as one that came from outside
    profile = authority.profile(READ, call_id="c", granted=replace(granted, capabilities=elsewhere))
    assert not profile.capabilities.allows(READ)
    assert authority.profile(READ, call_id="c").capabilities.allows(READ)


@pytest.mark.parametrize("asking", [Request(limits={"wall_seconds": 1}), Request(capabilities=Capabilities())])
def test_another_request_is_another_profile(asking: Request) -> None:
    authority = authority_over(lambda: WIDE, SystemClock())
    first = authority.profile(READ, call_id="c")
    assert authority.profile(READ, call_id="c", request=asking).profile_hash != first.profile_hash
    assert authority.profile(READ, call_id="c").profile_hash == first.profile_hash


def test_code_that_asks_for_hosts_is_not_taken_for_code_that_does_not() -> None:
    authority = authority_over(lambda: WIDE, SystemClock())
    reaching = replace(CODE, domains=("a.com",))
    for operation, hosts in ((CODE, False), (reaching, True), (CODE, False)):
        assert bool(authority.profile(operation, call_id="c").capabilities.of("net.http")) == hosts


def test_who_asks_and_until_when_is_never_remembered() -> None:
    authority = authority_over(lambda: WIDE, SystemClock())

    def whose(tenant: str, call_id: str) -> tuple[Any, ...]:
        found = authority.profile(READ, call_id=call_id, caller=Caller(tenant, f"of {tenant}"))
        return found.tenant, found.subject_id, found.call_id, found.grant_id, found.decision_key_fingerprint

    one, other = whose("a", "c1"), whose("b", "c2")
    assert one[:3] == ("a", "of a", "c1")
    assert other[:3] == ("b", "of b", "c2")
    assert not set(one) & set(other)
