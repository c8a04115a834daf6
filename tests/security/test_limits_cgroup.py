"""Hostile programs against the cgroup limits, each first seen to succeed where no cgroup holds it.

Runs on whichever interface the machine has: every test here is one for v1 and for v2 unless its name says otherwise.
"""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest

from ringfence.capability.limits import MIB, Limits
from ringfence.isolation.linux.cgroup_contract import CgroupHost, RunCgroup
from ringfence.isolation.linux.cgroup_owner import forbid_forks, parse_owner
from ringfence.isolation.linux.cgroup_plan import Plan, V1Place, plan
from ringfence.isolation.linux.cgroups import choose, detect
from ringfence.isolation.linux.metering import ProcMeter

pytestmark = pytest.mark.guarantee(7)

HOG = "a = bytearray(256 << 20); print('survived')"
SHARED_HOG = (
    "import mmap; m = mmap.mmap(-1, 256 << 20)\nfor at in range(0, 256 << 20, 4096): m[at] = 1\nprint('survived')"
)
FORKS = """
import os, signal
made = []
try:
    while len(made) < 64:
        made.append(os.fork())
        if made[-1] == 0:
            signal.pause()
except OSError as error:
    print(len(made), error.errno)
else:
    print(len(made), 0)
for pid in made:
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
"""
BURN = "import time\nend = time.process_time() + 0.2\nwhile time.process_time() < end: pass"
HIDDEN_BURN = """
import os, resource, signal, time
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
if os.fork() == 0:
    while time.process_time() < 0.2: pass
    os._exit(0)
try:
    os.wait()
except ChildProcessError:
    print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime)
"""
WAIT = "import signal; signal.pause()"


