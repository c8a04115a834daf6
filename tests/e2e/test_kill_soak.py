"""A host that is killed with SIGKILL, at any moment, leaves nothing running and nothing lying about."""

from __future__ import annotations

import ctypes
import glob
import os
import random
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

import ringfence

USER = 4243  # belongs to nobody
GONE_WITHIN_SECONDS = 1.0
STARTS_EVERY = 5
MOST_EVENTS = 60
PR_SET_CHILD_SUBREAPER = 36

# Parked, starting, running, forking, timing out and session workers at once; one byte for each thing that happens.
HOST = """
import asyncio, os, random, sys
from ringfence import Limits, SandboxManager

home, isolation, seed = sys.argv[1:]
rng = random.Random(int(seed))
sessions = isolation == "native"

def event(*_):
    os.write(1, b".")

async def main():
    async with SandboxManager(home=home, isolation=isolation) as plain:
        session = SandboxManager("kept", home=home, isolation=isolation) if sessions else plain

        async def caller():
            while True:
                event()
                match rng.randrange(5):
                    case 0:
                        await plain.execute_code("python", "print(1)", on_output=event)
                    case 1:
                        await plain.execute_code("python", "print(1)\\nwhile True: pass", rng.random(), on_output=event)
                    case 2:
                        tree = "for i in 1 2 3 4 5 6; do (setsid sleep 1000 &); done; echo x; sleep 1000"
                        await plain.execute_shell(tree, timeout=rng.random(), on_output=event)
                    case 3:
                        change = "open('f', 'wb').write(bytes(10**6)); print(1)"
                        await session.execute_code("python", change, on_output=event)
                    case 4:
                        other = Limits(inodes=5000 + rng.randrange(3))
                        await plain.execute_code("python", "print(1)", limits=other, on_output=event)

        await asyncio.gather(*(caller() for _ in range(5)))

asyncio.run(main())
"""

NEXT_START = """
import sys
import ringfence
from ringfence import engines

home, isolation = sys.argv[1:]
session = {"session_id": "kept"} if isolation == "native" else {}
result = ringfence.run("open('f', 'wb').write(b'1'); print(1)", home=home, isolation=isolation, **session)
assert result.stdout == "1\\n", result
engines._end_all()
"""


@dataclass(frozen=True)
class Somebody:
    """Who the hosts run as, and the directory that is all theirs."""

    directory: Path
    uid: int | None

    def command(self, code: str, *arguments: str) -> list[str]:
        return [sys.executable, "-c", code, str(self.directory / "home"), *arguments]

    def start(self, code: str, *arguments: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            self.command(code, *arguments),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=self.directory,
            env={
                "PATH": os.environ["PATH"],
                "PYTHONPATH": str(self.directory / "source"),
                "HOME": str(self.directory),
                "TMPDIR": str(self.directory / "tmp"),
            },
            user=self.uid,
            group=self.uid,
            extra_groups=None if self.uid is None else [],
        )


@pytest.fixture(params=["caller", pytest.param("user", marks=pytest.mark.needs("root"))])
def somebody(request: pytest.FixtureRequest) -> Iterator[Somebody]:
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        directory.chmod(0o755)
        # where the package is installed, an ordinary user may not be able to go
        shutil.copytree(Path(ringfence.__file__).parent, directory / "source/ringfence")
        for made in ("home", "tmp"):
            (directory / made).mkdir()
        who = Somebody(directory, USER if request.param == "user" else None)
        if who.uid is not None:
            for path in (directory, *directory.iterdir()):
                os.chown(path, who.uid, who.uid)
            probe = who.start("import ringfence")
            if probe.wait():
                pytest.skip("an ordinary user cannot reach this Python")
            probe.communicate()
        yield who


@pytest.fixture
def orphans() -> Iterator[None]:
    """Make this process the parent of everything a killed host leaves behind, so that nothing can hide."""
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0
    yield
    assert libc.prctl(PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0) == 0


@pytest.mark.timeout(0)
@pytest.mark.parametrize(
    ("isolation", "kills"),
    [
        pytest.param("native", 1000, marks=pytest.mark.needs("native")),
        pytest.param("bwrap", 200, marks=pytest.mark.needs("bwrap")),
    ],
)
def test_a_killed_host_leaves_nothing_behind(
    somebody: Somebody, orphans: None, count: Callable[[int], int], isolation: str, kills: int
) -> None:
    seed = random.randrange(2**32)
    print("seed", seed)  # shown when a round fails
    rng = random.Random(seed)
    mounts = mountinfo()
    killed: list[int] = []
    for number in range(count(kills)):
        killed.append(kill_one(somebody, isolation, rng, f"round {number}"))
        assert mountinfo() == mounts
        if number % STARTS_EVERY == 0:
            start_next(somebody, isolation, killed)
    start_next(somebody, isolation, killed)


