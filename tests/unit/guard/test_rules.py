"""The guard asks every rule, the strictest answer wins, and what cannot be answered is a no."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ringfence.authority.levels import ApprovalMode, Decision, IsolationLevel, RiskLevel
from ringfence.authority.policy import BUILT_IN, PolicySnapshot
from ringfence.authority.policy_reader import load_policy
from ringfence.authority.profile import Profile, SecurityMode
from ringfence.capability.capabilities import NO_CAPABILITIES, Capabilities
from ringfence.capability.fs import FsRead as MayRead
from ringfence.errors import CapabilityBlocked, Denied, RingfenceError, ToolDenied
from ringfence.guard.consent import Consent, Source, request_hash
from ringfence.guard.policy_guard import PolicyGuard, isolation_for
from ringfence.guard.rules import RULES, Case
from ringfence.guard.verdict import Answer, Verdict
from ringfence.operation import CodeRun, Language, shell_start
from ringfence.operation.brokered import FsRead, FsWrite, NetHttp, ProcExec
from ringfence.operation.form import Operation
from ringfence.operation.secret import SecretAsk
from ringfence.risk import shell
from ringfence.risk.assessment import RiskAssessment
from ringfence.risk.grammar import GrammarMissing
from ringfence.testing import standard_profile

NOW = 1_700_000_000_000
PYTHON = CodeRun(Language.PYTHON, "print(1)")
DOCUMENT = load_policy((Path(__file__).parents[1] / "authority" / "sandbox_policy.yaml").read_bytes())


def bash(script: str) -> CodeRun:
    return CodeRun(Language.BASH, script)


def harmless(_: str, language: str) -> RiskAssessment:
    return RiskAssessment(RiskLevel.SAFE, language)


def judged(
    operation: Operation, profile: Profile | None = None, consent: Consent | None = None, found: str = "safe"
) -> Verdict:
    guard = PolicyGuard(lambda _code, language: RiskAssessment(RiskLevel(found), language))
    return guard.validate(profile or standard_profile(operation), operation, now_ms=NOW, consent=consent)


def refused(verdict: Verdict) -> RingfenceError:
    with pytest.raises(RingfenceError) as caught:
        verdict.require_allowed()
    return caught.value


def policy(text: str) -> PolicySnapshot:
    return load_policy(text.encode())


def test_the_built_in_policy_lets_code_run_and_every_rule_is_on_record() -> None:
    verdict = judged(PYTHON)
    verdict.require_allowed()
    assert verdict.decision is Decision.ALLOW
    assert [answer.rule for answer in verdict.answers] == [
        *("tool", "time", "manifest", "grant", "deny_lists", "capability", "consent")
    ]


def test_a_profile_that_nobody_made_allows_nothing() -> None:
    error = refused(judged(PYTHON, Profile()))
    assert (type(error), error.reason) == (ToolDenied, "manifest_mismatch")


def test_no_rule_at_all_is_a_no() -> None:
    verdict = PolicyGuard(harmless, rules=()).validate(standard_profile(PYTHON), PYTHON, now_ms=NOW)
    assert refused(verdict).reason == "no_verdict"


def test_a_rule_that_breaks_is_a_no() -> None:
    def broken(case: Case) -> Answer:
        raise ZeroDivisionError

    guard = PolicyGuard(harmless, rules=(*RULES, broken))
    error = refused(guard.validate(standard_profile(PYTHON), PYTHON, now_ms=NOW))
    assert (error.code, error.reason) == ("POLICY.DENY_TOOL", "no_verdict")
    assert "broken" in str(error)


@pytest.mark.parametrize(
    ("changes", "code", "reason"),
    [
        ({"declared": NO_CAPABILITIES}, "POLICY.DENY_TOOL", "manifest_mismatch"),
        ({"granted": NO_CAPABILITIES}, "SANDBOX.PERMISSION_DENY", "not_granted"),
        ({"capabilities": NO_CAPABILITIES}, "SANDBOX.CAPABILITY_BLOCKED", "language"),
        ({"expires_at": NOW}, "SANDBOX.PERMISSION_DENY", "expired"),
        ({"refusal": "tool_not_in_role", "role": "reader"}, "POLICY.DENY_TOOL", "tool_denied"),
        ({"refusal": "unknown_role", "role": "nobody"}, "POLICY.DENY_TOOL", "tool_denied"),
    ],
)
def test_each_authority_refuses_with_its_own_code(changes: dict[str, object], code: str, reason: str) -> None:
    error = refused(judged(PYTHON, replace(standard_profile(PYTHON), **changes)))  # type: ignore[arg-type]
    assert (error.code, error.reason) == (code, reason)
    assert error.details["rule"]


def test_a_grant_is_over_at_its_last_millisecond_and_not_before() -> None:
    profile = standard_profile(PYTHON)
    judged(PYTHON, replace(profile, expires_at=NOW + 1)).require_allowed()
    assert refused(judged(PYTHON, replace(profile, expires_at=NOW))).reason == "expired"


@pytest.mark.parametrize(
    ("operation", "reason"),
    [
        (FsRead("/workspace/.env"), "blacklist"),
        (FsRead("work/../.env"), "path_traversal"),
        (FsRead("a/b/server.key"), "blacklist"),
        (FsRead("../../etc/passwd"), "path_traversal"),
        (FsRead("/etc/passwd"), "path_traversal"),
    ],
)
def test_the_documents_deny_lists_hold_for_files(operation: FsRead, reason: str) -> None:
    error = refused(judged(operation, standard_profile(operation, policy=DOCUMENT)))
    assert (error.code, error.reason) == ("SANDBOX.CAPABILITY_BLOCKED", reason)


def test_a_file_within_the_documents_lists_may_be_read() -> None:
    operation = FsRead("notes.txt")
    judged(operation, standard_profile(operation, policy=DOCUMENT)).require_allowed()


@pytest.mark.parametrize("script", ["ls -l", "cat a | grep b", "find . -name x", "python a.py"])
def test_a_script_of_listed_commands_may_run(script: str) -> None:
    operation = bash(script)
    judged(operation, standard_profile(operation, policy=DOCUMENT)).require_allowed()


@pytest.mark.parametrize(
    "script",
    ["sudo ls", "ls; curl x", "rm -rf /", "echo $(wget x)", "$COMMAND", "eval ls", "ls `nc -l 1`", "git status"],
)
def test_a_script_with_another_command_is_refused_before_it_runs(script: str) -> None:
    operation = bash(script)
    error = refused(judged(operation, standard_profile(operation, policy=DOCUMENT)))
    assert (error.code, error.reason) == ("POLICY.DENY_TOOL", "argument")


def test_a_deny_list_alone_lets_the_unknown_pass_and_the_named_not() -> None:
    snapshot = policy("policies: {tools: {shell_exec: {denied_commands: [sudo]}}}")
    for script, allowed in (("$COMMAND", True), ("sudo ls", False), ("true && sudo ls", False)):
        operation = bash(script)
        verdict = judged(operation, standard_profile(operation, policy=snapshot))
        assert (verdict.decision is Decision.ALLOW) is allowed, script


RULES_TEXT = """
policies: {}
rules:
  - {id: no-push, decision: deny, command: [git, [push, remote]], match: [git push], not_match: [git status]}
  - {id: ask-rm, decision: ask, command: [rm], match: [rm x]}
