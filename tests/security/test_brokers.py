"""Attack the brokers that touch files for an agent: links, races, pipes, holes, depth, numbers, names and handles.

Each defence was taken out once and its test seen red: NO_SYMLINKS and BENEATH, the look before opening, the check of
the last name before a write, the temporary name, NOREPLACE, the caps, the scope of a handle, the lock of a space.
"""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import ringfence
from ringfence.errors import (
    CapabilityBlocked,
    InvalidRequest,
    PathTraversalError,
    QuotaExceeded,
    RingfenceError,
)
from ringfence.executors.fs import FsBroker, FsCaps
from ringfence.executors.tmp import TmpBroker, TmpCaps
from ringfence.operation.brokered import (
    FsDelete,
    FsList,
    FsMkdir,
    FsOperation,
    FsRead,
    FsStat,
    FsWrite,
    TmpAlloc,
    TmpFree,
)
from ringfence.outcome import BrokerOutcome
from ringfence.workspaces import beneath
from ringfence.workspaces.agent import AgentWorkspace
from ringfence.workspaces.files import Area

pytestmark = pytest.mark.guarantee(16)

SECRET = "SECRET-HOST-CONTENT"
RENAME_EXCHANGE = 2
OPERATIONS: dict[str, Callable[[str], FsOperation]] = {
    "read": FsRead,
    "write": lambda path: FsWrite(path, b"planted", overwrite=True),
    "list": FsList,
    "stat": FsStat,
    "mkdir": FsMkdir,
    "delete": FsDelete,
}


class Ground:
    """A workspace, something outside it, and the broker between them."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.outside = root / "outside"
        self.outside.mkdir()
        (self.outside / "secret").write_text(SECRET)
        self.areas = {}
        for name in ("work", "inputs", "artifacts"):
            (root / name).mkdir()
            fd = os.open(root / name, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            self.areas[name] = Area(fd, writable=name == "work")
        self.work = root / "work"
        self.broker = FsBroker(self.areas)

    def with_links(self) -> FsBroker:
        return FsBroker({"work": Area(self.areas["work"].fd, in_tree_links=True)})

    def plant_links(self) -> None:
        (self.work / "real").mkdir()
        (self.work / "real" / "file").write_text("inside")
        for name, target in {
            "link": str(self.outside / "secret"),
            "directory": str(self.outside),
            "climbs": "../outside/secret",
            "climbs-up": "..",
            "root": "/proc/self/root",
            "cwd": "/proc/self/cwd",
            "magic": f"/proc/self/fd/{self.areas['work'].fd}",
            "loop": "loop",
            "dangling": str(self.outside / "new"),
        }.items():
            os.symlink(target, self.work / name)

    def clear(self) -> None:
        for path in self.work.iterdir():
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()

    def untouched(self) -> bool:
        left = {path.name: path.read_text() for path in self.outside.iterdir()}
        return left == {"secret": SECRET} and sorted(p.name for p in self.root.iterdir()) == [
            "artifacts",
            "inputs",
            "outside",
            "work",
        ]


@pytest.fixture
def ground(tmp_path: Path) -> Iterator[Ground]:
    made = Ground(tmp_path)
    yield made
    for area in made.areas.values():
        os.close(area.fd)


@pytest.fixture(params=["openat2", "walk"])
def kernel(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The kernel as it is, and one that has no openat2."""
    if request.param == "walk":
        monkeypatch.setattr(beneath, "_SYS_OPENAT2", 100_000)
    name: str = request.param
    return name


def attempt(broker: FsBroker, operation: FsOperation) -> BrokerOutcome | RingfenceError:
    """Carry out what may well be refused, and return what came of it."""
    try:
        return broker.perform(operation, inline=True)
    except RingfenceError as error:
        return error


# --- where a path may lead ---

OUTWARDS = [
    "../outside/secret",
    "work/../../outside/secret",
    "work/../work/../../outside/secret",
    "..",
    "/etc/passwd",
    "//etc/passwd",
    "//workspace/work/real",
    "/workspace/../etc/passwd",
    "/workspace/work/../../etc/passwd",
    "/workspacework/x",
    "/proc/self/root/etc/passwd",
    "work/link/x",
    "work/directory/secret",
    "work/climbs-up/outside/secret",
    "work/root/etc/passwd",
    "work/cwd/x",
    "work/magic/real/file",
    "work/loop/x",
]
ENDING_IN_A_LINK = ["work/link", "work/directory", "work/climbs", "work/magic", "work/loop", "work/dangling"]


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("path", OUTWARDS)
def test_no_path_leads_out_of_the_workspace(ground: Ground, kernel: str, operation: str, path: str) -> None:
    ground.plant_links()
    with pytest.raises(PathTraversalError) as refusal:
        ground.broker.perform(OPERATIONS[operation](path), inline=True)
    assert (refusal.value.code, refusal.value.reason) == ("SANDBOX.CAPABILITY_BLOCKED", "path_traversal")
    assert refusal.value.answer.http_status == 403
    assert ground.untouched()


