"""Snapshots bring back what was there, keep every content once, and give back what nobody needs."""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ringfence.capability.limits import MIB, Limits
from ringfence.errors import Unavailable
from ringfence.workspaces import snapshot_store, snapshots
from ringfence.workspaces.agent import AgentWorkspace
from ringfence.workspaces.session import SessionWorkspace
from ringfence.workspaces.snapshot_index import HEAD_BYTES, Index, SnapshotInfo, decode, decode_info, encode

LIMITS = Limits(disk_bytes=64 * MIB)
ID = "snap_" + "0" * 32


@pytest.fixture
def files(tmp_path: Path) -> Iterator[AgentWorkspace]:
    with AgentWorkspace("s", home=tmp_path) as found:
        yield found


@pytest.fixture
def session(tmp_path: Path) -> Iterator[SessionWorkspace]:
    with SessionWorkspace.create(tmp_path, "s") as found:
        yield found


@pytest.fixture
def project(tmp_path: Path, session: SessionWorkspace) -> Path:
    assert session.id == "s"
    return tmp_path / "workspace/projects/s"


def tree(work: Path) -> dict[str, tuple[int, int, bytes]]:
    return {
        str(path.relative_to(work)): (
            path.lstat().st_mode,
            path.lstat().st_mtime_ns,
            os.readlink(os.fsencode(path)) if path.is_symlink() else path.read_bytes() if path.is_file() else b"",
        )
        for path in work.rglob("*")
    }


def test_modes_times_links_and_empty_directories_come_back(
    files: AgentWorkspace, session: SessionWorkspace, project: Path
) -> None:
    work = project / "work"
    files.write_file("d/run.sh", "#!/bin/sh\n")
    (work / "d/run.sh").chmod(0o750)
    (work / "link").symlink_to("d/run.sh")
    (work / "dangling").symlink_to("/nowhere")
    (work / "empty/inner").mkdir(parents=True)
    files.write_file("nothing", "")
    files.write_file("large", os.urandom(3 * MIB + 17))
    for path in work.rglob("*"):
        if session.owner is not None:
            os.lchown(path, *session.owner)
        os.utime(path, ns=(1_600_000_000_123_456_789,) * 2, follow_symlinks=False)
    before = tree(work)
    taken = snapshots.take(session, "all kinds", LIMITS)
    session.reset()
    assert tree(work) == {}
    assert snapshots.restore(session, taken.info.id, LIMITS) == taken.info
    assert tree(work) == before
    assert all(
        (path.lstat().st_uid, path.lstat().st_gid) == (session.owner or (os.geteuid(), os.getegid()))
        for path in work.rglob("*")
    )
    assert stat.S_IMODE(work.stat().st_mode) == 0o755


def test_a_content_is_kept_once_whatever_it_is_called_and_whenever(
    files: AgentWorkspace, session: SessionWorkspace, project: Path
) -> None:
    content = os.urandom(100_000)
    for name in ("a", "b", "c"):
        files.write_file(name, content)
    first = snapshots.take(session, "", LIMITS)
    assert (first.info.bytes, first.info.added_bytes) == (300_000, 100_000)
    files.write_file("d", content)
    files.delete_file("a")
    second = snapshots.take(session, "", LIMITS)
    assert (second.info.bytes, second.info.added_bytes) == (300_000, 0)
    assert len(list((project / "snapshots").glob("*.pack"))) == 1
    large = os.urandom(2 * MIB)
    files.write_file("large", large)
    files.write_file("twin", large)
    assert snapshots.take(session, "", LIMITS).info.added_bytes == 2 * MIB
    assert all(snapshots.verify(session).values())


def test_ten_thousand_files_are_two_files_of_the_store(session: SessionWorkspace, project: Path) -> None:
    for number in range(1000):
        (project / "work" / str(number)).write_bytes(b"%d" % number)
    snapshots.take(session, "", LIMITS)
    assert len(os.listdir(project / "snapshots")) == 2


def test_deleting_gives_back_what_no_other_snapshot_needs(
    files: AgentWorkspace, session: SessionWorkspace, project: Path
) -> None:
    files.write_file("kept", os.urandom(200_000))
    files.write_file("first only", os.urandom(2 * MIB))
    first = snapshots.take(session, "", LIMITS)
    files.delete_file("first only")
    second = snapshots.take(session, "", LIMITS)
    assert snapshots.delete(session, first.info.id) > 2 * MIB - 64 * 1024
    assert snapshots.verify(session) == {second.info.id: True}
    files.write_file("first only", b"")
    snapshots.restore(session, second.info.id, LIMITS)
    assert files.list_files() == ["kept"]
    snapshots.delete(session, second.info.id)
    assert os.listdir(project / "snapshots") == []


