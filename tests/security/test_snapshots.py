"""Snapshots hold against whoever filled the work directory, whoever damages the store, and a host that is killed."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import stat
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ringfence.capability.limits import MIB, Limits
from ringfence.errors import CapabilityBlocked, InvalidRequest, QuotaExceeded, RingfenceError, Unavailable
from ringfence.workspaces import snapshot_index, snapshot_store, snapshot_taking, snapshots
from ringfence.workspaces.diff import diff
from ringfence.workspaces.session import SessionWorkspace
from ringfence.workspaces.tree import open_readable

pytestmark = pytest.mark.guarantee(25)

LIMITS = Limits(disk_bytes=64 * MIB, inodes=10_000)


@pytest.fixture
def session(tmp_path: Path) -> Iterator[SessionWorkspace]:
    with SessionWorkspace.create(tmp_path / "home", "s") as found:
        yield found


@pytest.fixture
def project(tmp_path: Path, session: SessionWorkspace) -> Path:
    assert session.id == "s"
    return tmp_path / "home/workspace/projects/s"


def put(session: SessionWorkspace, path: Path, content: bytes = b"x", mode: int = 0o644) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    path.chmod(mode)
    own(session, path.parent)


def own(session: SessionWorkspace, directory: Path) -> None:
    """Make everything the session's, as a commit does."""
    if session.owner is not None:
        for below, _, names in os.walk(directory):
            for name in (*names, "."):
                os.lchown(os.path.join(below, name), *session.owner)


def listing(directory: Path) -> dict[str, tuple[int, int, bytes | str]]:
    found: dict[str, tuple[int, int, bytes | str]] = {}
    for path in sorted(directory.rglob("*")):
        status = path.lstat()
        what: bytes | str = ""
        if path.is_symlink():
            what = os.readlink(path)
        elif path.is_file():
            what = path.read_bytes()
        found[str(path.relative_to(directory))] = (status.st_mode, status.st_mtime_ns, what)
    return found


# --- what a guest may leave ---


def test_fifos_sockets_and_devices_are_left_out_and_never_opened(session: SessionWorkspace, project: Path) -> None:
    work = project / "work"
    os.mkfifo(work / "fifo")
    with socket.socket(socket.AF_UNIX) as listener:
        with contextlib.chdir(work):  # the whole path would be too long for an address
            listener.bind("socket")
        put(session, work / "file", b"kept")
        taken = snapshots.take(session, "", LIMITS)  # would block for ever at the fifo
    assert (taken.info.files, taken.skipped) == (1, 2)
    snapshots.restore(session, taken.info.id, LIMITS)
    assert sorted(os.listdir(work)) == ["file"]


def test_a_link_to_a_host_file_is_kept_as_a_link_and_never_followed(
    session: SessionWorkspace, project: Path, tmp_path: Path
) -> None:
    secret = tmp_path / "secret"
    secret.write_text("of the host")
    work = project / "work"
    (work / "link").symlink_to(secret)
    (work / "up").symlink_to("../../../../..")
    own(session, work)
    taken = snapshots.take(session, "", LIMITS)
    assert taken.info.bytes == 0
    assert b"of the host" not in b"".join(path.read_bytes() for path in (project / "snapshots").iterdir())
    snapshots.restore(session, taken.info.id, LIMITS)
    assert os.readlink(work / "link") == str(secret)
    assert secret.read_text() == "of the host"
    assert "of the host" not in diff(session, None).patch


def test_setuid_bits_and_attributes_do_not_come_back(session: SessionWorkspace, project: Path) -> None:
    program = project / "work/program"
    put(session, program, b"#!/bin/sh\n", 0o6755)
    program.chmod(0o6755)
    os.setxattr(program, "user.note", b"hidden")
    taken = snapshots.take(session, "", LIMITS)
    snapshots.restore(session, taken.info.id, LIMITS)
    assert stat.S_IMODE(program.stat().st_mode) == 0o755
    assert os.listxattr(program) == []


