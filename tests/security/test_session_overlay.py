"""The overlay recipe of ADR 0003, done with real namespaces as root and as an ordinary user alike.

Seen red with the session's files owned by host root, and with inputs placed under host root's own ids.
"""

from __future__ import annotations

import ctypes
import os
import socket
import traceback
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from ringfence.errors import QuotaExceeded
from ringfence.workspaces.acting import Owner
from ringfence.workspaces.changes import Changes, written
from ringfence.workspaces.collect import collect
from ringfence.workspaces.place import place
from ringfence.workspaces.session import SessionWorkspace

pytestmark = pytest.mark.guarantee(11)

NEW_USER_AND_MOUNT = 0x10000000 | 0x00020000
PRIVATE_RECURSIVE, NOSUID_NODEV, DETACH = 0x44000, 6, 2
OPEN_TREE, MOVE_MOUNT, MOUNT_SETATTR = 428, 429, 442
EMPTY_PATH, CLONE = 0x1000, 1
GUEST = 1000

libc = ctypes.CDLL(None, use_errno=True)
nothing = ctypes.c_char_p(b"")


class Box:
    """A guest in its own user and mount namespace, stopped before its first instruction."""

    def __init__(self, session: SessionWorkspace, work: Path, guest: Callable[[], None]) -> None:
        self.owner: Owner = session.owner or (os.geteuid(), os.getegid())
        tree = read_only_clone(session.work_fd) if os.geteuid() == 0 else None
        self._here, there = socket.socketpair()
        self._pid = os.fork()
        if self._pid == 0:
            self._here.close()
            enter(there, tree, work, guest)
        there.close()
        assert self._here.recv(1) == b"u"
        if os.geteuid() != 0:
            Path(f"/proc/{self._pid}/setgroups").write_text("deny")
        Path(f"/proc/{self._pid}/uid_map").write_text(f"{GUEST} {self.owner[0]} 1")
        Path(f"/proc/{self._pid}/gid_map").write_text(f"{GUEST} {self.owner[1]} 1")
        self._here.send(b"m")
        _, (self.root_fd,), _, _ = socket.recv_fds(self._here, 1, 1)

    def directory(self, name: str) -> int:
        return os.open(name, os.O_RDONLY | os.O_DIRECTORY, dir_fd=self.root_fd)

    def run(self) -> str:
        """Let the guest run to its end and return what went wrong in it."""
        self._here.send(b"g")
        said = b""
        while chunk := self._here.recv(65536):
            said += chunk
        self._here.close()
        os.waitpid(self._pid, 0)
        return said.decode()


