"""`ringfence evidence` as operators and auditors use it: real runs, and real tampering with the file they are in."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.postgres_server import PostgresServer

pytestmark = pytest.mark.needs("native")

COMMAND = [sys.executable, "-m", "ringfence"]
PATIENCE_SECONDS = 60
SERVER = "database-url"  # a file in the home of tests on a server
BASH_ONLY = "policies:\n  tools:\n    code_run:\n      supported_languages: [bash]\n"
PROGRAM = "print(6 * 7); open('/workspace/artifacts/a.txt', 'w').write('kept')"
AUDIT_FIELDS = [
    "timestamp",
    "event_type",
    "session_id",
    "agent_id",
    "org_id",
    "sandbox_id",
    "tool",
    "language",
    "code_hash",
    "execution_time_ms",
    "exit_code",
    "memory_used_mb",
    "cpu_time_ms",
    "network_bytes_sent",
    "network_bytes_recv",
    "files_read",
    "files_written",
    "result",
    "error",
]


def surroundings(home: Path | None) -> dict[str, str]:
    env = {name: value for name, value in os.environ.items() if not name.startswith("RINGFENCE_")}
    if home is None:
        return env
    if (home / SERVER).exists():
        env["RINGFENCE_DATABASE"] = (home / SERVER).read_text()
    return {**env, "RINGFENCE_HOME": str(home)}


def ringfence(home: Path | None, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *words],
        env=surroundings(home),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )


def said(home: Path | None, *words: str, code: int = 0) -> str:
    done = ringfence(home, *words)
    assert done.returncode == code, (done.stdout, done.stderr)
    return done.stdout


def told(home: Path | None, *words: str, code: int = 0) -> dict[str, Any]:
    output = said(home, *words, "--json", code=code)
    assert output.count("\n") == 1
    answer: dict[str, Any] = json.loads(output)
    return answer


@pytest.fixture(scope="module")
def lived_in(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a home in which a program succeeded, one failed, one timed out and one was denied, in this order."""
    place = tmp_path_factory.mktemp("evidence")
    home, policy = place / "home", place / "policy.yaml"
    policy.write_text(BASH_ONLY)
    whose = ("--correlate", "task=T-7", "--correlate", "user=ada", "--project", "p1")
    said(home, "run", "-c", PROGRAM, *whose)
    said(home, "run", "-c", "raise SystemExit(7)", "--correlate", "task=T-8", code=1)
    said(home, "run", "-c", "while True: pass", "--timeout", "0.5", code=6)
    said(home, "run", "-c", "print(1)", "--policy", str(policy), code=3)
    return home


@pytest.fixture
def home(lived_in: Path, tmp_path: Path) -> Path:
    """Return a copy that a test may do anything to."""
    return Path(shutil.copytree(lived_in, tmp_path / "home"))


@pytest.fixture
def elsewhere(tmp_path: Path) -> Path:
    """Return the home of another machine, where nothing ever ran."""
    return tmp_path / "nothing" / "here"


def by_outcome(home: Path, outcome: str) -> dict[str, Any]:
    (row,) = told(home, "evidence", "list", "--outcome", outcome)["execs"]
    found: dict[str, Any] = row
    return found


# --- list ---


def test_executions_are_listed_newest_first(home: Path) -> None:
    rows = told(home, "evidence", "list")["execs"]
    assert [row["outcome"] for row in rows] == ["denied", "timed_out", "failed", "succeeded"]
    assert {row["integrity"] for row in rows} == {"intact"}
    lines = said(home, "evidence", "list").splitlines()
    assert len(lines) == 4
    assert "POLICY.DENY_TOOL manifest_mismatch" in lines[0]


@pytest.mark.parametrize(
    ("words", "outcomes"),
    [
        (("--task", "T-7"), ["succeeded"]),
        (("--user", "ada", "--project", "p1"), ["succeeded"]),
        (("--user", "eve"), []),
        (("--session", "p1"), ["succeeded"]),
        (("--status", "error"), ["timed_out", "failed"]),
        (("--status", "ok"), ["succeeded"]),
        (("--outcome", "denied", "--since", "1h"), ["denied"]),
        (("--until", "1h"), []),
        (("--tool", "code_run", "--limit", "2"), ["denied", "timed_out"]),
        (("--status", "running"), []),
    ],
)
def test_a_selection_finds_what_it_names(home: Path, words: tuple[str, ...], outcomes: list[str]) -> None:
    assert [row["outcome"] for row in told(home, "evidence", "list", *words)["execs"]] == outcomes


def test_a_page_goes_on_where_the_last_one_ended(home: Path) -> None:
    seen, words = [], ["--limit", "1"]
    while True:
        page = told(home, "evidence", "list", *words)
        seen += [row["outcome"] for row in page["execs"]]
        if page["cursor"] is None:
            break
        words = ["--limit", "1", "--cursor", page["cursor"]]
    assert seen == ["denied", "timed_out", "failed", "succeeded"]


def test_a_home_without_evidence_is_named_and_not_made(elsewhere: Path) -> None:
    done = ringfence(elsewhere, "evidence", "list")
    assert (done.returncode, done.stdout) == (2, "")
    assert "not_found" in done.stderr
    assert "Fix: " in done.stderr
    assert not elsewhere.exists()


def test_a_home_can_be_named_instead_of_the_environments(home: Path, elsewhere: Path) -> None:
    assert len(told(elsewhere, "evidence", "list", "--home", str(home))["execs"]) == 4


