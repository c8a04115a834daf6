"""Attack: code under gVisor, against its own kernel, against the processes that kernel is made of, and by numbers."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import select
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.gvisor_box import guests
from tests.security.conftest import EPILOGUE, NUMBERS, PRELUDE

from ringfence.authority.profile import Isolation
from ringfence.capability.limits import MIB, Limits
from ringfence.images.archive import default_cache
from ringfence.isolation.gvisor import bundle
from ringfence.isolation.gvisor.observing import GOFER, SENTRY, part_of
from ringfence.isolation.gvisor.rootfs import unpacked
from ringfence.isolation.linux.cgroup_plan import plan
from ringfence.isolation.linux.metering import descendants
from ringfence.operation import Language
from ringfence.ports import Backend, Ending, Job, Worker, WorkerSpec
from ringfence.wiring.box import make_backend
from ringfence.wiring.settings import Settings

pytestmark = [pytest.mark.guarantee(30), pytest.mark.needs("gvisor")]

BOMB = "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass"
FOREVER = "print('started', flush=True)\nwhile True: pass"


@pytest.fixture(scope="module")
def backend(gvisor_image: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Backend]:
    made = make_backend(Settings(home=tmp_path_factory.mktemp("home"), isolation=Isolation.GVISOR))
    yield made
    made.close()


@contextlib.contextmanager
def parked(backend: Backend, **spec: Any) -> Iterator[Worker]:
    worker = backend.start(WorkerSpec(**spec))
    try:
        yield worker
    finally:
        worker.discard()


async def run(
    worker: Worker, code: str, on_output: Callable[[str, bytes], None] | None = None, **limits: Any
) -> Ending:
    return await worker.run(Job(Language.PYTHON, code, (NUMBERS,), {}, b"", Limits(**limits)), on_output)


async def ask(worker: Worker, program: str) -> dict[str, Any]:
    ending = await run(worker, PRELUDE + program + EPILOGUE)
    assert ending.exit_code == 0, ending.stderr
    answer: dict[str, Any] = json.loads(ending.stdout)
    return answer


def cgroup_files(pid: int, controller: str) -> dict[str, str]:
    """Return the numbers in the cgroup of a process."""
    lines = [line.split(":", 2) for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines()]
    own = next((path for _, names, path in lines if controller in names.split(",")), None)
    directory = Path(f"/sys/fs/cgroup/{controller}{own}" if own is not None else f"/sys/fs/cgroup{lines[0][2]}")
    return {name: (directory / name).read_text().strip() for name in ("pids.current", "pids.max")}


# --- what the guest meets is not this machine's kernel ---


async def test_the_guest_meets_another_kernel_with_no_door_to_vsock_or_io_uring(backend: Backend) -> None:
    program = """
said['release'] = os.uname().release
said['vsock'] = attempt(socket.socket, 40, socket.SOCK_STREAM)
said['io_uring'] = call('io_uring_setup', 8, ctypes.create_string_buffer(120))
said['bpf'] = call('bpf', 0, ctypes.create_string_buffer(120), 120)
said['packet'] = attempt(socket.socket, socket.AF_PACKET, socket.SOCK_RAW)
said['kvm'] = attempt(os.open, '/dev/kvm', os.O_RDWR)
"""
    with parked(backend) as worker:
        said = await ask(worker, program)
    assert said.pop("release") != os.uname().release
    assert set(said.values()) <= {"EPERM", "ENOSYS", "EAFNOSUPPORT", "ENOENT"}, said


async def test_the_init_is_no_process_of_the_guests(backend: Backend) -> None:
    program = """
said['kill'] = sorted({attempt(os.kill, 1, number) for number in range(65)})
said['all'] = attempt(os.kill, -1, 0)
said['memory'] = attempt(open, '/proc/1/mem', 'rb')
opened = []
for name in os.listdir('/proc/1/fd'):
    for mode in (os.O_RDONLY, os.O_WRONLY):
        if attempt(os.open, f'/proc/1/fd/{name}', mode | os.O_NONBLOCK) == 'done':
            opened.append(os.readlink(f'/proc/1/fd/{name}'))