def kill_one(somebody: Somebody, isolation: str, rng: random.Random, name: str) -> int:
    before = living_below(os.getpid())
    host = somebody.start(HOST, isolation, str(rng.randrange(2**32)))
    assert host.stdout is not None
    assert host.stderr is not None
    events = rng.randrange(MOST_EVENTS)
    while events:
        happened = os.read(host.stdout.fileno(), events)
        assert happened, f"{name}: the host ended by itself: {host.stderr.read().decode()}"
        events -= len(happened)
    select.select([], [], [], rng.random() * 0.02)  # between two events
    with held({pid_namespace(pid): pid for pid in living_below(host.pid)}) as namespaces:
        host.send_signal(signal.SIGKILL)
        host.wait()
        deadline = time.monotonic() + GONE_WITHIN_SECONDS
        # what other tests of this process have parked is renewed now and then, below what was there before
        while left := living_below(os.getpid(), but=before) | living_in(namespaces):
            assert time.monotonic() < deadline, f"{name}: still there: {[describe(pid) for pid in left]}"
            time.sleep(0.005)
    host.stdout.close()
    host.stderr.close()
    return host.pid


def start_next(somebody: Somebody, isolation: str, killed: list[int]) -> None:
    survivor = somebody.start(NEXT_START, isolation)
    _, said = survivor.communicate()
    assert survivor.returncode == 0, said.decode()
    left = [path for pid in (*killed, survivor.pid) for path in cgroups_of(pid)]
    assert left == []
    assert list((somebody.directory / "tmp").iterdir()) == []
    assert list((somebody.directory / "home").rglob("staging/*")) == []
    killed.clear()


def living_below(pid: int, but: Collection[int] = ()) -> set[int]:
    """List the descendants of `pid` that are alive, without some and theirs, and reap those of ours that are not."""
    children: dict[int, list[int]] = {}
    dead: set[int] = set()
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            state, parent = Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()[:2]
        except (FileNotFoundError, ProcessLookupError):
            continue
        children.setdefault(int(parent), []).append(int(name))
        if state in "ZX":
            dead.add(int(name))
    found: set[int] = set()
    waiting = [pid]
    while waiting:
        below = [child for child in children.get(waiting.pop(), []) if child not in but]
        found.update(below)
        waiting += below
    if pid == os.getpid():
        for orphan in dead & set(children.get(pid, [])):
            os.waitpid(orphan, os.WNOHANG)
    return found - dead


@contextmanager
def held(namespaces: dict[str | None, int]) -> Iterator[set[str]]:
    """Keep those that are not ours, each that of a process: the number of one that is gone is soon somebody else's."""
    with ExitStack() as stack:
        kept = set()
        for namespace, pid in namespaces.items():
            if namespace is None or namespace == pid_namespace(os.getpid()):
                continue
            with suppress(OSError):  # gone, or somebody else's
                fd = os.open(f"/proc/{pid}/ns/pid", os.O_RDONLY)
                stack.callback(os.close, fd)
                kept.add(f"pid:[{os.fstat(fd).st_ino}]")
        yield kept


def living_in(namespaces: set[str]) -> set[int]:
    pids = {int(name) for name in os.listdir("/proc") if name.isdigit()}
    return {pid for pid in pids if pid_namespace(pid) in namespaces and not is_zombie(pid)}


def pid_namespace(pid: int) -> str | None:
    try:
        return os.readlink(f"/proc/{pid}/ns/pid")
    except OSError:  # gone, or somebody else's
        return None


def is_zombie(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return True


def describe(pid: int) -> str:
    try:
        status = Path(f"/proc/{pid}/status").read_text().splitlines()
        return f"{pid} " + ", ".join(line for line in status if line.startswith(("Name", "State", "PPid", "NSpid")))
    except (FileNotFoundError, ProcessLookupError):
        return f"{pid} gone"


def cgroups_of(pid: int) -> list[str]:
    return glob.glob(f"/sys/fs/cgroup/**/ringfence-{pid}-*", recursive=True)


def mountinfo() -> str:
    return Path("/proc/self/mountinfo").read_text()
