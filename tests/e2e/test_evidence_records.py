"""What the records of real runs say, read back with the command: the evidence rows of 000 and of 004."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import re
import shutil
import sqlite3
import sys
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from tests.command_line import ringfence, said, told

from ringfence import BrokerOutcome, Correlation, ExecutionResult, RingfenceError, SandboxManager
from ringfence.evidence.note import Checkpoint, log_origin
from ringfence.evidence.sealing import Head
from ringfence.journal.signer import Signer
from ringfence.operation.brokered import FsRead, FsWrite, ProcExec

pytestmark = pytest.mark.needs("native")

SECRET = "correct-horse-battery-staple"
SET_BY_THE_LOG = ("v", "log_id", "seq", "prev_hash")
MARKER = b"the content of a letter"
PROGRAM = f"import os, sys; open('left.txt', 'w').write('abc'); print(len(os.environ['TOKEN']), '{SECRET}')"
WHOSE = Correlation(
    user_id="ada",
    space_id="lab",
    conversation_id="conv-3",
    turn_id="turn-9",
    task_id="T-7",
    request_id="req-1",
    traceparent="00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
)
POLICY = """
policies:
  tools:
    code_run: {risk_level: high}
    file_read: {risk_level: low, denied_paths: ["**/*.key"]}
    proc_exec: {allowed_commands: [cat]}
    shell_exec: {denied_commands: [sudo]}
budgets:
  tenant: {local: {calls: 6, bytes_in: 1MB}}