@pytest.mark.parametrize("operation", ["read", "write", "list", "stat", "mkdir"])
@pytest.mark.parametrize("path", ENDING_IN_A_LINK)
def test_nothing_is_done_through_a_link_at_the_end(ground: Ground, kernel: str, operation: str, path: str) -> None:
    ground.plant_links()
    before = os.readlink(ground.root / path)
    with pytest.raises(PathTraversalError):
        ground.broker.perform(OPERATIONS[operation](path), inline=True)
    assert os.readlink(ground.root / path) == before
    assert ground.untouched()


def test_deleting_a_link_deletes_the_link_alone(ground: Ground) -> None:
    ground.plant_links()
    for name in ("link", "directory", "magic", "dangling"):
        assert ground.broker.perform(FsDelete(f"work/{name}")).out["kind"] == "link"
    assert ground.untouched()
    assert (ground.work / "real" / "file").read_text() == "inside"


def test_links_that_stay_inside_can_be_allowed_and_no_other(ground: Ground) -> None:
    ground.plant_links()
    os.symlink("real", ground.work / "inside")
    os.symlink("../../work/real/file", ground.work / "real" / "around")  # leaves, and comes back
    os.symlink("./real/../real/file", ground.work / "detour")
    broker = ground.with_links()
    for path in ("work/inside/file", "work/detour"):
        assert broker.perform(FsRead(path), inline=True).content == b"inside"
        with pytest.raises(PathTraversalError):
            ground.broker.perform(FsRead(path))
    for path in [*OUTWARDS[10:], *ENDING_IN_A_LINK, "work/real/around"]:
        with pytest.raises(PathTraversalError):
            broker.perform(FsRead(path), inline=True)
    broker.perform(FsWrite("work/inside/new", b"x"))
    assert (ground.work / "real" / "new").read_bytes() == b"x"
    with pytest.raises(PathTraversalError):  # also inside, a write replaces names and never goes through one
        broker.perform(FsWrite("work/detour", b"x", overwrite=True))
    assert ground.untouched()


def test_a_kernel_without_the_call_allows_no_link_at_all(ground: Ground, monkeypatch: pytest.MonkeyPatch) -> None:
    ground.plant_links()
    os.symlink("real", ground.work / "inside")
    monkeypatch.setattr(beneath, "_SYS_OPENAT2", 100_000)
    with pytest.raises(PathTraversalError):
        ground.with_links().perform(FsRead("work/inside/file"))


pieces = st.sampled_from(
    ["..", ".", "", "work", "inputs", "tmp", "link", "directory", "root", "real", "file", "etc", "passwd", "workspace",
     "proc", "self", "climbs-up", "outside", "secret", "\0", "\n", "..\0", "%2e%2e", "\u2025", "\udc80", "a" * 300]
)  # fmt: skip


@given(path=st.lists(pieces, max_size=8).map("/".join), operation=st.sampled_from(sorted(OPERATIONS)))
@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_whatever_path_is_spelled_the_outside_stays_unread_and_unchanged(
    ground: Ground, path: str, operation: str
) -> None:
    ground.clear()
    ground.plant_links()
    came = attempt(ground.broker, OPERATIONS[operation](path))
    if isinstance(came, RingfenceError):
        assert came.code in ("SANDBOX.CAPABILITY_BLOCKED", "SCHEMA.VALIDATION_FAILED")
        assert SECRET not in str(came)
    else:
        assert SECRET.encode() not in (came.content or b"")
    assert ground.untouched()


# --- races: the workspace changes under the broker, a bounded number of times ---


