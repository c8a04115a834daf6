"""Every code and reason of the table is caused from outside by some test, or says here why nobody outside can."""

from __future__ import annotations

import ast
import asyncio
import re
import shutil
import sqlite3
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from tests.command_line import ringfence
from tests.http_service import serving

import ringfence as ringfence_package
from ringfence import AIOSandboxPool, SandboxManager, SandboxType, UnifiedRiskPolicy
from ringfence.authority.credential import ProposedCall
from ringfence.authority.policy import BUILT_IN
from ringfence.authority.profile import SecurityMode
from ringfence.errors import RingfenceError
from ringfence.errors.table import TABLE, answer
from ringfence.guard.consent import Consent, Source
from ringfence.operation import CodeRun, Language
from ringfence.operation.brokered import FsList, FsRead, FsWrite

pytestmark = [pytest.mark.needs("native")]
TESTS = Path(__file__).resolve().parents[1]
# where tests go through the command, the service, a client or the public names of the package
DOORS = (
    "e2e",
    "contract",
    "security",
    "unit/cli",
    "unit/facade",
    "unit/client",
    "unit/aio",
    "unit/grants/test_command.py",
)
DENY, UNAVAILABLE = "SANDBOX.PERMISSION_DENY", "PROVIDER.UNAVAILABLE"
BLOCKED, INVALID, FAILED = "SANDBOX.CAPABILITY_BLOCKED", "SCHEMA.VALIDATION_FAILED", "TOOL.EXECUTION_FAILED"
Pair = tuple[str, str]
DAY_MS = 86_400_000


class Told(NamedTuple):
    """What a door said: its code and reason, and as what it said it."""

    code: str
    reason: str


def command(home: Path, *words: str, **environment: str) -> Told:
    """Return the refusal of the command, whose exit code is the table's."""
    done = ringfence(home, *words, **environment)
    said = re.search(r"^ringfence: ([A-Z]+\.[A-Z_]+) ([a-z_]+): .+$", done.stderr, re.MULTILINE)
    assert said is not None, (done.returncode, done.stdout[-500:], done.stderr[-500:])
    assert done.returncode == answer(said[1], said[2]).exit_code
    return Told(said[1], said[2])


def by_command(*words: str, **environment: str) -> Callable[[Path], Told]:
    return lambda home: command(home, *(word.replace("HOME", str(home)) for word in words), **environment)


def by_manager(act: Callable[[SandboxManager], Awaitable[Any]], **arguments: Any) -> Callable[[Path], Told]:
    """Return what a manager raises."""

    def cause(home: Path) -> Told:
        async def go() -> None:
            async with SandboxManager("s", home=home, pool_size=0, **arguments) as manager:
                await act(manager)

        with pytest.raises(RingfenceError) as refused:
            asyncio.run(go())
        return Told(refused.value.code, refused.value.reason)

    return cause


# --- grants ---


def token(home: Path, *, shift_ms: int = 0, key_shift_ms: int = 0, **changed: str) -> str:
    """Return a grant for the call c1 that is signed with a key of the home, as of another time."""
    from tests.unit.grants.desk import Desk, StillClock

    now = int(time.time() * 1000)
    clock = StillClock(now + key_shift_ms)
    desk = Desk(home, clock)
    desk.keys.create(valid_ms=DAY_MS)
    clock.ms = now + shift_ms
    grant = desk.issuer.grant(BUILT_IN, replace(ProposedCall("local", "local", "code_run", "c1"), **changed))
    return desk.codec.encode(grant, desk.keys.signing_key())


def under(make: Callable[[Path], str], spoil: Callable[[Path], object] = lambda _: None, **who: str) -> Any:
    """Return what becomes of code under a grant."""

    def cause(home: Path) -> Told:
        text = make(home)
        spoil(home)

        async def act(manager: SandboxManager) -> None:
            async with manager.under(text, call_id="c1", **who) as governed:
                await governed.execute_code("python", "print('RAN')")

        return by_manager(act)(home)

    return cause


def spoil_revocations(home: Path) -> None:
    (home / "revocations").mkdir(exist_ok=True, mode=0o700)
    (home / "revocations" / "list").write_bytes(b"no list\n")


# --- consent: what a person would have said is given by hand, until somebody can be asked ---

CODE = CodeRun(Language.PYTHON, "print('RAN')")


def with_consent(given: Consent) -> Callable[[Path], Told]:
    def cause(home: Path) -> Told:
        policy = home / "policy.yaml"
        policy.write_text("mode: strict-ask\n")

        async def act(manager: SandboxManager) -> None:
            profile = manager.engine.authority.profile(CODE, call_id="c")
            await manager.engine.orchestrator.run(CODE, profile, consent=given)

        return by_manager(act, policy_file=policy)(home)

    return cause


# --- the rest ---


