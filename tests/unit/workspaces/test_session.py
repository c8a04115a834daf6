from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ringfence.errors import InvalidRequest, PathTraversalError, QuotaExceeded
from ringfence.workspaces.acting import acting_as
from ringfence.workspaces.beneath import lies_beneath
from ringfence.workspaces.changes import Changes, written
from ringfence.workspaces.commit import CommitReport, totals_after
from ringfence.workspaces.ids import SESSION_UIDS
from ringfence.workspaces.session import SessionWorkspace, Usage
from ringfence.workspaces.survey import Kind, Step

MANY: dict[str, Any] = {"max_bytes": 1_000_000, "max_inodes": 100}


@pytest.fixture
def session(tmp_path: Path) -> Iterator[SessionWorkspace]:
    with SessionWorkspace.create(tmp_path / "home", "s1") as made:
        yield made


def upper_of(session: SessionWorkspace, path: Path) -> int:
    path.mkdir()
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    if session.owner:
        os.fchown(fd, *session.owner)
    return fd


def as_guest(session: SessionWorkspace, upper_fd: int, files: dict[str, bytes]) -> None:
    with acting_as(session.owner):
        for name, content in files.items():
            *parents, _ = name.split("/")
            for depth in range(1, len(parents) + 1):
                if not os.path.isdir(f"/proc/self/fd/{upper_fd}/{'/'.join(parents[:depth])}"):
                    os.mkdir("/".join(parents[:depth]), dir_fd=upper_fd)
            fd = os.open(name, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o644, dir_fd=upper_fd)
            os.write(fd, content)
            os.close(fd)


def tree_of(session: SessionWorkspace) -> dict[str, bytes | str | None]:
    root = Path(f"/proc/self/fd/{session.work_fd}")
    found: dict[str, bytes | str | None] = {}
    for path in sorted(root.rglob("*")):
        key = str(path.relative_to(root))
        found[key] = os.readlink(path) if path.is_symlink() else None if path.is_dir() else path.read_bytes()
    return found


@pytest.mark.parametrize("name", ["work", "inputs", "artifacts", "staging"])
def test_a_session_that_cannot_be_opened_leaves_no_descriptor(
    session: SessionWorkspace, tmp_path: Path, name: str
) -> None:
    directory = Path(os.readlink(f"/proc/self/fd/{session.directory_fd}"))
    (directory / name).rename(directory / "moved")
    (directory / name).symlink_to("moved")
    before = os.listdir("/proc/self/fd")
    with pytest.raises(PathTraversalError):
        SessionWorkspace.create(tmp_path / "home", "s1")
    assert os.listdir("/proc/self/fd") == before


def test_what_a_run_wrote_is_there_for_the_next(session: SessionWorkspace, tmp_path: Path) -> None:
    one = upper_of(session, tmp_path / "one")
    as_guest(session, one, {"a": b"1", "d/b": b"22"})
    report = session.commit(one, **MANY)
    assert report == CommitReport(written=2, deleted=0, dropped=(), bytes=3, inodes=3)
    assert tree_of(session) == {"a": b"1", "d": None, "d/b": b"22"}
    assert session.usage() == Usage(bytes=3, inodes=3)
    assert os.listdir(session.staging_fd) == []


def test_whiteouts_opaque_directories_and_changed_types_are_applied(session: SessionWorkspace, tmp_path: Path) -> None:
    one = upper_of(session, tmp_path / "one")
    as_guest(session, one, {"a": b"1", "d/b": b"2", "e/f": b"3", "g/h": b"4", "keep/x": b"5"})
    session.commit(one, **MANY)
    two = upper_of(session, tmp_path / "two")
    as_guest(session, two, {"a/now-a-directory": b"6", "d/new": b"7", "g": b"8", "keep/y": b"9"})
    with acting_as(session.owner):
        os.setxattr(f"/proc/self/fd/{two}/d", "user.overlay.opaque", b"y")
        os.mknod("e", stat.S_IFCHR, 0, dir_fd=two)
        os.symlink("/etc/passwd", "link", dir_fd=two)
        os.mkfifo("pipe", dir_fd=two)
    assert written(two, max_entries=100, layered=True) == Changes(
        files=("a/now-a-directory", "d/new", "g", "keep/y", "link"), deleted=("d", "e"), complete=True
    )
    assert written(two, max_entries=100, layered=False).deleted == ()
    assert session.commit(two, **MANY).dropped == ("pipe",)
    assert tree_of(session) == {
        "a": None,
        "a/now-a-directory": b"6",
        "d": None,
        "d/new": b"7",
        "g": b"8",
        "keep": None,
        "keep/x": b"5",
        "keep/y": b"9",
        "link": "/etc/passwd",
    }


