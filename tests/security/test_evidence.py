"""Nothing runs that is not written down; nobody rewrites it unseen; and nothing that a run was given is in it."""

from __future__ import annotations

import asyncio
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.journal_checks import verified

import ringfence
from ringfence import Limits, RingfenceError, SandboxManager, Unavailable
from ringfence.database.sqlite import SqliteDatabase
from ringfence.evidence.anchors import Trust
from ringfence.evidence.documents import Document
from ringfence.evidence.records import Members
from ringfence.journal.journal import Journal
from ringfence.journal.reader import reading
from ringfence.journal.signer import key_in_home, verify

pytestmark = pytest.mark.needs("native")

SECRET = "correct-horse-battery-staple"

FILL = """
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
if libc.unshare(0x20000) or libc.mount(None, b"/", None, 0x44000, None):
    raise OSError(ctypes.get_errno(), "unshare")
home = sys.argv[1]
if libc.mount(b"tmpfs", home.encode(), b"tmpfs", 0, b"size=64m"):
    raise OSError(ctypes.get_errno(), "mount")
import ringfence
from ringfence import engines
from ringfence.errors import Unavailable
print(ringfence.run("print(1)", home=home).stdout, end="")
with open(home + "/ballast", "wb") as ballast:
    try:
        while True:
            ballast.write(bytes(1 << 20))
            ballast.flush()
    except OSError:
        pass
for _ in range(3):
    try:
        ringfence.run("print('without evidence')", home=home)
    except Unavailable as refused:
        print(refused.reason)
os.unlink(home + "/ballast")
print(ringfence.run("print(2)", home=home).stdout, end="")
engines._end_all()
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from tests.journal_checks import verified
print("verified" if verified(Path(home)).is_proven else "not proven")
"""


@pytest.mark.guarantee(18)
@pytest.mark.needs("root")
def test_on_a_full_disk_nothing_begins_and_nothing_is_damaged(tmp_path: Path) -> None:
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run(
        [sys.executable, "-c", FILL, str(tmp_path), str(root)], capture_output=True, text=True, timeout=55
    )
    assert done.stdout.split() == ["1", "disk_full", "disk_full", "disk_full", "2", "verified"], done.stderr


@pytest.mark.guarantee(18)
def test_while_the_database_is_held_nothing_begins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ringfence.database.sqlite.WAIT_SECONDS", 0.2)
    ran = tmp_path / "ran"
    assert ringfence.run("print(1)", home=tmp_path, session_id="s").success
    other = SqliteDatabase.in_home(tmp_path)
    with other.transaction(), pytest.raises(Unavailable) as refused:
        ringfence.run("open('ran', 'w')", home=tmp_path, session_id="s")
    other.close()
    assert refused.value.reason == "busy"
    assert not ran.exists()
    assert not (tmp_path / "workspace/projects/s/work/ran").exists()


@pytest.mark.guarantee(18)
async def test_a_box_that_is_started_while_its_beginning_is_written_has_no_job_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard: list[bytes] = []
    before: list[bytes] = []
    as_it_is = Journal.begin

    async def begin(journal: Journal, ev: Members, documents: Sequence[Document] = ()) -> None:
        while manager.pool_status()["busy"] == 0:  # noqa: ASYNC110  another thread starts it
            await asyncio.sleep(0.001)
        for _ in range(200):  # turns in which a guest that had started would be heard
            await asyncio.sleep(0.001)
        before.extend(heard)
        if refusing:
            raise Unavailable("the disk is full")
        await as_it_is(journal, ev, documents)

    monkeypatch.setattr(Journal, "begin", begin)
    async with SandboxManager(home=tmp_path, pool_size=0) as manager:
        refusing = False
        result = await manager.execute_code(code="print('ran')", on_output=lambda _, data: heard.append(data))
        assert (before, result.stdout, b"".join(heard)) == ([], "ran\n", b"ran\n")
        heard.clear()
        refusing = True
        with pytest.raises(Unavailable):
            await manager.execute_code(code="print('ran')", on_output=lambda _, data: heard.append(data))
        while any(manager.pool_status().values()):  # noqa: ASYNC110  another thread buries it
            await asyncio.sleep(0.001)
        assert heard == []