@contextmanager
def under_way(home: Path) -> Iterator[subprocess.Popen[bytes]]:
    running = subprocess.Popen(
        [*COMMAND, "run", "-c", "print('here', flush=True)\nimport time; time.sleep(60)"],
        env=surroundings(home),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    try:
        assert running.stdout is not None
        assert running.stdout.readline() == b"here\n"
        yield running
    finally:
        running.kill()
        running.communicate()


@pytest.fixture
def half_done(home: Path) -> Iterator[tuple[Path, subprocess.Popen[bytes]]]:
    with under_way(home) as running:
        yield home, running


def test_what_runs_is_running_until_its_process_dies_and_is_closed_by_the_next(
    half_done: tuple[Path, subprocess.Popen[bytes]],
) -> None:
    home, process = half_done
    (row,) = told(home, "evidence", "list", "--status", "running")["execs"]
    assert row["outcome"] == "running"
    assert "has not ended" in said(home, "evidence", "show", row["exec_id"])
    process.send_signal(signal.SIGKILL)
    process.wait()
    (left,) = told(home, "evidence", "list", "--status", "running")["execs"]
    assert (left["exec_id"], left["outcome"]) == (row["exec_id"], "orphaned (not yet closed)")
    said(home, "run", "-c", "print(1)")
    (closed,) = [each for each in told(home, "evidence", "list")["execs"] if each["exec_id"] == row["exec_id"]]
    assert (closed["outcome"], closed["reason"]) == ("error", "orphaned")
    said(home, "evidence", "verify")


# --- show ---


def test_an_execution_is_shown_with_its_proof(home: Path) -> None:
    row = by_outcome(home, "succeeded")
    for name in (row["exec_id"], row["evidence_id"]):
        text = said(home, "evidence", "show", name)
        assert "user ada" in text
        assert "task T-7" in text
        assert "artifact a.txt: 4 bytes" in text
        assert text.count("proof  verified: under the checkpoint of 2 records") == 2
    answer = told(home, "evidence", "show", row["exec_id"])
    assert [each["record"]["type"] for each in answer["records"]] == ["exec.begin", "exec.end"]
    assert [each["proof"]["verdict"] for each in answer["records"]] == ["verified", "verified"]


def test_the_caller_does_not_see_what_auditors_see(home: Path) -> None:
    answer = told(home, "evidence", "show", by_outcome(home, "succeeded")["exec_id"], "--public")
    assert answer["outcome"] == "succeeded"
    assert not answer.keys() & {"grant_id", "policy_version_hash", "layers", "limits", "documents", "cwd", "records"}


def test_what_is_not_there_is_said_in_one_line(home: Path) -> None:
    done = ringfence(home, "evidence", "show", "ex_nobody")
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert "not_found" in done.stderr


# --- verify, and tampering with the file by hand ---


def test_a_home_is_verified_against_its_own_key_and_says_so(home: Path) -> None:
    answer = told(home, "evidence", "verify")
    assert (answer["verdict"], answer["records"], answer["faults"]) == ("proven", 8, [])
    assert "the key in this home" in answer["against"]
    vkey = said(home, "evidence", "key").strip()
    assert "the key in this home" not in told(home, "evidence", "verify", "--key", vkey)["against"]


def edit(home: Path, *statements: str, **values: Any) -> None:
    with closing(sqlite3.connect(home / "ringfence.db")) as file, file:
        file.execute("PRAGMA ignore_check_constraints=ON")  # who edits a file by hand keeps to no schema
        for statement in statements:
            file.execute(statement, values)


def fault(home: Path, *words: str) -> dict[str, Any]:
    answer = told(home, "evidence", "verify", *words, code=3)
    assert answer["verdict"] == "tampered"
    (log,) = answer["logs"]
    found: dict[str, Any] = log["fault"]
    assert f"TAMPERED: {log['log_id']} {found['kind']}: {found['message']}" in said(
        home, "evidence", "verify", *words, code=3
    )
    return found


def test_one_byte_in_the_file_is_pinpointed_and_still_listed(home: Path) -> None:
    path = home / "ringfence.db"
    content = path.read_bytes()
    assert content.count(b'"outcome":"timed_out"') == 1
    path.write_bytes(content.replace(b'"outcome":"timed_out"', b'"outcome":"timed-out"'))
    found = fault(home)
    assert (found["kind"], found["seq"]) == ("altered", 5)
    done = ringfence(home, "evidence", "list")
    assert done.returncode == 3
    assert [("ALTERED" in line) for line in done.stdout.splitlines()] == [False, True, False, False, False]
    assert "altered" in said(home, "evidence", "show", by_broken(home)["exec_id"], code=3)


def by_broken(home: Path) -> dict[str, Any]:
    answer = told(home, "evidence", "list", code=3)
    (row,) = [row for row in answer["execs"] if row["integrity"] == "altered"]
    found: dict[str, Any] = row
    return found


def test_a_record_rewritten_with_its_hash_is_found_at_the_record(home: Path) -> None:
    with closing(sqlite3.connect(home / "ringfence.db")) as file, file:
        ((body,),) = file.execute("SELECT body FROM journal_record WHERE seq = 3").fetchall()
        forged = body.replace('"exit_code":7', '"exit_code":0')
        assert forged != body
        digest = hashlib.sha256(forged.encode()).digest()
        file.execute("UPDATE journal_record SET body = ?, hash = ? WHERE seq = 3", (forged, digest))
    found = fault(home)
    assert (found["kind"], found["seq"]) == ("altered", 3)


def test_a_removed_record_is_pinpointed(home: Path) -> None:
    edit(home, "DELETE FROM journal_record WHERE seq = 2")
    found = fault(home)
    assert (found["kind"], found["seq"]) == ("removed", 2)


def test_two_records_in_each_others_place_are_pinpointed(home: Path) -> None:
    with closing(sqlite3.connect(home / "ringfence.db")) as file, file:
        rows = dict(file.execute("SELECT seq, body FROM journal_record").fetchall())
        hashes = dict(file.execute("SELECT seq, hash FROM journal_record").fetchall())
        for seq, other in ((2, 4), (4, 2)):
            file.execute(
                "UPDATE journal_record SET hash = ?, body = ? WHERE seq = ?", (hashes[other], rows[other], seq)
            )
    found = fault(home)
    assert (found["kind"], found["seq"]) == ("reordered", 2)


def test_an_inserted_record_is_pinpointed(home: Path) -> None:
    with closing(sqlite3.connect(home / "ringfence.db")) as file, file:
        (body, _), (_, before) = file.execute("SELECT body, hash FROM journal_record WHERE seq IN (2, 3)").fetchall()
        forged = json.loads(body) | {"seq": 4, "prev_hash": before.hex(), "exec_id": "ex_forged"}
        text = json.dumps(forged, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
        file.execute("UPDATE journal_record SET place = place + 1000, seq = seq + 1000 WHERE seq >= 4")
        file.execute("UPDATE journal_record SET place = place - 999, seq = seq - 999 WHERE seq >= 1000")
        file.execute(
            "INSERT INTO journal_record (place, log, seq, time_ms, type, exec_id, hash, body) "
            "SELECT place + 1, log, 4, time_ms, type, 'ex_forged', ?, ? FROM journal_record WHERE seq = 3",
            (hashlib.sha256(text.encode()).digest(), text),
        )
    found = fault(home)
    assert (found["kind"], found["seq"]) == ("inserted", 4)


def test_a_tail_cut_off_is_seen_against_the_checkpoints(home: Path) -> None:
    edit(home, "DELETE FROM journal_record WHERE seq >= 5")
    found = fault(home)
    assert (found["kind"], found["seq"]) == ("truncated", 5)


def test_a_tail_cut_off_with_its_checkpoints_is_seen_against_one_from_outside(home: Path, tmp_path: Path) -> None:
    kept = tmp_path / "checkpoints"
    kept.write_text(said(home, "evidence", "checkpoint"))
    edit(
        home,
        "DELETE FROM journal_record WHERE seq >= 4",
        "DELETE FROM journal_checkpoint WHERE size > 4",
        "DELETE FROM journal_exec WHERE begin_seq >= 4",
    )
    said(home, "evidence", "verify")  # whoever holds the home and its database can cut what nobody else has seen
    found = fault(home, "--checkpoint", str(kept))
    assert (found["kind"], found["seq"]) == ("truncated", 4)


def test_a_forged_checkpoint_is_found(home: Path) -> None:
    edit(home, "UPDATE journal_checkpoint SET note = replace(note, 'time 1', 'time 2') WHERE size = 4")
    assert fault(home)["kind"] == "bad_signature"


def test_a_log_that_is_gone_altogether_is_missing(home: Path, tmp_path: Path) -> None:
    kept = tmp_path / "checkpoints"
    kept.write_text(said(home, "evidence", "checkpoint"))
    edit(home, "DELETE FROM journal_record", "DELETE FROM journal_checkpoint", "DELETE FROM journal_log")
    answer = told(home, "evidence", "verify", "--checkpoint", str(kept), code=3)
    assert len(answer["missing_logs"]) == 1


def test_an_index_that_lies_is_marked_though_its_records_are_whole(home: Path) -> None:
    edit(home, "UPDATE journal_exec SET outcome = 'succeeded' WHERE outcome = 'failed'")
    broken = by_broken(home)
    assert broken["outcome"] == "failed"
    (found,) = told(home, "evidence", "verify", code=3)["faults"]
    assert f"execution {broken['exec_id']} is listed as what record" in found


def test_an_execution_that_was_taken_out_of_every_list_is_named(home: Path) -> None:
    hidden = by_outcome(home, "denied")["exec_id"]
    edit(home, "DELETE FROM journal_exec WHERE outcome = 'denied'")
    assert len(told(home, "evidence", "list")["execs"]) == 3
    (found,) = told(home, "evidence", "verify", code=3)["faults"]
    assert f"execution {hidden} is not listed" in found


def test_an_execution_that_was_invented_is_found(home: Path) -> None:
    edit(
        home,
        "INSERT INTO journal_exec (exec_id, log, begin_seq, end_seq, started_ms, outcome) "
        "VALUES ('ex_invented', 1, 0, 1, 5, 'succeeded')",
    )
    (found,) = told(home, "evidence", "verify", code=3)["faults"]
    assert "1 executions are listed that no record of log 1 ends" in found
    told(home, "evidence", "list", code=3)


@pytest.mark.parametrize(
    "statement",
    [
        "DELETE FROM journal_log",
        "UPDATE journal_record SET hash = 'x'",
        "UPDATE journal_record SET seq = 'x' WHERE seq = 2",
        "UPDATE journal_record SET log = 7",
        "UPDATE journal_record SET body = 7 WHERE seq = 2",
        "UPDATE journal_exec SET log = 7",
        "UPDATE journal_exec SET end_seq = 'x'",
        "UPDATE journal_log SET first_frontier = 'x'",
        "UPDATE journal_checkpoint SET note = 'x'",
    ],
)
def test_whatever_is_written_into_a_table_is_an_answer_and_no_failure_of_ours(home: Path, statement: str) -> None:
    edit(home, statement)
    assert told(home, "evidence", "verify", code=3)["verdict"] == "tampered"
    listing = ringfence(home, "evidence", "list")
    assert listing.returncode in (0, 3), listing.stderr


def test_a_home_that_was_emptied_is_not_proven(home: Path) -> None:
    tables = ("journal_log", "journal_record", "journal_checkpoint", "journal_exec")
    edit(home, *(f"DELETE FROM {table}" for table in tables))
    assert "there are no records" in said(home, "evidence", "verify", code=1)


def test_a_key_of_another_home_proves_nothing(home: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    said(other, "run", "-c", "print(1)")
    vkey = said(other, "evidence", "key").strip()
    assert fault(home, "--key", vkey)["kind"] == "bad_signature"


# --- export, and verifying on another machine ---


@pytest.mark.parametrize("kind", ["bundle", "in-toto", "log"])
def test_an_export_is_verified_elsewhere_with_a_key_or_a_checkpoint_and_not_without(
    kind: str, home: Path, elsewhere: Path, tmp_path: Path
) -> None:
    file, key, kept = tmp_path / "export", tmp_path / "key", tmp_path / "checkpoints"
    said(home, "evidence", "export", "--format", kind, "--output", str(file))
    key.write_text(said(home, "evidence", "key"))
    kept.write_text(said(home, "evidence", "checkpoint"))
    assert file.stat().st_mode & 0o777 == 0o600
    shutil.rmtree(home)
    unproven = told(elsewhere, "evidence", "verify", str(file), code=1)
    assert (unproven["success"], unproven["verdict"]) == (False, "signer unproven")
    assert "signer unproven" in said(elsewhere, "evidence", "verify", str(file), code=1)
    assert told(elsewhere, "evidence", "verify", str(file), "--key", key.read_text().strip())["verdict"] == "proven"
    assert told(elsewhere, "evidence", "verify", str(file), "--key", str(key))["verdict"] == "proven"
    assert told(elsewhere, "evidence", "verify", str(file), "--checkpoint", str(kept))["verdict"] == "proven"
    assert not elsewhere.exists()


@pytest.mark.parametrize("kind", ["bundle", "log"])
def test_an_export_in_which_anything_was_changed_is_found_tampered_with(kind: str, home: Path, tmp_path: Path) -> None:
    file = tmp_path / "export"
    said(home, "evidence", "export", "--format", kind, "--output", str(file))
    key = said(home, "evidence", "key").strip()
    content = file.read_bytes()
    for at in (0, len(content) // 3, len(content) // 2, len(content) - 2):
        file.write_bytes(content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :])
        assert told(None, "evidence", "verify", str(file), "--key", key, code=3)["verdict"] == "tampered", at
    for cut in (content[:-1], content[: len(content) // 2], b"", content + b"\n", content + content):
        file.write_bytes(cut)
        assert told(None, "evidence", "verify", str(file), "--key", key, code=3)["faults"]


def test_a_home_with_two_logs_is_exported_and_verified_whole(
    half_done: tuple[Path, subprocess.Popen[bytes]], tmp_path: Path
) -> None:
    home, _ = half_done
    said(home, "run", "-c", "print(2)")  # beside the one that runs, and so in a log of its own
    file = tmp_path / "logs"
    said(home, "evidence", "export", "--format", "log", "--output", str(file))
    key = said(home, "evidence", "key").strip()
    answer = told(None, "evidence", "verify", str(file), "--key", key)
    assert [log["records"] for log in answer["logs"]] == [9, 2]
    kept = tmp_path / "checkpoints"
    kept.write_text(said(home, "evidence", "checkpoint"))
    first = file.read_bytes().partition(b'"type":"ringfence.end"}\n')
    file.write_bytes(first[0] + first[1])
    lacking = told(None, "evidence", "verify", str(file), "--key", key, "--checkpoint", str(kept), code=3)
    assert len(lacking["missing_logs"]) == 1


@pytest.mark.parametrize(
    "words", [["export", "--format", "bundle"], ["list"], ["report"], ["export", "--format", "log"]]
)
def test_a_copy_without_its_key_is_given_no_other_one(home: Path, tmp_path: Path, words: list[str]) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(home, copy)
    shutil.rmtree(copy / "evidence")
    done = ringfence(copy, "evidence", *words)
    assert not (copy / "evidence" / "signer.key").exists()
    if words[-1] == "bundle":
        assert done.returncode == 7
        assert "no_signing_key" in done.stderr
    else:
        assert done.returncode == 0, done.stderr


def test_a_bundle_holds_what_was_selected_and_nothing_else(home: Path, tmp_path: Path) -> None:
    import base64

    file = tmp_path / "T-7.bundle"
    said(home, "evidence", "export", "--format", "bundle", "--task", "T-7", "--output", str(file))
    payload = base64.b64decode(json.loads(file.read_bytes())["payload"])
    assert b'"T-7"' in payload
    assert b'"T-8"' not in payload
    assert b"6 * 7" not in payload


def test_what_was_tampered_with_is_not_passed_on_and_leaves_no_file(home: Path, tmp_path: Path) -> None:
    edit(home, "UPDATE journal_record SET body = replace(body, 'timed_out', 'timed-out') WHERE seq = 5")
    for kind in ("bundle", "audit-json", "cloudevents", "ocsf", "otlp"):
        done = ringfence(home, "evidence", "export", "--format", kind, "--output", str(tmp_path / "file"))
        assert done.returncode != 0, kind
        assert done.stderr.count("\n") == 1
        assert [path.name for path in tmp_path.iterdir()] == ["home"]


# --- 001's audit lines (S1-101 to S1-120) ---


def audit_lines(home: Path) -> list[dict[str, Any]]:
    output = said(home, "evidence", "export", "--format", "audit-json")
    return [json.loads(line) for line in output.splitlines()]


def test_every_execution_is_one_audit_line_with_every_field(home: Path) -> None:
    lines = audit_lines(home)
    assert [list(line) for line in lines] == [AUDIT_FIELDS] * 4
    assert [line["result"] for line in lines] == ["denied", "timeout", "error", "success"]
    assert [line["error"] for line in lines] == ["POLICY.DENY_TOOL", "LLM.TIMEOUT", "TOOL.EXECUTION_FAILED", None]


def test_the_audit_line_of_a_run_says_what_the_result_said(tmp_path: Path) -> None:
    home = tmp_path / "home"
    program = (
        "import time; kept = bytearray(128 << 20)\nfor at in range(0, len(kept), 4096): kept[at] = 1\n"
        "until = time.process_time() + 0.5\nwhile time.process_time() < until: pass\n"
        "open('/workspace/work/made.txt', 'w').write('x')\nraise SystemExit(7)"
    )
    answer = told(home, "run", "-c", program, "--project", "p9", code=1)
    (line,) = audit_lines(home)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", line["timestamp"])
    assert line["event_type"] == "sandbox_execution"
    assert line["session_id"] == "p9"
    assert (line["agent_id"], line["org_id"]) == ("local", "local")
    assert line["sandbox_id"] == answer["sandbox_id"]
    assert (line["tool"], line["language"]) == ("code_run", "python")
    assert line["code_hash"] == f"sha256:{hashlib.sha256(program.encode()).hexdigest()}"
    assert abs(line["execution_time_ms"] - answer["elapsed_ms"]) <= max(1, answer["elapsed_ms"] / 10)
    assert line["exit_code"] == 7
    assert 128 <= line["memory_used_mb"] < 256
    assert 450 <= line["cpu_time_ms"] < 5000
    assert (line["network_bytes_sent"], line["network_bytes_recv"]) == (0, 0)
    assert line["files_written"] == ["/workspace/work/made.txt"]
    assert isinstance(line["files_read"], list)
    assert (line["result"], line["error"]) == ("error", "TOOL.EXECUTION_FAILED")


def test_a_shell_command_has_no_language_in_its_audit_line(tmp_path: Path) -> None:
    said(tmp_path, "shell", "--", "true")
    (line,) = audit_lines(tmp_path)
    assert line["language"] is None


@pytest.mark.parametrize(("kind", "count"), [("cloudevents", 8), ("ocsf", 8), ("otlp", 1)])
def test_the_other_forms_are_json_lines_of_all_there_is(kind: str, count: int, home: Path) -> None:
    lines = said(home, "evidence", "export", "--format", kind).splitlines()
    assert len([json.loads(line) for line in lines]) == count
    assert (kind != "otlp") is any("policy.loaded" in line for line in lines)


@pytest.mark.parametrize(("kind", "count"), [("cloudevents", 2), ("ocsf", 2), ("otlp", 1), ("audit-json", 1)])
def test_a_selection_is_exported_without_the_rest(kind: str, count: int, home: Path) -> None:
    lines = said(home, "evidence", "export", "--format", kind, "--task", "T-8").splitlines()
    assert len([json.loads(line) for line in lines]) == count


# --- replay ---


def test_decisions_are_made_again_and_come_out_the_same(home: Path) -> None:
    answer = told(home, "evidence", "replay", "--since", "1d")
    assert (answer["same"], answer["differs"], answer["cannot_tell"]) == (4, 0, 0)


def test_another_policy_says_which_past_calls_it_would_deny(home: Path, tmp_path: Path) -> None:
    policy = tmp_path / "candidate.yaml"
    policy.write_text(BASH_ONLY)
    answer = told(home, "evidence", "replay", "--since", "1d", "--policy", str(policy), code=1)
    assert (answer["same"], answer["differs"]) == (1, 3)
    text = said(home, "policy", "replay", "--policy", str(policy), code=1)
    assert "3 past calls of code_run would now be denied by manifest" in text
    assert told(home, "policy", "replay", "--policy", str(policy), code=1)["differs"] == 3


@pytest.mark.parametrize("level", ["simulate", "reexecute"])
def test_without_contents_nothing_is_made_up(level: str, home: Path) -> None:
    name = by_outcome(home, "failed")["exec_id"]
    done = ringfence(home, "evidence", "replay", name, "--level", level)
    assert done.returncode == 7
    assert "was not kept" in done.stdout
    assert len(told(home, "evidence", "list")["execs"]) == 4  # and nothing ran


@pytest.fixture
def keeping(tmp_path: Path) -> Path:
    """Return a home in which contents are kept."""
    said(tmp_path, "evidence", "content", "on")
    return tmp_path


def test_a_kept_program_is_told_and_run_again_and_compared_by_digests(keeping: Path) -> None:
    data = keeping / "data.csv"
    data.write_text("a,b")
    program = "import os, sys; print(sys.argv[1:], os.environ['A'], open('/workspace/inputs/data.csv').read())"
    said(keeping, "run", "-c", program, "--env", "A=secret", "--input", str(data), "--", "one", "two")
    for level in ("simulate", "reexecute"):
        answer = told(keeping, "evidence", "replay", "--status", "ok", "--level", level)
        assert (answer["same"], answer["differs"], answer["cannot_tell"]) == (1, 0, 0), level
    again, first = told(keeping, "evidence", "list")["execs"]  # running again leaves evidence of its own
    record = told(keeping, "evidence", "show", again["exec_id"])["records"][0]["record"]
    assert record["request_id"] == f"replay of {first['exec_id']}"


def test_a_program_that_comes_out_otherwise_says_in_what(keeping: Path) -> None:
    said(keeping, "run", "-c", "import os; print(os.urandom(8).hex())")
    name = by_outcome(keeping, "succeeded")["exec_id"]
    assert "came out the same" in said(keeping, "evidence", "replay", name, "--level", "simulate")
    assert "stdout: then 17 bytes" in said(keeping, "evidence", "replay", name, "--level", "reexecute", code=1)


def test_a_program_is_run_again_in_the_directory_it_ran_in(keeping: Path) -> None:
    program = (
        "import ringfence; print(ringfence.run('import os; print(os.getcwd())', cwd='/workspace/artifacts').stdout)"
    )
    subprocess.run([sys.executable, "-c", program], env=surroundings(keeping), check=True, timeout=PATIENCE_SECONDS)
    assert told(keeping, "evidence", "replay", "--status", "ok", "--level", "reexecute")["same"] == 1


def test_a_program_that_could_reach_others_is_not_run_again_without_them_and_not_with_them(keeping: Path) -> None:
    policy = keeping / "net.yaml"
    policy.write_text(
        "policies:\n  tools:\n    code_run:\n      net_mode: allowlist\n      allowed_domains: [a.test]\n"
    )
    said(keeping, "run", "-c", "import os; print(os.environ)", "--allow-domain", "a.test", "--policy", str(policy))
    answer = said(keeping, "evidence", "replay", "--status", "ok", "--level", "reexecute", code=7)
    assert "cannot tell: what could reach others is not run again" in answer
    assert len(told(keeping, "evidence", "list")["execs"]) == 1


def test_contents_are_forgotten_for_good_and_the_evidence_still_verifies(keeping: Path) -> None:
    said(keeping, "run", "-c", "print(1)")
    assert "--yes" in ringfence(keeping, "evidence", "content", "forget").stderr
    assert told(keeping, "evidence", "content", "forget", "--yes")["gone"] >= 2
    name = by_outcome(keeping, "succeeded")["exec_id"]
    assert "was not kept" in said(keeping, "evidence", "replay", name, "--level", "simulate", code=7)
    said(keeping, "evidence", "verify")
    said(keeping, "evidence", "content", "off")
    assert told(keeping, "evidence", "content", "status")["kept"] is False


def test_held_contents_outlive_the_others(keeping: Path) -> None:
    said(keeping, "run", "-c", "print(1)", "--correlate", "task=held")
    said(keeping, "run", "-c", "print(2)", "--correlate", "task=other")
    said(keeping, "evidence", "hold", "add", "task_id=held")
    said(keeping, "evidence", "prune", "--older-than", "0s", "--content", "--yes")
    told(keeping, "evidence", "replay", "--task", "held", "--level", "simulate")
    told(keeping, "evidence", "replay", "--task", "other", "--level", "simulate", code=7)


# --- what is handed out, and growing old ---


def test_the_policy_of_a_decision_is_printed_exactly(home: Path) -> None:
    denied = told(home, "evidence", "show", by_outcome(home, "denied")["exec_id"])["records"][0]["record"]
    assert said(home, "policy", "show", "--hash", denied["policy_version_hash"]) == BASH_ONLY
    assert said(home, "evidence", "document", denied["policy_version_hash"].removeprefix("sha256:")) == BASH_ONLY
    assert "not_found" in ringfence(home, "evidence", "document", "0" * 64).stderr


def test_a_document_that_was_swapped_is_not_given_out(home: Path) -> None:
    denied = told(home, "evidence", "show", by_outcome(home, "denied")["exec_id"])["records"][0]["record"]
    edit(home, "UPDATE journal_document SET body = body || ' ' WHERE digest = :it", it=denied["policy_version_hash"])
    done = ringfence(home, "policy", "show", "--hash", denied["policy_version_hash"])
    assert (done.returncode, done.stdout) == (7, "")


def test_the_report_counts_what_ran(home: Path) -> None:
    page = told(home, "evidence", "report", "--since", "1h")
    assert (page["calls"], page["denied"], page["orphaned"]) == (4, 1, 0)
    assert "4 calls, 1 of them refused" in said(home, "evidence", "report")


def test_rules_that_no_call_needed_are_named(home: Path, tmp_path: Path) -> None:
    policy = tmp_path / "policy.yaml"
    policy.write_text(BASH_ONLY)
    text = said(home, "evidence", "report", "--unused-rules", "--policy", str(policy))
    assert "unused_entry" in text
    answer = told(home, "evidence", "report", "--unused-rules", "--policy", str(policy))
    assert answer["decisions"] == 4


def test_pruned_evidence_still_verifies_and_what_is_held_stays(home: Path) -> None:
    hold = told(home, "evidence", "hold", "add", "task_id=T-7", "--reason", "case 9")["hold_id"]
    assert "task_id=T-7  case 9" in said(home, "evidence", "hold", "list")
    asked = ringfence(home, "evidence", "prune", "--older-than", "0s")
    assert (asked.returncode, asked.stdout) == (2, "")
    assert "--yes" in asked.stderr
    gone = told(home, "evidence", "prune", "--older-than", "0s", "--yes")["gone"]
    assert gone["texts"] >= 5
    rows = {row.get("task_id"): row["integrity"] for row in told(home, "evidence", "list")["execs"]}
    assert rows["T-7"] == "intact"
    assert {integrity for task, integrity in rows.items() if task != "T-7"} == {"pruned"}
    assert told(home, "evidence", "verify")["logs"][0]["pruned"] >= 5
    said(home, "evidence", "hold", "release", hold)
    assert told(home, "evidence", "prune", "--older-than", "0s", "--rows", "--yes")["gone"]["rows"] >= 7
    answer = told(home, "evidence", "verify")
    assert answer["verdict"] == "proven"
    assert answer["logs"][0]["first_seq"] >= 7
    assert told(home, "evidence", "list")["execs"] == []


KILLED_AFTER_RUNS = """
import asyncio, os, signal, sys
from ringfence import Correlation, SandboxManager
async def main():
    async with SandboxManager(correlation=Correlation(user_id=sys.argv[1])) as manager:
        for _ in range(8):
            await manager.execute_code("python", "print(1)")
        print("ready", flush=True)
        sys.stdin.readline()
        await manager.execute_code("python", "print(1)")
        os.kill(os.getpid(), signal.SIGKILL)
asyncio.run(main())
"""


@pytest.fixture
def killed(tmp_path: Path) -> Path:
    """A home with the logs of two processes that were killed after their runs, with all of them noted."""
    command = [sys.executable, "-c", KILLED_AFTER_RUNS, "ada-in-person"]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    running = [subprocess.Popen(command, env=surroundings(tmp_path), **pipes) for _ in range(2)]
    for process in running:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in running:
        process.communicate("\n", timeout=PATIENCE_SECONDS)
        assert process.returncode == -signal.SIGKILL
    return tmp_path


def test_what_killed_processes_wrote_is_signed_by_the_next_one(killed: Path) -> None:
    said(killed, "run", "-c", "print(1)")
    answer = told(killed, "evidence", "verify")
    assert answer["verdict"] == "proven"
    assert len(answer["logs"]) == 2


def test_what_was_pruned_is_gone_from_the_notes_of_killed_processes_too(killed: Path) -> None:
    assert any(b"ada-in-person" in path.read_bytes() for path in killed.glob("ringfence.db.begun-*"))
    said(killed, "evidence", "prune", "--older-than", "0s", "--yes")
    assert [path.name for path in killed.glob("ringfence.db.begun-*")] == []
    assert told(killed, "evidence", "verify")["verdict"] == "proven"
    assert {row["integrity"] for row in told(killed, "evidence", "list")["execs"]} == {"pruned"}


def test_an_end_that_a_clock_made_older_than_its_beginning_and_that_was_pruned_is_not_called_open(
    tmp_path: Path,
) -> None:
    program = """
import asyncio, time
from ringfence import SandboxManager
now, back = time.time_ns, [0]
time.time_ns = lambda: now() - back[0]
async def main():
    async with SandboxManager() as manager:
        run = asyncio.create_task(manager.execute_code("python", "import time; time.sleep(0.3)"))
        await asyncio.sleep(0.15)
        back[0] = 10**9 * 86400 * 365 * 80
        await run
        await manager.execute_code("python", "print(1)")
asyncio.run(main())
"""
    subprocess.run([sys.executable, "-c", program], env=surroundings(tmp_path), check=True, timeout=PATIENCE_SECONDS)
    for row in told(tmp_path, "evidence", "list")["execs"]:
        assert re.fullmatch("ex_[0-9a-f]{32}", row["exec_id"])  # also before 1970
    said(tmp_path, "evidence", "prune", "--older-than", "1d", "--yes")
    answer = said(tmp_path, "evidence", "verify")
    assert "1 whose end is only a hash" in answer
    assert "still open" not in answer


def test_what_was_pruned_held_and_released_is_evidence_itself(home: Path, tmp_path: Path) -> None:
    hold = told(home, "evidence", "hold", "add", "task_id=T-7")["hold_id"]
    said(home, "evidence", "hold", "release", hold)
    said(home, "evidence", "prune", "--older-than", "90d", "--yes")
    file = tmp_path / "log"
    said(home, "evidence", "export", "--format", "log", "--output", str(file))
    kinds = [json.loads(line)["type"] for line in file.read_text().splitlines()]
    assert [kind for kind in kinds if kind.startswith("admin.")] == [
        "admin.held",
        "admin.released",
        "admin.pruned",
        "admin.pruned",
    ]


def test_what_was_pruned_is_explained_though_the_record_of_it_was_pruned_too(home: Path, tmp_path: Path) -> None:
    for options in ((), ("--rows",), (), ("--rows",)):
        said(home, "run", "-c", "print(1)")
        said(home, "evidence", "prune", "--older-than", "0s", "--yes", *options)
        assert told(home, "evidence", "verify")["verdict"] == "proven"
    said(home, "run", "-c", "print(1)")
    edit(home, "UPDATE journal_record SET body = NULL WHERE place = (SELECT max(place) FROM journal_record)")
    done = ringfence(home, "evidence", "verify")
    assert done.returncode == 3
    assert "nobody wrote down that it was taken away" in done.stdout + done.stderr


@pytest.mark.parametrize("options", [(), ("--rows",)])
def test_evidence_that_was_tampered_with_is_not_pruned_until_nobody_can_tell(
    home: Path, options: tuple[str, ...]
) -> None:
    edit(home, "UPDATE journal_record SET body = NULL WHERE seq = 3")
    done = ringfence(home, "evidence", "prune", "--older-than", "0s", "--yes", *options)
    assert (done.returncode, done.stdout) == (7, "")
    assert "not whole" in done.stderr
    assert ringfence(home, "evidence", "verify").returncode == 3


def test_metrics_are_what_the_evidence_amounts_to_and_are_counted_on(home: Path) -> None:
    first = said(home, "metrics")
    assert re.search(r'sandbox_executions_total\{[^}]*status="ok"[^}]*\} 1\n', first)
    assert re.search(r"sandbox_policy_violations_total\{[^}]*\} 1\n", first)
    assert said(home, "metrics") == first
    said(home, "run", "-c", "print(1)")
    again = said(home, "metrics", "--no-aliases")
    assert re.search(r'sandbox_executions_total\{[^}]*status="ok"[^}]*\} 2\n', again)
    assert "sandbox_exec_total" in first
    assert "sandbox_exec_total" not in again


def test_a_spoilt_cache_of_the_metrics_is_counted_anew(home: Path) -> None:
    first = said(home, "metrics")
    (home / "evidence" / "metrics.json").write_text("{")
    assert said(home, "metrics") == first


# --- on a server ---


@pytest.mark.needs("postgres")
def test_evidence_on_a_server_is_used_the_same(tmp_path: Path, postgres: PostgresServer) -> None:
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    (home / SERVER).write_text(postgres.new_database())
    said(home, "run", "-c", "print(1)", "--correlate", "task=T-7")
    with under_way(home) as process:
        (row,) = told(home, "evidence", "list", "--status", "running")["execs"]
        assert row["outcome"] == "running"
        process.send_signal(signal.SIGKILL)
        process.wait()
    (left,) = told(home, "evidence", "list", "--status", "running")["execs"]
    assert left["outcome"] == "orphaned (not yet closed)"
    said(home, "run", "-c", "print(2)")
    assert [each["outcome"] for each in told(home, "evidence", "list")["execs"]] == ["succeeded", "error", "succeeded"]
    assert "verified" in said(home, "evidence", "show", by_task(home, "T-7")["exec_id"])
    assert told(home, "evidence", "verify")["records"] == 6
    for kind in ("bundle", "log"):
        file = tmp_path / kind
        said(home, "evidence", "export", "--format", kind, "--output", str(file))
        told(None, "evidence", "verify", str(file), "--key", said(home, "evidence", "key").strip())
    assert told(home, "evidence", "replay", "--since", "1h")["same"] == 3
    assert "sandbox_executions_total" in said(home, "metrics")
    said(home, "evidence", "hold", "add", "task_id=T-7")
    assert told(home, "evidence", "prune", "--older-than", "0s", "--yes")["gone"]["texts"] >= 4
    assert by_task(home, "T-7")["integrity"] == "intact"
    assert told(home, "evidence", "verify")["verdict"] == "proven"
    assert not (home / "ringfence.db").exists()


@pytest.mark.needs("postgres")
def test_homes_that_share_a_server_prune_it_with_each_others_keys(tmp_path: Path, postgres: PostgresServer) -> None:
    address = postgres.new_database()
    homes = [tmp_path / "one", tmp_path / "other"]
    for home in homes:
        home.mkdir(mode=0o700)
        (home / SERVER).write_text(address)
        said(home, "run", "-c", "print(1)")
    one, other = (said(home, "evidence", "key").strip() for home in homes)
    prune = ("evidence", "prune", "--older-than", "0s", "--yes")
    refused = ringfence(homes[1], *prune)
    assert (refused.returncode, refused.stdout) == (7, "")
    assert "--key" in refused.stderr
    assert told(homes[1], *prune, "--key", one)["gone"]["texts"] >= 4
    assert told(homes[0], "evidence", "verify", "--key", one, "--key", other)["verdict"] == "proven"


def by_task(home: Path, task: str) -> dict[str, Any]:
    (row,) = told(home, "evidence", "list", "--task", task)["execs"]
    found: dict[str, Any] = row
    return found


# --- usage ---


def test_what_a_caller_named_itself_cannot_drive_the_auditors_terminal(tmp_path: Path) -> None:
    said(tmp_path, "run", "-c", "import os; os.mkdir('/workspace/work/\\x1b[2J')", "--project", "p", code=0)
    said(tmp_path, "run", "-c", "open('/workspace/artifacts/\\x1b]0;x', 'w')", code=0)
    for row in told(tmp_path, "evidence", "list")["execs"]:
        assert "\x1b" not in said(tmp_path, "evidence", "show", row["exec_id"])


def test_the_manual_names_every_action() -> None:
    manual = said(None, "evidence", "--help")
    for action in ("list", "show", "verify", "export", "replay", "report", "prune", "hold", "key", "checkpoint"):
        assert f"evidence {action}" in manual
    assert "3 tampered with" in manual


def test_the_files_of_runs_grow_old_unless_a_hold_is_on_them(tmp_path: Path) -> None:
    home = tmp_path / "home"
    said(home, "run", "--project", "p1", "-c", "print(1)")
    said(home, "run", "--project", "p2", "-c", "print(2)")
    said(home, "evidence", "hold", "add", "session_id=p1", "--reason", "a letter came")
    answer = told(home, "evidence", "prune", "--older-than", "0s", "--files", "--yes")
    assert answer["gone"] == {"files": 1}
    left = {path.parent.parent.name for path in (home / "workspace/projects").glob("*/artifacts/ex_*")}
    assert left == {"p1"}
    assert told(home, "evidence", "verify")["verdict"] == "proven"