def exchange(one: Path, other: Path) -> None:
    """Swap two names in one step, so that neither is ever missing."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.renameat2(-100, os.fsencode(one), -100, os.fsencode(other), ctypes.c_uint(RENAME_EXCHANGE)):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


@contextmanager
def swapping(one: Path, other: Path, times: int) -> Iterator[threading.Thread]:
    """Swap the two names `times` times in a thread beside the test."""

    def swap() -> None:
        for _ in range(times):
            exchange(one, other)

    thread = threading.Thread(target=swap)
    thread.start()
    try:
        yield thread
    finally:
        thread.join()


def test_a_directory_swapped_for_a_link_leads_nowhere(ground: Ground, count: Callable[[int], int]) -> None:
    (ground.work / "d").mkdir()
    (ground.work / "d" / "secret").write_text("inside")
    os.symlink(ground.outside, ground.work / "evil")
    seen: set[bytes | None] = set()
    with swapping(ground.work / "d", ground.work / "evil", count(200_000)) as attacker:
        while attacker.is_alive():
            for operation in (
                FsRead("work/d/secret"),
                FsWrite("work/d/planted", b"x", overwrite=True),
                FsMkdir("work/d/made"),
                FsDelete("work/d/secret.no"),
                FsStat("work/d/secret"),
            ):
                try:
                    seen.add(ground.broker.perform(operation, inline=True).content)
                except (PathTraversalError, InvalidRequest, CapabilityBlocked):
                    continue
    assert seen <= {None, b"inside"}
    assert ground.untouched()


def test_allowed_links_lead_nowhere_else_while_everything_moves(ground: Ground, count: Callable[[int], int]) -> None:
    for name in ("d", "other"):
        (ground.work / name).mkdir()
        (ground.work / name / "secret").write_text("inside")
    os.symlink(ground.outside, ground.work / "evil")
    os.symlink("other/../d/secret", ground.work / "around")
    broker = ground.with_links()
    seen: set[bytes | None] = set()
    with (
        swapping(ground.work / "d", ground.work / "evil", count(100_000)) as attacker,
        swapping(ground.work / "other", ground.work / "d", count(100_000)),
    ):
        while attacker.is_alive():
            came = attempt(broker, FsRead("work/around"))
            if not isinstance(came, RingfenceError):
                seen.add(came.content)
    assert seen <= {b"inside"}
    assert ground.untouched()


def test_a_file_swapped_for_a_link_is_never_read_or_written_through(
    ground: Ground, count: Callable[[int], int]
) -> None:
    (ground.work / "f").write_text("inside")
    os.symlink(ground.outside / "secret", ground.work / "evil")
    seen: set[bytes | None] = set()
    with swapping(ground.work / "f", ground.work / "evil", count(200_000)) as attacker:
        while attacker.is_alive():
            try:
                seen.add(ground.broker.perform(FsRead("work/f"), inline=True).content)
            except PathTraversalError:
                continue
    with swapping(ground.work / "f", ground.work / "evil", count(200_000)) as attacker:
        while attacker.is_alive():
            try:
                ground.broker.perform(FsWrite("work/f", b"inside", overwrite=True))
            except PathTraversalError:
                continue
    assert seen <= {b"inside"}
    assert ground.untouched()


def test_a_directory_replaced_while_it_is_listed_shows_nothing_of_the_other(
    ground: Ground, count: Callable[[int], int]
) -> None:
    (ground.work / "d").mkdir()
    for n in range(50):
        (ground.work / "d" / f"inside-{n}").touch()
    for n in range(50):
        (ground.outside / f"outside-{n}").touch()
    os.symlink(ground.outside, ground.work / "evil")
    names: set[str] = set()
    with swapping(ground.work / "d", ground.work / "evil", count(200_000)) as attacker:
        while attacker.is_alive():
            try:
                listed = ground.broker.perform(FsList("work/d"))
            except PathTraversalError:
                continue
            names |= {entry["name"].partition("-")[0] for entry in listed.out["entries"]}
    assert names <= {"inside"}


def test_entries_that_vanish_during_a_listing_are_left_out(ground: Ground, count: Callable[[int], int]) -> None:
    stays = {f"stays-{n:02}" for n in range(20)}
    for name in stays:
        (ground.work / name).touch()

    def churn() -> None:
        for n in range(count(20_000)):
            path = ground.work / f"goes-{n % 7}"
            path.touch()
            path.unlink()

    attacker = threading.Thread(target=churn)
    attacker.start()
    while attacker.is_alive():
        seen: list[str] = []
        cursor = None
        while True:
            page = ground.broker.perform(FsList("work", cursor=cursor, limit=3)).out
            seen += [entry["name"] for entry in page["entries"]]
            cursor = page["cursor"]
            if cursor is None:
                break
        assert sorted(name for name in seen if name.startswith("stays")) == sorted(stays)  # each once
    attacker.join()


def test_a_reader_sees_the_old_file_or_the_new_one_and_no_mixture(ground: Ground, count: Callable[[int], int]) -> None:
    whole = [bytes([letter]) * 300_000 for letter in b"ab"]
    ground.broker.perform(FsWrite("work/f", whole[0]))

    def rewrite() -> None:
        for n in range(count(2000)):
            ground.broker.perform(FsWrite("work/f", whole[n % 2], overwrite=True))

    writer = threading.Thread(target=rewrite)
    writer.start()
    while writer.is_alive():
        assert (ground.work / "f").read_bytes() in whole
        assert ground.broker.perform(FsRead("work/f"), inline=True).content in whole
    writer.join()
    assert os.listdir(ground.work) == ["f"]


def test_of_many_who_write_a_new_name_one_succeeds(ground: Ground) -> None:
    won: list[int] = []
    lost: list[str] = []
    gate = threading.Barrier(4)

    def write(n: int) -> None:
        for turn in range(20):
            gate.wait()
            came = attempt(ground.broker, FsWrite(f"work/{turn}", str(n).encode()))
            if isinstance(came, RingfenceError):
                lost.append(came.reason)
            else:
                won.append(n)

    threads = [threading.Thread(target=write, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(won), lost) == (20, ["exists"] * 60)
    assert len(os.listdir(ground.work)) == 20


# --- what is not a file ---


def test_a_fifo_neither_blocks_the_host_nor_is_opened(ground: Ground, kernel: str) -> None:
    os.mkfifo(ground.work / "fifo")
    with pytest.raises(CapabilityBlocked) as refusal:
        ground.broker.perform(FsRead("work/fifo"))
    assert refusal.value.reason == "special_file"
    for operation in (FsWrite("work/fifo", b"x", overwrite=True), FsWrite("work/fifo/x", b"x"), FsList("work/fifo")):
        with pytest.raises(RingfenceError):
            ground.broker.perform(operation)
    assert stat.S_ISFIFO((ground.work / "fifo").stat().st_mode)


def test_a_writer_at_a_fifo_is_not_woken_by_a_read(ground: Ground) -> None:
    os.mkfifo(ground.work / "fifo")
    woken = threading.Event()

    def wait_for_a_reader() -> None:
        os.close(os.open(ground.work / "fifo", os.O_WRONLY))
        woken.set()

    writer = threading.Thread(target=wait_for_a_reader, daemon=True)
    writer.start()
    for _ in range(200):
        with pytest.raises(CapabilityBlocked):
            ground.broker.perform(FsRead("work/fifo"))
    assert not woken.is_set()
    while not woken.wait(0.01):  # it may only now have come to its fifo
        os.close(os.open(ground.work / "fifo", os.O_RDONLY | os.O_NONBLOCK))  # lets it go


def test_a_socket_is_refused(ground: Ground) -> None:
    with socket.socket(socket.AF_UNIX) as one:
        one.bind(str(ground.work / "s"))
        for operation in (FsRead("work/s"), FsWrite("work/s", b"x", overwrite=True)):
            with pytest.raises(CapabilityBlocked) as refusal:
                ground.broker.perform(operation)
            assert refusal.value.reason == "special_file"
    assert ground.broker.perform(FsStat("work/s")).out["kind"] == "special"


@pytest.mark.needs("root")
def test_a_device_is_refused(ground: Ground) -> None:
    try:
        os.mknod(ground.work / "zero", 0o666 | stat.S_IFCHR, os.makedev(1, 5))
    except PermissionError:
        pytest.skip("this root may not make devices")
    with pytest.raises(CapabilityBlocked) as refusal:
        ground.broker.perform(FsRead("work/zero"))
    assert refusal.value.reason == "special_file"


# --- sizes, numbers, depth ---


def test_a_terabyte_of_holes_is_read_only_up_to_the_cap(ground: Ground, tmp_path: Path) -> None:
    with (ground.work / "hole").open("wb") as file:
        file.truncate(1 << 40)
    outcome = ground.broker.perform(FsRead("work/hole"), FsCaps(max_bytes_in=1000), inline=True)
    assert (outcome.content, outcome.out["size"], outcome.out["truncated"]) == (bytes(1000), 1 << 40, True)
    end = ground.broker.perform(FsRead("work/hole", offset=(1 << 40) - 5), inline=True)
    assert (end.content, end.out["truncated"]) == (bytes(5), False)
    with AgentWorkspace("s", home=tmp_path / "home") as agent:
        agent.write_file("x", "x")
        with open(f"/proc/self/fd/{agent.areas()['work'].fd}/x", "wb") as file:
            file.truncate(1 << 40)
        with pytest.raises(CapabilityBlocked) as refusal:
            agent.read_file("x")
        assert refusal.value.reason == "too_large"


@pytest.mark.parametrize(
    ("operation", "reason"),
    [
        (FsRead("work/f", len=1001), "too_large"),
        (FsWrite("work/new", bytes(1001)), "too_large"),
        (FsWrite("work/f", bytes(1001), overwrite=True), "too_large"),
        (FsWrite("work/d1/d2/d3/d4/f", b"x"), "max_depth"),
        (FsMkdir("work/d1/d2/d3/d4/d5"), "max_depth"),
        (FsWrite("work/new", b"x"), "max_files"),
        (FsWrite("work/d/e/f", b"x"), "max_files"),
        (FsMkdir("work/new"), "max_files"),
        (FsWrite("inputs/new", b"x"), "read_only"),
        (FsMkdir("artifacts/new"), "read_only"),
        (FsDelete("inputs/given"), "read_only"),
        (FsDelete("work"), "read_only"),
        (FsWrite("work", b"x", overwrite=True), "read_only"),
        (FsWrite("new", b"x"), "path"),
        (FsRead("elsewhere/new"), "path"),
    ],
    ids=lambda each: each if isinstance(each, str) else None,
)
def test_what_is_beyond_a_cap_is_refused_before_anything_is_touched(
    ground: Ground, operation: FsOperation, reason: str
) -> None:
    (ground.work / "f").write_bytes(b"old")
    (ground.root / "inputs" / "given").write_bytes(b"given")
    caps = FsCaps(max_bytes_in=1000, max_bytes_out=1000, max_files=1, max_depth=5)
    with pytest.raises(CapabilityBlocked) as refusal:
        ground.broker.perform(operation, caps)
    assert refusal.value.reason == reason
    assert {p.name: p.read_bytes() for p in ground.work.iterdir()} == {"f": b"old"}
    assert os.listdir(ground.root / "inputs") == ["given"]


def test_a_disk_that_is_full_leaves_the_old_file_and_nothing_else(ground: Ground) -> None:
    (ground.work / "f").write_bytes(b"old")
    program = """