@pytest.mark.guarantee(18)
def test_a_database_that_is_none_refuses_every_run_and_is_left_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "ringfence.db").write_bytes(b"this is no database, and somebody may want it back" * 100)
    with pytest.raises(Unavailable) as refused:
        ringfence.run("print(1)", home=tmp_path)
    assert refused.value.fix
    assert (tmp_path / "ringfence.db").read_bytes().startswith(b"this is no database")


@pytest.mark.guarantee(18)
@pytest.mark.parametrize("kind", ["a directory", "a link"])
def test_where_nobody_can_tell_who_writes_nothing_runs_and_no_link_is_followed(tmp_path: Path, kind: str) -> None:
    leases, elsewhere = tmp_path / "ringfence.db.leases", tmp_path / "elsewhere"
    elsewhere.write_text("")
    if kind == "a link":
        leases.symlink_to(elsewhere)
    else:
        leases.mkdir()
    with pytest.raises(Unavailable) as refused:
        ringfence.run("print(1)", home=tmp_path)
    assert "ringfence.db.leases" in (refused.value.fix or "")


@pytest.mark.guarantee(18)
async def test_without_evidence_a_manager_runs_nothing(tmp_path: Path) -> None:
    (tmp_path / "ringfence.db").mkdir()
    async with SandboxManager("s", home=tmp_path) as manager:
        with pytest.raises(Unavailable):
            await manager.execute_code("python", "open('ran', 'w')")
    assert not (tmp_path / "workspace/projects/s/work/ran").exists()


@pytest.mark.guarantee(20)
def test_a_guest_finds_no_journal_and_no_key(tmp_path: Path) -> None:
    assert ringfence.run("print(1)", home=tmp_path).success
    search = """
import os, sys
wanted = {"ringfence.db", "ringfence.db-wal", "signer.key", "evidence", "content"}
found = []
for top, directories, files in os.walk("/"):
    if top.startswith(("/proc", "/sys")):
        directories[:] = []
        continue
    found += [os.path.join(top, name) for name in (*directories, *files) if name in wanted]
print([name for name in found if "ringfence" in name or "signer" in name])
for fd in range(3, 1024):
    try:
        print("descriptor", fd, os.readlink(f"/proc/self/fd/{fd}"))
    except OSError:
        pass
print(os.path.exists(sys.argv[1]))
"""
    result = ringfence.run(search, home=tmp_path, args=[str(tmp_path)])
    assert result.stdout.split("\n")[0] == "[]", result.stdout
    assert result.stdout.strip().endswith("False")
    assert "ringfence.db" not in result.stdout


@pytest.mark.guarantee(20)
def test_nothing_that_a_run_was_given_or_gave_back_is_on_the_disk(tmp_path: Path) -> None:
    given = {"code": f"import sys; print('{SECRET}'); print(sys.stdin.read(), file=sys.stderr); sys.exit('{SECRET}')"}
    ringfence.run(
        given["code"],
        home=tmp_path,
        args=[SECRET],
        stdin=SECRET,
        env={"TOKEN": SECRET},
        files={"a.txt": SECRET},
        inputs={"b.txt": SECRET},
    )
    with pytest.raises(RingfenceError):
        ringfence.run(f"print('{SECRET}')", home=tmp_path, limits=Limits(memory_bytes=1 << 40))
    for path in tmp_path.rglob("*"):
        if path.is_file():
            assert SECRET.encode() not in path.read_bytes(), path


@contextmanager
def tampering(home: Path) -> Iterator[sqlite3.Connection]:
    """Open the database as somebody who holds the disk does."""
    connection = sqlite3.connect(home / "ringfence.db")
    yield connection
    connection.commit()
    connection.close()


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("written")
    code = """
import sys, ringfence
from ringfence import engines
for number in range(6):
    ringfence.run(f"print({number})", home=sys.argv[1])
engines._end_all()
"""
    subprocess.run([sys.executable, "-c", code, str(home)], check=True, timeout=55)
    assert verified(home).is_proven
    return home


