"""Files of a hostile guest, handled by the host: planted links, specials, bombs, names and races."""

from __future__ import annotations

import errno
import multiprocessing
import os
import resource
import socket
import stat
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ringfence.errors import InvalidRequest, PathTraversalError, QuotaExceeded
from ringfence.workspaces import beneath
from ringfence.workspaces.acting import acting_as
from ringfence.workspaces.beneath import make_parents, open_beneath
from ringfence.workspaces.changes import written
from ringfence.workspaces.collect import Skipped, collect
from ringfence.workspaces.place import place
from ringfence.workspaces.session import SessionWorkspace

pytestmark = pytest.mark.guarantee(11)

SECRET = b"SECRET-HOST-CONTENT"
SWAPS = 2_000


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    directory = tmp_path / "outside"
    directory.mkdir()
    (directory / "secret").write_bytes(SECRET)
    return directory


@pytest.fixture
def box(tmp_path: Path) -> Path:
    directory = tmp_path / "box"
    directory.mkdir()
    return directory


@pytest.fixture
def root_fd(box: Path) -> Iterator[int]:
    fd = os.open(box, os.O_RDONLY | os.O_DIRECTORY)
    yield fd
    os.close(fd)


@pytest.fixture(params=["openat2", "walk"])
def resolver(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Every path attack is made against the kernel's resolver and against the walk that replaces it."""
    if request.param == "walk":

        def missing(*_: object, in_tree_links: bool = False) -> int:
            raise OSError(errno.ENOSYS, "filtered")

        monkeypatch.setattr(beneath, "_openat2", missing)
    return str(request.param)


@pytest.mark.usefixtures("resolver")
@pytest.mark.parametrize(
    "path", ["link", "link/secret", "d/link/secret", "d/leaf", "in-tree/x", "magic/secret", "fd/secret"]
)
@pytest.mark.parametrize("flags", [os.O_RDONLY, os.O_RDONLY | os.O_DIRECTORY, os.O_WRONLY | os.O_CREAT])
def test_a_planted_link_leads_nowhere(box: Path, outside: Path, root_fd: int, path: str, flags: int) -> None:
    (box / "d").mkdir()
    (box / "d/x").touch()
    for link, target in (
        ("link", outside),
        ("d/link", Path("../../outside")),
        ("d/leaf", outside / "secret"),
        ("in-tree", Path("d")),
        ("magic", Path("/proc/self/cwd")),
        ("fd", Path(f"/proc/self/fd/{root_fd}/../outside")),
    ):
        (box / link).symlink_to(target)
    with pytest.raises(PathTraversalError):
        open_beneath(root_fd, path, flags, 0o600)
    assert (outside / "secret").read_bytes() == SECRET


@pytest.mark.usefixtures("resolver")
def test_a_path_does_not_cross_a_mount() -> None:
    root = os.open("/", os.O_RDONLY | os.O_DIRECTORY)
    try:
        with pytest.raises(PathTraversalError):
            open_beneath(root, "proc/version", os.O_RDONLY)
    finally:
        os.close(root)


@pytest.mark.usefixtures("resolver")
@pytest.mark.parametrize("path", ["/etc/passwd", "..", "../x", "a/../../x", b"/x", b"a/.."])
def test_a_path_that_climbs_is_traversal(root_fd: int, path: str | bytes) -> None:
    with pytest.raises(PathTraversalError):
        open_beneath(root_fd, path, os.O_RDONLY)


@pytest.mark.parametrize("path", ["", ".", "a//b", "a/", "a\0b", "x" * 256, "/".join(["y"] * 3000)[1:] + "z" * 4096])
def test_what_is_no_path_is_refused(root_fd: int, path: str) -> None:
    with pytest.raises(InvalidRequest):
        open_beneath(root_fd, path, os.O_RDONLY)


@pytest.mark.usefixtures("resolver")
def test_a_genuine_error_stays_itself(box: Path, root_fd: int) -> None:
    (box / "f").touch()
    with pytest.raises(FileNotFoundError):
        open_beneath(root_fd, "missing", os.O_RDONLY)
    with pytest.raises(NotADirectoryError):
        open_beneath(root_fd, "f/x", os.O_RDONLY)


@pytest.mark.usefixtures("resolver")
def test_a_directory_swapped_for_a_link_never_leads_outside(box: Path, outside: Path, root_fd: int) -> None:
    (box / "d").mkdir()
    (box / "d/secret").write_bytes(b"inside")
    (box / "evil").symlink_to(outside)
    done = threading.Event()

    def swap() -> None:
        while not done.is_set():
            os.rename(box / "d", box / "aside")
            os.rename(box / "evil", box / "d")
            os.rename(box / "d", box / "evil")
            os.rename(box / "aside", box / "d")

    swapper = threading.Thread(target=swap)
    swapper.start()
    seen: set[bytes] = set()
    try:
        for _ in range(SWAPS):
            try:
                fd = open_beneath(root_fd, "d/secret", os.O_RDONLY)
            except (PathTraversalError, FileNotFoundError, NotADirectoryError):
                continue
            seen.add(os.read(fd, 100))
            os.close(fd)
    finally:
        done.set()
        swapper.join()
    assert seen <= {b"inside"}


@pytest.mark.usefixtures("resolver")
@pytest.mark.parametrize("planted", ["a", "a/b", "a/b/c"])
def test_inputs_are_never_written_through_a_planted_link(box: Path, outside: Path, root_fd: int, planted: str) -> None:
    (box / planted).parent.mkdir(parents=True, exist_ok=True)
    (box / planted).symlink_to(outside / "secret" if planted == "a/b/c" else outside)
    with pytest.raises(InvalidRequest):
        place(root_fd, {"a/b/c": b"overwritten"}, owner=None)
    assert [entry.name for entry in outside.iterdir()] == ["secret"]
    assert (outside / "secret").read_bytes() == SECRET


def test_parents_are_not_made_through_a_link(box: Path, outside: Path, root_fd: int) -> None:
    (box / "a").symlink_to(outside)
    with pytest.raises(PathTraversalError):
        make_parents(root_fd, "a/new/x")
    assert not (outside / "new").exists()


def test_only_regular_files_are_collected(box: Path, outside: Path, root_fd: int) -> None:
    (box / "file").write_bytes(b"ok")
    os.mkfifo(box / "fifo")
    (box / "dangling").symlink_to("nowhere")
    (box / "link").symlink_to(outside / "secret")
    (box / "tree").symlink_to(outside)
    os.mknod(box / "whiteout", stat.S_IFCHR, 0)
    listener = socket.socket(socket.AF_UNIX)
    here = os.open(".", os.O_RDONLY)
    os.fchdir(root_fd)
    listener.bind("socket")
    os.fchdir(here)
    os.close(here)
    expected = [
        ("dangling", "symlink"),
        ("fifo", "fifo"),
        ("link", "symlink"),
        ("socket", "socket"),
        ("tree", "symlink"),
        ("whiteout", "device"),
    ]
    if os.geteuid() == 0:
        os.mknod(box / "zero", stat.S_IFCHR | 0o666, os.makedev(1, 5))
        expected.append(("zero", "device"))
    found = collect(root_fd, max_bytes=1000, max_count=100, max_depth=4)
    listener.close()
    assert [(artifact.path, artifact.content) for artifact in found.artifacts] == [("file", b"ok")]
    assert found.skipped == tuple(Skipped(path, reason) for path, reason in expected)


def test_a_sparse_terabyte_is_listed_and_not_read(box: Path, root_fd: int) -> None:
    with (box / "huge").open("wb") as huge:
        huge.truncate(1 << 40)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    found = collect(root_fd, max_bytes=1 << 20, max_count=10, max_depth=4)
    assert (found.artifacts, found.skipped) == ((), (Skipped("huge", "artifact_bytes"),))
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - peak < 16 * 1024


def test_a_hundred_thousand_entries_are_cut_off(root_fd: int) -> None:
    for number in range(100_000):
        os.mknod(str(number), stat.S_IFREG | 0o600, dir_fd=root_fd)
    found = collect(root_fd, max_bytes=1000, max_count=50, max_depth=4)
    assert len(found.artifacts) <= 50
    assert len(found.artifacts) + len(found.skipped) <= 2 * 50 + 64
    assert found.truncated
    changes = written(root_fd, max_entries=100, layered=True)
    assert (len(changes.files) <= 100, changes.complete) == (True, False)


def test_a_tree_five_thousand_deep_is_cut_off(box: Path, root_fd: int) -> None:
    fd = os.dup(root_fd)
    for _ in range(5000):
        os.mkdir("d", dir_fd=fd)
        deeper = os.open("d", os.O_RDONLY | os.O_DIRECTORY, dir_fd=fd)
        os.close(fd)
        fd = deeper
    try:
        assert collect(root_fd, max_bytes=10, max_count=10_000, max_depth=64).truncated
        assert not written(root_fd, max_entries=10_000, layered=True).complete
    finally:
        for _ in range(5000):
            up = os.open("..", os.O_RDONLY | os.O_DIRECTORY, dir_fd=fd)
            os.rmdir("d", dir_fd=up)
            os.close(fd)
            fd = up
        os.close(fd)


def test_hostile_names_come_out_harmless_and_distinct(box: Path, root_fd: int) -> None:
    names = [
        b"a\nb",
        b"\x1b[2J",
        b"\xff",
        "\u202etxt.exe".encode(),
        "\u2024\u2024".encode(),
        b"..\\x",
        b"%0A",
        b"...",
        b"-rf",
    ]
    for name in names:
        os.close(os.open(name, os.O_CREAT | os.O_WRONLY, dir_fd=root_fd))
    paths = [artifact.path for artifact in collect(root_fd, max_bytes=10, max_count=100, max_depth=4).artifacts]
    assert len(set(paths)) == len(names)
    assert all(path.isprintable() and "/" not in path and path != ".." for path in paths)


@pytest.mark.parametrize("mode", [0o000, 0o200, 0o400, 0o100])
def test_permissions_a_guest_took_away_hide_nothing(box: Path, root_fd: int, mode: int) -> None:
    (box / "d").mkdir()
    (box / "d/f").write_bytes(b"x")
    (box / "d/f").chmod(mode)
    (box / "d").chmod(mode)
    box.chmod(mode)
    found = collect(root_fd, max_bytes=10, max_count=10, max_depth=4)
    assert [(artifact.path, artifact.content) for artifact in found.artifacts] == [("d/f", b"x")]


def test_a_hard_link_to_a_host_file_is_copied_and_never_written_back(outside: Path, tmp_path: Path) -> None:
    with _session(tmp_path) as session:
        upper = _upper(session, tmp_path / "upper")
        os.link(outside / "secret", "link", dst_dir_fd=upper)
        (outside / "secret").chmod(0o644)
        session.commit(upper, max_bytes=1000, max_inodes=10)
        committed = os.stat("link", dir_fd=session.work_fd)
        assert (committed.st_nlink, committed.st_ino != (outside / "secret").stat().st_ino) == (1, True)
        assert (outside / "secret").read_bytes() == SECRET
        os.close(upper)


def test_a_commit_does_not_follow_links_that_an_earlier_run_left(outside: Path, tmp_path: Path) -> None:
    with _session(tmp_path) as session:
        one, two, three = (_upper(session, tmp_path / name) for name in ("one", "two", "three"))
        with acting_as(session.owner):
            os.symlink(outside, "d", dir_fd=one)
            os.symlink(outside / "secret", "f", dir_fd=one)
            os.mkdir("d", dir_fd=two)
            for name in ("d/secret", "f"):
                os.close(os.open(name, os.O_CREAT | os.O_WRONLY, 0o644, dir_fd=two))
            os.symlink(outside, "g", dir_fd=two)
            os.mknod("d", stat.S_IFCHR, 0, dir_fd=three)
            os.mknod("g", stat.S_IFCHR, 0, dir_fd=three)
        for upper in (one, two, three):
            session.commit(upper, max_bytes=1000, max_inodes=10)
            os.close(upper)
        assert os.listdir(session.work_fd) == ["f"]
    assert (outside / "secret").read_bytes() == SECRET


def test_a_sparse_bomb_and_a_deep_tree_are_not_committed(tmp_path: Path) -> None:
    def bomb(upper: int) -> None:
        fd = os.open("huge", os.O_CREAT | os.O_WRONLY, 0o600, dir_fd=upper)
        os.ftruncate(fd, 1 << 40)
        os.close(fd)

    def deep(upper: int) -> None:
        path = "d"
        for _ in range(100):
            os.mkdir(path, dir_fd=upper)
            path += "/d"

    attacks: list[Callable[[int], None]] = [bomb, deep]
    with _session(tmp_path) as session:
        for attack in attacks:
            upper = _upper(session, tmp_path / attack.__name__)
            with acting_as(session.owner):
                attack(upper)
            with pytest.raises(QuotaExceeded):
                session.commit(upper, max_bytes=1 << 20, max_inodes=1000)
            os.close(upper)
            assert os.listdir(session.work_fd) == []


def test_two_processes_committing_to_one_session_leave_whole_files_of_one_of_them(tmp_path: Path) -> None:
    rounds, files = 10, 20
    context = multiprocessing.get_context("spawn")
    writers = [context.Process(target=_commit_repeatedly, args=(tmp_path, letter, rounds, files)) for letter in "ab"]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert [writer.exitcode for writer in writers] == [0, 0]
    with _session(tmp_path) as session:
        contents = {(Path(f"/proc/self/fd/{session.work_fd}/d") / str(n)).read_bytes() for n in range(files)}
        assert contents in ({b"a" * 10_000}, {b"b" * 10_000})
        assert session.usage().inodes == files + 1
        assert session.generation() == 2 * 2 * rounds


def test_root_writes_into_a_workspace_only_as_its_guest(tmp_path: Path) -> None:
    """Without the change of ids root's files would be root's; an ordinary user cannot take another's ids at all."""
    box = tmp_path / "box"
    box.mkdir()
    owner = (0x7123_4567, 0x7123_4567)
    fd = os.open(box, os.O_RDONLY | os.O_DIRECTORY)
    if os.geteuid() == 0:
        os.fchown(fd, *owner)
        place(fd, {"d/f": b"x"}, owner=owner)
        assert {((box / p).stat().st_uid, (box / p).stat().st_gid) for p in ("d", "d/f")} == {owner}
        protected = tmp_path / "protected"
        protected.mkdir(mode=0o700)
        (protected / "secret").write_bytes(SECRET)
        with acting_as(owner), pytest.raises(PermissionError):
            (protected / "secret").read_bytes()
        assert (protected / "secret").read_bytes() == SECRET
    else:
        with pytest.raises(PermissionError):
            place(fd, {"d/f": b"x"}, owner=owner)
        assert list(box.iterdir()) == []
    os.close(fd)


def _session(tmp_path: Path) -> SessionWorkspace:
    return SessionWorkspace.create(tmp_path / "home", "s")


def _upper(session: SessionWorkspace, path: Path) -> int:
    path.mkdir()
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    if session.owner:
        os.fchown(fd, *session.owner)
    return fd


def _commit_repeatedly(tmp_path: Path, letter: str, rounds: int, files: int) -> None:
    with _session(tmp_path) as session:
        for number in range(rounds):
            upper = _upper(session, tmp_path / f"{letter}{number}")
            place(upper, {f"d/{n}": letter.encode() * 10_000 for n in range(files)}, owner=session.owner)
            session.commit(upper, max_bytes=1 << 20, max_inodes=1000)
            os.close(upper)