import resource, signal, sys
from ringfence.errors import QuotaExceeded
from ringfence.operation.brokered import FsWrite
from ringfence.executors.fs import FsBroker
from ringfence.workspaces.files import Area
import os
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
area = Area(os.open(sys.argv[1], os.O_RDONLY | os.O_DIRECTORY))
try:
    FsBroker({'work': area}).perform(FsWrite('work/f', bytes(3_000_000), overwrite=True))
except QuotaExceeded as error:
    print(error.code, error.reason)
"""
    done = subprocess.run(
        [sys.executable, "-c", program, str(ground.work)],
        capture_output=True,
        text=True,
        check=False,
        timeout=30,
        env={**os.environ, "PYTHONPATH": str(Path(ringfence.__file__).parents[1])},
    )
    assert done.stdout == "QUOTA.BUDGET_EXCEEDED disk\n", done.stderr
    assert {p.name: p.read_bytes() for p in ground.work.iterdir()} == {"f": b"old"}


def test_a_tree_too_deep_for_any_path_is_not_descended(ground: Ground) -> None:
    fd = os.open(ground.work, os.O_RDONLY | os.O_DIRECTORY)
    for _ in range(1500):
        os.mkdir("d", dir_fd=fd)
        deeper = os.open("d", os.O_RDONLY | os.O_DIRECTORY, dir_fd=fd)
        os.close(fd)
        fd = deeper
    os.close(fd)
    assert [each["name"] for each in ground.broker.perform(FsList("work/d/d")).out["entries"]] == ["d"]
    with pytest.raises(InvalidRequest) as refusal:
        ground.broker.perform(FsDelete("work/d"))
    assert refusal.value.reason == "not_empty"
    with pytest.raises(InvalidRequest) as refusal:
        ground.broker.perform(FsRead("work/" + "d/" * 1500 + "f"))
    assert refusal.value.reason == "invalid_path"
    with pytest.raises(CapabilityBlocked) as blocked:  # counting stops too, and what cannot be counted is too much
        ground.broker.perform(FsWrite("work/f", b"x"), FsCaps(max_files=1000))
    assert blocked.value.reason == "max_files"
    subprocess.run(["rm", "-rf", str(ground.work / "d")], check=True)


def test_a_directory_with_too_many_entries_is_not_read_to_its_end(ground: Ground) -> None:
    for n in range(300):
        (ground.work / str(n)).touch()
    with pytest.raises(CapabilityBlocked) as refusal:
        ground.broker.perform(FsList("work"), FsCaps(max_scanned=299))
    assert refusal.value.reason == "too_many_entries"


# --- names ---


@pytest.mark.parametrize(
    "path",
    ["work/a\0b", "work/a\nb", "work/\x1b[2J", "work/\udcff", "work/" + "x" * 256, "x/" * 33 + "x", "work/\u2028"],
)
@pytest.mark.parametrize("operation", OPERATIONS)
def test_a_name_that_is_none_is_refused_in_printable_words(ground: Ground, operation: str, path: str) -> None:
    with pytest.raises(InvalidRequest) as refusal:
        ground.broker.perform(OPERATIONS[operation](path))
    assert (refusal.value.code, refusal.value.reason) == ("SCHEMA.VALIDATION_FAILED", "invalid_path")
    assert str(refusal.value).isprintable()


def test_names_a_guest_chose_are_listed_so_that_they_do_no_harm(ground: Ground) -> None:
    hostile = [b"a\nb", b"\x1b[31mred", b"\xff\xfe", "gpj\u202eexe".encode(), b"100%", b"-rf", b"..."]
    for name in hostile:
        with open(os.fsencode(ground.work) + b"/" + name, "wb"):
            pass
    entries = ground.broker.perform(FsList("work")).out["entries"]
    assert len(entries) == len(hostile)
    assert all(each["name"].isprintable() and "/" not in each["name"] for each in entries)
    assert json.dumps(entries).isprintable()
    asked = {each["name"]: each["path"] for each in entries}
    assert [asked[name] for name in ("a%0Ab", "%1B[31mred", "%FF%FE")] == [None] * 3
    for shown in ("100%25", "-rf", "..."):
        assert ground.broker.perform(FsRead(asked[shown])).out["size"] == 0


def test_no_message_names_a_path_of_the_host(ground: Ground, tmp_path: Path) -> None:
    ground.plant_links()
    (ground.work / "file").write_text("x")
    os.mkfifo(ground.work / "fifo")
    for path in [*OUTWARDS, *ENDING_IN_A_LINK, "work/none", "work/file/x", "work/fifo", "inputs/x"]:
        for operation in OPERATIONS.values():
            came = attempt(ground.broker, operation(path))
            said = f"{came} {came.fix} {came.details}" if isinstance(came, RingfenceError) else str(came.out)
            assert str(tmp_path) not in said


# --- second names and permissions ---


def test_writing_a_name_leaves_the_files_other_names_alone(ground: Ground) -> None:
    os.link(ground.outside / "secret", ground.work / "second")
    ground.broker.perform(FsWrite("work/second", b"new", overwrite=True))
    assert (ground.work / "second").read_bytes() == b"new"
    assert ground.untouched()
    assert (ground.outside / "secret").stat().st_nlink == 1


def test_a_setuid_bit_does_not_survive_a_write(ground: Ground) -> None:
    (ground.work / "tool").write_bytes(b"old")
    (ground.work / "tool").chmod(0o6755)
    ground.broker.perform(FsWrite("work/tool", b"new", overwrite=True))
    assert stat.S_IMODE((ground.work / "tool").stat().st_mode) == 0o755


@pytest.mark.needs("root")
def test_root_reads_a_session_as_the_sessions_user(tmp_path: Path) -> None:
    (tmp_path / "shadow").write_text(SECRET)
    (tmp_path / "shadow").chmod(0o600)
    with AgentWorkspace("s", home=tmp_path / "home") as agent:
        agent.write_file("x", "x")
        os.link(tmp_path / "shadow", f"/proc/self/fd/{agent.areas()['work'].fd}/second")
        with pytest.raises(CapabilityBlocked) as refusal:
            agent.read_file("second")
        assert refusal.value.reason == "unreadable"
        owner = os.stat("x", dir_fd=agent.areas()["work"].fd)
        assert (owner.st_uid, owner.st_gid) == agent.areas()["work"].owner


# --- temporary space ---


@pytest.fixture
def tmp(tmp_path: Path) -> Iterator[TmpBroker]:
    with TmpBroker(tmp_path / "spaces", TmpCaps(max_bytes=1000, max_total_bytes=2500, max_spaces=3)) as broker:
        yield broker


def space(tmp: TmpBroker, scope: str, size: int = 1000) -> tuple[str, FsBroker]:
    handle = tmp.perform(TmpAlloc(size), scope=scope).out["handle"]
    return handle, FsBroker(tmp.areas(scope))


def test_two_calls_do_not_see_each_others_space(tmp: TmpBroker) -> None:
    mine, fs = space(tmp, "mine")
    fs.perform(FsWrite(f"{mine}/secret", SECRET.encode()))
    other, theirs = space(tmp, "other")
    for operation in (FsRead(f"{mine}/secret"), FsList(mine), FsStat(mine), FsDelete(f"{mine}/secret")):
        with pytest.raises(CapabilityBlocked) as refusal:
            theirs.perform(operation, inline=True)
        assert refusal.value.reason == "path"
    assert [each["name"] for each in theirs.perform(FsList("/workspace/tmp")).out["entries"]] == [
        other.rpartition("/")[2]
    ]
    with pytest.raises(InvalidRequest) as freeing:
        tmp.perform(TmpFree(mine), scope="other")
    assert freeing.value.reason == "invalid_handle"
    assert fs.perform(FsRead(f"{mine}/secret"), inline=True).content == SECRET.encode()


@pytest.mark.parametrize("handle", ["", "/workspace/tmp/", "/workspace/tmp/..", "..", "/etc", "/workspace/work", "\0"])
def test_a_handle_nobody_gave_out_frees_nothing(tmp: TmpBroker, tmp_path: Path, handle: str) -> None:
    mine, _ = space(tmp, "mine")
    with pytest.raises(InvalidRequest) as refusal:
        tmp.perform(TmpFree(handle), scope="mine")
    assert refusal.value.reason == "invalid_handle"
    assert list(tmp.areas("mine")) == [mine.removeprefix("/workspace/")]


def test_a_space_holds_its_size_and_not_a_byte_more(tmp: TmpBroker) -> None:
    mine, fs = space(tmp, "mine", 100)
    fs.perform(FsWrite(f"{mine}/a", bytes(60)))
    fs.perform(FsWrite(f"{mine}/b", bytes(40)))
    fs.perform(FsWrite(f"{mine}/a", bytes(60), overwrite=True))
    for path, size in (("c", 1), ("a", 61)):
        with pytest.raises(QuotaExceeded) as refusal:
            fs.perform(FsWrite(f"{mine}/{path}", bytes(size), overwrite=True))
        assert (refusal.value.code, refusal.value.reason) == ("QUOTA.BUDGET_EXCEEDED", "disk")
    fs.perform(FsDelete(f"{mine}/b"))
    fs.perform(FsWrite(f"{mine}/c", bytes(40)))


def test_however_many_write_at_once_a_space_never_holds_more(tmp: TmpBroker) -> None:
    mine, fs = space(tmp, "mine", 1000)
    gate = threading.Barrier(8)
    written: list[int] = []

    def write(n: int) -> None:
        gate.wait()
        for each in range(5):
            try:
                fs.perform(FsWrite(f"{mine}/{n}-{each}", bytes(90)))
            except QuotaExceeded:
                continue
            written.append(90)

    threads = [threading.Thread(target=write, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(written) == 990


def test_no_more_is_given_out_than_there_is(tmp: TmpBroker) -> None:
    with pytest.raises(CapabilityBlocked) as refusal:
        tmp.perform(TmpAlloc(1001), scope="mine")
    assert refusal.value.reason == "too_large"
    first, _ = space(tmp, "mine")
    space(tmp, "other")
    with pytest.raises(QuotaExceeded) as quota:
        tmp.perform(TmpAlloc(501), scope="mine")
    assert quota.value.reason == "tmp_space"
    space(tmp, "mine", 500)
    tmp.perform(TmpFree(first), scope="mine")
    space(tmp, "mine", 1000)
    with pytest.raises(QuotaExceeded):
        tmp.perform(TmpAlloc(1), scope="mine")
    for size in (0, -1, True, 1.5, "9", None):
        with pytest.raises(InvalidRequest) as invalid:
            tmp.perform(TmpAlloc(size), scope="mine")  # type: ignore[arg-type]
        assert invalid.value.reason == "invalid_range"


def test_a_freed_space_is_gone_and_its_descriptor_is_never_used_again(tmp: TmpBroker, tmp_path: Path) -> None:
    mine, fs = space(tmp, "mine")
    fs.perform(FsWrite(f"{mine}/f", b"x"))
    tmp.perform(TmpFree(mine), scope="mine")
    assert list((tmp_path / "spaces").glob("*/*")) == []
    (tmp_path / "f").write_text(SECRET)
    reused = [os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY) for _ in range(8)]  # one of them has its number now
    try:
        for operation in OPERATIONS.values():
            with pytest.raises(InvalidRequest) as refusal:
                fs.perform(operation(f"{mine}/f"))
            assert refusal.value.reason == "invalid_handle"
    finally:
        for fd in reused:
            os.close(fd)
    assert (tmp_path / "f").read_text() == SECRET


def test_what_a_killed_broker_left_goes_with_the_next_and_a_living_ones_stays(tmp_path: Path) -> None:
    program = """
