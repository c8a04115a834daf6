"""Attack: use more than the run was given: time, memory, processes, disk, descriptors, output."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tests.security.conftest import BUILT_HERE, Ask, Run

import ringfence
from ringfence.capability.limits import MIB, Limits
from ringfence.isolation.gvisor.bundle import SENTRY_BYTES
from ringfence.outcome import ExecutionResult, SandboxType, Status

pytestmark = pytest.mark.guarantee(7)

MEMORY = 96 * MIB
HOGS = {
    "touched": "hoard = []\nwhile True: hoard.append(bytearray(1 << 20))",
    "shared": """
import mmap
hoard = []
while True:
    hoard.append(mmap.mmap(-1, 1 << 22))
    hoard[-1].write(b'x' * (1 << 22))
""",
    "forked": """
import os, signal
for _ in range(40):
    if os.fork() == 0:
        hoard = bytearray(b'x') * (8 << 20)
        signal.pause()
if os.wait()[1]:
    raise MemoryError
""",
    "sockets": """
import socket
hoard = []
while True:
    pair = socket.socketpair()
    hoard.append(pair)
    pair[0].setblocking(False)
    try:
        while True:
            pair[0].send(b'x' * 65536)
    except BlockingIOError:
        pass
""",
}
# Shared memory that no process has mapped and touched: only a cgroup knows whose it is.
HIDDEN_HOGS = {
    "file in memory": """
import os, time
hoard = [os.memfd_create('x') for _ in range(6)]
for fd in hoard:
    for _ in range(40):
        os.write(fd, b'x' * (1 << 20))
time.sleep(1)
""",
    "shared and left": """
import ctypes, time
libc = ctypes.CDLL(None)
libc.shmat.restype = ctypes.c_void_p
for key in range(1, 31):
    segment = libc.shmget(key, 1 << 23, 0o1600)
    if segment < 0:
        raise MemoryError
    at = libc.shmat(segment, None, 0)
    ctypes.memset(at, 120, 1 << 23)
    libc.shmdt(ctypes.c_void_p(at))
time.sleep(1)
""",
    "touched by children": """
import mmap, os, time
hoard = []
for _ in range(30):
    hoard.append(mmap.mmap(-1, 1 << 23))
    if os.fork() == 0:
        hoard[-1].write(b'x' * (1 << 23))
        os._exit(0)
    if os.wait()[1]:
        raise MemoryError
time.sleep(1)
""",
}


# Memory that the kernel has for the guest, and no process and no tmpfs shows.
KERNEL_HOGS = {
    "TCP": """
import socket, time
listener = socket.create_server(('127.0.0.1', 0))
hoard, filled = [], 0
while filled < 300 << 20:
    if len(hoard) == 300:
        raise MemoryError
    sender = socket.create_connection(listener.getsockname())
    hoard += [(sender, listener.accept()[0])]
    sender.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 << 20)
    sender.setblocking(False)
    try:
        while True:
            filled += sender.send(b'x' * 65536)
    except BlockingIOError:
        pass
time.sleep(2)
""",
    "UDP": """
import socket, time
sender, hoard = socket.socket(socket.AF_INET, socket.SOCK_DGRAM), []
while len(hoard) < 300:
    hoard.append(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
    hoard[-1].setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)
    hoard[-1].bind(('127.0.0.1', 0))
    for _ in range(100):
        sender.sendto(b'x' * 60000, hoard[-1].getsockname())
time.sleep(2)
kept = 0
for each in hoard:
    each.setblocking(False)
    try:
        while True:
            kept += len(each.recv(65536))
    except BlockingIOError:
        pass
if kept < 150 << 20:
    raise MemoryError
""",
    "page tables": """
import ctypes, mmap, time
libc = ctypes.CDLL(None)
libc.mmap.restype = ctypes.c_void_p
size, huge = ctypes.c_size_t(1 << 39), 1 << 21
at = libc.mmap(None, size, mmap.PROT_READ, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x4000, -1, ctypes.c_long(0))
libc.madvise(ctypes.c_void_p(at), size, 15)
for page in range(at, at + 50_000 * huge, huge):
    ctypes.c_char.from_address(page).value
