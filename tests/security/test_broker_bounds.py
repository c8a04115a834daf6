"""Attack the brokers that touch files for an agent: pipes, devices, holes, depth, numbers and what is left open."""

from __future__ import annotations

import os
import socket
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from tests.security.broker_ground import ENDING_IN_A_LINK, OPERATIONS, OUTWARDS, Ground
from tests.security.broker_ground import ground as ground
from tests.security.broker_ground import kernel as kernel

import ringfence
from ringfence.errors import CapabilityBlocked, InvalidRequest, RingfenceError
from ringfence.executors.fs import FsCaps
from ringfence.operation.brokered import FsDelete, FsList, FsMkdir, FsOperation, FsRead, FsStat, FsWrite
from ringfence.workspaces.agent import AgentWorkspace

pytestmark = pytest.mark.guarantee(16)

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
