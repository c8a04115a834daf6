"""What `ringfence evidence verify` says of a file in which somebody wrote, removed or invented something by hand."""

from __future__ import annotations

import hashlib
import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from tests.command_line import ringfence, said, told
from tests.e2e.evidence_homes import by_outcome, edit
from tests.e2e.evidence_homes import home as home
from tests.e2e.evidence_homes import lived_in as lived_in

pytestmark = pytest.mark.needs("native")


def test_a_home_is_verified_against_its_own_key_and_says_so(home: Path) -> None:
    answer = told(home, "evidence", "verify")
    assert (answer["verdict"], answer["records"], answer["faults"]) == ("proven", 8, [])
    assert "the key in this home" in answer["against"]
    vkey = said(home, "evidence", "key").strip()
    assert "the key in this home" not in told(home, "evidence", "verify", "--key", vkey)["against"]


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