said['opened'] = [each for each in opened if each.startswith(('socket:', 'host:', '/dev/stdin'))]
said['root'] = [attempt(os.setuid, 0), attempt(os.setresuid, 0, 0, 0)]
"""
    with parked(backend) as worker:
        said = await ask(worker, program)
    assert said["kill"] == ["EPERM"]
    assert said["memory"] == "EACCES"
    assert said["opened"] == []  # the one stream to the host is among sockets, which nobody opens again
    assert said["root"] == ["EPERM", "EPERM"]


async def test_nobody_can_wake_or_end_the_process_that_holds_a_guests_memory(backend: Backend) -> None:
    # what it would run on are bytes of the guest's, and it may be there while the guest's files are read
    program = """
import fcntl
anchors = [int(name) for name in os.listdir('/proc') if name.isdigit() and int(name) not in (1, os.getpid())]
said['anchors'] = len(anchors)
anchor = anchors[0]
said['kill'] = sorted({attempt(os.kill, anchor, number) for number in range(65)})
said['group'] = sorted({attempt(os.killpg, anchor, number) for number in range(65)})
said['thread'] = call('tgkill', anchor, anchor, signal.SIGSTOP)
said['queued'] = call('rt_sigqueueinfo', anchor, signal.SIGCONT, ctypes.create_string_buffer(128))
said['trace'] = call('ptrace', 16, anchor, 0, 0)
said['memory'] = attempt(open, f'/proc/{anchor}/mem', 'r+b')
here, there = socket.socketpair()
for signalled in (signal.SIGSTOP, signal.SIGCONT):
    try:  # as whoever owns the socket, by which the kernel itself would send one
        fcntl.fcntl(here, fcntl.F_SETOWN, anchor)
        fcntl.fcntl(here, 10, signalled)  # F_SETSIG
        fcntl.fcntl(here, fcntl.F_SETFL, os.O_ASYNC | os.O_NONBLOCK)
        there.send(b'x')
    except OSError:
        pass
said['all'] = attempt(os.kill, -1, signal.SIGSTOP)
with open(f'/proc/{anchor}/status') as status:
    said['state'] = [line.split()[1] for line in status if line.startswith('State')]
said['files'] = attempt(os.listdir, f'/proc/{anchor}/fd') == 'done' and os.listdir(f'/proc/{anchor}/fd')
"""
    with parked(backend) as worker:
        said = await ask(worker, program)
    assert said.pop("anchors") == 1
    assert said["kill"] == said["group"] == ["EPERM"]
    assert {said["thread"], said["queued"], said["all"]} <= {"EPERM", "ESRCH"}
    assert {said["trace"], said["memory"]} <= {"EPERM", "EACCES"}
    assert said["state"] == ["S"]
    assert said["files"] in ([], False)


async def test_a_guest_that_left_somebody_behind_is_buried_with_everybody(backend: Backend) -> None:
    code = """
import os, time
for _ in range(3):
    if os.fork() == 0:
        os.setsid()
        while True:
            open('/workspace/work/still-here', 'a').write('x')