"""


class Lived(NamedTuple):
    """A home in which the calls of `live` were made, what came of each, and the policy they were made under."""

    home: Path
    policy: Path
    results: dict[str, Any]


@pytest.fixture(scope="module")
def lived(tmp_path_factory: pytest.TempPathFactory) -> Lived:
    place = tmp_path_factory.mktemp("records")
    policy = place / "policy.yaml"
    policy.write_text(POLICY)
    return Lived(place / "home", policy, asyncio.run(live(place / "home", policy)))


async def live(home: Path, policy: Path) -> dict[str, Any]:
    """Make calls that are allowed, that fail, that are denied by a rule, and one that the budget has no more for."""
    results: dict[str, Any] = {}
    async with SandboxManager("s1", home=home, policy_file=policy, correlation=WHOSE) as manager:
        calls = {
            "code": manager.execute_code(
                "python", PROGRAM, args=[SECRET], stdin=SECRET, env={"TOKEN": SECRET}, inputs={"in.txt": SECRET}
            ),
            "write": manager.perform(FsWrite("work/letter.txt", MARKER)),
            "read": manager.perform(FsRead("work/letter.txt")),
            "program": manager.perform(ProcExec("cat", ("letter.txt",))),
            "failed": manager.execute_code("python", f"raise SystemExit('{SECRET}')"),
            "key": manager.perform(FsRead("work/own.key")),
            "sudo": manager.execute_shell(f"sudo cat {SECRET}"),
            "endless": manager.execute_code("python", "while True: pass", timeout=0.3),
            "beyond the budget": manager.execute_code("python", "print(1)"),
        }
        for name, call in calls.items():
            try:
                results[name] = await call
            except RingfenceError as refused:
                results[name] = refused
    return results


def log_of(home: Path) -> list[dict[str, Any]]:
    """Return what is on record about calls, in order, as the command exports it."""
    lines = [json.loads(line) for line in said(home, "evidence", "export", "--format", "log").splitlines()]
    return [line for line in lines if line["type"] in ("exec.begin", "exec.end", "decision.denied")]


@pytest.fixture(scope="module")
def records(lived: Lived) -> list[dict[str, Any]]:
    return log_of(lived.home)


def evidence_id(result: Any) -> str:
    """Return what a result, or a refusal, names its evidence by."""
    found = result.details["evidence_id"] if isinstance(result, RingfenceError) else result.evidence_id
    assert isinstance(found, str)
    return found


def of(lived: Lived, records: list[dict[str, Any]], name: str) -> list[dict[str, Any]]:
    """Return the records of one of the calls."""
    return [record for record in records if record["envelope_id"] == evidence_id(lived.results[name])]


def sha256_b64(content: bytes) -> str:
    return base64.b64encode(hashlib.sha256(content).digest()).decode()


def test_every_call_is_on_record_once_from_its_beginning_to_its_end_or_as_denied(
    lived: Lived, records: list[dict[str, Any]]
) -> None:
    kinds = Counter(record["type"] for record in records)
    assert kinds == {"exec.begin": 7, "exec.end": 7, "decision.denied": 2}
    for name, result in lived.results.items():
        kept = [record["type"] for record in of(lived, records, name)]
        refused_by_a_rule = isinstance(result, RingfenceError) and name != "beyond the budget"
        assert kept == (["decision.denied"] if refused_by_a_rule else ["exec.begin", "exec.end"]), name
    places = [record["seq"] for record in records]
    assert places == sorted(set(places))


def test_a_beginning_has_every_member_that_000_names(records: list[dict[str, Any]]) -> None:
    ten = {
        *("envelope_id", "tenant", "subject_id", "tool_name", "call_id", "profile_hash", "capability"),
        *("inputs_digest", "produced_at_ms", "policy_version_hash"),
    }
    for record in records:
        if record["type"] != "exec.end":
            assert ten <= record.keys(), ten - record.keys()


def test_an_end_has_every_member_that_000_names_and_a_denial_is_both(records: list[dict[str, Any]]) -> None:
    wanted = {"envelope_id", "status", "side_effects", "budget_used", "finished_at_ms"}
    for record in records:
        if record["type"] == "exec.end":
            assert wanted <= record.keys(), wanted - record.keys()
            assert ("error_code" in record) == (record["outcome"] not in ("succeeded", "failed")), record
            assert ("outputs_digest" in record) == (record["status"] != "denied")
        elif record["type"] == "decision.denied":
            assert record["status"] == "denied"
            assert record["error_code"]
            assert record["rule"] in {answer["rule"] for answer in record["answers"] if answer["decision"] == "deny"}


@pytest.mark.parametrize(
    ("name", "capability"),
    [
        ("code", "code.run:python"),
        ("write", "fs.write:/workspace/work/letter.txt"),
        ("read", "fs.read:/workspace/work/letter.txt"),
        ("program", "proc.exec:cat"),
        ("key", "fs.read:/workspace/work/own.key"),
    ],
)
def test_a_capability_is_one_string(name: str, capability: str, lived: Lived, records: list[dict[str, Any]]) -> None:
    assert of(lived, records, name)[0]["capability"] == capability


def test_the_digest_of_the_inputs_is_recomputed_from_what_was_given(
    lived: Lived, records: list[dict[str, Any]]
) -> None:
    for name, content in (("code", PROGRAM.encode()), ("write", MARKER)):
        assert of(lived, records, name)[0]["inputs_digest"] == {
            "algo": "sha256",
            "b64": sha256_b64(content),
            "size": len(content),
        }
    assert of(lived, records, "code")[0]["inputs"] == [
        {"path": "inputs/in.txt", "size": len(SECRET), "sha256": hashlib.sha256(SECRET.encode()).hexdigest()}
    ]


def test_every_digest_is_a_sha256_in_base64_with_its_size(records: list[dict[str, Any]]) -> None:
    digests = [record[name] for record in records for name in ("inputs_digest", "outputs_digest") if name in record]
    digests += [record[name]["digest"] for record in records for name in ("stdout", "stderr") if name in record]
    assert len(digests) > len(records)
    for digest in digests:
        assert digest.keys() == {"algo", "b64", "size"}
        assert digest["algo"] == "sha256"
        assert len(base64.b64decode(digest["b64"], validate=True)) == 32


def test_the_digest_of_the_outputs_is_recomputed_from_what_was_answered(
    lived: Lived, records: list[dict[str, Any]]
) -> None:
    result = lived.results["code"]
    assert isinstance(result, ExecutionResult)
    (_, end) = of(lived, records, "code")
    assert end["stdout"]["digest"] == {
        "algo": "sha256",
        "b64": sha256_b64(result.stdout.encode()),
        "size": len(result.stdout),
    }


def test_the_three_states_of_an_end(lived: Lived, records: list[dict[str, Any]]) -> None:
    found = {name: of(lived, records, name)[-1]["status"] for name in lived.results}
    assert found == {
        **dict.fromkeys(("code", "write", "read", "program"), "ok"),
        **dict.fromkeys(("failed", "endless"), "error"),
        **dict.fromkeys(("key", "sudo", "beyond the budget"), "denied"),
    }


def test_an_effect_is_a_kind_with_its_path_and_its_bytes(lived: Lived, records: list[dict[str, Any]]) -> None:
    wrote = {"kind": "write", "meta": {"path": "work/letter.txt", "bytes": len(MARKER)}}
    assert of(lived, records, "write")[1]["side_effects"] == [wrote]
    left = {"kind": "write", "meta": {"path": "work/left.txt", "bytes": 3}}
    assert of(lived, records, "code")[1]["side_effects"] == [left]


def test_what_was_used_is_six_numbers_in_the_result_and_the_same_six_in_the_end(
    lived: Lived, records: list[dict[str, Any]]
) -> None:
    for name in ("code", "write", "read", "program", "failed", "endless"):
        result = lived.results[name]
        assert isinstance(result, ExecutionResult | BrokerOutcome)
        six = ("calls", "bytes_out", "bytes_in", "cpu_ms", "gpu_ms", "file_count")
        assert of(lived, records, name)[1]["budget_used"] == {kind: getattr(result.used, kind) for kind in six}, name


def test_nothing_that_a_call_was_given_or_gave_back_is_in_the_journal_or_in_any_export(lived: Lived) -> None:
    planted = (SECRET.encode(), MARKER)
    files = [path for path in lived.home.rglob("*") if path.is_file() and "workspace" not in path.parts]
    assert lived.home / "ringfence.db" in files
    for path in files:
        assert not [each for each in planted if each in path.read_bytes()], path
    for kind in ("log", "bundle", "audit-json", "cloudevents", "ocsf", "otlp"):
        exported = said(lived.home, "evidence", "export", "--format", kind).encode()
        if kind == "bundle":
            exported = base64.b64decode(json.loads(exported)["payload"])
        assert b"letter.txt" in exported or kind == "otlp", kind  # the path is there
        assert not [each for each in planted if each in exported], kind


def test_every_error_has_a_registered_code_and_its_details_name_nothing_that_was_given(
    lived: Lived, records: list[dict[str, Any]]
) -> None:
    known = {entry["code"] for entry in told(None, "errors", "list")["codes"]}
    codes = [record["error_code"] for record in records if "error_code" in record]
    assert codes
    assert set(codes) <= known
    for result in lived.results.values():
        if isinstance(result, RingfenceError):
            shown = f"{result} {result.details} {result.fix}"
            assert SECRET not in shown
            assert str(lived.home) not in shown
            assert result.code in known


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("--user", "ada"),
        ("--space", "lab"),
        ("--conversation", "conv-3"),
        ("--turn", "turn-9"),
        ("--task", "T-7"),
    ],
)
def test_evidence_is_found_by_whose_work_it_was(option: str, value: str, lived: Lived) -> None:
    assert len(told(lived.home, "evidence", "list", option, value)["execs"]) == len(lived.results)
    assert told(lived.home, "evidence", "list", option, "somebody-elses")["execs"] == []


def test_what_the_caller_sends_along_is_in_every_record(records: list[dict[str, Any]]) -> None:
    for record in records:
        assert {name: record.get(name) for name in WHOSE.members()} == WHOSE.members()


def test_a_record_names_what_decided_it_and_the_policy_is_given_out_by_its_hash(
    lived: Lived, records: list[dict[str, Any]]
) -> None:
    begin, _ = of(lived, records, "code")
    assert re.fullmatch(r"gr_[0-9a-f]{32}", begin["grant_id"])
    assert begin["manifest_version"]
    assert begin["policy_version_hash"] == f"sha256:{hashlib.sha256(POLICY.encode()).hexdigest()}"
    assert said(lived.home, "policy", "show", "--hash", begin["policy_version_hash"]) == POLICY


def test_the_hash_of_a_profile_is_the_same_for_the_same_and_another_for_one_limit_less(tmp_path: Path) -> None:
    for limit in ("30s", "30s", "29s"):
        policy = tmp_path / "policy.yaml"
        policy.write_text(f"policies: {{default: {{max_execution_time: {limit}}}}}\n")
        said(tmp_path / "home", "run", "--policy", str(policy), "-c", "print(1)")
    first, again, other = [r["profile_hash"] for r in log_of(tmp_path / "home") if r["type"] == "exec.begin"]
    assert first == again != other


def test_how_strongly_a_call_was_isolated_is_on_record(lived: Lived, records: list[dict[str, Any]]) -> None:
    begin, end = of(lived, records, "code")
    assert (begin["risk"]["effective"], begin["isolation"], end["backend"]) == ("high", "container", "native")
    assert end["runtime"] == f"python {'.'.join(map(str, sys.version_info[:3]))}"
    assert begin["limits"]["memory_bytes"] > 0
    assert begin["limits"]["wall_ms"] > 0
    assert end["sandbox_id"] == lived.results["code"].sandbox_id
    read, _ = of(lived, records, "read")
    assert (read["risk"]["effective"], read["isolation"]) == ("low", "broker")
    write, wrote = of(lived, records, "write")
    assert (write["risk"]["effective"], write["isolation"]) == ("medium", "broker")
    assert wrote["files_written"] == {"paths": ["work/letter.txt"], "complete": True}


async def test_a_cell_names_its_process_in_both_of_its_records(tmp_path: Path) -> None:
    async with SandboxManager(home=tmp_path) as manager, manager.session() as session:
        cell = await session.run("6 * 7")
    shown = told(tmp_path, "evidence", "show", cell.exec_id)["records"]
    begin, end = (each["record"] for each in shown)
    assert begin["process_id"] == end["process_id"] != ""
    assert f"process {begin['process_id']}" in said(tmp_path, "evidence", "show", cell.exec_id)


async def test_all_that_was_written_of_an_execution_is_shown_and_handed_out_with_it(tmp_path: Path) -> None:
    async with SandboxManager(home=tmp_path, correlation=Correlation(task_id="T-7")) as manager:
        process = await manager.start_process("true")
        await process.wait()
    shown = told(tmp_path, "evidence", "show", process.exec_id)["records"]
    types = ["exec.begin", "exec.end", "process.started", "process.ended"]
    assert [each["record"]["type"] for each in shown] == types
    assert {each["proof"]["verdict"] for each in shown} == {"verified"}
    assert "process.started" not in said(tmp_path, "evidence", "show", process.exec_id, "--public")
    said(tmp_path, "run", "-c", "print(1)", "--correlate", "task=T-8")
    for kind in ("cloudevents", "ocsf"):
        lines = said(tmp_path, "evidence", "export", "--format", kind, "--task", "T-7").splitlines()
        found = [json.loads(line) for line in lines]
        kinds = [each.get("type") or each["metadata"]["event_code"] for each in found]
        assert sorted(each.removeprefix("ringfence.evidence.") for each in kinds) == sorted(types), kind
    bundle = tmp_path / "T-7.bundle"
    said(tmp_path, "evidence", "export", "--format", "bundle", "--task", "T-7", "--output", str(bundle))
    statement = json.loads(base64.b64decode(json.loads(bundle.read_text())["payload"]))
    texts = [json.loads(each["text"])["type"] for each in statement["predicate"]["records"]]
    assert sorted(texts) == sorted(types)
    key = said(tmp_path, "evidence", "key").strip()
    assert "whole and proven" in said(tmp_path, "evidence", "verify", str(bundle), "--key", key)


def test_what_the_analysis_saw_in_a_program_is_on_record_without_a_word_of_it(tmp_path: Path) -> None:
    said(tmp_path, "run", "-c", "import socket, hunter2", code=1)
    (run,) = told(tmp_path, "evidence", "list")["execs"]
    begin = told(tmp_path, "evidence", "show", run["exec_id"])["records"][0]["record"]
    assert begin["risk"]["patterns"] == ["a module nobody here knows", "reaches the network"]
    assert "saw a module nobody here knows" in said(tmp_path, "evidence", "show", run["exec_id"])


def test_every_decision_of_the_log_is_made_again_and_comes_out_the_same(lived: Lived) -> None:
    answer = told(lived.home, "evidence", "replay", "--since", "1d", "--level", "decision")
    assert (answer["same"], answer["differs"], answer["cannot_tell"]) == (len(lived.results), 0, 0)
    assert Counter(each["now"].split()[0] for each in answer["replays"]) == {"allow": 7, "deny": 2}


def test_all_of_it_verifies(lived: Lived) -> None:
    assert told(lived.home, "evidence", "verify")["verdict"] == "proven"


def with_more_members(home: Path, later: Path, members: dict[str, Any]) -> None:
    """Make a copy of a home as a later release would have written it, with that home's own key."""
    shutil.copytree(home, later)
    signer = Signer.in_home(later)
    with closing(sqlite3.connect(later / "ringfence.db")) as file, file:
        ((log_id,),) = file.execute("SELECT log_id FROM journal_log").fetchall()
        head = Head.empty(log_id)
        for place, body in file.execute("SELECT place, body FROM journal_record ORDER BY place").fetchall():
            own = {name: value for name, value in json.loads(body).items() if name not in SET_BY_THE_LOG}
            sealed, head = head.seal(own | members)
            file.execute(
                "UPDATE journal_record SET hash = ?, body = ? WHERE place = ?", (sealed.hash, sealed.text, place)
            )
        root, frontier = head.frontier.root(), head.frontier.to_text()
        note = signer.sign_checkpoint(Checkpoint(log_origin(log_id), head.size, root))
        file.execute("DELETE FROM journal_checkpoint WHERE size < ?", (head.size,))
        file.execute("UPDATE journal_checkpoint SET root = ?, frontier = ?, note = ?", (root, frontier, note))