import sys, time
from pathlib import Path
from ringfence.operation.brokered import TmpAlloc
from ringfence.executors.tmp import TmpBroker
broker = TmpBroker(Path(sys.argv[1]))
broker.perform(TmpAlloc(100), scope='a')
print('ready', flush=True)
time.sleep(60)
"""
    base = tmp_path / "spaces"
    environment = {**os.environ, "PYTHONPATH": str(Path(ringfence.__file__).parents[1])}
    with subprocess.Popen(
        [sys.executable, "-c", program, str(base)], stdout=subprocess.PIPE, env=environment
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"ready\n"
        (base / "somebody-elses").mkdir()
        with TmpBroker(base):
            assert len(list(base.glob("holder-*"))) == 2
        assert len(list(base.glob("holder-*/*"))) == 1
        holder.send_signal(signal.SIGKILL)
    with TmpBroker(base):
        assert list(base.glob("holder-*/*")) == []
    assert os.listdir(base) == ["somebody-elses"]


# --- nothing is left behind ---


def test_no_operation_leaves_a_descriptor_open_however_it_ends(ground: Ground, kernel: str) -> None:
    ground.plant_links()
    os.mkfifo(ground.work / "fifo")
    paths = [
        *OUTWARDS,
        *ENDING_IN_A_LINK,
        "work/real/file",
        "work/real",
        "work/none",
        "work/a/b/c",
        "work/fifo",
        "work",
    ]
    before = len(os.listdir("/proc/self/fd"))
    for path in paths:
        for name in sorted(OPERATIONS):
            try:
                ground.broker.perform(OPERATIONS[name](path), inline=True)
            except RingfenceError:
                continue
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize("value", [-1, True, 2**53, 1.5, "7"])
def test_a_number_that_is_none_is_refused(ground: Ground, value: int) -> None:
    (ground.work / "f").write_text("x")
    for operation in (FsRead("work/f", offset=value), FsRead("work/f", len=value), FsList("work", limit=value)):
        with pytest.raises(InvalidRequest) as refusal:
            ground.broker.perform(operation)
        assert refusal.value.reason == "invalid_range"


@pytest.mark.parametrize("cursor", ["///", "a", "\0", "ä"])
def test_a_cursor_nobody_gave_out_is_refused(ground: Ground, cursor: str) -> None:
    with pytest.raises(InvalidRequest) as refusal:
        ground.broker.perform(FsList("work", cursor=cursor))
    assert refusal.value.reason == "invalid_range"


@pytest.mark.parametrize(
    "handle", ["", "fs:", "fs:0+1:aa:/etc/passwd", "net:0+1:aa:work/f", "fs:x+1:aa:work/f", "fs:0"]
)
async def test_a_handle_of_a_read_opens_nothing_a_read_would_not(ground: Ground, handle: str) -> None:
    (ground.work / "f").write_text("x")
    with pytest.raises(InvalidRequest):
        ground.broker.redeem(handle)
    given = ground.broker.perform(FsRead("work/f")).out["handle"]
    assert ground.broker.redeem(given) == b"x"
    ground.broker.perform(FsWrite("work/f", b"y", overwrite=True))
    with pytest.raises(CapabilityBlocked) as refusal:
        ground.broker.redeem(given)
    assert refusal.value.reason == "changed"