print('gone')
"""
    with parked(backend) as worker:
        ending = await run(worker, code)
        assert (ending.exit_code, ending.stdout) == (0, b"gone\n")
        assert guests(worker) == set()


async def test_a_guest_that_left_nobody_leaves_its_memory_to_one_that_sleeps(backend: Backend) -> None:
    with parked(backend) as worker:
        ending = await run(worker, "print('done')")
        assert ending.exit_code == 0
        assert len(guests(worker)) == 1  # and with the box it goes


def test_whoever_breaks_out_of_gvisor_stands_in_an_empty_root_as_nobody(backend: Backend) -> None:
    with parked(backend) as worker:
        everybody = descendants((worker.init_pid,))
        assert len(everybody) >= 4
        for pid in everybody:
            status = Path(f"/proc/{pid}/status").read_text()
            ids = re.findall(r"^[UG]id:\t(.*)$", status, re.MULTILINE)
            assert all(
                int(number) >= (0x7247_0000 if os.geteuid() == 0 else 1) for each in ids for number in each.split()
            )
            assert "NoNewPrivs:\t1" in status
            for kind in ("user", "mnt", "pid", "net", "ipc", "uts", "cgroup"):
                assert os.readlink(f"/proc/{pid}/ns/{kind}") != os.readlink(f"/proc/self/ns/{kind}")
        assert sorted(os.listdir(f"/proc/{worker.init_pid}/root")) == [
            "box", "dev", "inputs", "proc", "rootfs", "runsc", "tmp",
        ]  # fmt: skip
        assert os.listdir(f"/proc/{worker.init_pid}/root/inputs") == []  # those of other boxes


# --- numbers ---


async def test_a_fork_bomb_stays_in_its_cgroup_and_ends_as_a_result(backend: Backend) -> None:
    with parked(backend, pids=24) as worker:
        running = asyncio.ensure_future(run(worker, BOMB, wall_seconds=2.0, cpu_seconds=60.0))
        most = 0
        while not running.done():
            with contextlib.suppress(OSError):
                numbers = cgroup_files(worker.init_pid, "pids")
                most = max(most, int(numbers["pids.current"]))
                assert int(numbers["pids.max"]) == bundle.host_tasks(24) + 1
            await asyncio.sleep(0.01)
        ending = await running
        assert ending.killed_by in ("wall_timeout", "unknown")
        assert 24 < most <= bundle.host_tasks(24) + 1
    with parked(backend) as worker:
        assert (await run(worker, "print(1)")).stdout == b"1\n"


async def test_tasks_that_multiply_beyond_their_cgroup_end_the_box_and_nothing_else(
    backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ringfence.isolation.gvisor.backend.host_tasks", lambda _: 100)
    with parked(backend, pids=500) as worker:
        pidfd = os.pidfd_open(worker.init_pid)
        ending = await run(worker, BOMB, wall_seconds=20.0, cpu_seconds=60.0)
        assert ending.killed_by in ("unknown", "wall_timeout")
    try:
        assert select.select([pidfd], [], [], 20)[0], "something of the box lives"
    finally:
        os.close(pidfd)
    monkeypatch.undo()
    with parked(backend) as worker:
        assert (await run(worker, "print(1)")).stdout == b"1\n"


async def test_bytes_and_files_of_all_directories_are_capped_together(backend: Backend) -> None:
    program = """
import itertools
def fill(make):
    made = 0
    try:
        for number in itertools.count():
            make(('/workspace/work', '/workspace/artifacts', '/tmp', '/home/sandbox')[number % 4], number)
            made += 1
    except OSError as error:
        return made, errno.errorcode[error.errno]
def small(place, number):
    with open(f'{place}/{number}', 'wb'): pass
def directory(place, number): os.mkdir(f'{place}/d{number}')
def large(place, number):
    with open(f'{place}/{number}', 'wb', buffering=0) as file:
        if file.write(bytes(65536)) < 65536: raise OSError(errno.ENOSPC, '')
