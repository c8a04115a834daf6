"""Taint as a matter of names and words: whose calls a mark reaches, and what a policy says about those it reaches."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.command_line import said

from ringfence.authority.finding import Severity
from ringfence.authority.levels import Decision
from ringfence.authority.policy_diff import diff
from ringfence.authority.policy_lint import lint
from ringfence.authority.policy_reader import load_policy
from ringfence.authority.taint import Outward, Reach, TaintPolicy, Whose
from ringfence.guard.outward import brings_in, outward_of
from ringfence.operation import CodeRun, Language
from ringfence.operation.brokered import BrowserNav, FsWrite, NetHttp
from ringfence.operation.form import Operation
from ringfence.operation.needs import HostUse, SecretUse
from ringfence.operation.secret import SecretAsk, Way
from ringfence.operation.workspace_proposals import WsCommit, WsDiscard

NAMES = st.sampled_from(["a", "b", "c:a", "conversation:a"])
WHOSE = st.builds(Whose, NAMES, st.frozensets(NAMES, max_size=2), st.sampled_from(["", "a", "b"]))


def reaches(mark: Whose, call: Whose, reach: Reach) -> bool:
    return bool({*mark.marked()} & {*call.asked(reach)})


@given(WHOSE, WHOSE)
def test_a_mark_reaches_whoever_shares_a_name_and_whoever_gives_no_name_to_tell_them_apart(
    mark: Whose, call: Whose
) -> None:
    comparable = [(mark.projects, call.projects)] if mark.projects and call.projects else []
    if mark.conversation and call.conversation:
        comparable.append((frozenset({mark.conversation}), frozenset({call.conversation})))
    same_work = any(ours & theirs for ours, theirs in comparable)
    nothing_to_tell_them_apart = not comparable and mark.subject_id == call.subject_id
    assert reaches(mark, call, Reach.SESSION) == (same_work or nothing_to_tell_them_apart)


@given(WHOSE, WHOSE)
def test_a_wider_reach_never_loses_a_mark(mark: Whose, call: Whose) -> None:
    seen = [reaches(mark, call, reach) for reach in Reach]
    assert seen == sorted(seen)
    assert seen[-1]
    assert reaches(mark, call, Reach.SUBJECT) >= (mark.subject_id == call.subject_id)


@given(WHOSE)
def test_a_call_is_reached_by_its_own_mark(whose: Whose) -> None:
    assert all(reaches(whose, whose, reach) for reach in Reach)


def code(**asked: object) -> CodeRun:
    return CodeRun(Language.PYTHON, "1", **asked)  # type: ignore[arg-type]


URL = "https://web.example.com/"


@pytest.mark.parametrize(
    ("operation", "uses", "where"),
    [
        (NetHttp("GET", URL), {Outward.FETCH}, "web.example.com"),
        (NetHttp("HEAD", URL), {Outward.FETCH}, "web.example.com"),
        (NetHttp("GET", URL, {"X": "y"}), {Outward.SEND}, "web.example.com"),
        (NetHttp("GET", URL, {}, b""), {Outward.SEND}, "web.example.com"),
        (NetHttp("DELETE", URL), {Outward.SEND}, "web.example.com"),
        (NetHttp("GET", URL, {"A": "${secret:T}"}), {Outward.SEND, Outward.SECRET_USE}, "web.example.com"),
        (BrowserNav(URL), {Outward.FETCH}, "a web page"),
        (code(), set(), None),
        (code(domains=("b.example", "a.example")), {Outward.CODE_NETWORK}, "a.example, b.example"),
        (code(secrets=(SecretAsk("T", Way.ENV),)), {Outward.SECRET_USE}, None),
        (code(ports=(80,)), {Outward.PORT_OPEN}, None),
        (code(packages=("left-pad",)), {Outward.PACKAGES}, None),
        (SecretUse("T"), {Outward.SECRET_USE}, None),
        (HostUse("/etc"), {Outward.HOST_FILES}, None),
        (WsCommit("ex_1"), {Outward.COMMIT}, None),
        (WsDiscard("ex_1"), set(), None),
        (FsWrite("work/a", b""), set(), None),
    ],
)
def test_what_brings_in_and_what_carries_out(operation: Operation, uses: set[Outward], where: str | None) -> None:
    assert (set(outward_of(operation)), brings_in(operation)) == (uses, where)


@given(
    st.dictionaries(st.sampled_from(list(Outward)), st.sampled_from(list(Decision))),
    st.frozensets(st.sampled_from(list(Outward))),
)
def test_of_several_ways_out_the_strictest_word_counts(
    words: dict[Outward, Decision], uses: frozenset[Outward]
) -> None:
    use, decision = TaintPolicy(words).about(uses)
    assert decision == max((words.get(each, Decision.ALLOW) for each in uses), default=Decision.ALLOW)
    assert use is None if not uses else words.get(use, Decision.ALLOW) == decision  # type: ignore[arg-type]


def test_the_section_is_read_and_its_mistakes_have_a_line_and_a_fix() -> None:
    policy = load_policy(b"taint:\n  reach: subject\n  send: ask\n  secret_use: deny\n").policy
    assert policy.taint == TaintPolicy({Outward.SEND: Decision.ASK, Outward.SECRET_USE: Decision.DENY}, Reach.SUBJECT)
    assert load_policy(b"mode: ask\n").policy.taint is None
    assert load_policy(b"taint: {}\n").policy.taint == TaintPolicy()
    found = lint(b"taint:\n  sent: ask\n  send: maybe\n  reach: all\n", "p.yaml")
    assert [(each.severity, each.rule, each.path, each.line) for each in found] == [
        (Severity.ERROR, "unknown_key", "taint.sent", 2),
        (Severity.ERROR, "invalid_value", "taint.send", 3),
        (Severity.ERROR, "invalid_value", "taint.reach", 4),
    ]
    assert "did you mean send?" in found[0].fix


def test_a_policy_that_asks_less_is_called_wider() -> None:
    asks, denies, silent = (load_policy(text) for text in (b"taint: {send: ask}", b"taint: {send: deny}", b"{}"))
    told = [str(change) for change in diff(denies, asks)]
    assert told == ["widened: no role, every tool: taint.send: deny → ask"]
    assert [str(change) for change in diff(silent, asks)] == ["narrowed: no role, every tool: taint.send: allow → ask"]
    wide = load_policy(b"taint: {send: ask, reach: tenant}")
    assert [str(change) for change in diff(wide, asks)] == [
        "widened: no role, every tool: taint.reach: tenant → session"
    ]


POLICY = """
policies: {default: {network_access: true, allowed_domains: [web.example.com], allowed_methods: [GET, POST]}}
taint: {send: ask, fetch: allow}
tests:
  - {tool: http_request, op: {op: net_http, method: POST, url: 'https://web.example.com/'}, expect: allow}
  - {tool: http_request, op: {op: net_http, method: POST, url: 'https://web.example.com/'}, expect: ask, tainted: true}
  - {tool: http_request, op: {op: net_http, method: GET, url: 'https://web.example.com/'}, expect: allow, tainted: true}
"""


def test_the_command_explains_checks_and_tests_it(tmp_path: Path) -> None:
    file = tmp_path / "policy.yaml"
    file.write_text(POLICY)
    explained = said(None, "policy", "explain", "--policy", str(file), "--tool", "http_request")
    rows = {line.split()[0]: line for line in explained.splitlines() if line}
    assert "once untrusted content was reached for (policy: taint)" in rows["taint.send"]
    said(None, "policy", "test", str(file))
    posted = '{"op": "net_http", "method": "POST", "url": "https://web.example.com/"}'
    ask = ("policy", "check", "--policy", str(file), "--op", posted)
    said(None, *ask)
    assert "  taint        ask  " in said(None, *ask, "--tainted", code=4)
