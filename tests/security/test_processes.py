"""Attack: see, signal, trace or read a process that is not the guest's: the host's, a stranger's, the box's init."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator

import pytest
from tests.security.conftest import BUILT_HERE, Ask, Run

import ringfence

pytestmark = pytest.mark.guarantee(4)

SEE = """
said['proc'] = [name for name in os.listdir('/proc') if name.isdigit() and int(name) not in (1, os.getpid())]
said['alive'] = [pid for pid in range(2, 100_000) if pid != os.getpid() and attempt(os.kill, pid, 0) != 'ESRCH']
"""

STRIKE = """
pid = int(given[0])
buffer = ctypes.create_string_buffer(64)
vector = (ctypes.c_ulong * 2)(ctypes.addressof(buffer), 64)
said['kill'] = attempt(os.kill, pid, 0)
said['tgkill'] = call('tgkill', pid, pid, 0)
said['pidfd_open'] = call('pidfd_open', pid, 0)
said['process group'] = attempt(os.killpg, pid, 0)
said['process_vm_readv'] = call('process_vm_readv', pid, vector, 1, vector, 1, 0)
said['process_vm_writev'] = call('process_vm_writev', pid, vector, 1, vector, 1, 0)
said['ptrace attach'] = call('ptrace', 16, pid, 0, 0)
said['ptrace seize'] = call('ptrace', 0x4206, pid, 0, 0)
said['prlimit'] = call('prlimit64', pid, 7, 0, buffer)
said['priority'] = attempt(os.setpriority, os.PRIO_PROCESS, pid, 19)
said['affinity'] = attempt(os.sched_setaffinity, pid, {0})
for name in ('environ', 'mem', 'maps', 'root', 'cwd', 'exe', 'fd', 'ns/pid', 'cmdline', 'stack', 'syscall'):
    said[name] = attempt(os.open, f'/proc/{pid}/{name}', os.O_RDONLY)
"""


@pytest.fixture
def victim() -> Iterator[subprocess.Popen[bytes]]:
    """A process of the host, owned by the user who runs the application."""
    with subprocess.Popen(["/bin/sleep", "300"]) as process:
        yield process
        assert process.poll() is None, "a guest ended a process of the host"
        process.kill()


def test_only_the_guest_and_its_init_exist(
    ask: Ask, unboxed: Ask, backend: str, victim: subprocess.Popen[bytes]
) -> None:
    assert str(victim.pid) in unboxed(SEE)["proc"]
    # 3 is the anchor, which has a number and no more, and gVisor lists it: see `test_anchor`
    assert ask(SEE) == {
        "proc": ["3"] if backend == "gvisor" else [],
        "alive": [3] if backend in ("native", "gvisor", "aio") else [],
    }


def test_natively_not_even_the_init_is_listed() -> None:
    listed = ringfence.run("import os; print(*sorted(os.listdir('/proc')))", isolation="native").stdout
    assert listed == "2 self thread-self\n"


def test_a_process_of_the_host_cannot_be_struck(ask: Ask, unboxed: Ask, victim: subprocess.Popen[bytes]) -> None:
    assert unboxed(STRIKE, str(victim.pid))["kill"] == "done"
    assert unboxed(STRIKE, str(victim.pid))["environ"] == "done"
    assert set(ask(STRIKE, str(victim.pid)).values()) <= {"ESRCH", "ENOENT", "EPERM", "ENOSYS"}


def test_killing_everything_kills_only_what_is_inside(box: Run, victim: subprocess.Popen[bytes]) -> None:
    program = """
import os, signal, time
child = os.fork()
if child == 0:
    signal.pause()
os.kill(-1, signal.SIGKILL)
print(os.WTERMSIG(os.waitpid(child, 0)[1]))
"""
    assert box(program).stdout == "9\n"


def test_the_parent_of_the_guest_is_its_init_or_out_of_its_sight(ask: Ask) -> None:
    said = ask("said['parent'] = os.getppid(); said['self'] = int(os.readlink('/proc/self'))")
    assert said["self"] < 20
    assert said["parent"] in (0, 1)  # 0: a process of another pid namespace, which the guest cannot name


def test_no_signal_ends_stops_or_wakes_the_init(box: Run) -> None:
    program = """
import os, signal, sys
for number in range(1, 65):
    if number in (32, 33):
        continue
    try:
        os.kill(1, number)
    except OSError:
        pass