def fault(home: Path) -> str | None:
    """Return the kind and the place of the first thing that verifying finds wrong."""
    key = key_in_home(home)
    assert key is not None
    database = SqliteDatabase.in_home(home)
    try:
        with reading(database) as reader:
            (report,) = reader.verify(Trust(verify, keys=(key,))).reports
    finally:
        database.close()
    return None if report.fault is None else f"{report.fault.kind} {report.fault.seq}"


TAMPERED = {
    "a word of a record": ("UPDATE journal_record SET body = replace(body, 'code_run', 'code_rum') WHERE seq = 5", 5),
    "a record and its hash": (
        "UPDATE journal_record SET hash = zeroblob(32), body = replace(body, 'exec.end', 'exec.enn') WHERE seq = 3",
        3,
    ),
    "a record that is gone": ("DELETE FROM journal_record WHERE seq = 4", 4),
    "the tail that is gone": ("DELETE FROM journal_record WHERE seq >= 9", 9),
    "everything that is gone": ("DELETE FROM journal_record", 0),
}


@pytest.mark.guarantee(19)
@pytest.mark.parametrize("what", TAMPERED)
def test_what_somebody_who_holds_the_disk_changes_is_found_where_it_is(
    tmp_path: Path, written: Path, what: str
) -> None:
    home = tmp_path / "home"
    shutil.copytree(written, home)
    statement, seq = TAMPERED[what]
    with tampering(home) as connection:
        connection.execute(statement)
    found = fault(home)
    assert found is not None
    assert found.endswith(f" {seq}"), found


@pytest.mark.guarantee(19)
def test_records_that_changed_places_are_found(tmp_path: Path, written: Path) -> None:
    home = tmp_path / "home"
    shutil.copytree(written, home)
    with tampering(home) as connection:
        rows = dict(connection.execute("SELECT seq, body || '|' || hex(hash) FROM journal_record WHERE seq IN (2, 4)"))
        for seq, other in ((2, 4), (4, 2)):
            body, _, hash_ = rows[other].rpartition("|")
            connection.execute(
                "UPDATE journal_record SET body = ?, hash = ? WHERE seq = ?", (body, bytes.fromhex(hash_), seq)
            )
    assert fault(home) is not None


GREEDY = """
import ctypes, sys
libc = ctypes.CDLL(None, use_errno=True)
if libc.unshare(0x20000) or libc.mount(None, b"/", None, 0x44000, None):
    raise OSError(ctypes.get_errno(), "unshare")
home = sys.argv[1]
if libc.mount(b"tmpfs", home.encode(), b"tmpfs", 0, b"size=160m"):
    raise OSError(ctypes.get_errno(), "mount")
import os
import ringfence
from ringfence import engines
from ringfence.operation.brokered import FsWrite
write = "import os; open(f'{os.urandom(4).hex()}', 'wb').write(os.urandom(20 << 20)); print('ran')"
for _ in range(8):
    print(ringfence.run(write, home=home, session_id="greedy").stdout, end="")
refused = 0
for number in range(12):
    try:
        ringfence.perform(FsWrite(f"work/{number}", os.urandom(10 << 20)), home=home, session_id="greedy")
    except ringfence.QuotaExceeded as error:
        refused += error.reason == "disk"
disk = os.statvfs(home)
print("refused" if refused else "never refused", disk.f_bavail * disk.f_frsize >> 20 > 16)
engines._end_all()
sys.path.insert(0, sys.argv[2])
from pathlib import Path
from tests.journal_checks import verified
print("verified" if verified(Path(home)).is_proven else "not proven")
"""


@pytest.mark.guarantee(20)
@pytest.mark.needs("root")
def test_no_guest_and_no_broker_takes_the_room_that_the_journal_needs(tmp_path: Path) -> None:
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run(
        [sys.executable, "-c", GREEDY, str(tmp_path), str(root)], capture_output=True, text=True, timeout=55
    )
    assert done.stdout.split() == ["ran"] * 8 + ["refused", "True", "verified"], done.stderr
