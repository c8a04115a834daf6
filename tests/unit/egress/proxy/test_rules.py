"""What one run may reach, by name and by address."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringfence.authority.levels import Decision, NetMode
from ringfence.authority.profile import Profile
from ringfence.authority.rule import Rule, Subject
from ringfence.capability.capabilities import Capabilities
from ringfence.capability.denials import PRIVATE_NETWORKS, Denials
from ringfence.capability.host import covers
from ringfence.capability.net import NetHttp
from ringfence.egress.proxy.rules import Rules, rules_for
from ringfence.operation.target import METHODS, target

PATTERNS = st.sampled_from(["a.com", "*.a.com", "b.a.com", "*.b.a.com", "c.org"])
HOSTS = st.sampled_from(["a.com", "b.a.com", "c.b.a.com", "c.org", "ba.com", "d.org"])
CLOSED = Denials(networks=PRIVATE_NETWORKS)


def profile(*items: NetHttp, denials: Denials = CLOSED, rules: tuple[Rule, ...] = ()) -> Profile:
    return Profile(capabilities=Capabilities(items), denials=denials, rules=rules, net_mode=NetMode.ALLOWLIST)


@given(st.lists(PATTERNS, max_size=3), st.lists(PATTERNS, max_size=3), HOSTS, st.sampled_from(["", ":8080"]))
def test_a_host_is_reached_where_both_the_grant_and_the_run_name_it(
    granted: list[str], asked: list[str], host: str, port: str
) -> None:
    rules = rules_for(profile(*(NetHttp(each, None, None, METHODS) for each in granted)), asked)
    named = any(covers(one, host) for one in granted) and any(covers(one, host) for one in asked)
    for refusal in (
        rules.refuse_request("GET", target(f"http://{host}{port}/")),
        rules.refuse_tunnel(target(f"https://{host}{port}/")),
    ):
        assert (refusal is None) == (named and not port)


def test_an_empty_list_is_nothing_and_not_everything() -> None:
    rules = rules_for(profile(NetHttp("*", None, None, METHODS)), ())
    assert rules.refuse_request("GET", target("http://a.com/")) is not None
    assert rules_for(profile(), ("a.com",)).refuse_tunnel(target("https://a.com/")) is not None


@pytest.mark.parametrize(
    ("decision", "reason"), [(Decision.DENY, "rule"), (Decision.ASK, "consent_required"), (Decision.ALLOW, None)]
)
def test_a_rule_about_a_domain_counts_for_every_connection(decision: Decision, reason: str | None) -> None:
    rule = Rule("r", decision, Subject.DOMAIN, "b.a.com")
    rules = rules_for(profile(NetHttp("*.a.com", None, None, METHODS), rules=(rule,)), ["*.a.com"])
    refusal = rules.refuse_tunnel(target("https://b.a.com/"))
    assert (refusal and refusal.reason) == reason
    assert rules.refuse_tunnel(target("https://c.a.com/")) is None


def test_a_tunnel_needs_every_method_and_a_plain_one_any() -> None:
    rules = rules_for(profile(NetHttp("a.com", None, None, frozenset({"GET"}))), ["a.com"])
    refusal = rules.refuse_tunnel(target("https://a.com/"))
    assert refusal is not None
    assert refusal.reason == "method"
    assert rules.refuse_plain_tunnel(target("https://a.com:80/")) is None
    assert rules.refuse_plain_tunnel(target("https://a.com/")) is not None


def test_one_forbidden_address_among_many_is_enough() -> None:
    rules = Rules(Capabilities())
    assert rules.refuse_addresses("a.com", ["93.184.216.34"], frozenset()) is None
    assert rules.refuse_addresses("a.com", ["93.184.216.34", "10.0.0.1"], frozenset()) is not None
    assert rules.refuse_addresses("a.com", ["93.184.216.34"], frozenset({"93.184.216.34"})) is not None