def test_a_reader_of_today_takes_members_that_a_later_release_adds(lived: Lived, tmp_path: Path) -> None:
    """A log that a later release wrote: one more member in every record, all of it hashed and signed anew by it."""
    later = tmp_path / "later"
    with_more_members(lived.home, later, {"weather": {"sky": "clear"}})
    assert told(later, "evidence", "verify")["verdict"] == "proven"
    assert {json.dumps(record["weather"]) for record in log_of(later)} == {'{"sky": "clear"}'}
    assert len(told(later, "evidence", "list")["execs"]) == len(lived.results)
    assert ringfence(later, "evidence", "export", "--format", "audit-json").returncode == 0


async def test_a_box_that_cannot_be_had_is_on_record_beside_the_run_that_waited_for_it(tmp_path: Path) -> None:
    nowhere = "unix:///nonexistent/docker.sock"
    async with SandboxManager(home=tmp_path, isolation="docker", docker_url=nowhere, pool_size=0) as manager:
        for _ in range(2):
            with pytest.raises(RingfenceError):
                await manager.execute_code("python", "print(1)")
    found = [json.loads(line) for line in said(tmp_path, "evidence", "export", "--format", "log").splitlines()]
    troubles = [line for line in found if line["type"] == "pool.failed"]
    assert [line["isolation"] for line in troubles] == ["docker"]
    assert troubles[0]["reason"] == next(line["reason"] for line in found if line["type"] == "exec.end")


def test_a_grant_that_is_narrowed_is_on_record_where_there_are_records_and_makes_none_elsewhere(
    tmp_path: Path,
) -> None:
    issuing, holding = tmp_path / "issuing", tmp_path / "holding"
    said(issuing, "key", "create")
    token = said(issuing, "grant", "issue", "--tool", "code_run", "--call", "c1").strip()
    for home in (issuing, holding):
        said(home, "grant", "attenuate", token, "--ttl", "1m")
    found = [json.loads(line) for line in said(issuing, "evidence", "export", "--format", "log").splitlines()]
    narrowed, issued = (
        [line for line in found if line["type"] == f"grant.{what}"] for what in ("attenuated", "issued")
    )
    assert [(line["call_id"], line["grant_id"]) for line in narrowed] == [("c1", issued[0]["grant_id"])]
    assert not list(holding.rglob("*.db"))
