"""Attacks on the evidence itself: on who writes it, who recovers it, and who says that it is whole."""

from __future__ import annotations

import asyncio
import json
import shutil
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.journal_checks import verified

from ringfence import Limits, SandboxManager
from ringfence.clock import SystemClock
from ringfence.crypto import ed25519
from ringfence.database.sqlite import SqliteDatabase
from ringfence.errors import Denied, InvalidRequest, Unavailable
from ringfence.evidence import records
from ringfence.evidence.correlation import UNKNOWN, Correlation
from ringfence.evidence.note import Checkpoint
from ringfence.evidence.sealing import Head, canonical_record
from ringfence.evidence.verify import Trust
from ringfence.identifiers import TimeOrdered
from ringfence.journal.journal import Journal
from ringfence.journal.reader import Verified, reading
from ringfence.journal.signer import Signer, key_in_home
from ringfence.operation import CodeRun, Language
from ringfence.operation.brokered import FsDelete, FsList, FsMkdir, FsRead, FsStat, FsWrite, NetHttp, ProcExec
from ringfence.operation.form import Operation
from ringfence.operation.needs import GpuUse, HostUse, SecretUse
from ringfence.operation.workspace import WsCheckout, WsDiff, WsRestore, WsSnapshot
from ringfence.operation.workspace_proposals import WsCommit

pytestmark = [pytest.mark.guarantee(18), pytest.mark.guarantee(19)]
NAMES = TimeOrdered()
PATIENCE = 10.0


