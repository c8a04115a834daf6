"""How a run is ended from outside, and that nothing of it is left, whichever backend built it."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests import gvisor_box
from tests.contract.leftovers import parent_of, processes_below

from ringfence.capability.limits import MIB, Limits
from ringfence.interrupted import Interrupted
from ringfence.operation import Language
from ringfence.outcome import SandboxType
from ringfence.ports import Job, Worker, WorkerLost

if TYPE_CHECKING:
    from tests.contract.conftest import Bench

ROOT = Path(__file__).parents[2]
FOREVER = "print('started')\nwhile True: pass"


async def test_a_timeout_keeps_what_was_said_before_it(bench: Bench) -> None:
    ending = (await bench.run(FOREVER, wall_seconds=0.5)).ending
    assert (ending.killed_by, ending.stdout, ending.exit_code) == ("wall_timeout", b"started\n", None)
    assert ending.elapsed_seconds >= 0.5


async def test_a_timeout_also_ends_what_the_guest_started(bench: Bench) -> None:
    code = "import os, signal\nfor _ in range(5):\n    os.fork()\nsignal.pause()"
    worker = bench.start()
    try:
        job = Job(Language.PYTHON, code, (), {}, b"", Limits(wall_seconds=0.5))
        ending = await worker.run(job, None)
        assert ending.killed_by == "wall_timeout"
        # already when the run returns
        assert not guests_of(worker)
    finally:
        worker.discard()


async def test_a_guest_that_ends_takes_its_background_processes_along(bench: Bench) -> None:
    done = await bench.run("setsid sleep 1000 & echo done", Language.BASH, wall_seconds=30.0)
    assert (done.stdout, done.ending.killed_by) == ("done\n", None)


async def test_cpu_time_is_limited_over_all_processes(bench: Bench) -> None:
    code = "import os\nos.fork()\nwhile True: pass"
    ending = (await bench.run(code, cpu_seconds=1.0, wall_seconds=30.0)).ending
    assert ending.killed_by == "cpu_timeout"


async def test_memory_is_limited(bench: Bench) -> None:
    done = await bench.run(f"x = bytearray({512 * MIB}); print(len(x))", memory_bytes=64 * MIB)
    assert done.stdout == ""
    if done.worker.layers.memory_limit == "cgroup":
        assert done.ending.killed_by == "memory"
    else:
        assert "MemoryError" in done.stderr


async def test_processes_are_limited(bench: Bench) -> None:
    code = """
import os, signal
made = 0
try:
    while made < 100:
        if os.fork() == 0:
            signal.pause()
        made += 1
except OSError as error:
    print('refused', made < 20)
"""
    done = await bench.run(code, spec={"pids": 16}, pids=16)
    assert done.stdout == "refused True\n"


async def test_open_files_and_the_size_of_one_are_limited(bench: Bench) -> None:
    code = """
import os
try:
    while True: os.dup(0)
except OSError as error:
    print(error.strerror)
os.closerange(3, 64)
try:
    with open('big', 'wb') as file: file.write(bytes(2 << 20))
except OSError as error:
    print(error.strerror)