class Guest:
    """A Python program that starts when told to, in a process group of its own."""

    def __init__(self, program: str) -> None:
        self.process = subprocess.Popen(
            [
                sys.executable,
                "-I",
                "-S",
                "-c",
                f"import sys; print('here', flush=True); sys.stdin.readline()\n{program}",
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            start_new_session=True,
        )
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "here\n"

    @property
    def pid(self) -> int:
        return self.process.pid

    def go(self) -> str:
        """Let the program run; return its output, which ends when its main process does."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        self.process.wait()
        self.kill()
        return self.process.stdout.read()

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self.process.wait()


@pytest.fixture
def host() -> Iterator[CgroupHost]:
    found = detect()
    if found.report.kind == "none":
        pytest.skip(f"no cgroups here: {found.report.reason}")
    yield found
    wait_until(found.close)


@pytest.fixture
def guest() -> Iterator[Callable[[str], Guest]]:
    started: list[Guest] = []

    def start(program: str) -> Guest:
        started.append(Guest(program))
        return started[-1]

    yield start
    for one in started:
        one.kill()
        one.process.communicate()


def wait_until(done: Callable[[], bool]) -> None:
    """Ask again until the kernel has let go of dying processes; bounded by asking, not by a clock."""
    for _ in range(20_000):
        if done():
            return
        os.sched_yield()
    raise AssertionError("still busy")


def move_in(run: RunCgroup, pid: int) -> None:
    """Put another process in; a worker goes in by itself."""
    for path in run.paths:
        with open(f"{path}/cgroup.procs", "w", encoding="ascii") as file:
            file.write(str(pid))


def file_of(run: RunCgroup, name: str) -> str:
    for path in run.paths:
        with contextlib.suppress(FileNotFoundError), open(f"{path}/{name}", encoding="ascii") as file:
            return file.read()
    raise FileNotFoundError(name)


def owned_directories(host: CgroupHost) -> set[str]:
    run = host.create("where", Limits())
    parents = {os.path.dirname(os.path.dirname(path)) for path in run.paths}
    wait_until(run.remove)
    wait_until(host.close)
    names = {f"{parent}/{name}" for parent in parents for name in os.listdir(parent)}
    return {name for name in names if (owner := parse_owner(os.path.basename(name))) and owner.pid == os.getpid()}


@pytest.mark.parametrize("program", [HOG, SHARED_HOG])
def test_a_memory_hog_is_killed_and_counted(host: CgroupHost, guest: Callable[[str], Guest], program: str) -> None:
    free = guest(program)
    assert free.go() == "survived\n"

    run = host.create("hog", Limits(memory_bytes=64 * MIB))
    held = guest(program)
    move_in(run, held.pid)

    assert held.go() == ""
    assert held.process.returncode == -signal.SIGKILL
    used = run.usage()
    assert used.oom_kills >= 1
    assert used.memory_peak_bytes is not None
    assert 32 * MIB < used.memory_peak_bytes <= 65 * MIB  # the kernel lets a dying task have a few pages
    wait_until(run.remove)


def test_a_fork_bomb_is_refused_at_the_limit(host: CgroupHost, guest: Callable[[str], Guest]) -> None:
    assert guest(FORKS).go() == "64 0\n"

    run = host.create("bomb", Limits(pids=16))
    held = guest(FORKS)
    move_in(run, held.pid)

    assert held.go() == f"15 {errno.EAGAIN}\n"
    wait_until(run.remove)


def test_the_cpu_quota_throttles_and_the_time_is_counted(host: CgroupHost, guest: Callable[[str], Guest]) -> None:
    throttled: dict[float, int] = {}
    for cpus in (64.0, 0.1):
        run = host.create(f"burn{cpus:.0f}", Limits(cpus=cpus))
        held = guest(BURN)
        move_in(run, held.pid)
        held.go()
        stat = dict(line.split() for line in file_of(run, "cpu.stat").splitlines())
        throttled[cpus] = int(stat["nr_throttled"])
        used = run.usage()
        assert used.cpu_ms is not None
        assert used.cpu_ms >= 199
        wait_until(run.remove)
    assert throttled[64.0] == 0
    assert throttled[0.1] >= 1


def test_cpu_time_of_children_nobody_waits_for_is_counted_where_rusage_misses_it(
    host: CgroupHost, guest: Callable[[str], Guest]
) -> None:
    run = host.create("hidden", Limits())
    held = guest(HIDDEN_BURN)
    move_in(run, held.pid)

    assert held.go() == "0.0\n"
    used = run.usage()
    assert used.cpu_ms is not None
    assert used.cpu_ms >= 199
    wait_until(run.remove)


def test_tighten_lowers_and_raises_to_the_exact_value(host: CgroupHost) -> None:
    run = host.create("tight", Limits())
    for size, pids in ((64 * MIB, 8), (2048 * MIB, 512), (128 * MIB, 8)):
        run.tighten(Limits(memory_bytes=size, pids=pids))
        name = "memory.max" if host.report.kind == "v2" else "memory.limit_in_bytes"
        assert int(file_of(run, name)) == size
        assert int(file_of(run, "pids.max")) == pids
    assert run.remove()


def test_nothing_is_written_when_the_limits_are_those_in_force(
    host: CgroupHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = host.create("same", Limits())
    opened: list[object] = []
    monkeypatch.setattr(os, "open", lambda *args, **_: opened.append(args))
    run.tighten(Limits())
    monkeypatch.undo()
    assert opened == []
    assert run.remove()


def test_remove_says_busy_while_a_process_lives_and_can_be_asked_again(
    host: CgroupHost, guest: Callable[[str], Guest]
) -> None:
    run = host.create("busy", Limits())
    held = guest(WAIT)
    move_in(run, held.pid)
    assert run.remove() is False
    assert all(os.path.isdir(path) for path in run.paths)
    held.kill()
    wait_until(run.remove)
    assert not os.path.exists(run.paths[0])


def test_nothing_of_one_run_shows_in_the_counters_of_the_next(host: CgroupHost, guest: Callable[[str], Guest]) -> None:
    first = host.create("first", Limits(pids=4))
    held = guest(FORKS)
    move_in(first, held.pid)
    held.go()
    wait_until(lambda: file_of(first, "pids.current") == "0\n")
    assert first.remove()

    second = host.create("second", Limits())
    if host.report.kind == "v1":
        assert len(set(first.paths) & set(second.paths)) == len(first.paths) - 1
    used = second.usage()
    assert (used.cpu_ms, used.oom_kills) == (0, 0)
    assert int(file_of(second, "pids.max")) == Limits().pids
    assert second.remove()


def test_a_throttled_run_hands_no_debt_to_the_next(host: CgroupHost, guest: Callable[[str], Guest]) -> None:
    first = host.create("debtor", Limits(cpus=0.1))
    held = guest(BURN)
    move_in(first, held.pid)
    held.go()
    wait_until(first.remove)
    second = host.create("heir", Limits())
    assert set(first.paths).isdisjoint(second.paths)
    assert second.remove()


def test_a_small_run_hands_its_v1_lane_on_once_and_a_second_removal_changes_nothing(host: CgroupHost) -> None:
    if host.report.kind != "v1":
        pytest.skip("v2 has one tree and nothing to hand on")
    first = host.create("small", Limits(pids=8))
    assert first.remove()
    assert first.remove()
    second = host.create("next", Limits())
    third = host.create("other", Limits())
    assert len(set(first.paths) & set(second.paths)) == len(first.paths) - 1
    assert set(second.paths).isdisjoint(third.paths)
    assert int(file_of(second, "pids.max")) == Limits().pids
    assert second.remove()
    assert third.remove()


def test_a_lane_with_a_zombie_in_it_is_not_handed_on(host: CgroupHost, guest: Callable[[str], Guest]) -> None:
    if host.report.kind != "v1":
        pytest.skip("v2 has one tree and nothing to hand on")
    first = host.create("zombie", Limits())
    held = guest(WAIT)
    move_in(first, held.pid)
    os.kill(held.pid, signal.SIGKILL)
    os.waitid(os.P_PID, held.pid, os.WEXITED | os.WNOWAIT)
    first.remove()
    second = host.create("after", Limits())
    assert set(first.paths).isdisjoint(second.paths)
    held.kill()
    wait_until(first.remove)
    assert second.remove()


def test_a_hundred_runs_leave_no_directory_and_no_descriptor(host: CgroupHost, guest: Callable[[str], Guest]) -> None:
    before = owned_directories(host), len(os.listdir("/proc/self/fd"))
    for number in range(100):
        run = host.create(f"run{number}", Limits())
        run.usage()
        wait_until(run.remove)
    assert host.close()
    assert (owned_directories(host), len(os.listdir("/proc/self/fd"))) == before


def test_a_leftover_cannot_fork_once_the_sweep_has_begun(host: CgroupHost, guest: Callable[[str], Guest]) -> None:
    run = host.create("outrun", Limits())
    held = guest(FORKS)
    move_in(run, held.pid)
    for path in run.paths:
        forbid_forks(path)
    assert held.go() == f"0 {errno.EAGAIN}\n"
    wait_until(run.remove)


def test_detection_leaves_nothing_behind(host: CgroupHost) -> None:
    before = owned_directories(host)
    detect()
    assert owned_directories(host) == before


def test_runs_stay_below_our_own_cgroup_in_every_v1_tree(host: CgroupHost) -> None:
    if host.report.kind != "v1":
        pytest.skip("v2 places runs beside us when it must, and the report says so")
    with open("/proc/self/mountinfo", encoding="utf-8") as mounts, open("/proc/self/cgroup", encoding="utf-8") as own:
        places = plan(mounts.read(), own.read()).v1
    run = host.create("below", Limits())
    assert len(run.paths) == len(places)
    assert all(any(path.startswith(f"{place.own}/ringfence-") for place in places) for path in run.paths)
    assert run.remove()


def test_a_v1_tree_that_refuses_does_not_take_the_others_with_it(host: CgroupHost) -> None:
    if host.report.kind != "v1":
        pytest.skip("v2 has one tree")
    with open("/proc/self/mountinfo") as mounts, open("/proc/self/cgroup") as membership:
        found = plan(mounts.read(), membership.read())
    broken, *others = found.v1
    places = (V1Place("/nowhere", broken.controllers), *others)
    seen = choose(Plan(places, (), ()))
    assert seen.report.controllers == host.report.controllers - broken.controllers
    assert choose(Plan((V1Place("/nowhere", broken.controllers),), (), ())).report.kind == "none"


def test_an_ordinary_user_without_delegation_is_told_what_to_do() -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root to become somebody without rights")
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.setgroups([])
        os.setresuid(65534, 65534, 65534)
        report = detect().report
        os.write(writer, f"{report.kind}|{sorted(report.controllers)}|{report.fix}".encode())
        os._exit(0)
    os.close(writer)
    os.waitpid(pid, 0)
    kind, controllers, fix = os.read(reader, 65536).decode().split("|")
    os.close(reader)
    assert (kind, controllers) == ("none", "[]")
    assert "chown" in fix or "Delegate=yes" in fix


def test_an_ordinary_user_uses_the_v1_directories_an_administrator_gave_it(host: CgroupHost) -> None:
    if host.report.kind != "v1" or os.geteuid() != 0:
        pytest.skip("needs root on v1 to play the administrator")
    with open("/proc/self/mountinfo", encoding="utf-8") as mounts, open("/proc/self/cgroup", encoding="utf-8") as own:
        given = [f"{place.own}/ringfence" for place in plan(mounts.read(), own.read()).v1]
    reader, writer = os.pipe()
    for path in given:
        os.mkdir(path)
        os.chown(path, 65534, 65534)
    try:
        pid = os.fork()
        if pid == 0:
            os.setgroups([])
            os.setresuid(65534, 65534, 65534)
            report = detect().report
            os.write(writer, f"{report.kind}|{sorted(report.controllers)}".encode())
            os._exit(0)
        os.close(writer)
        os.waitpid(pid, 0)
        assert os.read(reader, 65536) == b"v1|['cpu', 'memory', 'pids']"
    finally:
        os.close(reader)
        for path in given:
            os.rmdir(path)


def test_an_outer_quota_below_the_limit_is_kept_and_not_an_error(host: CgroupHost) -> None:
    if host.report.kind != "v1":
        pytest.skip("only v1 refuses a quota above the outer one")
    run = host.create("outer", Limits(cpus=0.2))
    owner = next(os.path.dirname(path) for path in run.paths if os.path.exists(f"{path}/cpu.cfs_quota_us"))
    with open(f"{owner}/cpu.cfs_quota_us", "w", encoding="ascii") as file:
        file.write("50000")
    run.tighten(Limits(cpus=1.0))
    assert int(file_of(run, "cpu.cfs_quota_us")) <= 50_000
    assert run.remove()


def test_the_meter_without_cgroups_sees_orphans_memory_and_cpu(guest: Callable[[str], Guest]) -> None:
    orphaning = """
import ctypes, os, signal, time
ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER: what the init of a pid namespace is by nature
this = os.getpid()
ready, done = os.pipe()
if os.fork() == 0:
    if os.fork() == 0:
        while os.getppid() != this: pass
        big = bytearray(os.urandom(1 << 20) * 48)
        while time.process_time() < 0.2: pass
        os.write(done, b"x")
        signal.pause()
    os._exit(0)
os.wait(); os.read(ready, 1); print("ready", flush=True); signal.pause()
"""
    held = guest(orphaning)
    assert held.process.stdin is not None
    assert held.process.stdout is not None
    held.process.stdin.write("\n")
    held.process.stdin.flush()
    assert held.process.stdout.readline() == "ready\n"

    sample = ProcMeter((held.pid,)).sample()

    assert sample.pids == 2
    assert sample.cpu_seconds >= 0.15
    assert sample.memory_bytes >= 48 * MIB
