"""What was decided is decided again from the record and its documents alone; what they leave open is not guessed."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.evidence.records import NOW, Archive
from tests.unit.risk.spellings import FORTY_NINE, OURS

from ringfence.authority.caller import NOBODY_ELSE
from ringfence.authority.grant import Grant
from ringfence.authority.layers import Request
from ringfence.authority.levels import NetMode, RiskLevel
from ringfence.authority.manifest_reader import load_manifest
from ringfence.authority.policy import BUILT_IN, PolicySnapshot
from ringfence.authority.policy_reader import load_policy
from ringfence.authority.profile import SecurityMode
from ringfence.authority.profile_builder import NO_REQUEST, ProfileBuilder
from ringfence.capability.budget import Budget
from ringfence.capability.canonical import digest_of
from ringfence.capability.capabilities import Capabilities
from ringfence.capability.fs import FsRead as MayRead
from ringfence.errors import QuotaExceeded
from ringfence.evidence import decided
from ringfence.evidence.replay import Agreement, Rederived, Replay, as_the_policy_gives, rederive
from ringfence.evidence.unused import unused_rules
from ringfence.guard.consent import Consent, Source, request_hash
from ringfence.operation import CodeRun, Language
from ringfence.operation import brokered as ask
from ringfence.operation.form import Operation
from ringfence.risk.assessment import RiskAssessment

ROOT = Path(__file__).resolve().parents[3]
AUTHORITY = ROOT / "tests/unit/authority"


def policy(text: str) -> PolicySnapshot:
    return load_policy(text.encode())


DOCUMENT = load_policy((AUTHORITY / "sandbox_policy.yaml").read_bytes())
NETWORK = load_policy((AUTHORITY / "network_policy.yaml").read_bytes())
DENY_ONLY = policy("policies: {tools: {shell_exec: {denied_commands: [sudo]}, proc_exec: {allowed_commands: [git]}}}")
RULES = policy(
    """
policies: {tools: {proc_exec: {allowed_commands: [git, rm]}}}
rules:
  - {id: no-push, decision: deny, command: [git, [push, remote]], match: [git push], not_match: [git status]}
  - {id: ask-rm, decision: ask, command: [rm], match: [rm x]}
  - {id: no-drafts, decision: deny, path: /workspace/drafts}
