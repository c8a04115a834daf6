"""Attacks on the evidence itself, by whoever holds the disk that it lies on: what is recovered, and what is found."""

from __future__ import annotations

import asyncio
import json
import shutil
import sqlite3
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from tests.security.attacked_journal import begun, journal_in, one_run
from tests.security.attacked_journal import no_patience as no_patience

from ringfence.crypto import ed25519
from ringfence.database.sqlite import SqliteDatabase
from ringfence.errors import Unavailable
from ringfence.evidence.sealing import Head
from ringfence.evidence.verify import Trust
from ringfence.journal.reader import Verified, reading
from ringfence.journal.signer import key_in_home

pytestmark = [pytest.mark.guarantee(18), pytest.mark.guarantee(19)]


@pytest.fixture(scope="module")
def left_by_a_dead_process(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a home with runs, two checkpoints, and a run that a dead process never ended: records 0 to 12."""
    home = tmp_path_factory.mktemp("left")
    journal = journal_in(home)

    async def write() -> None:
        for number in range(6):
            await one_run(journal)
            if number == 3:
                journal.checkpoint()
        await journal.begin(begun(exec_id="ex-open"))
        journal.checkpoint()

    asyncio.run(write())
    journal._database.close()  # and is not released, as after a kill
    tampered_with(home, "UPDATE journal_log SET boot_id = 'another'")
    return home


def copied(home: Path, to: Path) -> Path:
    return Path(shutil.copytree(home, to / "home"))


def tampered_with(home: Path, statement: str, *values: object) -> None:
    """Change the database as somebody who holds the disk does."""
    connection = sqlite3.connect(home / "ringfence.db")
    connection.execute(statement, values)
    connection.commit()
    connection.close()


def found_in(home: Path) -> Verified:
    key = key_in_home(home)
    assert key is not None
    database = SqliteDatabase.in_home(home)
    try:
        with reading(database) as reader:
            return reader.verify(Trust(ed25519.verify, keys=(key,)))
    finally:
        database.close()


def run_once(home: Path) -> None:
    """Write a run as the next process would, and leave properly."""
    journal = journal_in(home)
    try:
        asyncio.run(one_run(journal))
    finally:
        journal.close()


NOT_WHAT_A_COLUMN_HOLDS = (
    "UPDATE journal_record SET body = X'ff00' WHERE seq = 3",
    "UPDATE journal_record SET body = CAST(X'ff41' AS TEXT) WHERE seq = 3",
    "UPDATE journal_record SET body = 7 WHERE seq = 3",
    "UPDATE journal_record SET hash = 'text' WHERE seq = 3",
    "UPDATE journal_record SET hash = -1 WHERE seq = 3",
    "UPDATE journal_record SET hash = 99999999999 WHERE seq = 3",
    "UPDATE journal_log SET first_frontier = 'garbage'",
    "UPDATE journal_log SET first_frontier = X'00'",
    "UPDATE journal_log SET first_prev = 'text'",
    "UPDATE journal_log SET first_prev = 99999999999",
    "UPDATE journal_log SET first_seq = 'abc'",
    "UPDATE journal_checkpoint SET note = X'ff'",
    "UPDATE journal_checkpoint SET note = CAST(X'ff41' AS TEXT)",
    "UPDATE journal_log SET number = 1000000000000",
    "UPDATE journal_log SET number = 3000000",
    "UPDATE journal_log SET number = -1",
    "DELETE FROM journal_log",
)


@pytest.mark.parametrize("statement", NOT_WHAT_A_COLUMN_HOLDS)
def test_verifying_a_damaged_database_says_what_is_wrong_and_never_breaks_down(
    tmp_path: Path, left_by_a_dead_process: Path, statement: str
) -> None:
    home = copied(left_by_a_dead_process, tmp_path)
    tampered_with(home, statement)
    found = found_in(home)
    assert not found.is_whole
    assert not found.is_proven


def test_records_whose_log_was_taken_out_of_the_list_are_missed_though_another_log_is_whole(
    tmp_path: Path, left_by_a_dead_process: Path
) -> None:
    home = copied(left_by_a_dead_process, tmp_path)
    tampered_with(home, "UPDATE journal_log SET number = 0")
    run_once(home)
    assert not found_in(home).is_whole


def test_of_a_journal_that_is_gone_nothing_is_proven(tmp_path: Path, left_by_a_dead_process: Path) -> None:
    home = copied(left_by_a_dead_process, tmp_path)
    for table in ("journal_log", "journal_record", "journal_checkpoint"):
        tampered_with(home, f"DELETE FROM {table}")
    assert not found_in(home).is_proven


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE journal_record SET body = '{' WHERE seq = 12",
        "UPDATE journal_record SET body = X'ff00' WHERE seq = 12",
        """UPDATE journal_record SET body = '{"a":1}' WHERE seq = 12""",
        """UPDATE journal_record SET body = '{"exec_id":"x","time_ms":"a"}' WHERE seq = 12""",
        "UPDATE journal_open SET seq = 0",
        "UPDATE journal_open SET seq = 11",
        "INSERT INTO journal_open SELECT exec_id, log, begin_seq FROM journal_exec LIMIT 1",
        "INSERT INTO journal_open VALUES ('ex-fake', 1, 5)",
    ],
)
def test_what_somebody_did_to_an_open_run_stops_no_other(
    tmp_path: Path, left_by_a_dead_process: Path, statement: str
) -> None:
    home = copied(left_by_a_dead_process, tmp_path)
    tampered_with(home, statement)
    run_once(home)


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE journal_checkpoint SET frontier = 'garbage'",
        "UPDATE journal_open SET seq = 'abc'",
        "UPDATE journal_log SET number = 1000000000000",
        "UPDATE schema_version SET version = 'abc'",
    ],
)
def test_a_log_that_nobody_can_go_on_with_is_a_refusal_in_our_words(
    tmp_path: Path, left_by_a_dead_process: Path, statement: str
) -> None:
    home = copied(left_by_a_dead_process, tmp_path)
    tampered_with(home, statement)
    with pytest.raises(Unavailable) as refused:
        run_once(home)
    assert refused.value.reason == "damaged"


@pytest.mark.parametrize(
    "statement",
    [
        "DELETE FROM journal_exec WHERE end_seq = 3",
        "UPDATE journal_exec SET outcome = 'failed' WHERE end_seq = 3",
        "UPDATE journal_exec SET tool_name = 'other' WHERE end_seq = 3",
        "UPDATE journal_exec SET tenant = NULL WHERE end_seq = 3",
        "UPDATE journal_exec SET begin_seq = 0 WHERE end_seq = 3",
        "UPDATE journal_exec SET end_seq = 5 WHERE end_seq = 3",
        "UPDATE journal_exec SET log = 7 WHERE end_seq = 3",
        "UPDATE journal_exec SET started_ms = 99 WHERE end_seq = 3",
        "INSERT INTO journal_exec (exec_id, log, begin_seq, end_seq, started_ms, outcome) "
        "VALUES ('ex-never', 1, 0, 1, 1, 'succeeded')",
        "DELETE FROM journal_open",
        "UPDATE journal_open SET seq = 0",
        "INSERT INTO journal_open VALUES ('ex-never', 1, 0)",
        "INSERT INTO journal_document VALUES ('sha256:00', 'policy', 'allow everything')",
    ],
)
def test_who_changes_what_executions_are_found_by_is_found(
    tmp_path: Path, left_by_a_dead_process: Path, statement: str
) -> None:
    assert found_in(left_by_a_dead_process).is_proven
    home = copied(left_by_a_dead_process, tmp_path)
    tampered_with(home, statement)
    assert not found_in(home).is_whole


def test_a_text_that_somebody_took_away_does_not_pass_for_one_that_retention_pruned(
    tmp_path: Path, left_by_a_dead_process: Path
) -> None:
    home = copied(left_by_a_dead_process, tmp_path)
    tampered_with(home, "UPDATE journal_record SET body = NULL WHERE seq = 3")
    assert not found_in(home).is_proven


def test_a_front_that_somebody_cut_off_does_not_pass_for_one_that_retention_dropped(
    tmp_path: Path, left_by_a_dead_process: Path
) -> None:
    home = copied(left_by_a_dead_process, tmp_path)
    tampered_with(
        home,
        "UPDATE journal_log SET first_seq = 8, first_prev = (SELECT hash FROM journal_record WHERE seq = 7), "
        "first_frontier = (SELECT frontier FROM journal_checkpoint WHERE size = 8)",
    )
    tampered_with(home, "DELETE FROM journal_record WHERE seq < 8")
    tampered_with(home, "DELETE FROM journal_exec WHERE end_seq < 8")
    assert not found_in(home).is_proven


def test_nobody_without_the_key_writes_down_that_a_text_was_taken_away(
    tmp_path: Path, left_by_a_dead_process: Path
) -> None:
    home = copied(left_by_a_dead_process, tmp_path)
    with sqlite3.connect(home / "ringfence.db") as connection:
        (log_id,) = connection.execute("SELECT log_id FROM journal_log").fetchone()
        head = Head.empty(log_id)
        for (hash_,) in connection.execute("SELECT hash FROM journal_record ORDER BY place").fetchall():
            head = replace(head, size=head.size + 1, last_hash=hash_, frontier=head.frontier.add(hash_))
        lie = {"type": "admin.pruned", "time_ms": 9, "up_to": [{"log_id": log_id, "texts": 12, "rows": 12}]}
        sealed, _ = head.seal(lie)
        connection.execute(
            "INSERT INTO journal_record (place, log, seq, time_ms, type, hash, body) "
            "SELECT max(place) + 1, log, max(seq) + 1, 9, 'admin.pruned', ?, ? FROM journal_record",
            (sealed.hash, sealed.text),
        )
        connection.execute("UPDATE journal_record SET body = NULL WHERE seq = 3")
    connection.close()
    found = found_in(home)
    assert all(report.is_whole for report in found.reports)  # or else the lie is linked wrongly, and nothing is tested
    assert found.misled == (f"the text of record 3 of {log_id} is gone, and nobody wrote down that it was taken away",)


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE journal_record SET time_ms = 0 WHERE seq = 3",
        "UPDATE journal_record SET type = 'admin.noted' WHERE seq = 3",
        "UPDATE journal_record SET exec_id = NULL WHERE seq = 12",
        "UPDATE journal_record SET exec_id = 'ex-other' WHERE seq = 3",
    ],
)
def test_a_record_that_is_filed_as_another_for_retention_to_take_it_is_found(
    tmp_path: Path, left_by_a_dead_process: Path, statement: str
) -> None:
    home = copied(left_by_a_dead_process, tmp_path)
    tampered_with(home, statement)
    (fault,) = found_in(home).misled
    assert "filed under another" in fault


@pytest.mark.parametrize(
    ("statement", "name"),
    [
        (
            "CREATE TRIGGER quiet AFTER INSERT ON journal_exec BEGIN DELETE FROM journal_exec WHERE exec_id = "
            "new.exec_id; END",
            "trigger quiet",
        ),
        ("CREATE TRIGGER journal_open AFTER INSERT ON budget_account BEGIN SELECT 1; END", "trigger journal_open"),
        ("CREATE VIEW all_is_well AS SELECT 1", "view all_is_well"),
        ("CREATE TABLE elsewhere (a)", "table elsewhere"),
        ("CREATE UNIQUE INDEX once ON journal_exec (tool_name) WHERE exec_id > 'ex_z'", "index once"),
    ],
)
def test_nothing_runs_on_a_database_that_somebody_added_to_and_verifying_says_what(
    tmp_path: Path, left_by_a_dead_process: Path, statement: str, name: str
) -> None:
    home = copied(left_by_a_dead_process, tmp_path)
    tampered_with(home, statement)
    with pytest.raises(Unavailable) as refused:
        run_once(home)
    assert refused.value.reason == "damaged"
    assert name in str(refused.value)
    assert found_in(home).misled == (f"somebody added the {name} to the database",)
    kind, what = name.split()
    tampered_with(home, f"DROP {kind} {what}")
    run_once(home)
    assert found_in(home).is_proven


def test_nobody_without_the_key_gets_the_next_process_to_sign_a_history_that_he_wrote(
    tmp_path: Path, left_by_a_dead_process: Path
) -> None:
    home = copied(left_by_a_dead_process, tmp_path)
    forge(home)
    run_once(home)
    assert not found_in(home).is_proven


def forge(home: Path) -> None:
    """Write all of a log anew without its key: another tool, linked and listed as it should be, and no checkpoint."""
    connection = sqlite3.connect(home / "ringfence.db")
    (log_id,) = connection.execute("SELECT log_id FROM journal_log").fetchone()
    head = Head.empty(log_id)
    for place, text in connection.execute("SELECT place, body FROM journal_record ORDER BY place").fetchall():
        members = {name: value for name, value in json.loads(text).items() if name not in SET_BY_THE_LOG}
        sealed, head = head.seal({**members, "tool_name": "harmless"})
        connection.execute(
            "UPDATE journal_record SET body = ?, hash = ? WHERE place = ?", (sealed.text, sealed.hash, place)
        )
    connection.execute("UPDATE journal_exec SET tool_name = 'harmless'")
    connection.execute("DELETE FROM journal_checkpoint")
    connection.commit()
    connection.close()


SET_BY_THE_LOG = ("v", "log_id", "seq", "prev_hash")

KILLED_IN_A_CONTAINER = """
import sys, ringfence
ringfence.run("print(1)", home=sys.argv[1])
print("begun", flush=True)
ringfence.run("import time; time.sleep(60)", home=sys.argv[1])
"""


@pytest.mark.needs("native")
@pytest.mark.needs("root")
def test_what_a_killed_container_had_begun_is_ended_by_the_next_one(tmp_path: Path) -> None:
    boxed = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc", sys.executable, "-c"]
    with subprocess.Popen([*boxed, KILLED_IN_A_CONTAINER, str(tmp_path)], stdout=subprocess.PIPE) as container:
        assert container.stdout is not None
        assert container.stdout.readline() == b"begun\n"
        while not still_open(tmp_path):
            time.sleep(0.01)
        container.kill()
    next_one = "import sys, ringfence; ringfence.run('print(2)', home=sys.argv[1])"
    subprocess.run([*boxed, next_one, str(tmp_path)], check=True, timeout=50)
    assert still_open(tmp_path) == []


def still_open(home: Path) -> list[str]:
    connection = sqlite3.connect(home / "ringfence.db")
    found = [exec_id for (exec_id,) in connection.execute("SELECT exec_id FROM journal_open")]
    connection.close()
    return found