async def read_a_directory(manager: SandboxManager) -> None:
    await manager.perform(FsWrite("work/d/x", b"x"))
    await manager.perform(FsRead("work/d"))


async def list_a_file(manager: SandboxManager) -> None:
    await manager.perform(FsWrite("work/x", b"x"))
    await manager.perform(FsList("work/x"))


def newer_database(home: Path) -> Told:
    assert ringfence(home, "run", "-c", "1").returncode == 0
    with sqlite3.connect(next(home.glob("*.db"))) as database:
        database.execute("UPDATE schema_version SET version = version + 1")
    return command(home, "run", "-c", "print('RAN')")


def sent_as_text(home: Path) -> Told:
    with serving(home) as service:
        said = service.ask("POST", "/sandbox/execs", b"{}", headers={"Content-Type": "text/plain"})
    assert said.status == answer(said.json["code"], said.json["reason"]).http_status == 415
    return Told(said.json["code"], said.json["reason"])


def same_skill_twice(home: Path) -> Told:
    shipped = Path(ringfence_package.__file__).parent / "skills" / "shipped"
    shutil.copytree(shipped / "file.search", home / "mine" / "file.search")
    return command(home, "skill", "show", "file.search", "--skills", str(home / "mine"))


def secret_without_a_value(home: Path) -> Told:
    policy = home / "policy.yaml"
    policy.write_text("secrets: {TOKEN: {tools: [code_run]}}\n")
    assert ringfence(home, "secret", "set", "TOKEN", "--way", "env", "--from", "env:NOT_THERE").returncode == 0
    return command(home, "run", "--policy", str(policy), "--secret", "TOKEN=env", "-c", "1")


async def feed_a_closed_input(manager: SandboxManager) -> None:
    process = await manager.start_process("sleep 60")
    await process.send(b"x", end=True)
    await process.send(b"y")


async def use_a_session_that_is_over(manager: SandboxManager) -> None:
    session = await manager.start_interpreter()
    await manager.run_cell(session.process_id, "import os; os._exit(3)")
    await manager.run_cell(session.process_id, "1")


def end_a_session_from_within(home: Path) -> Told:
    async def go() -> Told:
        async with SandboxManager("s", home=home, pool_size=0) as manager:
            session = await manager.start_interpreter()
            ended = await manager.run_cell(session.process_id, "import os; os._exit(0)")
        return Told(str(ended.error_code), str(ended.reason))

    return asyncio.run(go())


async def write_down_too_much(manager: SandboxManager) -> None:
    journal = manager.engine.journal
    assert journal is not None
    await journal.record({"type": "policy.loaded", "envelope_id": "ev_1", "time_ms": 1, "tenant": "x" * (1 << 20)})


def ask_for_a_weak_box(_: Path) -> Told:
    with pytest.raises(RingfenceError) as refused:
        UnifiedRiskPolicy.get_required_sandbox(
            UnifiedRiskPolicy.assess("1", "python"), SecurityMode.STRICT, container=SandboxType.SUBPROCESS
        )
    return Told(refused.value.code, refused.value.reason)


def verify(content: bytes) -> Callable[[Path], Told]:
    def cause(home: Path) -> Told:
        (home / "file").write_bytes(content)
        done = ringfence(home, "evidence", "verify", str(home / "file"))
        said = re.search(r"^TAMPERED: ([a-z_]+): .+$", done.stdout, re.MULTILINE)
        assert said is not None, done
        assert done.returncode == 3
        return Told(INVALID, said[1])

    return cause


