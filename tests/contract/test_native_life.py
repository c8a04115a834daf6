"""What one worker's life costs in page faults: the copies that a fork makes both sides pay for (ADR 0054)."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from ringfence.authority.profile import Isolation
from ringfence.isolation.linux.parked import ParkedWorker
from ringfence.ports import WorkerSpec
from ringfence.wiring.box import make_backend
from ringfence.wiring.settings import Settings

pytestmark = [pytest.mark.needs("native")]

LIVES = 8
# 230 and 370 were measured
MOST_OF_THE_ZYGOTE = 320
MOST_OF_THE_WORKER = 480


def test_a_life_copies_little_memory(tmp_path: Path) -> None:
    backend = make_backend(Settings(home=tmp_path, isolation=Isolation.NATIVE))
    try:
        first = backend.start(WorkerSpec())
        assert isinstance(first, ParkedWorker)
        zygote = parent_of(first.worker_pid)
        first.discard()
        wait_until_childless(zygote)
        before = faults(zygote)
        for _ in range(LIVES):
            backend.start(WorkerSpec()).discard()
            wait_until_childless(zygote)
        of_zygote, of_workers = ((new - old) / LIVES for old, new in zip(before, faults(zygote), strict=True))
        assert of_zygote <= MOST_OF_THE_ZYGOTE
        assert 0 < of_workers <= MOST_OF_THE_WORKER
    finally:
        backend.close()


def stat_of(pid: int) -> list[str]:
    """The fields of a process behind its name, from its state on."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()


def parent_of(pid: int) -> int:
    return int(stat_of(pid)[1])


def faults(pid: int) -> tuple[int, int]:
    """The faults, without reading from a disk, of a process, and of those that it waited for."""
    fields = stat_of(pid)
    return int(fields[7]), int(fields[8])


def wait_until_childless(pid: int) -> None:
    end = time.monotonic() + 5
    while Path(f"/proc/{pid}/task/{pid}/children").read_text():
        assert time.monotonic() < end, "a worker that was thrown away is still there"
        time.sleep(0.005)
