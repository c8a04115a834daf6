"""What a killed host leaves in the cgroup trees is gone after the next start, and what a live one has there is not."""

from __future__ import annotations

import os
import select
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

from ringfence.isolation.linux.cgroup_contract import CgroupHost
from ringfence.isolation.linux.cgroups import detect

pytestmark = pytest.mark.guarantee(8)

OWNER = """
import os, signal, subprocess, sys
from ringfence.capability.limits import Limits
from ringfence.isolation.linux.cgroups import detect
host = detect()
run = host.create("left", Limits(pids=32))
guest = subprocess.Popen([sys.executable, "-I", "-S", "-c", sys.argv[1]], stdin=subprocess.PIPE, start_new_session=True)
for path in run.paths:
    with open(f"{path}/cgroup.procs", "w") as file:
        file.write(str(guest.pid))
guest.stdin.write(b"go"); guest.stdin.close()
print(guest.pid, *run.paths, flush=True)
signal.pause()
"""
LEFT_ALONE = "import sys, signal; sys.stdin.read(); signal.pause()"
LEFT_BOMB = """
import os, sys
sys.stdin.read()
while True:
    try:
        os.fork()
    except OSError:
        pass
"""


def start_owner(program: str) -> tuple[subprocess.Popen[str], int, list[str]]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    owner = subprocess.Popen([sys.executable, "-c", OWNER, program], stdout=subprocess.PIPE, text=True, env=environment)
    assert owner.stdout is not None
    with owner.stdout as output:
        pid, *paths = output.readline().split()
    return owner, int(pid), paths


@pytest.fixture
def host() -> Iterator[CgroupHost]:
    found = detect()
    if found.report.kind == "none":
        pytest.skip(f"no cgroups here: {found.report.reason}")
    yield found
    assert found.close()


@pytest.mark.parametrize("program", [LEFT_ALONE, LEFT_BOMB])
def test_a_sweep_clears_what_a_killed_owner_left_and_spares_a_live_one(host: CgroupHost, program: str) -> None:
    dead, left_pid, left_paths = start_owner(program)
    live, live_pid, live_paths = start_owner(LEFT_ALONE)
    try:
        pidfd = os.pidfd_open(left_pid)
        dead.kill()
        dead.wait()
        assert all(os.path.isdir(path) for path in left_paths)

        gone = host.sweep()

        assert {os.path.dirname(path) for path in left_paths} <= set(gone)
        assert not any(os.path.exists(os.path.dirname(path)) for path in left_paths)
        assert select.select([pidfd], [], [], 0)[0] == [pidfd]
        os.close(pidfd)
        os.kill(live_pid, 0)
        assert all(os.path.isdir(path) for path in live_paths)
    finally:
        live.kill()
        live.wait()
        host.sweep()
    assert not any(os.path.exists(path) for path in live_paths)


def test_two_sweeps_at_once_both_succeed(host: CgroupHost) -> None:
    owners = [start_owner(LEFT_ALONE) for _ in range(3)]
    for owner, _, _ in owners:
        owner.kill()
        owner.wait()
    failures: list[OSError] = []

    def sweep() -> None:
        try:
            host.sweep()
        except OSError as error:
            failures.append(error)

    threads = [threading.Thread(target=sweep) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    host.sweep()
    assert failures == []
    assert not any(os.path.exists(os.path.dirname(path)) for _, _, paths in owners for path in paths)
