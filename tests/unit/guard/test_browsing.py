"""What the guard decides about a browser before one is touched: verbs, hosts, viewport, depth and rate."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringfence.authority.levels import ApprovalMode, Decision, RiskLevel, SideEffect
from ringfence.authority.profile import Profile
from ringfence.authority.rule import Rule, Subject
from ringfence.browser import port
from ringfence.capability.browser import READING, VERBS, BrowserUse
from ringfence.capability.capabilities import Capabilities
from ringfence.capability.denials import Denials
from ringfence.capability.limits import Limits
from ringfence.capability.net import NetHttp
from ringfence.errors import CapabilityBlocked
from ringfence.guard import browsing, rules
from ringfence.guard.browsing import MOST_PICTURES, History
from ringfence.guard.policy_guard import PolicyGuard
from ringfence.guard.verdict import Verdict
from ringfence.operation.brokered import (
    BrowserClick,
    BrowserClose,
    BrowserExtract,
    BrowserNav,
    BrowserScreenshot,
    BrowserType,
)
from ringfence.risk.assessment import RiskAssessment

GUARD = PolicyGuard(lambda _code, language: RiskAssessment(RiskLevel.SAFE, language))
PAGE = BrowserNav("http://web.example.com/")
OF_EACH_VERB: dict[str, Any] = {
    "open": PAGE,
    "extract": BrowserExtract(),
    "screenshot": BrowserScreenshot(),
    "click": BrowserClick("a"),
    "type": BrowserType("input", "x"),
}


def profile(verbs: frozenset[str] = READING, **changed: Any) -> Profile:
    allowed = Capabilities([BrowserUse(verbs), NetHttp("*.example.com", methods=frozenset({"GET", "HEAD"}))])
    made = Profile(
        capabilities=allowed,
        declared=allowed,
        granted=allowed,
        tool_name="browser_automation",
        safety=RiskLevel.HIGH,
        side_effects=frozenset({SideEffect.BROWSER, SideEffect.NETWORK}),
        mode=ApprovalMode.COWORK,
    )
    return replace(made, **changed)


def judged(operation: Any, under: Profile | None = None) -> Verdict:
    return GUARD.validate(under or profile(), operation, now_ms=0)


def reason(verdict: Verdict) -> str:
    deciding = verdict.deciding
    return "" if deciding is None else deciding.reason


@pytest.mark.parametrize("verb", sorted(VERBS))
def test_a_verb_is_allowed_where_it_is_named_and_nowhere_else(verb: str) -> None:
    operation = OF_EACH_VERB[verb]
    assert judged(operation, profile(frozenset({verb}))).decision is Decision.ALLOW
    without = judged(operation, profile(VERBS - {verb}))
    assert without.decision is Decision.DENY
    assert "scope" in {answer.reason for answer in without.answers}


def test_acting_on_a_page_is_not_among_the_verbs_that_go_without_saying() -> None:
    assert {"click", "type"} == VERBS - READING
    assert judged(BrowserClick("a")).decision is Decision.DENY
    assert judged(BrowserType("input", "x")).decision is Decision.DENY
    assert judged(BrowserClose()).decision is Decision.ALLOW


@pytest.mark.parametrize("verb", sorted(VERBS))
def test_the_browser_is_high_risk_and_somebody_has_to_agree(verb: str) -> None:
    asked = judged(OF_EACH_VERB[verb], profile(VERBS, mode=ApprovalMode.ASK))
    assert asked.risk is RiskLevel.HIGH
    assert (asked.decision, reason(asked)) == (Decision.ASK, "consent_required")


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("http://web.example.com/", ""),
        ("https://web.example.com/", ""),
        ("http://example.com/", "domain"),
        ("http://example.com.evil.test/", "domain"),
        ("http://x.example.com:8080/", "port"),
    ],
)
def test_a_page_is_of_a_granted_host(url: str, why: str) -> None:
    verdict = judged(BrowserNav(url))
    assert (verdict.decision is Decision.ALLOW) is not bool(why)
    assert reason(verdict) == why


def test_a_deny_list_and_a_rule_about_a_domain_win() -> None:
    listed = judged(PAGE, profile(denials=Denials(domains=frozenset({"web.example.com"}))))
    assert (listed.decision, reason(listed)) == (Decision.DENY, "blacklist")
    rule = Rule("no-web", Decision.DENY, Subject.DOMAIN, "web.example.com")
    ruled = judged(PAGE, profile(rules=(rule,)))
    assert (ruled.decision, reason(ruled)) == (Decision.DENY, "tool_denied")


@pytest.mark.parametrize(
    ("width", "height", "allowed"),
    [
        (None, None, True),
        (rules.WIDEST, rules.HIGHEST, True),
        (rules.WIDEST + 1, None, False),
        (None, rules.HIGHEST + 1, False),
        (10_000, 10_000, False),
        (0, 600, False),
    ],
)
def test_a_viewport_is_no_larger_than_a_screen(width: int | None, height: int | None, allowed: bool) -> None:
    verdict = judged(BrowserScreenshot(width=width, height=height))
    assert (verdict.decision is Decision.ALLOW) is allowed
    assert allowed or reason(verdict) == "viewport"


def test_the_guard_and_the_browser_know_one_ceiling() -> None:
    assert (rules.WIDEST, rules.HIGHEST) == (port.WIDEST, port.HIGHEST)


@pytest.mark.parametrize("operation", [PAGE, BrowserClick("a")], ids=["nav", "click"])
def test_a_page_is_led_on_max_depth_times_and_not_once_more(operation: Any) -> None:
    under = profile(VERBS, limits=Limits(max_depth=3))
    for steps in (None, 0, 1, 2):
        browsing.require(under, operation, History(steps))
    with pytest.raises(CapabilityBlocked, match="led on 3 times") as refused:
        browsing.require(under, operation, History(3))
    assert refused.value.reason == "depth"
    browsing.require(under, BrowserExtract(), History(3))


@given(st.integers(0, 100), st.integers(1, 64))
def test_no_depth_beyond_the_limit_is_allowed(steps: int, most: int) -> None:
    refusal = browsing.depth(profile(limits=Limits(max_depth=most)), PAGE, History(steps))
    assert (refusal is None) is (steps < most)


def test_the_eleventh_picture_in_the_window_is_refused() -> None:
    browsing.require(profile(), BrowserScreenshot(), History(0, MOST_PICTURES - 1))
    with pytest.raises(CapabilityBlocked) as refused:
        browsing.require(profile(), BrowserScreenshot(), History(0, MOST_PICTURES))
    assert MOST_PICTURES == 10
    assert (refused.value.reason, refused.value.answer.http_status) == ("rate", 429)
    browsing.require(profile(), PAGE, History(0, MOST_PICTURES))