def test_names_that_are_no_text_come_back_and_are_shown_harmlessly(session: SessionWorkspace, project: Path) -> None:
    work = project / "work"
    names = [b"\x1b[31mred", b"new\nline", b"\xff\xfe", b"a b", b"-rf", b"%41", "\u202egpj.exe".encode(), b"n" * 255]
    for name in names:
        with open(os.path.join(os.fsencode(work), name), "wb") as file:
            file.write(name)
    own(session, work)
    taken = snapshots.take(session, "", LIMITS)
    before = sorted(os.listdir(os.fsencode(work)))
    shown = diff(session, None)
    assert all(change.path.isprintable() for change in shown.changes)
    assert not any(mark in shown.patch.split("\n")[0] for mark in ("\x1b", "\u202e"))
    snapshots.restore(session, taken.info.id, LIMITS)
    assert sorted(os.listdir(os.fsencode(work))) == before == sorted(names)


def test_a_name_cannot_forge_a_line_of_the_patch(session: SessionWorkspace, project: Path) -> None:
    put(session, project / "work" / "a\n+++ b/forged\n@@ -0,0 +1 @@\n+evil", b"harmless\n")
    lines = diff(session, None).patch.splitlines()
    assert [line for line in lines if line.startswith("+++")] == ["+++ b/a%0A+++ b/forged%0A@@ -0,0 +1 @@%0A+evil"]
    assert "+evil" not in lines


def test_directories_deeper_than_a_snapshot_holds_are_refused(session: SessionWorkspace, project: Path) -> None:
    deep = os.fsencode(project / "work")
    for _ in range(70):
        deep += b"/d"
        os.mkdir(deep)
    own(session, project / "work")
    with pytest.raises(CapabilityBlocked) as refused:
        snapshots.take(session, "", LIMITS)
    assert refused.value.reason == "too_many_entries"
    assert snapshots.infos(session) == []
    with pytest.raises(CapabilityBlocked):
        diff(session, None)


