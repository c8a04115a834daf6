"""Attack: make the zygote fail half-way through a box, as one that uses up what all of them share could."""

from __future__ import annotations

import os
import resource
import time
from pathlib import Path

import pytest

from ringfence.authority.profile import Isolation
from ringfence.errors import IsolationUnavailable
from ringfence.isolation.linux.parked import ParkedWorker
from ringfence.ports import WorkerLost, WorkerSpec
from ringfence.wiring.box import make_backend
from ringfence.wiring.settings import Settings

pytestmark = [pytest.mark.guarantee(8), pytest.mark.needs("native")]

_RECEIVED = 5
_FOR_A_RUN = 4


def test_a_box_that_could_not_be_finished_leaves_no_process(tmp_path: Path) -> None:
    backend = make_backend(Settings(home=tmp_path, isolation=Isolation.NATIVE))
    try:
        first = backend.start(WorkerSpec())
        assert isinstance(first, ParkedWorker)
        received = _RECEIVED + (len(first.meter.cgroup.paths) if first.meter.cgroup is not None else 0)
        zygote = int(Path(f"/proc/{first.init_pid}/stat").read_text().rpartition(")")[2].split()[1])
        usual = resource.prlimit(zygote, resource.RLIMIT_NOFILE)
        held = len(os.listdir(f"/proc/{zygote}/fd")) - _FOR_A_RUN
        first.discard()
        wait_until_free(zygote, held)
        failed = 0
        # each lets it come one step further
        for room in range(received, received + 8):
            resource.prlimit(zygote, resource.RLIMIT_NOFILE, (held + room, usual[1]))
            try:
                worker = backend.start(WorkerSpec())
            except IsolationUnavailable:
                failed += 1
            else:
                worker.discard()
            resource.prlimit(zygote, resource.RLIMIT_NOFILE, usual)
            wait_until_free(zygote, held)
        assert 2 <= failed < 8
    finally:
        backend.close()


def wait_until_free(zygote: int, held: int) -> None:
    """Return when the zygote has no child any more and only the descriptors it was born with."""
    end = time.monotonic() + 5
    while left := state_of(zygote, held):
        assert time.monotonic() < end, f"still there: {left}"
        time.sleep(0.005)


def state_of(zygote: int, held: int) -> list[str]:
    """Name the children, and the descriptors beyond `held`."""
    children = Path(f"/proc/{zygote}/task/{zygote}/children").read_text().split()
    return children + sorted(os.listdir(f"/proc/{zygote}/fd"), key=int)[held:]


def test_a_zygote_that_cannot_take_a_request_lets_its_runs_go_on(tmp_path: Path) -> None:
    backend = make_backend(Settings(home=tmp_path, isolation=Isolation.NATIVE))
    try:
        first = backend.start(WorkerSpec())
        zygote = int(Path(f"/proc/{first.init_pid}/stat").read_text().rpartition(")")[2].split()[1])
        usual = resource.prlimit(zygote, resource.RLIMIT_NOFILE)
        resource.prlimit(zygote, resource.RLIMIT_NOFILE, (1, usual[1]))
        with pytest.raises(WorkerLost):
            backend.start(WorkerSpec())
        assert Path(f"/proc/{first.init_pid}").exists()
        second = backend.start(WorkerSpec())  # of another zygote
        other = int(Path(f"/proc/{second.init_pid}/stat").read_text().rpartition(")")[2].split()[1])
        assert other != zygote
        second.discard()
        first.discard()
    finally:
        backend.close()