@pytest.fixture(autouse=True)
def no_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Close at once what leaves runs open, as many of these do on purpose."""
    monkeypatch.setattr("ringfence.journal.journal._PATIENCE_WITH_ENDS", 0.0)


def begun(**members: Any) -> records.Members:
    named = {"exec_id": NAMES.new("ex"), "envelope_id": NAMES.new("ev"), "tool_name": "code_run", "tenant": "local"}
    return {"type": records.BEGIN, "time_ms": 1, "produced_at_ms": 1, **named, **members}


def ended(begin: records.Members) -> records.Members:
    return records.end_by_cancelling(begin, now_ms=2)


def denied() -> records.Members:
    return {**begun(), "type": records.DENIED, "status": "denied", "outcome": "denied"}


def journal_in(home: Path, signer: Callable[[], Signer] | None = None, **options: Any) -> Journal:
    return Journal(
        SqliteDatabase.in_home(home), signer or (lambda: Signer.in_home(home)), SystemClock(), NAMES, **options
    )


async def one_run(journal: Journal) -> None:
    begin = begun()
    await journal.begin(begin)
    await journal.end(ended(begin))


# --- who writes ---


class SlowSigner(Signer):
    """A signer that is at it for as long as the test wants."""

    def __init__(self, seed: bytes) -> None:
        super().__init__(seed)
        self.is_signing = threading.Event()
        self.may_end = threading.Event()

    def sign_checkpoint(self, checkpoint: Checkpoint) -> str:
        self.is_signing.set()
        assert self.may_end.wait(PATIENCE)
        return super().sign_checkpoint(checkpoint)


@pytest.mark.parametrize("ending", ["checkpoint", "close"])
async def test_a_run_that_begins_while_the_log_is_signed_does_not_wait_for_ever(tmp_path: Path, ending: str) -> None:
    slow = SlowSigner(Signer.in_home(tmp_path)._seed)
    journal = journal_in(tmp_path, lambda: slow)
    await one_run(journal)
    journal._pace = 0.0  # as on a warm machine, where a record is written by its own caller
    signing = threading.Thread(target=getattr(journal, ending))
    signing.start()
    assert await asyncio.to_thread(slow.is_signing.wait, PATIENCE)
    second = asyncio.ensure_future(journal.begin(begun()))
    await asyncio.sleep(0)  # it has found the turn taken
    slow.may_end.set()
    await asyncio.to_thread(signing.join)
    if ending == "checkpoint":
        await asyncio.wait_for(second, PATIENCE)
        journal.close()
    else:
        with pytest.raises(Unavailable):
            await asyncio.wait_for(second, PATIENCE)
    verified(tmp_path)


async def test_what_comes_after_a_slow_journal_was_closed_is_refused_in_our_words(tmp_path: Path) -> None:
    journal = journal_in(tmp_path, in_thread=True)
    await one_run(journal)
    await asyncio.to_thread(journal.close)
    with pytest.raises(Unavailable):
        await journal.begin(begun())


class NearlyFull:
    """A disk with room or without, as the test says."""

    def __init__(self) -> None:
        self.is_full = False

    def __call__(self) -> None:
        if self.is_full:
            raise Unavailable("the disk is nearly full", reason="disk_full")


async def test_endless_denials_do_not_use_up_the_room_that_is_kept_for_ends(tmp_path: Path) -> None:
    disk = NearlyFull()
    journal = journal_in(tmp_path, room=disk)
    begin = begun()
    await journal.begin(begin)
    disk.is_full = True
    with pytest.raises(Unavailable):
        await journal.record(denied())
    await journal.end(ended(begin))
    journal.close()


async def test_an_end_is_written_on_a_full_disk_though_others_want_to_begin_in_that_moment(tmp_path: Path) -> None:
    disk = NearlyFull()
    journal = journal_in(tmp_path, room=disk)
    runs = [begun() for _ in range(3)]
    for begin in runs:
        await journal.begin(begin)
    disk.is_full = True
    wanted = [journal.end(ended(begin)) for begin in runs] + [journal.begin(begun())]
    *ends, began = await asyncio.gather(*wanted, return_exceptions=True)
    assert ends == [None, None, None]
    assert isinstance(began, Unavailable)
    journal.close()


@pytest.mark.parametrize("together", [1, 5])
async def test_somebody_who_watches_and_fails_makes_no_run_fail(tmp_path: Path, together: int) -> None:
    def fail(_: object) -> None:
        raise RuntimeError("can't start new thread")

    journal = journal_in(tmp_path, on_written=fail, on_checkpoint=fail)
    await one_run(journal)
    await asyncio.gather(*(one_run(journal) for _ in range(together)))
    journal.checkpoint()
    journal.close()
    assert sum(report.open_execs for report in verified(tmp_path).reports) == 0


# --- who calls ---


def sizes(home: Path) -> list[int]:
    connection = sqlite3.connect(home / "ringfence.db")
    found = [length for (length,) in connection.execute("SELECT length(body) FROM journal_record ORDER BY place")]
    connection.close()
    return found


async def test_no_call_is_so_large_that_writing_it_down_fills_the_disk(tmp_path: Path) -> None:
    journal = journal_in(tmp_path)
    await one_run(journal)
    with pytest.raises(InvalidRequest):
        await journal.begin(begun(op={"packages": ["p" * 1000] * 5000}))
    await one_run(journal)
    journal.close()
    assert max(sizes(tmp_path)) < 10_000
    verified(tmp_path)


@pytest.mark.parametrize(
    "name", ["x" * 10_000_000, "half \ud800 a pair", "one\nrecord\x1b[31m", "\u202eevil", "nul\0nul"]
)
@pytest.mark.parametrize("field", ["call_id", "tenant", "subject_id"])
async def test_the_names_that_come_with_a_false_grant_neither_fill_nor_forge_nor_avoid_a_record(
    tmp_path: Path, name: str, field: str
) -> None:
    who = records.Asked(
        **{"tenant": "t", "subject_id": "u", "call_id": "c", "tool_name": "code_run", field: name}, correlation=UNKNOWN
    )
    names = records.Names(NAMES.new("ex"), NAMES.new("ev"))
    operation = CodeRun(Language.PYTHON, "print(1)")
    record = records.turned_away(names, operation, who, Denied("no", reason="bad_token"), now_ms=1)
    assert record[field].isprintable()
    journal = journal_in(tmp_path)
    await journal.record(record)
    journal.close()
    (size,) = sizes(tmp_path)
    assert size < 10_000


@pytest.mark.parametrize(
    "operation",
    [ProcExec("ls\udc80", ()), ProcExec("ls\x1b[31m\n", ()), ProcExec("a" * 100_000, ()), HostUse("/\udc80")],
)
async def test_no_name_keeps_its_own_refusal_out_of_the_journal(tmp_path: Path, operation: Any) -> None:
    who = records.Asked("t", "u", "c", "proc_exec", UNKNOWN)
    names = records.Names(NAMES.new("ex"), NAMES.new("ev"))
    record = records.turned_away(names, operation, who, Denied("no", reason="no"), now_ms=1)
    assert record["capability"].isprintable()
    journal = journal_in(tmp_path)
    await journal.record(record)
    journal.close()
    verified(tmp_path)


HOSTILE_NAMES = ["\x9b2J\x9b31m", "a\x7f", "\u202eexe.txt", "a\u2028b", "\x1b]52;c;QQ==\x07", "a\nb", "\udc9b2J"]


@pytest.mark.parametrize("name", HOSTILE_NAMES)
def test_no_name_in_an_operation_drives_the_terminal_of_who_reads_the_records(name: str) -> None:
    asked: list[Operation] = [
        FsRead(name), FsWrite(name, b""), FsList(name), FsStat(name), FsMkdir(name), FsDelete(name), ProcExec(name, ()),
        NetHttp("GET", f"https://x/{name}"), WsSnapshot(name), WsRestore(name), WsDiff(name), WsCheckout(name),
        WsCommit(name), HostUse(name), SecretUse(name), GpuUse(name),
        CodeRun(Language.PYTHON, "", files={name: b""}, inputs={name: b""}, packages=(name,), preload=(name,),
                env={name: ""}, cwd=name, domains=(name,)),
    ]  # fmt: skip
    who = records.Asked("t", "u", "c", "some_tool", UNKNOWN)
    for operation in asked:
        record = records.turned_away(records.Names("ex_1", "ev_1"), operation, who, Denied("no", reason="no"), now_ms=1)
        # with a raw C1 control an exported log could be obeyed where it is printed, though it is valid JSON
        assert canonical_record(record).decode().isprintable(), operation


@pytest.mark.needs("native")
async def test_a_slow_disk_takes_nothing_of_the_time_that_a_run_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin = Journal.begin

    async def slowly(self: Journal, *given: Any) -> None:
        await begin(self, *given)
        await asyncio.sleep(0.7)

    async with SandboxManager(home=tmp_path, limits=Limits(wall_seconds=0.6)) as manager:
        async with asyncio.timeout(PATIENCE):
            while not manager.pool_status()["idle"]:  # noqa: ASYNC110 one that is parked is handed the job while the disk writes
                await asyncio.sleep(0.01)
        monkeypatch.setattr(Journal, "begin", slowly)
        result = await manager.execute_code("python", "print(1)")
    assert result.success, result.error


@pytest.mark.needs("native")
@pytest.mark.parametrize("in_the_way", ["workspace", "content/key", "content/store"])
async def test_what_cannot_be_kept_of_a_run_is_said_and_takes_nothing_from_its_result(
    tmp_path: Path, in_the_way: str
) -> None:
    obstacle = tmp_path / in_the_way
    obstacle.parent.mkdir(exist_ok=True)
    obstacle.write_bytes(b"not what belongs here")
    async with SandboxManager(home=tmp_path, correlation=Correlation(project_id="p")) as manager:
        assert (await manager.execute_code("python", "print(1)")).stdout == "1\n"
    connection = sqlite3.connect(tmp_path / "ringfence.db")
    (end,) = connection.execute("SELECT body FROM journal_record WHERE type = 'exec.end'").fetchone()
    connection.close()
    if in_the_way == "workspace":
        assert "not_kept" in json.loads(end)
        assert "artifacts_path" not in json.loads(end)


MANY_AT_ONCE = """
import ctypes, os, sys, threading
from pathlib import Path
from ringfence.errors import QuotaExceeded
from ringfence.outcome import ExecutionResult, Status
from ringfence.workspaces import exec_files
libc = ctypes.CDLL(None, use_errno=True)
if libc.unshare(0x20000) or libc.mount(None, b"/", None, 0x44000, None):
    raise OSError(ctypes.get_errno(), "unshare")
