"""`ringfence evidence` as operators read it: what ran, what is shown of it to whom, and what it amounts to."""

from __future__ import annotations

import re
import signal
import subprocess
from pathlib import Path

import pytest
from tests.command_line import ringfence, said, told
from tests.e2e.evidence_homes import BASH_ONLY, by_outcome, edit
from tests.e2e.evidence_homes import elsewhere as elsewhere
from tests.e2e.evidence_homes import half_done as half_done
from tests.e2e.evidence_homes import home as home
from tests.e2e.evidence_homes import lived_in as lived_in

pytestmark = pytest.mark.needs("native")

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


# --- what is handed out ---


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