def test_a_content_whose_room_was_given_back_is_kept_again(files: AgentWorkspace, session: SessionWorkspace) -> None:
    returning = os.urandom(100_000)
    files.write_file("kept", b"kept")
    files.write_file("returning", returning)
    first = snapshots.take(session, "", LIMITS)
    files.delete_file("returning")
    snapshots.take(session, "", LIMITS)
    snapshots.delete(session, first.info.id)
    files.write_file("returning", returning)
    again = snapshots.take(session, "", LIMITS)
    assert again.info.added_bytes == 100_000
    files.delete_file("returning")
    snapshots.restore(session, again.info.id, LIMITS)
    assert files.read_bytes("returning") == returning


def test_many_packs_are_merged_into_one(
    files: AgentWorkspace, session: SessionWorkspace, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshot_store, "MOST_PACKS", 4)
    contents = {f"{number}": os.urandom(5000 if number else 2 * MIB) for number in range(7)}
    ids = []
    for name, content in contents.items():
        files.write_file(name, content)
        ids.append(snapshots.take(session, name, LIMITS).info.id)
    snapshots.delete(session, ids[0])
    assert len(list((project / "snapshots").glob("*.pack"))) == 1
    assert all(snapshots.verify(session).values())
    session.reset()
    snapshots.restore(session, ids[-1], LIMITS)
    assert {name: files.read_bytes(name) for name in files.list_files()} == contents


def test_another_process_that_had_the_old_directory_open_writes_to_the_new_one(
    files: AgentWorkspace, session: SessionWorkspace, tmp_path: Path
) -> None:
    files.write_file("a", "1")
    taken = snapshots.take(session, "", LIMITS)
    with AgentWorkspace("s", home=tmp_path) as other, SessionWorkspace.create(tmp_path, "s") as third:
        before = third.generation()
        snapshots.restore(session, taken.info.id, LIMITS)
        assert third.generation() > before
        other.write_file("b", "2")
        assert third.usage().inodes == 2
    assert files.list_files() == ["a", "b"]


def test_lists_are_oldest_first_also_when_the_clock_stands_still(
    files: AgentWorkspace, session: SessionWorkspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    files.write_file("a", "12345")
    monkeypatch.setattr(time, "time_ns", lambda: 1_794_827_775_000_000_000)
    taken = [snapshots.take(session, str(n), LIMITS).info for n in range(8)]
    assert snapshots.infos(session) == taken


def test_lists_are_oldest_first_with_labels_and_sizes(files: AgentWorkspace, session: SessionWorkspace) -> None:
    assert snapshots.infos(session) == []
    files.write_file("a", "12345")
    taken = [snapshots.take(session, label, LIMITS).info for label in ("first", "zweitens: ä", "")]
    assert snapshots.infos(session) == taken
    assert [(info.entries, info.files, info.bytes, info.added_bytes) for info in taken] == [
        (1, 1, 5, 5),
        (1, 1, 5, 0),
        (1, 1, 5, 0),
    ]


PATHS = st.lists(st.binary(min_size=1, max_size=8).filter(lambda path: b"\0" not in path), unique=True, max_size=6)


@given(PATHS, st.binary(min_size=HEAD_BYTES, max_size=HEAD_BYTES))
@settings(max_examples=50, deadline=None)
def test_an_index_is_read_as_it_was_written_and_not_otherwise(paths: list[bytes], head: bytes) -> None:
    head = stat.S_IFLNK.to_bytes(4, "big") + head[4:]
    info = SnapshotInfo(ID, "label", 1, len(paths), 0, 0, 0)
    index = Index(info, 7, [head] * len(paths), paths, [b"target"] * len(paths))
    written = encode(index)
    assert decode(written, ID) == index
    assert decode_info(written, ID) == info
    for at in range(0, len(written), 7):
        spoiled = written[:at] + bytes([written[at] ^ 1]) + written[at + 1 :]
        with pytest.raises(Unavailable):
            decode(spoiled, ID)