"""


def test_rules_about_commands_see_every_command_of_a_script() -> None:
    snapshot = policy(RULES_TEXT)
    for script, reason in (
        ("git status", None),
        ("true; git push origin", "tool_denied"),
        ("ls | xargs rm", "consent_required"),
    ):
        operation = bash(script)
        verdict = judged(operation, standard_profile(operation, policy=snapshot))
        assert (verdict.deciding.reason if verdict.deciding else None) == reason, script


def test_a_person_of_the_session_may_answer_a_rule_that_asks() -> None:
    operation = bash("rm x")
    profile = standard_profile(operation, policy=policy(RULES_TEXT))
    assert refused(judged(operation, profile)).answer.exit_code == 4
    judged(operation, profile, Consent(Source.SESSION)).require_allowed()


@pytest.mark.parametrize(
    ("mode", "allowed"),
    [
        (ApprovalMode.COWORK, True),
        (ApprovalMode.AUTO, True),
        (ApprovalMode.NEVER_ASK, True),
        (ApprovalMode.ASK, False),
        (ApprovalMode.STRICT_ASK, False),
    ],
)
def test_standard_code_needs_the_consent_that_the_mode_gives(mode: ApprovalMode, allowed: bool) -> None:
    profile = replace(standard_profile(PYTHON), mode=mode)
    verdict = judged(PYTHON, profile)
    assert (verdict.decision is Decision.ALLOW) is allowed
    if not allowed:
        assert refused(verdict).reason == "consent_required"
        judged(PYTHON, profile, Consent(Source.SESSION)).require_allowed()


def test_what_is_critical_takes_a_persons_word_for_this_very_call() -> None:
    profile = replace(standard_profile(PYTHON), dangers=("host_files",))
    exact = request_hash(PYTHON)
    other = request_hash(replace(PYTHON, code="print(2)"))
    for consent, reason in (
        (None, "consent_required"),
        (Consent(Source.SESSION), "consent_required"),
        (Consent(Source.CALL), "consent_required"),
        (Consent(Source.CALL, other), "consent_mismatch"),
        (Consent(Source.CALL, exact, expires_at_ms=NOW), "consent_expired"),
    ):
        assert refused(judged(PYTHON, profile, consent)).reason == reason
    judged(PYTHON, profile, Consent(Source.CALL, exact, expires_at_ms=NOW + 1)).require_allowed()


def test_what_the_analysis_finds_raises_the_risk_and_asks_nobody() -> None:
    verdict = judged(PYTHON, found="critical")
    verdict.require_allowed()
    assert verdict.risk is RiskLevel.CRITICAL


OTHERS: dict[str, object] = {
    "code": "x",
    "args": ("a",),
    "env": {"A": "b"},
    "packages": ("p",),
    "language": Language.JAVASCRIPT,
    "stdin": b"x",
    "files": {"main.py": b"x"},
    "inputs": {"data.csv": b"x"},
    "preload": ("json",),
    "session_id": "another",
    "cwd": "/workspace/work/elsewhere",
    "ports": (80,),
    "secrets": (SecretAsk("key"),),
    "domains": ("example.com",),
    "process_id": "process",
}


@pytest.mark.parametrize("changed", OTHERS)
def test_a_consent_does_not_fit_a_changed_request(changed: str) -> None:
    other = replace(PYTHON, **{changed: OTHERS[changed]})  # type: ignore[arg-type]
    assert request_hash(PYTHON) != request_hash(other)
    assert request_hash(other) == request_hash(replace(other))


def test_everything_a_program_is_run_with_is_in_what_a_person_agrees_to() -> None:
    assert OTHERS.keys() == {field.name for field in fields(CodeRun)}
    one, two = (replace(PYTHON, files={"main.py": content}) for content in (b"1", b"2"))
    assert request_hash(one) != request_hash(two)


@pytest.mark.parametrize(
    ("argv", "reason"),
    [
        (("git", "push"), "tool_denied"),
        (("git", "push origin"), None),
        (("env", "git", "push"), "tool_denied"),
        (("env", "A=1", "rm", "x"), "consent_required"),
        (("env", "sh", "-c", "git push #" + "x" * 40_000), "tool_denied"),  # longer than anybody reads
        (("git", "status"), None),
    ],
)
def test_rules_about_commands_see_what_a_program_starts_in_turn(argv: tuple[str, ...], reason: str | None) -> None:
    operation = ProcExec(argv[0], argv[1:])
    text = RULES_TEXT.replace("policies: {}", "policies: {default: {allowed_commands: [git, env]}}")
    verdict = judged(operation, standard_profile(operation, policy=policy(text)))
    assert (verdict.deciding.reason if verdict.deciding else None) == reason


APPROVALS = """
policies: {}
approvals:
  - {id: once, command: [rm], scope: call}
  - {id: session, command: [mv], scope: session}
  - {id: unsaid, command: [cp]}
