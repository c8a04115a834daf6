"""Attack: make the zygote fail half-way through a box, as one that uses up what all of them share could."""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import time
from pathlib import Path

import pytest

from ringfence.authority.profile import Isolation
from ringfence.capability.limits import Limits
from ringfence.errors import IsolationUnavailable
from ringfence.isolation.linux.parked import ParkedWorker
from ringfence.isolation.native import ignition
from ringfence.operation import Language
from ringfence.ports import Job, Worker, WorkerLost, WorkerSpec
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
        zygote = zygote_of(first)
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


def test_a_zygote_tells_of_a_worker_also_when_its_init_was_killed_first(tmp_path: Path) -> None:
    backend = make_backend(Settings(home=tmp_path, isolation=Isolation.NATIVE))
    try:
        killed, other = backend.start(WorkerSpec()), backend.start(WorkerSpec())
        assert isinstance(killed, ParkedWorker)
        zygote = zygote_of(killed)
        os.kill(zygote, signal.SIGSTOP)  # both have been killed before it looks
        killed.bury()
        wait_until_dead(killed.worker_pid)
        os.kill(zygote, signal.SIGCONT)
        killed.status.settimeout(5)
        assert killed.status.recv(100)
        killed.discard()
        assert asyncio.run(stdout_of(other)) == b"1\n"
        other.discard()
    finally:
        backend.close()


def zygote_of(worker: Worker) -> int:
    return int(Path(f"/proc/{worker.init_pid}/stat").read_text().rpartition(")")[2].split()[1])


def wait_until_dead(pid: int) -> None:
    end = time.monotonic() + 5
    while ") Z" not in Path(f"/proc/{pid}/stat").read_text():
        assert time.monotonic() < end, f"{pid} lives"
        time.sleep(0.005)


async def stdout_of(worker: Worker) -> bytes:
    """Have it print 1."""
    job = Job(Language.PYTHON, "print(1)", (), {}, b"", Limits())
    return (await asyncio.wait_for(worker.run(job, None), 10)).stdout


def state_of(zygote: int, held: int) -> list[str]:
    """Name the children, and the descriptors beyond `held`."""
    children = Path(f"/proc/{zygote}/task/{zygote}/children").read_text().split()
    return children + sorted(os.listdir(f"/proc/{zygote}/fd"), key=int)[held:]


def test_a_zygote_that_cannot_take_a_request_lets_its_runs_go_on(tmp_path: Path) -> None:
    backend = make_backend(Settings(home=tmp_path, isolation=Isolation.NATIVE))
    try:
        first = backend.start(WorkerSpec())
        zygote = zygote_of(first)
        usual = resource.prlimit(zygote, resource.RLIMIT_NOFILE)
        resource.prlimit(zygote, resource.RLIMIT_NOFILE, (1, usual[1]))
        with pytest.raises(WorkerLost):
            backend.start(WorkerSpec())
        assert Path(f"/proc/{first.init_pid}").exists()
        second = backend.start(WorkerSpec())  # of another zygote
        other = zygote_of(second)
        assert other != zygote
        second.discard()
        first.discard()
    finally:
        backend.close()


# what an epoll is to a zygote whose user may watch so much and no more: a guest of an ordinary user can bring it there
NO_ROOM_TO_WATCH = """
import errno, select
class Full:
    def __init__(self, real=select.epoll):
        self._events = real()
    def register(self, *what):
        if open("/proc/self/fdinfo/%d" % self._events.fileno()).read().count("tfd:") >= ROOM:
            raise OSError(errno.ENOSPC, "no space left on device")
        self._events.register(*what)
    def __getattr__(self, name):
        return getattr(self._events, name)
select.epoll = Full
"""

# what the kernel says when too many descriptors of this user are on their way, at every other answer with one
NO_ROOM_TO_SEND = """
import errno, itertools
from ringfence.isolation.linux import channel
def send(end, message, fds=(), send=channel.send, answers=itertools.count()):
    if fds and next(answers) % 2:
        raise OSError(errno.ETOOMANYREFS, "too many references: cannot splice")
    send(end, message, fds)
channel.send = send
"""


@pytest.mark.parametrize(
    "full",
    [*(NO_ROOM_TO_WATCH.replace("ROOM", str(room)) for room in range(3, 7)), NO_ROOM_TO_SEND],
    ids=["watch 3", "watch 4", "watch 5", "watch 6", "send"],
)
def test_a_zygote_that_has_no_room_for_another_box_lets_its_runs_go_on(
    full: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, then = ignition._BOOT.split(" from ", 1)
    monkeypatch.setattr(ignition, "_BOOT", f"{before}{full}from {then}")
    backend = make_backend(Settings(home=tmp_path, isolation=Isolation.NATIVE))
    try:
        workers = [backend.start(WorkerSpec())]
        zygote = zygote_of(workers[0])
        held = len(os.listdir(f"/proc/{zygote}/fd")) - _FOR_A_RUN
        with pytest.raises(IsolationUnavailable):
            workers.extend(backend.start(WorkerSpec()) for _ in range(4))
        assert [asyncio.run(stdout_of(worker)) for worker in workers] == [b"1\n"] * len(workers)
        for worker in workers:
            worker.discard()
        wait_until_free(zygote, held)
        backend.start(WorkerSpec()).discard()
        wait_until_free(zygote, held)
    finally:
        backend.close()
