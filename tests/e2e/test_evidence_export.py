"""Evidence that is taken elsewhere: exports that another machine verifies, and lines that other programs read."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from tests.command_line import ringfence, said, told
from tests.e2e.evidence_homes import edit
from tests.e2e.evidence_homes import elsewhere as elsewhere
from tests.e2e.evidence_homes import half_done as half_done
from tests.e2e.evidence_homes import home as home
from tests.e2e.evidence_homes import lived_in as lived_in

pytestmark = pytest.mark.needs("native")
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