for number in (signal.SIGKILL, signal.SIGSTOP, signal.SIGINT, signal.SIGTERM):
    try:
        signal.pidfd_send_signal(os.pidfd_open(1), number)
    except OSError:
        pass
print('still here')
sys.exit(7)
"""
    result = box(program)
    assert (result.stdout, result.exit_code, result.killed_by) == ("still here\n", 7, None)


@pytest.mark.promise("G4 shut init")
def test_the_memory_descriptors_and_limits_of_the_init_are_closed(ask: Ask) -> None:
    said = ask(STRIKE, "1")
    harmless = {"kill", "tgkill", "pidfd_open", "process group", "cmdline"}
    assert {name: outcome for name, outcome in said.items() if outcome == "done" and name not in harmless} == {}


LOWER = """
idle = struct.pack('IIQiIQQQ', 48, 5, 0, 0, 0, 0, 0, 0)
said['priority'] = attempt(os.setpriority, os.PRIO_PROCESS, 1, 19)
said['priority of the group'] = attempt(os.setpriority, os.PRIO_PGRP, 0, 19)
said['priority of the user'] = attempt(os.setpriority, os.PRIO_USER, os.getuid(), 19)
said['affinity'] = attempt(os.sched_setaffinity, 1, {0})
said['scheduler'] = attempt(os.sched_setscheduler, 1, os.SCHED_IDLE, os.sched_param(0))
said['parameter'] = attempt(os.sched_setparam, 1, os.sched_param(0))
said['attributes'] = call('sched_setattr', 1, ctypes.create_string_buffer(idle), 0)
for kind, who in ((1, 1), (2, 0), (3, os.getuid())):
    said[f'disk {kind}'] = call('ioprio_set', kind, who, 3 << 13)
"""


@pytest.mark.parametrize("backend", BUILT_HERE, indirect=True)
def test_the_init_cannot_be_made_to_wait_behind_the_guest(ask: Ask) -> None:
    # set to run when nothing else does, it took 47 s to die of its time limit behind 200 busy loops
    assert set(ask(LOWER).values()) == {"EPERM"}


@pytest.mark.parametrize("backend", BUILT_HERE, indirect=True)
def test_a_guest_gives_way_itself_and_moves_its_own_children(ask: Ask) -> None:
    program = """
child = os.fork()
if child == 0:
    signal.pause()
for pid in (0, os.getpid(), child):
    said[f'affinity {pid}'] = attempt(os.sched_setaffinity, pid, os.sched_getaffinity(0))
    said[f'priority {pid}'] = attempt(os.setpriority, os.PRIO_PROCESS, pid, 5)
    said[f'idle {pid}'] = attempt(os.sched_setscheduler, pid, os.SCHED_IDLE, os.sched_param(0))
os.kill(child, 9)
"""
    assert set(ask(program).values()) == {"done"}


@pytest.mark.needs("native")
def test_natively_the_guest_cannot_even_name_its_init_in_proc() -> None:
    program = "import os\ntry: os.stat('/proc/1')\nexcept OSError as error: print(error.errno)"
    assert ringfence.run(program, isolation="native").stdout == "2\n"


def test_a_child_cannot_be_made_a_sibling_that_init_takes_for_the_guest(ask: Ask) -> None:
    assert ask("said['clone'] = call('clone', 0x8000 | 17, 0, 0, 0, 0)") == {"clone": "EPERM"}


def test_descriptors_of_other_processes_cannot_be_fetched(ask: Ask) -> None:
    program = """
child = os.fork()
if child == 0:
    signal.pause()
fds = [call('pidfd_open', pid, 0) == 'done' and os.pidfd_open(pid) for pid in (child, 1)]
said['own child'] = call('pidfd_getfd', fds[0], 0, 0)
said['init'] = call('pidfd_getfd', fds[1], 0, 0)
said['madvise'] = call('process_madvise', fds[0], 0, 0, 0, 0)
os.kill(child, 9)
"""
    assert set(ask(program).values()) <= {"EPERM", "ENOSYS"}


@pytest.mark.needs("user")
def test_as_an_ordinary_user_the_guest_has_the_callers_id_and_still_cannot_signal_the_caller(ask: Ask) -> None:
    assert ask(f"said['kill'] = attempt(os.kill, {os.getpid()}, 0)") == {"kill": "ESRCH"}