"""
    made: dict[str, int] = {}
    for kind in ("small", "directory", "large"):
        with parked(backend, inodes=200, disk_bytes=4 * MIB) as worker:
            said = await ask(worker, f"{program}said['made'] = fill({kind})")
            made[kind], why = said["made"]
            assert why == "ENOSPC"
    assert 150 <= made["small"] < 200
    assert 150 <= made["directory"] < 200
    assert 48 <= made["large"] <= 64


async def test_memory_that_gvisor_takes_on_behalf_of_a_guest_is_on_its_bill(backend: Backend) -> None:
    hog = "import os\nfd = os.memfd_create('x')\nwhile True: os.write(fd, bytes(1 << 20))"
    with parked(backend, memory_bytes=32 * MIB) as worker:
        ending = await run(worker, hog, wall_seconds=40.0, cpu_seconds=60.0)
    assert ending.killed_by == "memory"
    assert ending.memory_peak_bytes is not None
    a_dying_task = MIB  # the kernel lets it have a few pages
    assert ending.memory_peak_bytes <= bundle.host_memory(32 * MIB) + a_dying_task


# --- its parts die ---


@pytest.mark.parametrize("role", [SENTRY, GOFER, b""])
async def test_a_part_that_is_killed_in_the_middle_ends_the_run_and_nothing_else(backend: Backend, role: bytes) -> None:
    with parked(backend) as worker, parked(backend) as other:
        started = asyncio.Event()
        running = asyncio.ensure_future(run(worker, FOREVER, lambda *_: started.set(), wall_seconds=5.0))
        await started.wait()
        os.kill(part_of(worker.init_pid, role) if role else worker.init_pid, signal.SIGKILL)
        ending = await running
        # a file server is missed only by whoever needs a file
        assert ending.killed_by == ("unknown" if role != GOFER else ending.killed_by)
        assert ending.exit_code is None
        assert (await run(other, "print(1)")).stdout == b"1\n"


async def test_a_run_that_is_over_has_left_no_process_in_its_kernel(backend: Backend) -> None:
    with parked(backend) as worker:
        await run(
            worker, "import os\nfor _ in range(6): os.fork()\nif os.fork(): os._exit(0)\nimport time; time.sleep(99)"
        )
        assert guests(worker) == set()


# --- its owner dies ---

OWNER = """
import asyncio, os, signal, sys
from pathlib import Path
from ringfence.authority.profile import Isolation
from ringfence.capability.limits import Limits
from ringfence.operation import Language
from ringfence.ports import Job, WorkerSpec
from ringfence.wiring.box import make_backend
from ringfence.wiring.settings import Settings
backend = make_backend(Settings(home=Path(sys.argv[1]), isolation=Isolation.GVISOR))
idle, busy = backend.start(WorkerSpec()), backend.start(WorkerSpec())
busy.place({}, {"in": b"x"})
async def main():
    job = Job(Language.PYTHON, "print(1, flush=True)\\nwhile True: pass", (), {}, b"", Limits(cpu_seconds=99))
    print(os.getpid(), idle.init_pid, busy.init_pid, flush=True)
    await busy.run(job, lambda *_: print("running", flush=True))
