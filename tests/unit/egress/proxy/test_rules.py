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


def test_a_tunnel_that_nobody_looks_into_needs_every_path() -> None:
    some = NetHttp("a.com", None, None, METHODS, frozenset({"/v1/**", "/"}))
    rules = rules_for(profile(some), ["a.com"])
    refusal = rules.refuse_tunnel(target("https://a.com/"))
    assert refusal is not None
    assert refusal.reason == "path"
    assert rules.refuse_all(target("https://a.com/")) is None
    assert rules.refuse_all(target("https://a.com:8443/")) is not None
    assert rules.refuse_plain_tunnel(target("https://a.com:80/")) is None


@pytest.mark.parametrize(
    ("path", "allowed"),
    [
        *((path, True) for path in ("/v1", "/v1/", "/v1/x", "/v1/x?y=../../z", "/v1/%C3%A9", "/v1/a%20b", "/v1/a,b")),
        *((path, False) for path in ("/", "/v10", "/V1/x", "/v1/../v2", "/v1/./x", "/v1//x", "//v1/x", "/v1/..")),
        *((path, False) for path in ("/v1/%2e%2e/v2", "/v1/%2E./v2", "/v1/..%2fv2", "/v1/%5c..%5cv2", "/v1/x;y=z")),
        *((path, False) for path in ("/v1/%252e%252e/v2", "/%76%31/x", "/v1/%00", "/v1/%0d%0ax", "/v1/%", "/v1/%3b")),
        # `..` and `/` written longer than they are, which old decoders read as what they are
        *((path, False) for path in ("/v1/%c0%ae%c0%ae/v2", "/v1/..%C0%AFv2", "/v1/%e0%80%ae./v2", "/v1/%ff")),
    ],
)
def test_a_path_is_granted_in_the_one_spelling_that_every_server_reads_alike(path: str, allowed: bool) -> None:
    rules = rules_for(profile(NetHttp("a.com", None, None, METHODS, frozenset({"/v1/**"}))), ["a.com"])
    refusal = rules.refuse_request("GET", target(f"https://a.com{path}"))
    assert (refusal is None) == allowed
    assert refusal is None or refusal.reason == "path"


def test_a_header_names_no_other_method_or_path_where_those_are_granted_one_by_one() -> None:
    some = rules_for(profile(NetHttp("a.com", None, None, frozenset({"GET"}))), ["a.com"])
    all_of_it = rules_for(profile(NetHttp("a.com", None, None, METHODS)), ["a.com"])
    where = target("https://a.com/")
    # a server that hands headers on as variables cannot tell `-` from `_`, and some not from `.`
    for name in ("X-HTTP-Method-Override", "X-Rewrite-URL", "X_HTTP_Method_Override", "x.original-url"):
        assert some.refuse_overrides([(name, "DELETE")], where) is not None
        assert all_of_it.refuse_overrides([(name, "DELETE")], where) is None
    assert some.refuse_overrides([("Accept", "*/*")], where) is None
