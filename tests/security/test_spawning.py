"""Attack: make the zygote fail half-way through a box, as one that uses up what all of them share could."""

from __future__ import annotations

import os
import resource
import select
import signal
import time
from pathlib import Path

import pytest

from ringfence.authority.profile import Isolation
from ringfence.errors import IsolationUnavailable
from ringfence.isolation.linux.parked import ParkedWorker
from ringfence.isolation.native.mold import RECEIVED
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
        zygote = parent_of(first.init_pid)
        usual = resource.prlimit(zygote, resource.RLIMIT_NOFILE)
        held = len(os.listdir(f"/proc/{zygote}/fd")) - _FOR_A_RUN
        mold = parent_of(first.worker_pid)
        first.discard()
        wait_until_free(zygote, mold, held)
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
            wait_until_free(zygote, mold, held)
        assert 2 <= failed < 8
    finally:
        backend.close()


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def children_of(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()


def wait_until_free(zygote: int, mold: int, held: int) -> None:
    """Return when no process is left but the zygote and its mold, with the descriptors that they began with."""
    end = time.monotonic() + 5
    while left := state_of(zygote, mold, held):
        assert time.monotonic() < end, f"still there: {left}"
        time.sleep(0.005)


def state_of(zygote: int, mold: int, held: int) -> list[str]:
    """Name the children, and the descriptors beyond `held` or, of the mold, beyond what it keeps."""
    children = [pid for pid in children_of(zygote) if int(pid) != mold] + children_of(mold)
    kept = sorted(os.listdir(f"/proc/{zygote}/fd"), key=int)[held:]
    return children + kept + [fd for fd in os.listdir(f"/proc/{mold}/fd") if int(fd) >= RECEIVED]


def test_a_zygote_that_cannot_take_a_request_lets_its_runs_go_on(tmp_path: Path) -> None:
    backend = make_backend(Settings(home=tmp_path, isolation=Isolation.NATIVE))
    try:
        first = backend.start(WorkerSpec())
        zygote = parent_of(first.init_pid)
        usual = resource.prlimit(zygote, resource.RLIMIT_NOFILE)
        resource.prlimit(zygote, resource.RLIMIT_NOFILE, (1, usual[1]))
        with pytest.raises(WorkerLost):
            backend.start(WorkerSpec())
        assert Path(f"/proc/{first.init_pid}").exists()
        second = backend.start(WorkerSpec())  # of another zygote
        assert parent_of(second.init_pid) != zygote
        second.discard()
        first.discard()
    finally:
        backend.close()


def test_a_mold_that_cannot_take_a_request_lets_its_runs_go_on(tmp_path: Path) -> None:
    backend = make_backend(Settings(home=tmp_path, isolation=Isolation.NATIVE))
    try:
        first = backend.start(WorkerSpec())
        assert isinstance(first, ParkedWorker)
        zygote, mold = parent_of(first.init_pid), parent_of(first.worker_pid)
        usual = resource.prlimit(mold, resource.RLIMIT_NOFILE)
        resource.prlimit(mold, resource.RLIMIT_NOFILE, (RECEIVED + 1, usual[1]))
        with pytest.raises(IsolationUnavailable, match="Too many open files"):
            backend.start(WorkerSpec())
        resource.prlimit(mold, resource.RLIMIT_NOFILE, usual)
        second = backend.start(WorkerSpec())
        assert isinstance(second, ParkedWorker)
        assert (parent_of(second.init_pid), parent_of(second.worker_pid)) == (zygote, mold)
        first.discard()
        second.discard()
    finally:
        backend.close()


def test_a_zygote_whose_mold_was_killed_ends_with_its_runs_and_another_serves(tmp_path: Path) -> None:
    backend = make_backend(Settings(home=tmp_path, isolation=Isolation.NATIVE))
    try:
        first = backend.start(WorkerSpec())
        assert isinstance(first, ParkedWorker)
        os.kill(parent_of(first.worker_pid), signal.SIGKILL)
        with pytest.raises(WorkerLost):
            backend.start(WorkerSpec())
        gone = select.poll()
        gone.register(first.pidfd, select.POLLIN)
        assert gone.poll(5000), "the init of a run whose end nobody could tell is still there"
        backend.start(WorkerSpec()).discard()
        first.discard()
    finally:
        backend.close()