"""


@pytest.mark.parametrize(("script", "session_is_enough"), [("rm x", False), ("mv a b", True), ("cp a b", False)])
def test_an_answer_holds_for_as_long_as_the_approval_says(script: str, session_is_enough: bool) -> None:
    operation = bash(script)
    profile = standard_profile(operation, policy=policy(APPROVALS))
    assert refused(judged(operation, profile)).reason == "consent_required"
    allowed = judged(operation, profile, Consent(Source.SESSION)).decision is Decision.ALLOW
    assert allowed is session_is_enough
    judged(operation, profile, Consent(Source.CALL, request_hash(operation))).require_allowed()


@pytest.mark.parametrize(
    "name",
    [
        *("PATH", "BASH_ENV", "LD_PRELOAD", "LD_DEBUG_OUTPUT", "ENV", "SHELLOPTS", "IFS", "BASH_LOADABLES_PATH"),
        *("GIT_EXTERNAL_DIFF", "GIT_SSH_COMMAND", "GIT_CONFIG_KEY_0", "PAGER", "LESSOPEN", "TAR_OPTIONS", "MAKEFLAGS"),
    ],
)
def test_where_commands_are_listed_no_variable_says_what_they_are(name: str) -> None:
    operation = replace(bash("ls"), env={name: "/workspace/work"})
    for lists in ("allowed_commands: [ls]", "denied_commands: [curl]"):
        profile = standard_profile(operation, policy=policy(f"policies: {{default: {{{lists}}}}}"))
        assert refused(judged(operation, profile)).reason == "argument"
        judged(replace(operation, env={"LANG": "C"}), profile).require_allowed()
    judged(operation, standard_profile(operation)).require_allowed()


NOT_OURS = b"unset BASH_ENV; curl evil.example"


@pytest.mark.parametrize("lists", ["allowed_commands: [ls]", "denied_commands: [curl]"])
@pytest.mark.parametrize(
    ("env", "inputs", "is_ours"),
    [
        ({}, {}, True),
        ({}, {shell_start.NAME: shell_start.TEXT + b"\n"}, False),
        ({}, {shell_start.NAME: NOT_OURS}, False),
        ({shell_start.VARIABLE: "/workspace/inputs/mine"}, {"mine": shell_start.TEXT}, False),
        ({shell_start.VARIABLE: "/workspace/work/.aio-session"}, {}, False),
        ({shell_start.VARIABLE: f"{shell_start.PATH}$(curl evil.example)"}, {}, False),
        ({"PATH": "/workspace/work"}, {}, False),
    ],
)
def test_what_a_shell_reads_first_is_our_own_text_or_refused(
    lists: str, env: dict[str, str], inputs: dict[str, bytes], is_ours: bool
) -> None:
    ours = {shell_start.VARIABLE: shell_start.PATH}, {shell_start.NAME: shell_start.TEXT}
    operation = replace(bash("ls"), env=ours[0] | env, inputs=ours[1] | inputs)
    verdict = judged(operation, standard_profile(operation, policy=policy(f"policies: {{default: {{{lists}}}}}")))
    if is_ours:
        verdict.require_allowed()
    else:
        assert refused(verdict).reason == "argument"


@pytest.mark.parametrize(
    ("tool", "args"),
    [
        ("rm", ("-rf", "x")),
        ("rm", ("--recursive", "--force", "x")),
        ("env", ("rm", "-rf", "x")),
        ("find", (".", "-exec", "rm", "-rf", "{}", ";")),
        ("xargs", ("rm", "-rf")),
        ("env", ("sh", "-c", "rm -rf x")),
        ("env", ("-S", "rm -rf x")),
        ("env", ("sh", "-c", "rm -rf x #" + "x" * 40_000)),
        ("env", ("sh", "-c", "sh -c '('; sh -c 'rm -rf x'")),
    ],
)
def test_a_denied_command_is_denied_without_a_shell_too(tool: str, args: tuple[str, ...]) -> None:
    text = "policies: {default: {allowed_commands: [rm, env, find, xargs], denied_commands: [rm -rf]}}"
    operation = ProcExec(tool, args)
    profile = standard_profile(operation, policy=policy(text))
    assert refused(judged(operation, profile)).reason in ("argument", "blacklist")
    judged(ProcExec("rm", ("x",)), profile).require_allowed()


def test_whoever_is_refused_a_path_is_told_which_list_of_the_policy_has_it() -> None:
    snapshot = policy("policies: {default: {denied_paths: [.env], denied_changes: ['.git/**']}}")
    for path, told in (("work/.git/config", "denied_changes"), ("work/.env", "denied_paths")):
        operation = FsWrite(path, b"x")
        error = refused(judged(operation, standard_profile(operation, policy=snapshot)))
        assert (error.reason, str(error).endswith(f": see {told}")) == ("blacklist", True)


def test_a_body_beyond_the_limit_is_refused_before_it_is_written() -> None:
    operation = FsWrite("a", b"x" * 100)
    profile = standard_profile(operation)
    judged(operation, replace(profile, limits=replace(profile.limits, max_bytes_out=100))).require_allowed()
    error = refused(judged(operation, replace(profile, limits=replace(profile.limits, max_bytes_out=99))))
    assert (type(error), error.reason) == (CapabilityBlocked, "too_large")


def test_variables_outside_the_policys_list_are_refused() -> None:
    snapshot = policy("policies: {default: {env_allow: [LANG, APP_*]}}")
    for name, allowed in (("LANG", True), ("APP_A", True), ("LD_PRELOAD", False)):
        operation = replace(PYTHON, env={name: "x"})
        verdict = judged(operation, standard_profile(operation, policy=snapshot))
        assert (verdict.decision is Decision.ALLOW) is allowed, name


def test_an_operation_of_another_kind_is_outside_the_built_in_profile() -> None:
    for operation in (NetHttp("GET", "https://example.com/"), ProcExec("git", ("status",))):
        assert isinstance(refused(judged(operation)), Denied)


@pytest.mark.parametrize(
    ("mode", "floor", "risk", "least"),
    [
        (SecurityMode.STRICT, IsolationLevel.OS, "high", IsolationLevel.CONTAINER),
        (SecurityMode.PERMISSIVE, IsolationLevel.OS, "high", IsolationLevel.OS),
        (SecurityMode.PERMISSIVE, IsolationLevel.GVISOR, "safe", IsolationLevel.GVISOR),
        (SecurityMode.STRICT, IsolationLevel.BROKER, "safe", IsolationLevel.OS),
    ],
)
def test_the_isolation_is_the_stronger_of_policy_and_risk(
    mode: SecurityMode, floor: IsolationLevel, risk: str, least: IsolationLevel
) -> None:
    profile = replace(standard_profile(PYTHON), security_mode=mode, isolation_floor=floor)
    assert isolation_for(profile, PYTHON, RiskLevel(risk)).least is least


PATHS = st.sampled_from(["/workspace", "/workspace/a", "/workspace/a/b", "/workspace/c"])
SETS = st.lists(PATHS.map(MayRead), max_size=3).map(Capabilities)


@settings(max_examples=200)
@given(SETS, SETS, SETS, PATHS)
def test_nothing_outside_any_authority_is_ever_allowed(
    declared: Capabilities, granted: Capabilities, met: Capabilities, path: str
) -> None:
    operation = FsRead(path + "/x")
    profile = replace(
        standard_profile(operation, policy=BUILT_IN), declared=declared, granted=granted, capabilities=met
    )
    allowed = judged(operation, profile).decision is Decision.ALLOW
    assert allowed == all(each.allows(operation) for each in (declared, granted, met))


@pytest.mark.parametrize(
    "text", ["policies: {tools: {shell_exec: {denied_commands: [sudo]}}}", RULES_TEXT], ids=["list", "rules"]
)
def test_a_script_that_could_not_be_read_passes_no_list_and_no_rule(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(_: str) -> object:
        raise GrammarMissing("no grammar")

    operation = bash("true")
    profile = standard_profile(operation, policy=policy(text))
    judged(operation, profile).require_allowed()
    monkeypatch.setattr(shell, "read_script", missing)
    assert refused(judged(operation, profile)).code == "POLICY.DENY_TOOL"


def test_a_rule_of_very_many_spellings_is_no_weaker_for_it() -> None:
    words = ", ".join(f"w{number}" for number in range(40))
    snapshot = policy(
        f"policies: {{}}\nrules:\n  - {{id: many, decision: deny, command: [[sudo, {words}], [z, {words}]]}}\n"
    )
    operation = bash("w39 z")
    assert refused(judged(operation, standard_profile(operation, policy=snapshot))).reason == "tool_denied"


def test_a_port_that_the_policy_opens_may_be_asked_for_and_no_other() -> None:
    opened = policy("policies: {tools: {code_run: {open_ports: [8000]}}}")
    for ports, reason in (((8000,), None), ((8000, 8001), "port"), ((22,), "port")):
        operation = replace(PYTHON, ports=ports)
        verdict = judged(operation, standard_profile(operation, policy=opened))
        if reason is None:
            verdict.require_allowed()
        else:
            error = refused(verdict)
            assert (error.code, error.reason) == ("SANDBOX.CAPABILITY_BLOCKED", reason)
            assert str(ports[-1]) in str(error)
    assert refused(judged(replace(PYTHON, ports=(8000,)))).reason == "port"
