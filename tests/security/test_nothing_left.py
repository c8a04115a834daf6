"""Attack: outlive the run: a daemon, a stopped child, a mount, a cgroup, a file, a descriptor in the host."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.security.conftest import Run

import ringfence

pytestmark = pytest.mark.guarantee(8)

NAMED = """
import ctypes, os, signal
def up():
    ctypes.CDLL(None).prctl(15, b'{token}', 0, 0, 0)
    print('up', flush=True)
"""
SURVIVORS = {
    "daemon": """
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        up()
        signal.pause()
    os._exit(0)
os.wait()
""",
    "stopped": """
if os.fork() == 0:
    up()
    os.kill(os.getpid(), signal.SIGSTOP)
""",
    "deaf": """
if os.fork() == 0:
    signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 65))
    up()
    while True:
        signal.pause()
""",
    "many": """
for _ in range(30):
    if os.fork() == 0:
        up()
        signal.pause()
""",
    "forking": """
if os.fork() == 0:
    up()
    while True:
        if os.fork():
            os._exit(0)
""",
}


def processes_named(token: str) -> list[int]:
    """Return the pids of the host's processes that call themselves `token`."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            if Path(f"/proc/{pid}/comm").read_text().strip() == token:
                found.append(int(pid))
        except OSError:
            continue
    return found


@pytest.mark.promise("G12 guests are processes of this machine")
@pytest.mark.parametrize("survivor", SURVIVORS)
@pytest.mark.parametrize("ending", ["os._exit(0)", "signal.pause()"])
def test_when_the_result_is_there_every_process_of_the_run_is_gone(box: Run, survivor: str, ending: str) -> None:
    token = f"rf{uuid.uuid4().hex[:12]}"
    seen: list[int] = []
    # the guest waits to be seen, so that this test has looked at living processes
    wait = "\nimport time\ntime.sleep(0.3)\n"
    result = box(
        NAMED.format(token=token) + SURVIVORS[survivor] + wait + ending,
        timeout=1,
        on_output=lambda *_: seen.extend(processes_named(token)),
    )
    assert processes_named(token) == []
    assert result.stdout.startswith("up")
    assert seen or survivor == "forking"  # that one is never long enough anywhere


HOST = """
import asyncio, glob
from ringfence import SandboxManager
from ringfence.capability.limits import Limits
from ringfence.facade import ExecutionRequest

def below(pid):
    found = []
    for task in glob.glob(f'/proc/{pid}/task/*/children'):
        try:
            children = open(task).read().split()
        except OSError:
            continue
        for child in children:
            found += [int(child), *below(child)]
    return found

def state():
    own = str(os.getpid())
    return dict(
        processes=len(below('self')),
        descriptors=len(os.listdir('/proc/self/fd')),
        mounts=open('/proc/self/mountinfo').read().count('\\n'),
        cgroups=len([path for path in glob.glob('/sys/fs/cgroup/**/ringfence-*', recursive=True) if own in path]),
        files=sorted(glob.glob('/tmp/*ringfence*') + glob.glob('/dev/shm/*')),
    )

PROGRAMS = [
    'pass', 'raise SystemExit(3)', 'import os; os.kill(os.getpid(), 9)', 'while True: pass', 'x = bytearray(1 << 30)',
    'import os, signal\\nif os.fork() == 0: signal.pause()',
    'import os\\nfor n in range(50): open(f"/workspace/artifacts/{n}", "w").write("x" * 1000)',
    'import os\\nwhile True: os.fork()',
    'while True: print("x" * 65536)',
    'import socket; s = [socket.create_server(("127.0.0.1", 0)) for _ in range(50)]',
]

async def main():
    limits = Limits(wall_seconds=0.6, pids=30, memory_bytes=64 << 20)
    async with SandboxManager(isolation=backend) as manager:
        await manager.execute(ExecutionRequest('pass'))
    before = state()
    async with SandboxManager(isolation=backend) as manager:
        for program in PROGRAMS:
            await manager.execute(ExecutionRequest(program, limits=limits, stdin=b'x' * 100_000))
        while_open = state()
        cancelled = asyncio.ensure_future(manager.execute(ExecutionRequest('import time; time.sleep(60)')))
        await asyncio.sleep(0.05)
        cancelled.cancel()
        await asyncio.gather(cancelled, return_exceptions=True)
    return before, while_open, state()

before, while_open, after = asyncio.run(main())
answer = dict(before=before, while_open=while_open, after=after)
"""


def test_after_hostile_runs_and_a_cancelled_one_the_host_is_as_it_was(
    application: Callable[[str], dict[str, Any]],
) -> None:
    answer = application(HOST)
    assert answer["while_open"]["processes"] > 0
    assert answer["after"] == answer["before"]
    assert answer["after"]["processes"] == 0
    assert answer["after"]["cgroups"] == 0


def test_a_host_killed_at_any_moment_leaves_no_process(
    backend: str, tmp_path: Path, count: Callable[[int], int]
) -> None:
    token = f"rf{uuid.uuid4().hex[:12]}"
    guest = NAMED.format(token=token) + SURVIVORS["daemon"] + "\nsignal.pause()"
    text = f"import ringfence\nprint('on', flush=True)\nringfence.run({guest!r}, isolation={backend!r})"
    environment = {**os.environ, "PYTHONPATH": str(Path(ringfence.__file__).parents[1]), "HOME": str(tmp_path)}
    for attempt in range(count(100)):
        with subprocess.Popen([sys.executable, "-c", text], env=environment, stdout=subprocess.PIPE) as host:
            assert host.stdout is not None
            host.stdout.readline()
            time.sleep(random.uniform(0, 0.4) if attempt else 0.4)
            mine = set(descendants(host.pid))
            host.kill()
        end = time.monotonic() + 10
        while (left := [pid for pid in mine if alive(pid)] + processes_named(token)) and time.monotonic() < end:
            time.sleep(0.01)
        assert left == []


def descendants(pid: int) -> list[int]:
    """Return every process below `pid`."""
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return []
    return [each for child in children for each in (int(child), *descendants(int(child)))]


def alive(pid: int) -> bool:
    """Whether a process is still there and not only waiting to be reaped."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False