time.sleep(2)
""",
}


@pytest.mark.promise("G7 socket buffers")
@pytest.mark.parametrize("hog", KERNEL_HOGS)
def test_memory_that_the_kernel_has_for_a_guest_is_held_too(box: Run, hog: str) -> None:
    result = box(KERNEL_HOGS[hog], limits=Limits(memory_bytes=MEMORY, pids=64, open_files=1024))
    assert_held(result)


@pytest.mark.parametrize("hog", HOGS)
def test_a_memory_hog_is_ended_or_refused(box: Run, hog: str) -> None:
    result = box(HOGS[hog], limits=Limits(memory_bytes=MEMORY, pids=64, open_files=256))
    assert_held(result)


@pytest.mark.parametrize("hog", HIDDEN_HOGS)
def test_memory_that_no_process_shows_is_held_by_the_cgroup_or_cannot_be_had(box: Run, hog: str) -> None:
    result = box(HIDDEN_HOGS[hog], limits=Limits(memory_bytes=MEMORY, pids=64, open_files=256))
    assert_held(result)


def assert_held(result: ExecutionResult) -> None:
    """The run was ended for its memory, or the kernel refused it and it gave up."""
    refused = result.status is Status.FAILED and result.exit_code in (1, 137)  # MemoryError, EMFILE
    assert result.killed_by == "memory" or refused, result
    if result.isolation.memory_limit == "cgroup":
        assert result.memory_peak_bytes is not None
        beside = SENTRY_BYTES if result.sandbox_type is SandboxType.GVISOR else 0
        assert result.memory_peak_bytes <= MEMORY * 1.1 + beside


def test_what_holds_the_memory_is_in_the_result(box: Run) -> None:
    layers = box("pass").isolation
    assert layers.memory_limit in ("cgroup", "sampled")
    assert layers.memory_limit == "cgroup" or any("no memory cgroup" in note for note in layers.notes)


COUNT_PROCESSES = """
import signal
said['made'] = 0
try:
    while said['made'] < 1000:
        if os.fork() == 0:
            signal.pause()
        said['made'] += 1
except OSError as error:
    said['error'] = errno.errorcode[error.errno]
"""
COUNT_THREADS = """
import threading
said['made'] = 0
wait = threading.Event()
try:
    while said['made'] < 1000:
        threading.Thread(target=wait.wait, daemon=True).start()
        said['made'] += 1
except RuntimeError as error:
    said['error'] = 'EAGAIN'
print(json.dumps(said), flush=True)
os._exit(0)
"""


@pytest.mark.parametrize("program", [COUNT_PROCESSES, COUNT_THREADS])
def test_processes_and_threads_are_counted(ask: Ask, program: str) -> None:
    said = ask(program, limits=Limits(pids=40))
    assert said["error"] == "EAGAIN"
    assert said["made"] <= 40


def test_a_fork_bomb_ends_with_its_run(box: Run) -> None:
    result = box(":(){ :|:& };:\nwait; sleep 60", language="bash", timeout=2, limits=Limits(pids=50))
    assert result.status is Status.TIMED_OUT


FILL = """
import itertools
said['bytes'] = said['files'] = 0
try:
    for number in itertools.count():
        with open(f'{given[0]}/{number}', 'wb', buffering=0) as file:
            said['files'] += 1
            for _ in range(int(given[1])):
                said['bytes'] += file.write(b'x' * (1 << 20))
except OSError as error:
    said['error'] = errno.errorcode[error.errno]
"""


@pytest.mark.parametrize(
    "where", ["/workspace/work", "/workspace/artifacts", "/tmp", "/dev/shm", "/home/sandbox", "/var/tmp"]
)
def test_the_disk_is_full_at_its_limit_wherever_one_writes(ask: Ask, where: str) -> None:
    said = ask(FILL, where, "4", limits=Limits(disk_bytes=16 * MIB))
    assert said["error"] == "ENOSPC"
    assert said["bytes"] <= 16 * MIB


@pytest.mark.promise("G7 one disk limit")
def test_the_disk_limit_is_one_for_all_directories(ask: Ask) -> None:
    program = "total = 0\nfor given[0] in ('/tmp', '/dev/shm', '/workspace/work', '/workspace/artifacts'):\n"
    program += FILL.replace("\n", "\n    ") + "\n    total += said['bytes']\nsaid['bytes'] = total"
    assert 8 * MIB < ask(program, "", "1", limits=Limits(disk_bytes=16 * MIB))["bytes"] <= 16 * MIB


@pytest.mark.needs("native")
def test_natively_the_number_of_files_is_limited() -> None:
    program = "import os, itertools\ntry:\n    for n in itertools.count(): open(f'/tmp/{n}', 'w').close()\n"
    program += "except OSError as error: print(n, error.errno)"
    made, number = ringfence.run(program, isolation="native", limits=Limits(inodes=500)).stdout.split()
    assert int(made) <= 500
    assert int(number) == 28


def test_a_file_cannot_grow_past_its_limit_even_as_a_hole(ask: Ask) -> None:
    program = """
file = os.open('/tmp/x', os.O_RDWR | os.O_CREAT)
said['truncate'] = attempt(os.ftruncate, file, 1 << 40)
said['seek and write'] = attempt(os.pwrite, file, b'x', 1 << 40)
said['allocate'] = attempt(os.posix_fallocate, file, 0, 1 << 40)
said['in memory'] = attempt(lambda: os.ftruncate(os.memfd_create('x'), 1 << 40))
"""
    said = ask(program, limits=Limits(file_bytes=8 * MIB))
    assert said.pop("in memory") in ("EFBIG", "EPERM")  # without a memory cgroup there are no files in memory
    assert set(said.values()) == {"EFBIG"}


def test_descriptors_are_counted(ask: Ask) -> None:
    program = """