def enter(host: socket.socket, tree: int | None, work: Path, guest: Callable[[], None]) -> None:
    try:
        require(libc.prctl(4, 1))  # root dropped to another uid is undumpable, and its uid_map not writable
        require(libc.unshare(NEW_USER_AND_MOUNT))
        host.send(b"u")
        assert host.recv(1) == b"m"
        os.setresgid(GUEST, GUEST, GUEST)
        os.setresuid(GUEST, GUEST, GUEST)
        require(libc.mount(None, b"/", None, PRIVATE_RECURSIVE, None))
        if tree is None:  # only a tree of one's own mount namespace can be cloned without root
            tree = read_only_clone(os.open(work, os.O_RDONLY | os.O_DIRECTORY))
        require(libc.mount(b"tmpfs", b"/tmp", b"tmpfs", NOSUID_NODEV, b"size=1m,nr_inodes=200,mode=0755"))
        for name in ("inputs", "upper", "ovl", "artifacts", "lower", "work"):
            os.mkdir(f"/tmp/{name}")
        require(libc.syscall(MOVE_MOUNT, tree, nothing, -100, ctypes.c_char_p(b"/tmp/lower"), 4))
        options = b"lowerdir=/tmp/lower,upperdir=/tmp/upper,workdir=/tmp/ovl,userxattr"
        require(libc.mount(b"overlay", b"/tmp/work", b"overlay", NOSUID_NODEV, options))
        require(libc.umount2(b"/tmp/lower", DETACH))
        root = os.open("/tmp", os.O_RDONLY | os.O_DIRECTORY)
        socket.send_fds(host, [b"r"], [root])
        os.close(root)
        os.chdir("/tmp/work")
        assert host.recv(1) == b"g"
        header, none = (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()
        require(libc.capset(header, none))
        guest()
    except BaseException:
        host.send(traceback.format_exc().encode())
    finally:
        os._exit(0)


def read_only_clone(directory: int) -> int:
    tree: int = require(libc.syscall(OPEN_TREE, directory, nothing, EMPTY_PATH | CLONE | os.O_CLOEXEC))
    attributes = (ctypes.c_uint64 * 4)(0x1 | 0x2 | 0x4, 0, 0, 0)
    require(libc.syscall(MOUNT_SETATTR, tree, nothing, EMPTY_PATH, ctypes.byref(attributes), 32))
    return tree


def require(answer: int) -> int:
    if answer < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return answer


@pytest.fixture
def work(tmp_path: Path) -> Path:
    return tmp_path / "workspace/projects/s/work"


@pytest.fixture
def session(tmp_path: Path) -> Iterator[SessionWorkspace]:
    with SessionWorkspace.create(tmp_path, "s") as made:
        yield made


def write(path: str, content: str) -> None:
    with open(path, "w", encoding="utf-8") as file:
        file.write(content)


def read(path: str) -> str:
    with open(path, encoding="utf-8") as file:
        return file.read()


def test_a_later_run_can_do_everything_to_what_an_earlier_one_left(session: SessionWorkspace, work: Path) -> None:
    def first() -> None:
        assert read("given") == "from the caller"
        os.mkdir("d")
        os.mkdir("old")
        for name in ("d/a", "d/b", "keep", "private", "old/x"):
            write(name, name)
        os.chmod("private", 0o000)

    def second() -> None:
        assert read("keep") == "keep"
        write("keep", "overwritten")
        os.chmod("private", 0o600)
        assert read("private") == "private"
        os.rename("d/a", "d/renamed")
        os.unlink("d/b")
        os.unlink("old/x")
        os.rmdir("old")
        os.mkdir("old")
        write("old/y", "new")
        os.utime("given", (1, 1))

    box = Box(session, work, first)
    upper = box.directory("upper")
    place(upper, {"given": b"from the caller"}, owner=session.owner)
    assert box.run() == ""
    session.commit(upper, max_bytes=10_000, max_inodes=100)

    before = {path: path.read_bytes() for path in sorted(work.rglob("*")) if path.is_file() and path.name != "private"}
    box = Box(session, work, second)
    upper = box.directory("upper")
    assert box.run() == ""
    assert {path: path.read_bytes() for path in before} == before  # the guest itself writes nothing of the session
    assert written(upper, max_entries=100, layered=True) == Changes(
        files=("d/renamed", "given", "keep", "old/y", "private"), deleted=("d/a", "d/b", "old"), complete=True
    )
    session.commit(upper, max_bytes=10_000, max_inodes=100)
    found = {str(path.relative_to(work)): path.read_text() for path in work.rglob("*") if path.is_file()}
    assert found == {
        "d/renamed": "d/a",
        "given": "from the caller",
        "keep": "overwritten",
        "old/y": "new",
        "private": "private",
    }


def test_a_guest_cannot_forge_the_marks_of_an_overlay(session: SessionWorkspace, work: Path) -> None:
    def guest() -> None:
        os.mkdir("d")
        with suppress(OSError):  # refused by older kernels, stored under another name by newer ones
            os.setxattr("d", "user.overlay.opaque", b"y")
        try:
            os.mknod("whiteout", 0o020000, 0)
        except PermissionError:
            return
        raise AssertionError("a whiteout was made")

    box = Box(session, work, guest)
    assert box.run() == ""
    assert written(box.directory("upper"), max_entries=100, layered=True) == Changes((), (), complete=True)


def test_the_caps_of_the_tmpfs_hold_for_guest_and_host(session: SessionWorkspace, work: Path) -> None:
    def guest() -> None:
        def fill_bytes() -> None:
            write("big", "x" * (2 << 20))

        def fill_inodes() -> None:
            for number in range(300):
                write(f"n{number}", "")

        for fill in (fill_bytes, fill_inodes):
            with pytest.raises(OSError, match="No space left on device"):
                fill()

    box = Box(session, work, guest)
    with pytest.raises(QuotaExceeded) as refused:
        place(box.directory("inputs"), {"big": b"x" * (2 << 20)}, owner=session.owner, under="inputs")
    assert refused.value.reason == "disk"
    assert box.run() == ""
    assert list(work.iterdir()) == []


def test_artifacts_are_read_through_the_descriptor_after_the_namespaces_are_gone(
    session: SessionWorkspace, work: Path
) -> None:
    def guest() -> None:
        write("/tmp/artifacts/a", "result")
        os.mkdir("/tmp/artifacts/d")
        write("/tmp/artifacts/d/b", "hidden")
        os.chmod("/tmp/artifacts/d/b", 0)
        os.chmod("/tmp/artifacts/d", 0)
        os.chmod("/tmp/artifacts", 0o300)

    box = Box(session, work, guest)
    artifacts = box.directory("artifacts")
    assert box.run() == ""
    found = collect(artifacts, max_bytes=100, max_count=10, max_depth=4)
    assert [(artifact.path, artifact.content) for artifact in found.artifacts] == [("a", b"result"), ("d/b", b"hidden")]


def test_what_is_placed_after_the_overlay_was_mounted_is_seen_inside(session: SessionWorkspace, work: Path) -> None:
    def guest() -> None:
        assert sorted(os.listdir(".")) == ["d", "late"]
        assert (read("late"), read("d/late")) == ("1", "2")

    box = Box(session, work, guest)
    place(box.directory("upper"), {"late": b"1", "d/late": b"2"}, owner=session.owner)
    assert box.run() == ""