CAUSES: dict[Pair, Callable[[Path], Told]] = {
    (DENY, "key_expired"): under(partial(token, key_shift_ms=-2 * DAY_MS, shift_ms=-2 * DAY_MS)),
    (DENY, "not_yet_valid"): under(partial(token, shift_ms=DAY_MS // 2)),
    (DENY, "expired"): under(partial(token, shift_ms=-DAY_MS // 2, key_shift_ms=-DAY_MS // 2)),
    (DENY, "tenant_mismatch"): under(token, tenant="other"),
    (DENY, "subject_mismatch"): under(token, subject_id="other"),
    (DENY, "audience_mismatch"): under(partial(token, audience="elsewhere")),
    (DENY, "revocations_unreadable"): under(token, spoil_revocations),
    (DENY, "consent_expired"): with_consent(Consent(Source.SESSION, expires_at_ms=1)),
    (DENY, "consent_mismatch"): with_consent(Consent(Source.CALL, request_hash="sha256:of another")),
    (UNAVAILABLE, "unavailable"): by_command("run", "-c", "1", RINGFENCE_HOME="/proc/nowhere"),
    (UNAVAILABLE, "newer_schema"): newer_database,
    (UNAVAILABLE, "no_attachment"): by_manager(
        lambda m: m.start_process("true"),
        security_mode="permissive",
        aio_pool=AIOSandboxPool(instances=["http://127.0.0.1:9"]),
    ),
    (UNAVAILABLE, "no_service"): by_command("ps"),
    (UNAVAILABLE, "secret_source"): secret_without_a_value,
    (INVALID, "unsupported_media_type"): sent_as_text,
    (INVALID, "invalid_input"): by_command("run", "--input", "/", "-c", "1"),
    (INVALID, "artifacts_unwritable"): by_command("run", "--artifacts", "/proc/here", "-c", "1"),
    (INVALID, "invalid_package"): by_manager(lambda m: m.execute_code("python", "1", packages=["../x"])),
    (INVALID, "invalid_host"): by_manager(lambda m: m.execute_code("python", "1", allow_domains=["a b"])),
    (INVALID, "invalid_allow_domains"): by_manager(lambda m: m.execute_code("python", "1", allow_domains="a.com")),
    (INVALID, "invalid_secrets"): by_manager(lambda m: m.execute_code("python", "1", secrets="KEY")),
    (INVALID, "invalid_port"): by_manager(lambda m: m.start_process("true", ports=[0])),
    (INVALID, "invalid_capability"): by_command(
        "grant", "issue", "--tool", "code_run", "--call", "c", "--allow", "fly"
    ),
    (INVALID, "invalid_budget"): by_command(
        "grant", "issue", "--tool", "code_run", "--call", "c", "--budget", "luck=3"
    ),
    (INVALID, "record_too_large"): by_manager(write_down_too_much),
    (INVALID, "log_damaged"): verify(b"no log\n"),
    (INVALID, "bundle_damaged"): verify(b'{"payloadType":"application/vnd.in-toto+json","payload":"","signatures":[]}'),
    (INVALID, "isolation_too_weak"): ask_for_a_weak_box,
    (INVALID, "input_closed"): by_manager(feed_a_closed_input),
    (FAILED, "session_over"): end_a_session_from_within,
    (INVALID, "session_over"): by_manager(use_a_session_that_is_over),
    (INVALID, "is_a_directory"): by_manager(read_a_directory),
    (INVALID, "not_a_directory"): by_manager(list_a_file),
    (INVALID, "duplicate_skill"): same_skill_twice,
}


@pytest.mark.parametrize("pair", CAUSES, ids=lambda pair: pair[1])
def test_the_reason_is_what_its_cause_gives_from_outside(pair: Pair, tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    assert CAUSES[pair](home) == pair


# why nobody outside causes it, and the test that causes it where it can be
INSIDE: dict[Pair, tuple[str, str]] = {
    (DENY, "no_grant"): (
        "an execution that was promised under a grant, in a service that was killed and started again",
        "unit/service/test_promises.py::test_what_was_promised_under_a_grant_is_not_run_without_it",
    ),
    ("POLICY.DENY_TOOL", "no_verdict"): (
        "a rule of ours is broken",
        "unit/guard/test_rules.py::test_a_rule_that_breaks_is_a_no",
    ),
    (BLOCKED, "rate"): (
        "takes a browser and eleven pictures",
        "unit/executors/test_browser.py::test_the_eleventh_picture_of_a_minute_is_refused_whatever_page_it_is_of",
    ),
    (UNAVAILABLE, "interpreter_unreadable"): (
        "an interpreter that only its owner can read",
        "unit/runtimes/test_python.py::test_an_interpreter_closed_to_others_is_refused_with_the_fix",
    ),
    (UNAVAILABLE, "signing_unavailable"): (
        "a machine without OpenSSL",
        "unit/crypto/test_ed25519.py::test_with_neither_the_refusal_says_what_to_install",
    ),
    (UNAVAILABLE, "no_package_client"): (
        "an interpreter without uv and pip",
        "unit/runtimes/test_installer.py::test_without_uv_and_pip_it_says_so",
    ),
    (UNAVAILABLE, "package_timeout"): (
        "takes as long as a build may",
        "unit/runtimes/test_installer.py::test_a_build_that_takes_too_long_is_ended",
    ),
    (UNAVAILABLE, "log_taken"): (
        "another process took a log over that was still in use",
        "unit/journal/test_store.py::test_two_writers_after_a_wrong_takeover_never_fork_a_log",
    ),
    ("LLM.TIMEOUT", "connect_timeout"): (
        "takes as long as a connection may",
        "unit/egress/test_dialing.py::test_a_connection_that_takes_too_long_is_given_up",
    ),
    (UNAVAILABLE, "not_recorded"): (
        "a replay inside the package",
        "unit/executors/test_replay_executor.py::test_what_was_never_recorded_is_refused",
    ),
    (UNAVAILABLE, "engine_elsewhere"): (
        "an engine on another machine",
        "unit/docker/test_failures.py::test_a_complaint_becomes_one_line_with_a_reason_and_a_fix",
    ),
    ("QUOTA.BUDGET_EXCEEDED", "project_artifacts"): (
        "takes eight gigabytes",
        "unit/workspaces/test_artifact_quota.py::test_what_all_runs_of_a_project_keep_together_has_an_end",
    ),
    (INVALID, "invalid_denial"): (
        "in a policy it is one of the findings of `invalid_policy`",
        "unit/capability/test_denials_and_budget.py::test_a_denial_that_denies_nothing_for_sure_is_refused",
    ),
    (INVALID, "invalid_yaml"): (
        "in a policy it is one of the findings of `invalid_policy`",
        "unit/authority/test_policy_source.py::test_a_broken_file_changes_nothing_and_says_so_once",
    ),
    (INVALID, "invalid_schema"): (
        "in a skill it is one of the findings of `invalid_manifest`",
        "unit/skills/test_schema.py::test_what_is_refused_is_refused_with_its_place_and_a_fix",
    ),
    (INVALID, "not_canonical"): (
        "nothing that comes in gets as far as a record without a canonical form",
        "unit/evidence/test_sealing.py::test_what_has_no_canonical_form_is_refused_at_any_depth",
    ),
    (INVALID, "no_proof"): (
        "told as the verdict on the evidence",
        "unit/evidence/test_merkle.py::test_a_dropped_record_can_no_longer_be_proved",
    ),
    (INVALID, "unknown_signer"): (
        "told as the verdict on the evidence",
        "unit/evidence/test_note.py::test_a_note_that_only_strangers_signed_is_refused",
    ),
    (INVALID, "bad_digest"): (
        "a journal that was altered",
        "unit/evidence/test_projections_audit_json.py::test_a_damaged_digest_is_refused",
    ),
    (INVALID, "bad_time"): (
        "a journal that was altered",
        "unit/evidence/test_projections_cloudevents.py::test_a_moment_outside_the_calendar_is_refused",
    ),
    (INVALID, "not_one_run"): (
        "a journal that was altered",
        "unit/evidence/test_projections_audit_json.py::test_a_begin_and_the_end_of_another_are_refused",
    ),
    (INVALID, "bundle_too_large"): (
        "takes a file beyond all measure",
        "unit/evidence/test_bundle.py::test_a_file_that_is_too_large_is_not_looked_at",
    ),
    (INVALID, "checkpoint_mismatch"): (
        "told as the verdict on the evidence",
        "unit/evidence/test_bundle.py::test_a_checkpoint_from_outside_with_another_root_contradicts_it",
    ),
    (FAILED, "execution_failed"): (
        "an executor of ours is broken",
        "unit/orchestrator/test_domains.py::test_a_broker_that_breaks_is_a_failure_of_ours_and_shows_nothing_of_why",
    ),
    ("UNKNOWN.INTERNAL", "internal"): (
        "we are broken",
        "unit/orchestrator/test_evidence.py::test_what_an_executor_did_without_having_it_written_down_is_told_to_nobody",
    ),
    ("UNKNOWN.INTERNAL", "wrong_output"): (
        "a measured program is broken",
        "unit/bench/test_measure.py::test_a_wrong_output_ends_the_bench_with_our_own_failure",
    ),
}
NOTHING_YET = {(UNAVAILABLE, "no_gpu"): "boxes with GPUs have not landed"}


def named_at_the_doors() -> set[str]:
    """Return the words that tests through a door hold an error against."""
    words: set[str] = set()
    for door in DOORS:
        place = TESTS / door
        for file in [place] if place.is_file() else place.rglob("*.py"):
            if file == Path(__file__).resolve():
                continue
            for node in ast.walk(ast.parse(file.read_text())):
                if isinstance(node, ast.Constant) and isinstance(node.value, str):
                    words.add(node.value)
                    words.update(re.findall(r"(?:[A-Z]+\.[A-Z_]+ |\b)([a-z]+(?:_[a-z]+)+|usage)\b", node.value))
    return words


def test_every_reason_is_caused_at_a_door_or_says_why_it_is_not() -> None:
    named = named_at_the_doors()
    table = {(code, reason) for code, entry in TABLE.items() for reason in entry.reasons}
    told = CAUSES.keys() | INSIDE.keys() | NOTHING_YET.keys()
    assert told <= table
    assert sorted(pair for pair in table - told if pair[1] not in named) == []
    assert sorted(pair for pair in INSIDE.keys() | NOTHING_YET.keys() if pair[1] in named) == []  # no exception


@pytest.mark.parametrize("pair", INSIDE, ids=lambda pair: pair[1])
def test_what_only_the_inside_causes_is_caused_there(pair: Pair) -> None:
    why, test = INSIDE[pair]
    file, _, name = test.partition("::")
    assert why
    assert re.search(rf"^(async )?def {name}\(", (TESTS / file).read_text(), re.MULTILINE), test
