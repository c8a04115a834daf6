"""Attack the host's side: workers that die at the wrong moment, streams turned against the reader, sudden cancels."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import resource
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.security.conftest import BUILT_HERE, Ask, Run

from ringfence import SandboxManager
from ringfence.authority.profile import Isolation
from ringfence.capability.limits import Limits
from ringfence.facade import ExecutionRequest
from ringfence.isolation.linux.meter import Meter
from ringfence.isolation.linux.parked import ParkedWorker
from ringfence.operation import Language
from ringfence.outcome import Status
from ringfence.ports import Job, WorkerSpec
from ringfence.wiring.box import make_backend
from ringfence.wiring.settings import Settings

pytestmark = pytest.mark.guarantee(15)


async def parked(manager: SandboxManager) -> list[tuple[int, int]]:
    """Wait until workers are parked and return the pids of their inits and of themselves."""
    while not manager.pool_pids():  # noqa: ASYNC110  the pool tells nobody when a worker is ready
        await asyncio.sleep(0.01)
    return manager.pool_pids()


def alive(pid: int) -> bool:
    """Whether a process is there and not only waiting to be reaped."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def strike(pid: int, number: signal.Signals) -> None:
    """Signal a worker, unless an earlier blow has ended it."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


@pytest.mark.parametrize("which", [0, 1])
async def test_workers_that_died_while_parked_become_no_answer(backend: str, which: int) -> None:
    async with SandboxManager(isolation=backend) as manager:
        for pids in await parked(manager):
            strike(pids[which], signal.SIGKILL)
            while alive(pids[1]):  # noqa: ASYNC110  the kernel tells only its parent
                await asyncio.sleep(0.001)
        results = [await manager.execute(ExecutionRequest(f"print({n})")) for n in range(6)]
        assert [result.stdout for result in results] == [f"{n}\n" for n in range(6)]


@pytest.mark.needs("native")
async def test_a_worker_stopped_while_parked_ends_at_the_time_limit() -> None:
    async with SandboxManager(isolation="native") as manager:
        for init, worker in await parked(manager):
            strike(worker, signal.SIGSTOP)
            assert init != worker
        result = await manager.execute(ExecutionRequest("print(1)", timeout=0.5))
        assert result.status in (Status.TIMED_OUT, Status.SUCCEEDED)  # it may have had a fresh one
        results = await asyncio.gather(*(manager.execute(ExecutionRequest("print(1)", timeout=1)) for _ in range(8)))
        assert sum(result.stdout == "1\n" for result in results) >= 4


async def test_a_worker_killed_just_after_its_job_was_sent_is_an_end_and_not_a_crash(
    backend: str, count: Callable[[int], int]
) -> None:
    async with SandboxManager(isolation=backend) as manager:
        for _ in range(count(200)):
            pids = await parked(manager)
            running = asyncio.ensure_future(
                manager.execute(ExecutionRequest("import time; time.sleep(0.01); print(1)", timeout=10))
            )
            await asyncio.sleep(random.uniform(0, 0.01))
            for init, _ in pids:
                strike(init, signal.SIGKILL)
            result = await running
            if result.status is Status.SUCCEEDED:
                assert result.stdout == "1\n"
            else:
                # the kernel saw SIGKILL, or nobody was left to see anything
                assert (result.status, result.exit_code) in ((Status.KILLED, None), (Status.FAILED, 137))


STREAM_TRICKS = {
    "does not block": "for fd in (0, 1, 2): os.set_blocking(fd, False)\nprint('x')",
    "closed": "print('x', flush=True)\nos.close(1)\nos.close(2)",
    "tiny pipe": "fcntl.fcntl(1, 1031, 4096)\nos.write(1, b'x\\n')",
    "huge pipe": "fcntl.fcntl(1, 1031, 1 << 20)\nos.write(1, b'x\\n')",
    "owner": "fcntl.fcntl(1, fcntl.F_SETOWN, os.getpid())\nos.write(1, b'x\\n')",
    "signals": "fcntl.fcntl(1, fcntl.F_SETFL, os.O_ASYNC | os.O_NONBLOCK)\nos.write(1, b'x\\n')",
    "packets": "try: fcntl.fcntl(1, fcntl.F_SETFL, os.O_DIRECT)\nexcept OSError: pass\nos.write(1, b'x\\n')",
    "spliced": "r, w = os.pipe()\nos.write(w, b'x\\n')\nos.splice(r, 1, 2)",
    "one byte at a time": "[os.write(1, each) for each in (b'x', b'\\n')]",
}


@pytest.mark.parametrize("trick", STREAM_TRICKS)
def test_what_a_guest_does_to_its_streams_does_not_reach_the_reader(box: Run, trick: str) -> None:
    result = box("import fcntl, os\n" + STREAM_TRICKS[trick], stdin=b"y" * 100_000)
    assert result.stdout == "x\n", result.stderr
    assert box("print(1)").stdout == "1\n"


def test_output_that_is_no_text_is_kept_as_it_is(box: Run) -> None:
    result = box("import os; os.write(1, bytes(range(256))); os.write(2, b'\\xff\\x1b[2J')")
    assert result.stdout_raw == bytes(range(256))
    assert "\ufffd" in result.stdout


async def test_cancelling_at_any_moment_kills_the_run_and_harms_no_other(
    backend: str, count: Callable[[int], int]
) -> None:
    async with SandboxManager(isolation=backend) as manager:
        for _ in range(count(400)):
            task = asyncio.ensure_future(
                manager.execute(ExecutionRequest("import time; time.sleep(30)", stdin=b"x" * 70_000))
            )
            await asyncio.sleep(random.uniform(0, 0.02))
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        results = await asyncio.gather(*(manager.execute(ExecutionRequest(f"print({n})")) for n in range(8)))
        assert [result.stdout for result in results] == [f"{n}\n" for n in range(8)]


async def test_input_that_is_not_read_never_turns_up_in_another_run(backend: str) -> None:
    async with SandboxManager(isolation=backend) as manager:
        for _ in range(5):
            sleeper = ExecutionRequest("import signal; signal.pause()", stdin=b"SECRET " * 100_000, timeout=0.1)
            assert (await manager.execute(sleeper)).timed_out
            reader = ExecutionRequest("import sys; print(sys.stdin.read())", stdin=b"mine")
            assert (await manager.execute(reader)).stdout == "mine\n"


def test_a_name_that_is_too_long_for_exec_is_the_guests_failure(box: Run) -> None:
    result = box("echo done", language="bash", args=["x" * 100_000] * 40)
    assert result.status is Status.FAILED
    assert box("echo done", language="bash").stdout == "done\n"


# room for one descriptor more each time, until there is enough; none may be lost on the way
CROWDED = """
import resource, time
from pathlib import Path
from ringfence.authority.profile import Isolation
from ringfence.ports import WorkerSpec
from ringfence.wiring.box import make_backend
from ringfence.wiring.settings import Settings

