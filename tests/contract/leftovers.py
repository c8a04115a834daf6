"""An application that ends runs in every way, and says what it holds more of in the end than after the first of each.

A program of its own: what other tests park, open and mount beside it is not what a run left.
    python -m tests.contract.leftovers BACKEND HOME
"""

from __future__ import annotations

import asyncio
import glob
import json
import os
import subprocess
import sys
import time
from pathlib import Path

from tests.contract.conftest import Bench
from tests.stream_box import BoxBackend

from ringfence.authority.profile import Isolation
from ringfence.capability.limits import MIB
from ringfence.errors import IsolationUnavailable
from ringfence.isolation.docker import reaper
from ringfence.ports import Backend
from ringfence.wiring.box import make_backend
from ringfence.wiring.settings import Settings

STREAM = "stream"
"""The boxes of `tests.stream_box`; every other name is that of an `Isolation`."""
_PATIENCE_SECONDS = 20.0
"""What was still dying when it was first counted may be gone by then; what stays is held."""


def processes_below(pid: int) -> set[int]:
    """List the living descendants of `pid`."""
    children: dict[int, set[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            children.setdefault(parent_of(int(name)), set()).add(int(name))
    found: set[int] = set()
    below = [pid]
    while below:
        born = children.get(below.pop(), set())
        found |= born
        below += born
    return found


def parent_of(pid: int) -> int:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return int(file.read().rpartition(")")[2].split()[1])
    except (FileNotFoundError, ProcessLookupError):
        return -1


def _holdings(name: str, home: Path) -> dict[str, int]:
    """Count what a run could leave behind in this process, on this machine and in an engine."""
    mine = f"ringfence-{os.getpid()}-"
    return {
        "descriptors": len(os.listdir("/proc/self/fd")),
        "children": len(processes_below(os.getpid())),
        "memory cgroups": len(glob.glob(f"/sys/fs/cgroup/memory/**/{mine}*/rf-*", recursive=True)),
        "cgroups": len(glob.glob(f"/sys/fs/cgroup/**/{mine}*/rf-*", recursive=True)),
        "mounts": Path("/proc/self/mountinfo").read_text().count("\n"),
        "containers": len(_containers(home)) if name == Isolation.DOCKER else 0,
    }


def _containers(home: Path) -> list[str]:
    ours = f"label={reaper.HOME_LABEL}={reaper.home_id(home)}"
    command = ["docker", "--host", os.environ["RINGFENCE_DOCKER_URL"], "ps", "--all", "--quiet", "--filter", ours]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()


async def _end_in_every_way(bench: Bench) -> None:
    await bench.run("print(1)", stdin=bytes(MIB), files={"a": b"1"}, inputs={"b": b"2"})
    await bench.run("import os; os.kill(os.getpid(), 9)")
    await bench.run("while True: pass", wall_seconds=0.05)
    bench.start().discard()
    try:
        await bench.run("1", spec={"packages": "/no/such/environment"})
    except IsolationUnavailable:
        return
    raise AssertionError("an environment that is not there was mounted")


def _make(name: str, home: Path) -> Backend:
    return BoxBackend(home) if name == STREAM else make_backend(Settings(home=home, isolation=Isolation(name)))


async def _main(name: str, home: Path) -> None:
    backend = _make(name, home)
    try:
        bench = Bench(backend, name)
        await _end_in_every_way(bench)
        before = _holdings(name, home)
        for _ in range(3):
            await _end_in_every_way(bench)
        until = time.monotonic() + _PATIENCE_SECONDS
        while more := {what: now - before[what] for what, now in _holdings(name, home).items() if now > before[what]}:
            if time.monotonic() > until:
                break
            await asyncio.sleep(0.05)
        print(json.dumps(more))
    finally:
        backend.close()


if __name__ == "__main__":
    asyncio.run(_main(sys.argv[1], Path(sys.argv[2])))
