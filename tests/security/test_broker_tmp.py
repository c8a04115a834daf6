"""Attack the broker of temporary space: the spaces of others, more than there is, and what the dead left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.security.broker_ground import OPERATIONS, SECRET

import ringfence
from ringfence.errors import CapabilityBlocked, InvalidRequest, QuotaExceeded
from ringfence.executors.fs import FsBroker
from ringfence.executors.tmp import TmpBroker, TmpCaps
from ringfence.operation.brokered import FsDelete, FsList, FsRead, FsStat, FsWrite, TmpAlloc, TmpFree

pytestmark = pytest.mark.guarantee(16)


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