def count():
    return len(os.listdir('/proc/self/fd'))

made = make_backend(Settings(home=Path(os.environ['HOME']), isolation=Isolation(backend)))
made.start(WorkerSpec()).discard()
usual = resource.getrlimit(resource.RLIMIT_NOFILE)
spare = [os.open('/', os.O_RDONLY)]
while spare[-1] < 150:
    spare.append(os.open('/', os.O_RDONLY))
failed, lost = 0, []
step = 6 if backend in ('docker', 'gvisor') else 1  # a container takes its time
for room in range(step, 60 + step, step):
    for _ in range(step):
        os.close(spare.pop())
    before = count()
    resource.setrlimit(resource.RLIMIT_NOFILE, (151, usual[1]))
    try:
        made.start(WorkerSpec()).discard()
    except Exception:
        failed += step
    resource.setrlimit(resource.RLIMIT_NOFILE, usual)
    end = time.monotonic() + 10
    while count() != before and time.monotonic() < end:
        time.sleep(0.01)  # an engine is still being asked whether its container is gone
    if count() != before:
        lost.append((room, count() - before))
made.close()
answer = dict(failed=failed, lost=lost)
"""

POOR = """
import resource
from ringfence.capability.limits import Limits
for what, most in ((resource.RLIMIT_NOFILE, 500), (resource.RLIMIT_FSIZE, 1 << 20), (resource.RLIMIT_NPROC, 1500)):
    resource.setrlimit(what, (most, most))