"""
)
STRICT = policy("mode: strict-ask\npolicies: {default: {env_allow: [LANG, APP_*]}}")
ASKING = policy("mode: ask\npolicies: {default: {max_bytes_out: 1KB}}")
POLICIES = [BUILT_IN, DOCUMENT, NETWORK, DENY_ONLY, RULES, STRICT, ASKING]

OPERATIONS: list[Operation] = [
    CodeRun(Language.PYTHON, "print(1)"),
    CodeRun(Language.PYTHON, "import os; os.system('x')", env={"LD_PRELOAD": "x"}),
    CodeRun(Language.JAVASCRIPT, "1", env={"APP_A": "x"}),
    *(
        CodeRun(Language.BASH, script)
        for script in (
            *("ls -l", "cat a | grep b", "find . -name x", "python a.py", "sudo ls", "ls; curl x", "rm -rf /"),
            *("echo $(wget x)", "$COMMAND", "eval ls", "ls `nc -l 1`", "git status", "true && sudo ls", "true"),
            *("true; git push origin", "ls | xargs rm", "rm x", "x=1", "", "if ("),
        )
    ),
    *(ask.FsRead(path) for path in ("notes.txt", "/workspace/.env", "work/../.env", "a/b/server.key", "/etc/passwd")),
    ask.FsRead("drafts/a"),
    ask.FsWrite("a", b"x" * 100),
    ask.FsWrite("a", b"x" * 1025),
    ask.FsDelete("a"),
    ask.FsList("."),
    ask.NetHttp("GET", "https://example.com/"),
    ask.NetHttp("GET", "https://pypi.example/simple?q=1"),
    ask.NetHttp("POST", "http://169.254.169.254/latest", body=b"x"),
    ask.BrowserNav("https://example.com/"),
    ask.BrowserScreenshot(),
    ask.BrowserScreenshot(width=5000, height=10),
    ask.BrowserClick("a"),
    ask.BrowserType("input", "x"),
    ask.ProcExec("git", ("status",)),
    ask.ProcExec("git", ("push", "origin")),
    ask.ProcExec("git"),
    ask.ProcExec("rm", ("x",)),
    ask.TmpAlloc(4096),
    ask.TmpFree("t-1"),
]
REQUESTS = [
    NO_REQUEST,
    Request(limits={"wall_seconds": 1.5, "pids": 7}, security_mode=SecurityMode.STRICT),
    Request(limits={"wall_seconds": 10_000.0}),
    Request(capabilities=Capabilities([MayRead("/workspace/notes.txt")])),
    Request(net_mode=NetMode.UNRESTRICTED),
    Request(budget=Budget(calls=3), require_cgroups=True),
]
ROLES = [None, "data_analyst", "nobody-knows"]
CONSENTS: list[Callable[[Operation], Consent | None]] = [
    lambda _: None,
    lambda _: Consent(Source.SESSION),
    lambda _: Consent(Source.POLICY),
    lambda _: Consent(Source.CALL),
    lambda operation: Consent(Source.CALL, request_hash(operation), approver="ann"),
    lambda operation: Consent(Source.CALL, request_hash(operation), expires_at_ms=NOW),
    lambda _: Consent(Source.CALL, "sha256:other"),
]


def replayed(archive: Archive, record: dict[str, Any], *, with_content: bool = True) -> Rederived:
    content = archive.contents[record["exec_id"]] if with_content else None
    return rederive(record, archive.documents, content=content)


@settings(max_examples=300)
@given(
    st.sampled_from(OPERATIONS),
    st.sampled_from(POLICIES),
    st.sampled_from(ROLES),
    st.sampled_from(REQUESTS),
    st.sampled_from(CONSENTS),
    st.booleans(),
)
def test_every_decision_is_made_again_exactly(
    operation: Operation,
    snapshot: PolicySnapshot,
    role: str | None,
    request: Request,
    consent: Callable[[Operation], Consent | None],
    with_content: bool,
) -> None:
    archive = Archive()
    record = archive.record(operation, snapshot, role=role, request=request, consent=consent(operation))
    found = replayed(archive, record, with_content=with_content)
    if with_content:
        assert found.agreement is Agreement.SAME, found
    else:
        assert found.agreement is not Agreement.DIFFERS, found
    if found.now is not None:
        assert found.now.decision == (found.then.decision if found.then else None)


@pytest.mark.parametrize("script", [script for script, _, _ in FORTY_NINE + OURS])
@pytest.mark.parametrize("snapshot", [DOCUMENT, DENY_ONLY, RULES], ids=["document", "deny list", "rules"])
def test_every_spelling_of_a_command_is_judged_again_as_it_was(script: str, snapshot: PolicySnapshot) -> None:
    archive = Archive()
    record = archive.record(CodeRun(Language.BASH, script), snapshot)
    assert replayed(archive, record).agreement is Agreement.SAME
    assert replayed(archive, record, with_content=False).agreement is not Agreement.DIFFERS


def test_the_tests_of_a_policy_are_decided_again_as_the_policy_expects() -> None:
    snapshot = load_policy((ROOT / "examples/sandbox_policy.yaml").read_bytes())
    archive = Archive()
    assert snapshot.policy.tests
    for test in snapshot.policy.tests:
        found = replayed(archive, archive.record(test.operation, snapshot, role=test.role))
        assert found.agreement is Agreement.SAME, test.name
        assert found.now is not None
        assert found.now.decision == str(test.expect), test.name


def test_without_content_all_but_arguments_can_still_be_told() -> None:
    archive = Archive()
    open_ones = {
        describe_case(operation, snapshot)
        for snapshot in POLICIES
        for operation in OPERATIONS
        if replayed(archive, archive.record(operation, snapshot), with_content=False).agreement is Agreement.CANNOT_TELL
    }
    # the same few everywhere: what looks at arguments, and bare programs that do something else than with them
    assert {kind for kind, _ in open_ones} <= {"code_run", "proc_exec"}
    assert len(open_ones) < len(OPERATIONS) * len(POLICIES) // 10


def describe_case(operation: Operation, snapshot: PolicySnapshot) -> tuple[str, str]:
    return operation.kind, f"{operation} {snapshot.policy_version_hash}"


GRANT = Grant(
    "t", "s", "file_read", "c", Capabilities([MayRead("/workspace/inputs")]), NOW + 1, Budget(calls=1), "f", "n",
    limits={"wall_seconds": 2.5}, safety_floor=RiskLevel.MEDIUM,
)  # fmt: skip


@pytest.mark.parametrize(
    ("path", "now_ms", "reason"),
    [("inputs/a", NOW, None), ("work/a", NOW, "not_granted"), ("inputs/a", NOW + 1, "expired")],
)
def test_a_call_under_a_presented_grant_is_decided_again_from_the_stored_grant(
    path: str, now_ms: int, reason: str | None
) -> None:
    archive = Archive()
    record = archive.record(ask.FsRead(path), granted=GRANT, now_ms=now_ms)
    found = replayed(archive, record, with_content=False)
    assert found.agreement is Agreement.SAME
    assert found.now is not None
    assert (found.now.reason or None) == reason


def test_a_call_of_a_skill_is_decided_again_from_its_manifest() -> None:
    text = json.dumps(
        {
            "schema_version": 1,
            "id": "shell.run",
            "name": "Shell",
            "description": "Runs a script.",
            "interface": {"inputs": {"type": "object"}, "outputs": {"type": "object"}},
            "runtime": {"kind": "docker", "image": "python:3.12-slim", "entrypoint": ["bash", "-lc"]},
            "permissions": {"fs": {"read": ["inputs/**"], "write": ["work/**"]}, "net": {"mode": "none"}},
            "limits": {"timeout_ms": 90_000},
        }
    )
    manifest = load_manifest(text.encode())
    archive = Archive()
    record = archive.record(ask.FsRead("inputs/a"))
    grant = as_the_policy_gives(BUILT_IN, manifest.id, None, record["call_id"], NOBODY_ELSE)
    profile = ProfileBuilder().build(grant, manifest, BUILT_IN, tool=manifest.id)
    record |= {"tool_name": manifest.id, "profile_hash": profile.profile_hash, "risk": {}}
    assert replayed(archive, record).agreement is Agreement.CANNOT_TELL
    record["documents"] |= {"manifest": archive.keep(text)}
    assert replayed(archive, record).agreement is Agreement.SAME
    record["op"]["path"] = "else/a"
    found = replayed(archive, record, with_content=False)
    assert (found.agreement, found.rule) == (Agreement.DIFFERS, "manifest")


def drop(name: str) -> Callable[[dict[str, Any]], None]:
    return lambda record: record.pop(name)


@pytest.mark.parametrize(
    "spoil",
    [
        *map(drop, ("op", "tool_name", "time_ms", "type", "risk", "profile_hash")),
        lambda record: record.update(type="exec.end"),
        lambda record: record.update(documents=["policy"]),
        lambda record: record.update(documents={"policy": "sha256:" + "0" * 64}),
        lambda record: record["documents"].update(request="sha256:" + "0" * 64),
        lambda record: record["documents"].update(grant="sha256:" + "0" * 64),
        lambda record: record.update(policy_version_hash="sha256:" + "0" * 64),
        lambda record: record.update(risk={"assessed": "rather bad"}),
        lambda record: record.update(time_ms="yesterday"),
        lambda record: record.update(consent={"given": True, "source": "the moon"}),
        lambda record: record["op"].update(language="cobol"),
    ],
)
def test_a_spoiled_record_is_never_called_the_same(spoil: Callable[[dict[str, Any]], None]) -> None:
    archive = Archive()
    whole = archive.record(CodeRun(Language.PYTHON, "print(1)"), DOCUMENT)
    assert replayed(archive, whole, with_content=False).agreement is Agreement.SAME
    record = copy.deepcopy(whole)
    spoil(record)
    found = replayed(archive, record, with_content=False)
    assert found.agreement is Agreement.CANNOT_TELL
    assert found.why


def test_a_record_whose_programs_are_a_script_of_their_own_is_not_judged_by_it() -> None:
    archive = Archive()
    record = archive.record(CodeRun(Language.BASH, "ls"), DENY_ONLY)
    record["op"]["programs"] = ["x'; sudo 'y"]
    found = replayed(archive, record, with_content=False)
    assert (found.agreement, found.now) == (Agreement.CANNOT_TELL, None)


def test_a_document_that_was_changed_or_is_gone_is_never_called_the_same() -> None:
    archive = Archive()
    record = archive.record(ask.FsRead("notes.txt"), DOCUMENT, request=REQUESTS[1])
    for digest in record["documents"].values():
        kept = archive.texts[digest]
        archive.texts[digest] = kept + " "
        assert "not the one" in replayed(archive, record).why
        del archive.texts[digest]
        assert "not in the store" in replayed(archive, record).why
        archive.texts[digest] = kept
    assert replayed(archive, record).agreement is Agreement.SAME


def test_a_document_that_this_version_cannot_read_is_no_answer() -> None:
    archive = Archive()
    record = archive.record(ask.FsRead("notes.txt"), DOCUMENT)
    broken = archive.keep("policies: [")
    record |= {"policy_version_hash": broken, "documents": {"policy": broken}}
    assert "cannot read" in replayed(archive, record).why


@pytest.mark.parametrize(
    "forge",
    [
        lambda record: record.update(profile_hash="sha256:" + "0" * 64),
        lambda record: record.update(role="data_analyst"),
        lambda record: record["op"].update(path="/workspace/.env"),
        lambda record: record["risk"].update(effective="safe"),
        lambda record: record.update(expires_at_ms=1),
    ],
)
def test_a_record_that_tells_another_story_than_its_documents_differs(forge: Callable[[dict[str, Any]], None]) -> None:
    archive = Archive()
    record = archive.record(ask.FsRead("notes.txt"), DOCUMENT)
    forge(record)
    found = replayed(archive, record, with_content=False)
    assert found.agreement is Agreement.DIFFERS
    assert found.why


def test_a_refusal_that_is_blamed_on_another_rule_differs() -> None:
    archive = Archive()
    record = archive.record(ask.FsRead("/workspace/.env"), DOCUMENT)
    assert record["rule"] == "deny_lists"
    record["rule"] = "capability"
    assert replayed(archive, record).agreement is Agreement.DIFFERS


def test_what_no_policy_decides_is_not_decided_again() -> None:
    archive = Archive()
    record = archive.record(ask.FsRead("notes.txt"))
    record |= {"type": "decision.denied", **decided.refused_elsewhere(QuotaExceeded("no calls are left"))}
    found = replayed(archive, record)
    assert (found.agreement, found.why) == (
        Agreement.CANNOT_TELL,
        "it was refused with budget, which no policy decides",
    )


def test_a_standing_consent_of_the_old_policy_does_not_answer_for_a_candidate() -> None:
    archive = Archive()
    record = archive.record(CodeRun(Language.PYTHON, "print(1)"))
    assert record["consent"] == {"source": "policy"}
    found = rederive(record, archive.documents, ASKING)
    assert found.agreement is Agreement.DIFFERS
    assert found.now is not None
    assert (found.now.decision, found.now.reason) == ("ask", "consent_required")


def test_a_request_for_too_much_is_refused_again_and_a_wider_candidate_would_grant_it() -> None:
    archive, narrow = Archive(), policy("policies: {default: {max_execution_time: 60s}}")
    wide = policy("policies: {default: {max_execution_time: 300s}}")
    record = archive.record(CodeRun(Language.PYTHON, "1"), narrow, request=Request(limits={"wall_seconds": 120.0}))
    assert (record["type"], record["rule"]) == ("decision.denied", "request")
    assert replayed(archive, record).agreement is Agreement.SAME
    record["risk"] = {"assessed": "safe"}
    found = rederive(record, archive.documents, wide)
    assert (found.agreement, found.now and found.now.decision) == (Agreement.DIFFERS, "allow")


def test_a_candidate_is_asked_with_the_policy_of_then_gone() -> None:
    archive = Archive()
    record = archive.record(ask.FsRead("/workspace/.env"))
    archive.texts.clear()
    found = rederive(record, archive.documents, DOCUMENT)
    assert (found.agreement, found.rule) == (Agreement.DIFFERS, "deny_lists")


@settings(max_examples=200)
@given(st.sampled_from(OPERATIONS), st.sampled_from(POLICIES), st.sampled_from(POLICIES))
def test_a_candidate_decides_as_it_would_have_decided_then(
    operation: Operation, then: PolicySnapshot, candidate: PolicySnapshot
) -> None:
    archive = Archive()
    record = archive.record(operation, then)
    directly = archive.record(operation, candidate)
    for content in (None, archive.contents[record["exec_id"]]):
        found = rederive(record, archive.documents, candidate, content=content)
        if found.agreement is Agreement.CANNOT_TELL:
            assert content is None
            continue
        assert found.now is not None
        assert (found.now.decision == "allow") == (directly["type"] == "exec.begin")


def test_a_program_may_be_assessed_again_where_its_content_was_kept() -> None:
    archive = Archive()
    record = archive.record(CodeRun(Language.PYTHON, "print(1)"))
    content = archive.contents[record["exec_id"]]
    graver = Replay(archive.documents, assess=lambda _code, language: RiskAssessment(RiskLevel.CRITICAL, language))
    assert graver.rederive(record, content).agreement is Agreement.DIFFERS
    assert graver.rederive(record).agreement is Agreement.SAME


def test_documents_are_read_once() -> None:
    archive, asked = Archive(), []

    def look_up(digest: str) -> str | None:
        asked.append(digest)
        return archive.documents(digest)

    replay = Replay(look_up)
    for _ in range(3):
        assert replay.rederive(archive.record(ask.FsRead("notes.txt"), DOCUMENT)).agreement is Agreement.SAME
    assert asked == [DOCUMENT.policy_version_hash]


def test_the_digest_of_a_document_is_of_its_very_bytes() -> None:
    assert digest_of(DOCUMENT.text) == DOCUMENT.policy_version_hash


ODD: st.SearchStrategy[Any] = st.sampled_from(
    [None, True, -1, 7, "", "x", "'; rm -rf /", [], [[]], ["x", 7], {}, {"x": []}, 1.5]
)


@settings(max_examples=120)
@given(st.sampled_from(OPERATIONS), st.sampled_from(POLICIES), st.data())
def test_no_record_however_odd_breaks_a_replay(
    operation: Operation, snapshot: PolicySnapshot, data: st.DataObject
) -> None:
    archive = Archive()
    record = archive.record(operation, snapshot, request=REQUESTS[1], consent=Consent(Source.CALL, "sha256:x"))
    place: Any = record
    name = data.draw(st.sampled_from(sorted(record)))
    while isinstance(place[name], dict) and place[name] and data.draw(st.booleans()):
        place = place[name]
        name = data.draw(st.sampled_from(sorted(place)))
    place[name] = data.draw(ODD)
    for candidate in (None, DOCUMENT):
        found = rederive(record, archive.documents, candidate)
        assert found.agreement is Agreement.CANNOT_TELL or found.now is not None
        unused_rules(snapshot, [record])