"""
    done = await bench.run(code, spec={"open_files": 64, "file_bytes": MIB})
    assert done.stdout == "Too many open files\nFile too large\n"


async def test_use_is_reported(bench: Bench) -> None:
    ending = (await bench.run(f"x = bytearray({32 * MIB})\nfor i in range(10**6): pass")).ending
    assert ending.cpu_ms > 0
    assert ending.memory_peak_bytes is not None
    assert ending.memory_peak_bytes > 32 * MIB


async def cancelled(worker: Worker) -> asyncio.CancelledError:
    """Cancel a run that has begun to talk; return what its caller gets."""
    started = asyncio.Event()
    job = Job(Language.PYTHON, FOREVER, (), {}, bytes(4 * MIB), Limits())
    run = asyncio.ensure_future(worker.run(job, lambda *_: started.set()))
    await started.wait()
    run.cancel()
    with pytest.raises(asyncio.CancelledError) as cut:
        await run
    return cut.value


async def test_a_cancelled_run_is_dead_when_the_cancellation_arrives(bench: Bench) -> None:
    worker = bench.start()
    try:
        await cancelled(worker)
        assert not guests_of(worker)
    finally:
        worker.discard()


async def test_what_a_cancelled_run_had_said_comes_with_the_cancellation(bench: Bench) -> None:
    worker = bench.start()
    try:
        cut = await cancelled(worker)
        assert isinstance(cut, Interrupted)
        assert (cut.ending.killed_by, cut.ending.exit_code) == ("cancelled", None)
        assert cut.ending.stdout.startswith(b"started")
    finally:
        worker.discard()


async def test_a_listener_that_raises_ends_the_run_and_gets_its_exception_back(bench: Bench) -> None:
    class Mine(Exception):
        pass

    def listen(_: str, __: bytes) -> None:
        raise Mine

    worker = bench.start()
    try:
        with pytest.raises(Mine):
            await worker.run(Job(Language.PYTHON, FOREVER, (), {}, b"", Limits()), listen)
        assert not guests_of(worker)
    finally:
        worker.discard()


async def test_a_parked_worker_that_is_discarded_is_gone(bench: Bench) -> None:
    worker = bench.start()
    pidfd = os.pidfd_open(worker.init_pid)
    worker.discard()
    await ended(pidfd)


async def test_a_running_worker_that_is_discarded_is_gone(bench: Bench) -> None:
    worker = bench.start()
    pidfd = os.pidfd_open(worker.init_pid)
    started = asyncio.Event()
    job = Job(Language.PYTHON, FOREVER, (), {}, b"", Limits())
    run = asyncio.ensure_future(worker.run(job, lambda *_: started.set()))
    await started.wait()
    run.cancel()
    worker.discard()
    await ended(pidfd)
    await asyncio.gather(run, return_exceptions=True)


def test_nothing_is_left_of_any_run(bench: Bench, tmp_path: Path) -> None:
    with_mounts_of_its_own = ["unshare", "--mount"] if os.geteuid() == 0 else []
    program = [sys.executable, "-m", "tests.contract.leftovers", bench.name, str(tmp_path)]
    done = subprocess.run([*with_mounts_of_its_own, *program], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {}


async def test_another_worker_starts_after_whatever_made_the_last_was_killed(bench: Bench) -> None:
    worker = bench.start()
    try:
        pidfd = os.pidfd_open(worker.init_pid)
        os.kill(parent_of(worker.init_pid), signal.SIGKILL)
        await ended(pidfd)
        with pytest.raises(WorkerLost):
            await worker.run(Job(Language.PYTHON, "1", (), {}, b"", Limits()), None)
    finally:
        worker.discard()
    for _ in range(2):  # the first may be what finds out
        try:
            assert (await bench.run("print(1)")).stdout == "1\n"
            break
        except WorkerLost:
            continue
    else:
        pytest.fail("no worker starts any more")


async def test_a_process_forked_meanwhile_keeps_no_guest_waiting(bench: Bench) -> None:
    worker = bench.start()
    release, hold = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(hold)
        os.read(release, 1)
        os._exit(0)
    try:
        job = Job(Language.PYTHON, "import sys; print(sys.stdin.read())", (), {}, b"in", Limits(wall_seconds=30.0))
        assert (await worker.run(job, None)).stdout == b"in\n"
    finally:
        os.close(hold)
        os.close(release)
        await asyncio.to_thread(os.waitpid, child, 0)
        worker.discard()


def guests_of(worker: Worker) -> set[int]:
    """List what is left of a guest: below its init, or, where one kernel runs on another, in the inner one."""
    if worker.sandbox_type is SandboxType.GVISOR:
        return gvisor_box.guests(worker)
    return processes_below(worker.init_pid)


async def ended(pidfd: int) -> None:
    """Wait until the process of `pidfd` is dead."""
    dead = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_reader(pidfd, dead.set)
    await dead.wait()
    loop.remove_reader(pidfd)
    os.close(pidfd)