resource.setrlimit(resource.RLIMIT_CPU, (25, 25))  # less than a run may have
LOOK = "import resource; print(*(resource.getrlimit(each)[1] for each in (7, 1, 6)))"
answer = dict(stdout=ringfence.run(LOOK, isolation=backend, limits=Limits(pids=2000)).stdout)
"""

# as many descriptors on their way in messages as one user of the box may have
IN_FLIGHT = """
import array, socket, time
held = []
try:
    while True:
        held.append(socket.socketpair())
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array('i', [0] * 250))]
        held[-1][0].sendmsg([b'x'], rights)
except OSError as error:
    print(error.errno, flush=True)
time.sleep(30)
"""

BESIDE = """
import asyncio, resource
from ringfence import SandboxManager
from ringfence.facade import ExecutionRequest
most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))

async def main():
    full = asyncio.Event()
    async with SandboxManager(isolation=backend) as manager:
        hostile = asyncio.create_task(manager.execute(ExecutionRequest({program!r}), on_output=lambda *_: full.set()))
        await full.wait()
        ends = [await manager.execute(ExecutionRequest('print(1)')) for _ in range(6)]
        hostile.cancel()
        return [end.stdout for end in ends]

answer = dict(stdout=asyncio.run(main()))
"""

MUTE = """
import fcntl
from pathlib import Path
from ringfence.authority.profile import Isolation
from ringfence.ports import WorkerSpec
from ringfence.wiring.box import make_backend
from ringfence.wiring.settings import Settings
kept = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 100) for fd in range(3)]
for fd in {closed}:
    os.close(fd)
made = make_backend(Settings(home=Path(os.environ['HOME']), isolation=Isolation(backend)))
try:
    worker = made.start(WorkerSpec())
    said = worker.layers.cgroup
    worker.discard()
except Exception as error:
    said = repr(error)
made.close()
for fd in range(3):
    os.dup2(kept[fd], fd)
answer = dict(said=said)
"""

# as many an application does that fetches pages; a socket with a timeout does not block, and neither does its other end
HURRIED = """
import socket
if {hurried}:
    socket.setdefaulttimeout(30)
ends = [ringfence.run('import time; time.sleep(0.05); print(1)', isolation=backend) for _ in range(4)]
ends.append(ringfence.run('exit 3', isolation=backend, language='bash'))
answer = dict(ends=[(end.status, end.exit_code, end.stdout, end.isolation.cgroup) for end in ends])
"""

DEAF = """
import signal
HOW = "print([line for line in open('/proc/self/status') if line.startswith(('SigBlk', 'SigIgn', 'SigCgt'))])"
if {deaf}:
    for number in signal.valid_signals() - {{signal.SIGKILL, signal.SIGSTOP}}:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
ends = [ringfence.run(HOW, isolation=backend), ringfence.run('exit 3', isolation=backend, language='bash')]
answer = dict(ends=[(end.status, end.exit_code, end.stdout, end.isolation.cgroup) for end in ends])
"""


def test_an_application_that_ignores_and_blocks_every_signal_gets_the_same_answers(
    application: Callable[[str], dict[str, Any]],
) -> None:
    usual = application(DEAF.format(deaf=False))
    assert [end[:2] for end in usual["ends"]] == [["succeeded", 0], ["failed", 3]]
    assert application(DEAF.format(deaf=True)) == usual


def test_an_application_that_gives_every_socket_a_timeout_gets_the_same_answers(
    application: Callable[[str], dict[str, Any]],
) -> None:
    usual = application(HURRIED.format(hurried=False))
    assert [end[:2] for end in usual["ends"]] == [*[["succeeded", 0]] * 4, ["failed", 3]]
    assert application(HURRIED.format(hurried=True)) == usual


def test_an_application_without_room_for_descriptors_loses_none(application: Callable[[str], dict[str, Any]]) -> None:
    answer = application(CROWDED)
    assert 5 < answer["failed"] < 50
    assert answer["lost"] == []


@pytest.mark.parametrize("closed", [(0, 1), (0, 2), (1, 2), (0, 1, 2)], ids=str)
def test_an_application_that_closed_its_streams_gets_the_same_box(
    application: Callable[[str], dict[str, Any]], closed: tuple[int, ...]
) -> None:
    usual = application(MUTE.format(closed=()))
    assert usual["said"] in ("v1", "v2", "none")
    assert application(MUTE.format(closed=closed)) == usual


@pytest.mark.promise("G7 inherited limits")
def test_a_guest_of_an_application_that_may_do_little_may_do_no_more(
    backend: str,
    application: Callable[[str], dict[str, Any]],
) -> None:
    files, size, tasks = application(POOR)["stdout"].split()
    assert (files, size) == ("500", "1048576")
    # in a container the cgroup bounds tasks: the limit of a user would be shared with all containers
    assert tasks == "1500" or backend == "docker"


@pytest.mark.skipif(resource.getrlimit(resource.RLIMIT_NOFILE)[1] < 4096, reason="this run may open few files itself")
@pytest.mark.guarantee(7)
def test_a_guest_with_all_its_descriptors_on_their_way_keeps_no_other_from_starting(
    application: Callable[[str], dict[str, Any]],
) -> None:
    assert application(BESIDE.format(program=IN_FLIGHT))["stdout"] == ["1\n"] * 6


ITSELF = """
def again(name, data):
    try:
        ringfence.run('print(2)', isolation=backend)
    except Exception as error:
        answer['inside'] = type(error).__name__