said['open'] = 0
try:
    while True:
        os.dup(0)
        said['open'] += 1
except OSError as error:
    said['error'] = errno.errorcode[error.errno]
for number in range(3, 64):
    os.close(number)
"""
    said = ask(program, limits=Limits(open_files=100))
    assert said == {"open": 97, "error": "EMFILE"}


FLOOD = """
import os
if os.fork() == 0:
    while True: os.write(2, b'e' * 65536)
while True: os.write(1, b'o' * 65536)
"""


def test_a_flood_of_output_is_cut_and_the_host_does_not_grow(application: Callable[[str], dict[str, Any]]) -> None:
    text = f"""
import resource
ringfence.run('pass', isolation=backend)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
seen = []
result = ringfence.run({FLOOD!r}, isolation=backend, timeout=1.5, on_output=lambda name, data: seen.append(len(data)))
answer = dict(grown=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before,
    kept=result.stdout_bytes - result.stdout_left_out, kept_errors=result.stderr_bytes - result.stderr_left_out,
    cut=result.stdout_truncated and result.stderr_truncated, bytes=result.stdout_bytes,
    errors=result.stderr_bytes, status=result.status, streamed=sum(seen))
"""
    answer = application(text)
    assert answer["cut"]
    assert (answer["kept"], answer["kept_errors"]) == (MIB, MIB)
    assert answer["streamed"] == answer["bytes"] + answer["errors"]
    assert answer["bytes"] > 8 * MIB
    assert answer["status"] == "timed_out"
    assert answer["grown"] < 16 * 1024  # KiB


def test_too_much_output_does_not_end_the_run(box: Run) -> None:
    result = box("print('x' * 3_000_000); raise SystemExit(3)", limits=Limits(stdout_bytes=1000))
    assert (result.exit_code, result.stdout_truncated) == (3, True)
    assert result.stdout == "x" * 500 + "\n[… 2999001 bytes left out …]\n" + "x" * 499 + "\n"
    assert (result.stdout_bytes, result.stdout_left_out) == (3_000_001, 2_999_001)


BURNERS = {
    "alone": "while True: pass",
    "deaf": "import signal\nsignal.signal(signal.SIGXCPU, signal.SIG_IGN)\nwhile True: pass",
    "many": "import os\nfor _ in range(3): os.fork()\nwhile True: pass",
    "in turns": """
import os
while True:
    if os.fork() == 0:
        [None for _ in range(10**6)]
        os._exit(0)
    os.wait()
""",
}


@pytest.mark.parametrize("burner", BURNERS)
def test_a_run_ends_at_its_cpu_time_however_it_spends_it(box: Run, burner: str) -> None:
    result = box(BURNERS[burner], limits=Limits(cpu_seconds=1, cpus=2), timeout=20)
    assert (result.status, result.killed_by) == (Status.TIMED_OUT, "cpu_timeout")


SLEEPERS = {
    "asleep": "import time; time.sleep(600)",
    "deaf": "import signal; signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 65))\nwhile True: signal.pause()",
    "stopped": "import os, signal; os.kill(os.getpid(), signal.SIGSTOP)",
    "vfork": "import ctypes, signal\nif ctypes.CDLL(None).vfork() == 0:\n    signal.pause()",
    "does not read": "import signal; signal.pause()",
    "daemon": """
import os, signal
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        signal.pause()
    os._exit(0)
signal.pause()
""",
}


@pytest.mark.parametrize("sleeper", SLEEPERS)
def test_a_run_that_does_not_end_is_ended_and_keeps_its_output(box: Run, sleeper: str) -> None:
    result = box("print('begun', flush=True)\n" + SLEEPERS[sleeper], timeout=0.5, stdin=b"x" * 300_000)
    assert (result.status, result.killed_by) == (Status.TIMED_OUT, "wall_timeout")
    assert result.stdout == "begun\n"


QUEUE_SIGNALS = """
signal.pthread_sigmask(signal.SIG_BLOCK, [40])
said['queued'] = 0
while said['queued'] < 20_000 and libc.sigqueue(os.getpid(), 40, None) == 0:
    said['queued'] += 1
"""


def test_a_guest_cannot_use_up_the_signals_that_the_host_may_queue(ask: Ask, unboxed: Ask) -> None:
    assert unboxed(QUEUE_SIGNALS)["queued"] > 2000
    assert ask(QUEUE_SIGNALS)["queued"] <= 1024


@pytest.mark.parametrize("backend", BUILT_HERE, indirect=True)
def test_little_memory_can_be_locked_and_no_message_queue_made(ask: Ask) -> None:
    said = ask("""
import resource
said['locked'] = resource.getrlimit(resource.RLIMIT_MEMLOCK)
said['queues'] = resource.getrlimit(resource.RLIMIT_MSGQUEUE)
""")
    assert said == {"locked": [65536, 65536], "queues": [0, 0]}
