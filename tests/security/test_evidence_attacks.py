"""Attacks on the evidence itself, by whoever calls, watches or ends while it is written."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from tests.journal_checks import verified
from tests.security.attacked_journal import NAMES, begun, ended, journal_in, one_run
from tests.security.attacked_journal import no_patience as no_patience

from ringfence import Limits, SandboxManager
from ringfence.errors import Denied, InvalidRequest, Unavailable
from ringfence.evidence import records
from ringfence.evidence.correlation import UNKNOWN, Correlation
from ringfence.evidence.note import Checkpoint
from ringfence.evidence.sealing import canonical_record
from ringfence.journal.journal import Journal
from ringfence.journal.signer import Signer
from ringfence.operation import CodeRun, Language
from ringfence.operation.brokered import FsDelete, FsList, FsMkdir, FsRead, FsStat, FsWrite, NetHttp, ProcExec
from ringfence.operation.form import Operation
from ringfence.operation.needs import GpuUse, HostUse, SecretUse
from ringfence.operation.workspace import WsCheckout, WsDiff, WsRestore, WsSnapshot
from ringfence.operation.workspace_proposals import WsCommit

pytestmark = [pytest.mark.guarantee(18), pytest.mark.guarantee(19)]
PATIENCE = 10.0


def denied() -> records.Members:
    return {**begun(), "type": records.DENIED, "status": "denied", "outcome": "denied"}


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
