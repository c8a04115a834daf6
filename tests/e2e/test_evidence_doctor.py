"""The doctor says whether evidence is kept and written, and leaves all of it as it was (S1-144, S1-149, S1-150)."""

from __future__ import annotations

import hashlib
import subprocess
from pathlib import Path

import pytest
from tests.command_line import COMMAND, ringfence, said, surroundings, told

pytestmark = pytest.mark.needs("native")

KEPT, WRITTEN, ALERT = "S1-144", "S1-149", "S1-150"


def checks(home: Path, *, code: int = 0, **more: str) -> dict[str, dict[str, str]]:
    answer = told(home, "doctor", code=code, **more)
    return {check["id"]: check for check in answer["checks"]}


def contents(home: Path) -> dict[str, str]:
    """Return every file of a home but SQLite's index of who reads, which is no content and differs while it is read."""
    files = [path for path in home.rglob("*") if path.is_file() and not path.name.endswith("-shm")]
    return {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def test_before_the_first_run_the_audit_log_is_on_and_the_doctor_makes_none(tmp_path: Path) -> None:
    home = tmp_path / "home"
    found = checks(home)
    assert found[KEPT]["status"] == "ok"
    assert (found[WRITTEN]["status"], found[WRITTEN]["found"]) == ("unknown", "nothing was written yet")
    assert not home.exists()


def test_after_a_run_the_doctor_says_how_far_the_log_has_come_and_changes_nothing(tmp_path: Path) -> None:
    said(tmp_path, "run", "-c", "print(1)")
    before = contents(tmp_path)
    found = checks(tmp_path)
    assert (found[KEPT]["status"], found[WRITTEN]["status"]) == ("ok", "ok")
    assert found[KEPT]["found"].startswith("on: 2 records in ")
    assert " 0 unsigned, 0 not sent, head " in found[WRITTEN]["found"]
    assert contents(tmp_path) == before


def test_a_run_that_was_left_open_is_told_until_the_next_one_closes_it(tmp_path: Path) -> None:
    waiting = "print('here', flush=True)\nimport time; time.sleep(60)"
    running = subprocess.Popen([*COMMAND, "run", "-c", waiting], env=surroundings(tmp_path), stdout=subprocess.PIPE)
    try:
        assert running.stdout is not None
        assert running.stdout.readline() == b"here\n"
        alive = checks(tmp_path)[WRITTEN]
        assert alive["status"] == "ok", alive
    finally:
        running.kill()
        running.communicate()
    before = contents(tmp_path)
    left = checks(tmp_path)[WRITTEN]
    assert left["status"] == "warn"
    assert left["found"].startswith("1 runs were left open by a process that is gone")
    assert contents(tmp_path) == before
    assert left["fix"] is not None
    said(tmp_path, *left["fix"].split()[1:])
    assert checks(tmp_path)[WRITTEN]["status"] == "ok"


def test_where_evidence_cannot_be_written_the_doctor_says_what_the_run_says(tmp_path: Path) -> None:
    (tmp_path / "ringfence.db").write_bytes(b"this is no database" * 100)
    assert ringfence(tmp_path, "run", "-c", "print(1)").returncode == 7
    found = checks(tmp_path, code=7)[KEPT]
    assert found["status"] == "fail"
    assert "not a database" in found["found"]
    assert "nothing runs here until it can be recorded" in said(tmp_path, "doctor", code=7)


def test_a_key_that_others_could_read_is_told_because_nothing_is_signed_with_it(tmp_path: Path) -> None:
    said(tmp_path, "run", "-c", "print(1)")
    key = tmp_path / "evidence" / "signer.key"
    key.chmod(0o644)
    found = checks(tmp_path)[KEPT]
    assert (found["status"], found["fix"]) == ("warn", f"chmod 600 {key}")


def test_a_database_of_a_newer_release_is_told_and_left_alone(tmp_path: Path) -> None:
    import sqlite3

    said(tmp_path, "run", "-c", "print(1)")
    connection = sqlite3.connect(tmp_path / "ringfence.db")
    connection.execute("UPDATE schema_version SET version = 999")
    connection.commit()
    connection.close()
    found = checks(tmp_path, code=7)[KEPT]
    assert (found["status"], found["fix"]) == ("fail", "use the newer release, or another home")


def test_what_those_who_watch_were_not_sent_yet_is_counted(tmp_path: Path) -> None:
    said(tmp_path, "run", "-c", "print(1)")
    (tmp_path / "config.toml").write_text(f'[observe]\nsinks = [{{kind = "file", path = "{tmp_path}/told.jsonl"}}]\n')
    found = checks(tmp_path)[WRITTEN]
    assert (found["status"], " 2 not sent," in found["found"]) == ("warn", True)
    said(tmp_path, "run", "-c", "print(1)")
    assert " 0 not sent," in checks(tmp_path)[WRITTEN]["found"]


def test_the_doctor_names_who_is_told_of_violations_without_the_secret_in_its_address(tmp_path: Path) -> None:
    assert checks(tmp_path)[ALERT]["status"] == "unknown"
    found = checks(tmp_path, RINGFENCE_WEBHOOK="https://hooks.example.com/T-secret")[ALERT]
    assert found["status"] == "ok"
    assert "hooks.example.com" in found["found"]
    assert "T-secret" not in found["found"]