def test_more_entries_than_a_snapshot_holds_are_refused(
    session: SessionWorkspace, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ringfence.workspaces.snapshot_taking.MOST_ENTRIES", 50)
    for number in range(60):
        (project / "work" / str(number)).touch()
    own(session, project / "work")
    with pytest.raises(CapabilityBlocked):
        snapshots.take(session, "", LIMITS)
    assert [name for name in os.listdir(project / "snapshots") if not name.startswith(".")] == []


def test_a_giant_of_holes_does_not_fill_the_disk(session: SessionWorkspace, project: Path) -> None:
    giant = project / "work/giant"
    with giant.open("wb") as file:
        file.truncate(10 * 1024 * MIB)
    own(session, project / "work")
    with pytest.raises(QuotaExceeded) as refused:
        snapshots.take(session, "", LIMITS)
    assert refused.value.reason == "snapshots"
    assert sum(path.stat().st_blocks for path in (project / "snapshots").iterdir()) * 512 < MIB
    assert diff(session, None).changes[0].text == "too_large"


def test_a_time_beyond_what_64_bits_hold_is_no_reason_to_fail(session: SessionWorkspace, project: Path) -> None:
    late = project / "work/late"
    put(session, late)
    os.utime(late, ns=(2**63 + 10**9, 2**63 + 10**9))
    early = project / "work/early"
    put(session, early)
    os.utime(early, ns=(-(10**18), -(10**18)))
    taken = snapshots.take(session, "", LIMITS)
    snapshots.restore(session, taken.info.id, LIMITS)
    assert early.stat().st_mtime_ns == -(10**18)


def test_a_file_without_permissions_is_kept_and_its_mode_stays(session: SessionWorkspace, project: Path) -> None:
    locked = project / "work/locked"
    put(session, locked, b"locked", 0o000)
    taken = snapshots.take(session, "", LIMITS)
    assert stat.S_IMODE(locked.stat().st_mode) == 0
    locked.unlink()
    snapshots.restore(session, taken.info.id, LIMITS)
    assert stat.S_IMODE(locked.stat().st_mode) == 0
    locked.chmod(0o600)
    assert locked.read_bytes() == b"locked"


def test_no_inode_of_the_store_is_shared_with_the_work_directory(session: SessionWorkspace, project: Path) -> None:
    put(session, project / "work/a", b"a" * 100)
    put(session, project / "work/large", b"b" * 3 * MIB)
    taken = snapshots.take(session, "", LIMITS)
    snapshots.restore(session, taken.info.id, LIMITS)
    work = {path.stat().st_ino for path in (project / "work").rglob("*")}
    store = {path.stat().st_ino for path in (project / "snapshots").iterdir()}
    assert work.isdisjoint(store)
    assert all(path.stat().st_nlink == 1 for path in (project / "snapshots").iterdir())
    (project / "work/a").write_bytes(b"changed in place, as no guest can")
    assert snapshots.verify(session) == {taken.info.id: True}


def test_a_file_that_grows_while_it_is_read_stops_the_snapshot(
    session: SessionWorkspace, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    growing = project / "work/log"
    put(session, growing, b"1")
    real = os.read
    writer = os.open(growing, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)

    def grow(fd: int, count: int) -> bytes:
        if os.path.samestat(os.fstat(fd), os.fstat(writer)):
            os.write(writer, b"more")
        return real(fd, count)

    monkeypatch.setattr("ringfence.workspaces.snapshot_taking.os.read", grow)
    with pytest.raises(CapabilityBlocked) as refused:
        snapshots.take(session, "", LIMITS)
    os.close(writer)
    assert (refused.value.reason, refused.value.retryable) == ("changed", True)
    assert snapshots.infos(session) == []


def test_a_file_replaced_by_a_link_between_listing_and_reading_is_not_followed(
    session: SessionWorkspace, project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = tmp_path / "secret"
    secret.write_text("of the host")
    victim = project / "work/victim"
    put(session, victim, b"of the guest")
    real = open_readable

    def swap(parent: int, name: bytes, *flags: int) -> int:
        os.unlink(name, dir_fd=parent)
        os.symlink(secret, name, dir_fd=parent)
        return real(parent, name, *flags)

    monkeypatch.setattr(snapshot_taking, "open_readable", swap)
    with pytest.raises(CapabilityBlocked):
        snapshots.take(session, "", LIMITS)
    assert b"of the host" not in b"".join(path.read_bytes() for path in (project / "snapshots").iterdir())


# --- caps ---


def test_there_are_no_more_snapshots_than_may_be(session: SessionWorkspace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshots, "MOST_SNAPSHOTS", 3)
    for _ in range(3):
        snapshots.take(session, "", LIMITS)
    with pytest.raises(QuotaExceeded) as refused:
        snapshots.take(session, "", LIMITS)
    assert (refused.value.reason, refused.value.answer.http_status) == ("snapshots", 429)
    snapshots.delete(session, snapshots.infos(session)[0].id)
    snapshots.take(session, "", LIMITS)


def test_all_snapshots_together_take_no_more_than_four_times_the_quota(
    session: SessionWorkspace, project: Path
) -> None:
    small = Limits(disk_bytes=MIB, inodes=100)
    for number in range(4):
        put(session, project / "work/file", os.urandom(MIB - 64 * 1024))
        if number < 3:
            snapshots.take(session, "", small)
    put(session, project / "work/another", os.urandom(MIB))
    with pytest.raises(QuotaExceeded):
        snapshots.take(session, "", small)
    assert len(snapshots.infos(session)) == 3
    assert all(snapshots.verify(session).values())


def test_the_host_keeps_its_free_space(
    session: SessionWorkspace, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(session, project / "work/a", b"a" * 1000)
    real = os.fstatvfs

    class Full:
        f_bavail, f_frsize = 1, 4096

    monkeypatch.setattr("ringfence.workspaces.free_space.os.fstatvfs", lambda _: Full)
    with pytest.raises(QuotaExceeded) as refused:
        snapshots.take(session, "", LIMITS)
    assert refused.value.reason == "disk"
    monkeypatch.setattr("ringfence.workspaces.free_space.os.fstatvfs", real)
    assert snapshots.infos(session) == []


def test_a_snapshot_larger_than_the_session_may_be_now_is_not_restored(
    session: SessionWorkspace, project: Path
) -> None:
    put(session, project / "work/a", b"a" * 2 * MIB)
    taken = snapshots.take(session, "", LIMITS)
    (project / "work/a").unlink()
    with pytest.raises(QuotaExceeded):
        snapshots.restore(session, taken.info.id, Limits(disk_bytes=MIB))
    with pytest.raises(QuotaExceeded):
        snapshots.restore(session, taken.info.id, Limits(inodes=16, disk_bytes=MIB))
    assert os.listdir(project / "work") == []


def test_a_label_that_could_act_on_a_terminal_is_refused(session: SessionWorkspace) -> None:
    for label in ("\x1b[31m", "a\nb", "x" * 201, "\ud800", "\u202e"):
        with pytest.raises(InvalidRequest):
            snapshots.take(session, label, LIMITS)


@pytest.mark.parametrize(
    "name",
    ["", ".", "..", "../../../etc/passwd", "snap_" + "0" * 31, "snap_" + "0" * 32, "snap_" + "G" * 32, "a/b", "\0"],
)
def test_what_is_no_snapshot_of_this_session_is_not_found(session: SessionWorkspace, project: Path, name: str) -> None:
    put(session, project / "work/a")
    snapshots.take(session, "", LIMITS)
    for act in (
        lambda: snapshots.restore(session, name, LIMITS),
        lambda: snapshots.delete(session, name),
        lambda: diff(session, name),
    ):
        with pytest.raises(InvalidRequest) as refused:
            act()
        assert (refused.value.reason, str(refused.value)) == ("not_found", "there is no such snapshot")
    assert os.listdir(project / "work") == ["a"]


# --- damage ---


def damage(path: Path, at: int) -> None:
    content = bytearray(path.read_bytes())
    content[at] ^= 0xFF
    path.write_bytes(content)


@pytest.mark.parametrize(
    "where", ["index_head", "index_body", "pack_content", "pack_table", "pack_gone", "index_short"]
)
def test_a_damaged_store_is_refused_and_the_work_directory_untouched(
    session: SessionWorkspace, project: Path, where: str
) -> None:
    for number in range(20):
        put(session, project / f"work/d/{number}", os.urandom(500))
    taken = snapshots.take(session, "", LIMITS)
    put(session, project / "work/new", b"since then")
    before = listing(project / "work")
    (index,), (pack,) = (project / "snapshots").glob("*.index"), (project / "snapshots").glob("*.pack")
    ways: dict[str, Callable[[], object]] = {
        "index_head": lambda: damage(index, 30),
        "index_body": lambda: damage(index, -5),
        "index_short": lambda: index.write_bytes(index.read_bytes()[:-100]),
        "pack_content": lambda: damage(pack, 1000),
        "pack_table": lambda: damage(pack, -100),
        "pack_gone": pack.unlink,
    }
    ways[where]()
    with pytest.raises(Unavailable) as refused:
        snapshots.restore(session, taken.info.id, LIMITS)
    assert refused.value.reason == "damaged"
    assert listing(project / "work") == before
    assert os.listdir(project / "staging") == []
    assert snapshots.verify(session) == {taken.info.id: False}
    again = snapshots.take(session, "after the damage", LIMITS)  # what is missing is kept once more
    if where in ("pack_table", "pack_gone"):
        assert snapshots.verify(session)[again.info.id]
    snapshots.delete(session, taken.info.id)
    assert taken.info.id not in {info.id for info in snapshots.infos(session)}


def test_a_link_in_place_of_the_store_is_refused(session: SessionWorkspace, project: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (project / "snapshots").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(RingfenceError):
        snapshots.take(session, "", LIMITS)
    assert list((tmp_path / "elsewhere").iterdir()) == []


# --- a host that is killed ---

KILLED = """
import os, signal, sys
from pathlib import Path
from ringfence.capability.limits import MIB, Limits
from ringfence.workspaces import beneath, session as sessions, snapshots

home, action, most, snapshot_id = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), sys.argv[4]
count = 0
def counting(name):
    real = getattr(os, name)
    def call(*args, **options):
        global count
        count += 1
        if count == most:
            os.kill(os.getpid(), signal.SIGKILL)
        return real(*args, **options)
    setattr(os, name, call)
with sessions.SessionWorkspace.create(home, "s") as session:
    for name in ("rename", "unlink", "mkdir", "fsync", "fdatasync", "pwritev", "ftruncate", "write", "fchmod", "utime"):
        counting(name)
    real_exchange = sessions.exchange
    def exchange(*args):
        counting_exchange()
        real_exchange(*args)
        counting_exchange()
    def counting_exchange():
        global count
        count += 1
        if count == most:
            os.kill(os.getpid(), signal.SIGKILL)
    sessions.exchange = exchange
    limits = Limits(disk_bytes=64 * MIB)
    if action == "take":
        snapshots.take(session, "killed", limits)
    elif action == "restore":
        snapshots.restore(session, snapshot_id, limits)
    else:
        snapshots.delete(session, snapshot_id)
print(count)
"""


@pytest.mark.parametrize("action", ["take", "restore", "delete"])
def test_a_host_killed_at_any_step_leaves_old_or_new_and_a_store_that_verifies(tmp_path: Path, action: str) -> None:
    step, finished = 1, False
    seen: set[int] = set()
    while not finished:
        home = tmp_path / f"{action}-{step}"
        with SessionWorkspace.create(home, "s") as session:
            work = home / "workspace/projects/s/work"
            put(session, work / "a/one", b"first")
            put(session, work / "two", b"second" * 100)
            first = snapshots.take(session, "first", LIMITS)
            old_tree = listing(work)
            put(session, work / "two", b"changed")
            put(session, work / "three", b"third")
            new_tree = listing(work)
            if action == "delete":
                snapshots.take(session, "second", LIMITS)
        done = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(KILLED), home, action, str(step), first.info.id],
            capture_output=True,
            check=False,
            text=True,
            timeout=60,
        )
        finished = done.returncode == 0
        assert finished or done.returncode == -signal.SIGKILL, done.stderr
        with SessionWorkspace.create(home, "s") as session:
            found = snapshots.verify(session)
            assert all(found.values()), step
            present = listing(work)
            if action == "restore":
                assert present in (old_tree, new_tree)
                seen.add(present == old_tree)
            else:
                assert present == new_tree
                seen.add(len(found))
            # whoever comes next finds nothing in the way, and removes what was left
            assert session.commit(_empty(home), max_bytes=MIB, max_inodes=100).written == 0
            last = snapshots.take(session, "next", LIMITS)
            assert not [name for name in os.listdir(home / "workspace/projects/s/snapshots") if "draft" in name]
            put(session, work / "two", b"gone")
            snapshots.restore(session, last.info.id, LIMITS)
            assert listing(work).keys() == present.keys()
            assert os.listdir(home / "workspace/projects/s/staging") == []
        step += 1
    assert step > (3 if action == "delete" else 8)  # it was killed in between, and not only before
    assert len(seen) == 2  # and both before and after it counted


def _empty(home: Path) -> int:
    (home / "empty").mkdir(exist_ok=True)
    return os.open(home / "empty", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)


def test_a_pack_without_a_snapshot_is_garbage_that_the_next_one_removes(
    session: SessionWorkspace, project: Path
) -> None:
    put(session, project / "work/a", os.urandom(1000))
    taken = snapshots.take(session, "", LIMITS)
    store = project / "snapshots"
    (store / f"{taken.info.id}.index").rename(store / f"{taken.info.id}.index{snapshot_store.DRAFT}")
    snapshots.take(session, "", LIMITS)
    assert len(list(store.glob("*.pack"))) == 1
    assert not (store / f"{taken.info.id}.pack").exists()


# --- racing the clock ---


def test_a_file_as_young_as_the_snapshot_is_read_again_however_it_looks(
    session: SessionWorkspace, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = project / "work/a"
    put(session, path, b"before")
    seen = path.stat()
    looks = snapshot_index.key_of(seen)
    monkeypatch.setattr(snapshot_taking, "key_of", lambda _: looks)  # a clock that stood still: the change is not seen
    for later_ns, missed in ((0, False), (10_000_000, False), (10**10, True)):
        put(session, path, b"before")
        monkeypatch.setattr("ringfence.workspaces.snapshots.time.time_ns", lambda now=seen.st_ctime_ns + later_ns: now)
        taken = snapshots.take(session, "", LIMITS)
        put(session, path, b"after!")
        again = snapshots.take(session, "", LIMITS)
        snapshots.restore(session, again.info.id, LIMITS)
        # the last row shows that the clock is what it hangs on
        assert path.read_bytes() == (b"before" if missed else b"after!")
        for info in (taken.info, again.info):
            snapshots.delete(session, info.id)