answer = {}
answer['stdout'] = ringfence.run('print(1)', isolation=backend, on_output=again).stdout
"""

ENDING = """
import atexit, pathlib
def say(name, run=ringfence.run, error=ringfence.RingfenceError, where=pathlib.Path(os.environ['HOME'])):
    try:
        said = run('print(2)', isolation=backend).stdout
    except error as refusal:
        said = refusal.reason
    (where / name).write_text(said)
class Last:
    def __del__(self, say=say):
        say('deleted')
at_the_very_end = Last()
atexit.register(say, 'at exit')
answer = dict(stdout=ringfence.run('print(1)', isolation=backend).stdout)
"""

INTERRUPTED = """
import signal, time
class Enough(Exception): pass
def enough(*_): raise Enough
signal.signal(signal.SIGALRM, enough)
manager = ringfence.SandboxManager(isolation=backend)
ringfence.run('print(1)', isolation=backend)
answer = dict(ends=[])
for _ in range(3):
    signal.setitimer(signal.ITIMER_REAL, 0.3)
    try:
        ringfence.run('import time; time.sleep(40)', isolation=backend)
    except Enough:
        answer['ends'].append(manager.pool_status()['busy'])
"""


@pytest.mark.parametrize("backend", BUILT_HERE, indirect=True)
def test_a_listener_that_waits_for_another_run_is_told_that_it_cannot(
    application: Callable[[str], dict[str, Any]],
) -> None:
    assert application(ITSELF) == {"stdout": "1\n", "inside": "InvalidRequest"}


@pytest.mark.parametrize("backend", BUILT_HERE, indirect=True)
def test_an_interpreter_that_ends_runs_or_refuses_and_never_hangs(
    application: Callable[[str], dict[str, Any]], tmp_path: Path
) -> None:
    assert application(ENDING)["stdout"] == "1\n"
    assert (tmp_path / "at exit").read_text() == "2\n"
    assert (tmp_path / "deleted").read_text() == "closed"


@pytest.mark.parametrize("umask", [0, 0o777])
@pytest.mark.parametrize("backend", BUILT_HERE, indirect=True)
def test_an_application_that_lets_everybody_or_nobody_at_its_files_gets_the_same_box(
    application: Callable[[str], dict[str, Any]], umask: int
) -> None:
    look = (
        "import os; print(oct(os.umask(0)), *(oct(os.stat(each).st_mode) for each in ('.', 'f', '/tmp', '/dev/shm')))"
    )
    text = "answer = dict(stdout=ringfence.run({!r}, isolation=backend, files=dict(f=b'')).stdout)"
    usual = application(text.format(look))
    assert application(f"os.umask({umask})\n" + text.format(look)) == usual


@pytest.mark.parametrize("backend", BUILT_HERE, indirect=True)
def test_a_run_that_its_caller_no_longer_waits_for_is_ended(application: Callable[[str], dict[str, Any]]) -> None:
    assert application(INTERRUPTED)["ends"] == [0, 0, 0]


class Slow:
    """A meter whose look at a guest takes until somebody else has had his turn."""

    walks = True

    def __init__(self, meter: Meter) -> None:
        """Stand in front of the real one."""
        self._meter = meter
        self.looking, self.looked = threading.Event(), threading.Event()

    def exceeded(self, limits: Limits) -> str | None:
        """Look, once the event loop has said that it goes on."""
        self.looking.set()
        self.looked.wait()
        return "memory"

    def __getattr__(self, name: str) -> Any:
        """Do all else as usual."""
        return getattr(self._meter, name)


@pytest.mark.parametrize("backend", BUILT_HERE, indirect=True)
@pytest.mark.parametrize("seen", [True, False])
async def test_a_guest_that_takes_long_to_look_at_keeps_neither_the_host_nor_its_own_end_waiting(
    backend: str, tmp_path: Path, *, seen: bool
) -> None:
    """Without cgroups a run's processes are looked at one by one: forty with wide maps took eleven seconds."""
    made = make_backend(Settings(home=tmp_path, isolation=Isolation(backend)))
    try:
        worker = made.start(WorkerSpec())
        assert isinstance(worker, ParkedWorker)
        worker.meter = meter = Slow(worker.meter)  # type: ignore[assignment]
        job = Job(Language.PYTHON, "import signal; signal.pause()", (), {}, b"", Limits(wall_seconds=30 if seen else 1))
        running = asyncio.ensure_future(worker.run(job, None))
        while not meter.looking.is_set():  # noqa: ASYNC110  the loop has to go on by itself
            await asyncio.sleep(0.01)
        if seen:
            meter.looked.set()
        ending = await running
        meter.looked.set()
        assert ending.killed_by == ("memory" if seen else "wall_timeout")
        worker.discard()
    finally:
        made.close()