home = sys.argv[1]
if libc.mount(b"tmpfs", home.encode(), b"tmpfs", 0, b"size=100m"):
    raise OSError(ctypes.get_errno(), "mount")
output, least, write = bytes(30 << 20), [1 << 40], os.write
def watched(fd, data):
    written = write(fd, data)
    disk = os.statvfs(home)
    least.append(disk.f_bavail * disk.f_frsize)
    return written
os.write = watched
together, look = threading.Barrier(6), os.fstatvfs
def looked(fd):
    seen = look(fd)
    try:
        together.wait(0.5)  # whoever may look at the same time has looked before anybody writes
    except threading.BrokenBarrierError:
        pass
    return seen
os.fstatvfs = looked
result = ExecutionResult(
    Status.SUCCEEDED, exit_code=0, stdout_raw=output, stderr_raw=b"", stdout_bytes=len(output), stderr_bytes=0
)
def keep(number):
    try:
        exec_files.write_exec_files(Path(home), "p", f"ex_{number}", result, manifest={}, meta={}, durable=False)
    except QuotaExceeded:
        pass
threads = [threading.Thread(target=keep, args=(number,)) for number in range(6)]
for thread in threads: thread.start()
for thread in threads: thread.join()
print(min(least) >= 60 << 20, len(os.listdir(home + "/workspace/projects/p/artifacts")))
"""


@pytest.mark.needs("root")
def test_runs_that_end_together_do_not_count_on_the_same_free_space(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", MANY_AT_ONCE, str(tmp_path)], capture_output=True, text=True, timeout=50
    )
    assert done.stdout.split() == ["True", "1"], done.stderr


# --- who holds the disk ---


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