asyncio.run(main())
"""


@pytest.mark.guarantee(8)
def test_nothing_of_a_box_outlives_a_killed_owner_and_the_next_start_tidies(
    gvisor_image: None, tmp_path: Path, backend: Backend
) -> None:
    home = tmp_path / "home"
    mounts = Path("/proc/self/mountinfo").read_text().count("\n")
    source = str(Path(bundle.__file__).parents[3])
    with parked(backend) as neighbour:
        owner = subprocess.Popen(
            [sys.executable, "-c", OWNER, str(home)],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": source},
        )
        assert owner.stdout is not None
        numbers = [int(word) for word in owner.stdout.readline().split()]
        assert owner.stdout.readline() == "running\n"
        everybody = descendants(tuple(numbers))
        pidfds = [os.pidfd_open(pid) for pid in everybody]
        os.kill(owner.pid, signal.SIGKILL)
        owner.wait()
        owner.stdout.close()
        try:
            for pidfd in pidfds:  # at once, by the kernel: nobody has come to tidy
                assert select.select([pidfd], [], [], 20)[0]
        finally:
            for pidfd in pidfds:
                os.close(pidfd)
        assert Path("/proc/self/mountinfo").read_text().count("\n") == mounts
        left = [each for each in (home / "gvisor").iterdir() if f"-{owner.pid}-" in each.name]
        assert len(left) == 1
        successor = make_backend(Settings(home=home, isolation=Isolation.GVISOR))
        try:
            successor.start(WorkerSpec()).discard()
            assert not left[0].exists()
            assert not list(Path("/sys/fs/cgroup").glob(f"**/ringfence-{owner.pid}-*"))
            assert Path(f"/proc/{neighbour.init_pid}").exists()
        finally:
            successor.close()
        assert list((home / "gvisor").iterdir()) == []


# --- an ordinary user ---

AS_A_USER = """
import asyncio, json, sys
from pathlib import Path
from ringfence.capability.limits import Limits
from ringfence.isolation.gvisor.backend import GvisorBackend
from ringfence.isolation.gvisor.rootfs import Rootfs
from ringfence.operation import Language
from ringfence.ports import Job, WorkerSpec
image = Rootfs(Path(sys.argv[2]), "image", "sha256:0")
backend = GvisorBackend(home=Path(sys.argv[1]), rootfs=lambda: image, session=None, limits=Limits())
worker = backend.start(WorkerSpec(inodes=100))
code = '''
import os
caps = [line.split()[1] for line in open("/proc/self/status") if line.startswith(("CapEff", "CapPrm", "CapBnd"))]
made = 0
try:
    while made < 1000:
        open(f"/workspace/work/{made}", "w").close(); made += 1
except OSError: pass
open("/workspace/artifacts/a", "w").close() if made < 50 else None
print(caps, made < 100)
'''
ending = asyncio.run(worker.run(Job(Language.PYTHON, code, (), {}, b"", Limits()), None))
seen = worker.layers
worker.discard()
backend.close()
print(json.dumps([ending.stdout.decode() + ending.stderr.decode(), seen.host_uid, seen.namespaces, seen.notes]))
"""
USER = 60_321


@pytest.mark.needs("root")
@pytest.mark.guarantee(5)
def test_an_ordinary_user_with_cgroups_of_its_own_has_boxes_with_its_id_alone(
    gvisor_image: None, delegated: None, tmp_path: Path
) -> None:
    image = unpacked(default_cache()).path
    with tempfile.TemporaryDirectory() as place:
        Path(place).chmod(0o755)
        subprocess.run(["cp", "-al", image, f"{place}/image"], check=True)
        home = Path(place, "home")
        home.mkdir()
        os.chown(home, USER, USER)
        done = subprocess.run(
            [sys._base_executable, "-c", AS_A_USER, str(home), f"{place}/image"],  # type: ignore[attr-defined]
            env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(Path(bundle.__file__).parents[3])},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
            user=USER,
            group=USER,
            extra_groups=[],
            cwd="/",
        )
    assert done.returncode == 0, done.stderr
    said, host_uid, namespaces, notes = json.loads(done.stdout)
    assert said == f"{['0000000000000000'] * 3} True\n"
    assert host_uid == USER
    assert set(namespaces) == {"user", "mnt", "pid", "net", "ipc", "uts", "cgroup"}
    assert any("ordinary user" in note for note in notes)


@pytest.fixture
def delegated() -> Iterator[None]:
    """Give the user what `ringfence doctor` tells an administrator to make."""
    with open("/proc/self/mountinfo") as mounts, open("/proc/self/cgroup") as own:
        places = plan(mounts.read(), own.read()).v1
    if not places:
        pytest.skip("this machine's cgroups are delegated by its service manager")
    directories = [Path(place.own, "ringfence") for place in places]
    made = [each for each in directories if not each.exists()]
    for directory in made:
        directory.mkdir()
        for path in (directory, *directory.iterdir()):
            os.chown(path, USER, USER)
    yield
    for directory in made:
        for inner in sorted(directory.glob("**/ringfence-*"), reverse=True):
            inner.rmdir()
        directory.rmdir()