CRASH = """
import resource
said['limit'] = next(line.split()[4:6] for line in open('/proc/self/limits') if line.startswith('Max core'))
said['python'] = attempt(resource.setrlimit, resource.RLIMIT_CORE, (0, 0))
zero = (ctypes.c_uint64 * 2)(0, 0)
said['raw'] = [call('prlimit64', 0, 4, zero, None), call('setrlimit', 4, zero)]
said['shell'] = os.system('ulimit -c 0 2>/dev/null; grep -q "Max core file size *1 *1 " /proc/self/limits')
"""


@pytest.mark.promise("G6 Linux's own interface")
@pytest.mark.guarantee(2)
def test_no_guest_can_have_the_host_start_its_handler_of_core_dumps(ask: Ask) -> None:
    """With a limit of 0 the kernel still pipes the dump to the host's handler, as root; with 1 it does not."""
    said = ask(CRASH)
    assert said["limit"] == ["1", "1"]
    assert said["python"] in ("EPERM", "ValueError")
    assert said["raw"] == ["EPERM", "EPERM"]
    assert said["shell"] == 0


BROKEN_PIPES = """
import signal
signal.signal(signal.SIGPIPE, signal.SIG_DFL)
program = "import os, signal; os.close(0); print(signal.pthread_sigmask(signal.SIG_BLOCK, ()))"
stdin = bytes(4 << 20)
"""


@pytest.mark.parametrize("backend", BUILT_HERE, indirect=True)
@pytest.mark.parametrize(
    "run",
    [
        "result = ringfence.run(program, isolation=backend, stdin=stdin)",
        """
async def main():
    async with ringfence.SandboxManager(isolation=backend) as manager:
        return await manager.execute_code("python", program, stdin=stdin)
import asyncio
result = asyncio.run(main())
""",
        """
async def main():
    async with ringfence.SandboxManager(isolation=backend) as manager:
        process = await manager.start_process(language="python", code=program + "; import time; time.sleep(0.2)")
        for _ in range(64):
            try:
                await process.send(bytes(1 << 16))
            except ringfence.RingfenceError:
                break
        return await process.wait()
import asyncio
result = asyncio.run(main())
""",
    ],
    ids=["alone", "in its own loop", "a process"],
)
def test_a_guest_that_closes_its_input_does_not_end_an_application_that_dies_of_broken_pipes(
    application: Callable[[str], dict[str, Any]], run: str
) -> None:
    said = application(f"{BROKEN_PIPES}{run}\nanswer = {{'stdout': result.stdout, 'exit code': result.exit_code}}")
    assert said == {"stdout": "set()\n", "exit code": 0}