def test_what_a_pipe_took_the_place_of_is_told_as_deleted(session: SessionWorkspace, tmp_path: Path) -> None:
    one = upper_of(session, tmp_path / "one")
    as_guest(session, one, {"a": b"1", "d/b": b"2", "d/c": b"3"})
    session.commit(one, **MANY)
    two = upper_of(session, tmp_path / "two")
    with acting_as(session.owner):
        os.mkdir("d", dir_fd=two)
        for name in ("a", "new", "d/b", "a-b"):
            os.mkfifo(name, dir_fd=two)

    def hides(path: bytes) -> bool:
        return lies_beneath(session.work_fd, path)

    changes = written(two, max_entries=100, layered=True, hides=hides)
    assert (changes.files, changes.deleted, bool(changes)) == ((), ("a", "d/b"), True)
    session.commit(two, **MANY)
    assert tree_of(session) == {"d": None, "d/c": b"3"}


def test_setuid_bits_stay_behind_and_the_executable_bit_does_not(session: SessionWorkspace, tmp_path: Path) -> None:
    one = upper_of(session, tmp_path / "one")
    as_guest(session, one, {"tool": b"x"})
    with acting_as(session.owner):
        os.chmod(f"/proc/self/fd/{one}/tool", 0o6755)
    session.commit(one, **MANY)
    assert stat.S_IMODE(os.stat("tool", dir_fd=session.work_fd).st_mode) == 0o755


@pytest.mark.parametrize("quota", [{"max_bytes": 4, "max_inodes": 100}, {"max_bytes": 100, "max_inodes": 2}])
def test_a_commit_over_quota_changes_nothing(session: SessionWorkspace, tmp_path: Path, quota: dict[str, Any]) -> None:
    one = upper_of(session, tmp_path / "one")
    as_guest(session, one, {"a": b"1"})
    session.commit(one, **quota)
    two = upper_of(session, tmp_path / "two")
    as_guest(session, two, {"a": b"2222", "b": b"3", "c": b""})
    with pytest.raises(QuotaExceeded) as refused:
        session.commit(two, **quota)
    assert refused.value.reason == "workspace_disk"
    assert tree_of(session) == {"a": b"1"}


def test_replacing_a_file_counts_only_the_new_one() -> None:
    old = [Step(b"d", Kind.DIRECTORY, 0o755, 0), Step(b"d/a", Kind.FILE, 0o644, 100)]
    assert totals_after(old, [Step(b"d", Kind.DIRECTORY, 0o755, 0), Step(b"d/a", Kind.FILE, 0o644, 7)]) == (7, 2)
    assert totals_after(old, [Step(b"d", Kind.WHITEOUT, 0, 0)]) == (0, 0)


def test_every_change_has_a_new_generation_also_one_that_failed(session: SessionWorkspace, tmp_path: Path) -> None:
    start = session.generation()
    one = upper_of(session, tmp_path / "one")
    as_guest(session, one, {"a": b"1"})
    with pytest.raises(QuotaExceeded):
        session.commit(one, max_bytes=0, max_inodes=1)
    session.commit(one, **MANY)
    session.reset()
    assert session.generation() == start + 6
    assert tree_of(session) == {}


def test_a_session_is_found_again_with_its_owner(session: SessionWorkspace, tmp_path: Path) -> None:
    with (
        SessionWorkspace.create(tmp_path / "home", "s1") as again,
        SessionWorkspace.create(tmp_path / "home", "s2") as two,
    ):
        assert again.owner == session.owner
        if os.geteuid() == 0:
            assert session.owner is not None
            assert two.owner is not None
            assert session.owner[0] in SESSION_UIDS
            assert two.owner != session.owner
        else:
            assert (session.owner, two.owner) == (None, None)


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "../x", ".hidden", "a\0", "a\n", "x" * 129])
def test_a_session_id_is_one_plain_segment(tmp_path: Path, name: str) -> None:
    with pytest.raises(InvalidRequest):
        SessionWorkspace.create(tmp_path, name)
    assert list(tmp_path.iterdir()) == []
