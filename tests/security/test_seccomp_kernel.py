"""The real kernel, with our filters loaded, refuses every call that the policy refuses.

Each question is put to a forked child that has loaded the filters, so a wrong answer harms nothing but the child.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable, Sequence

import pytest

from ringfence.isolation.linux.seccomp import policy
from ringfence.isolation.linux.seccomp.bpf import INSTRUCTION
from ringfence.isolation.linux.seccomp.filters import base_filter, init_filter, seal_filter
from ringfence.isolation.linux.seccomp.numbers import machine_named
from ringfence.isolation.linux.seccomp.verdict import ALLOW, EPERM, judge, refuse

pytestmark = pytest.mark.guarantee(6)

MACHINE = os.uname().machine
NATIVE = machine_named(MACHINE)
CALL = NATIVE.numbers
NO_ARGUMENTS = (0,) * 6
GARBAGE = 0xDEADBEEF << 32
PR_SET_NO_NEW_PRIVS = 38
CLONE_NEWUTS = 0x04000000

libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long


class Program(ctypes.Structure):
    """`struct sock_fprog`."""

    _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.c_char_p))


def call(number: int, *arguments: int) -> int:
    """Make a system call and return 0 or its error number."""
    ctypes.set_errno(0)
    result = libc.syscall(ctypes.c_long(number), *map(ctypes.c_ulong, arguments))
    return ctypes.get_errno() if result == -1 else 0


def load(*filters: bytes) -> None:
    libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    for instructions in filters:
        program = Program(len(instructions) // INSTRUCTION.size, instructions)
        refused = call(CALL["seccomp"], 1, 0, ctypes.addressof(program))
        if refused:
            raise OSError(refused, "the kernel did not take the filter")


def in_a_child(body: Callable[[], int], *filters: bytes) -> int:
    """Run `body` under `filters` in a child; return its small result, or minus the signal that ended it."""
    child = os.fork()
    if child == 0:
        code = 255
        try:
            # If a filter lets through what it should refuse, vhangup and sethostname find nothing of ours.
            os.setsid()
            libc.unshare(CLONE_NEWUTS)
            load(*filters)
            code = body()
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status)


def as_guest(body: Callable[[], int]) -> int:
    return in_a_child(body, base_filter(MACHINE), seal_filter(MACHINE))


def answer_to_guest(number: int, *arguments: int) -> int:
    """What a guest gets: 0, an error number, or minus a signal."""
    return as_guest(lambda: call(number, *(arguments or NO_ARGUMENTS)))


def refused_numbers() -> list[int]:
    """Every number up to 500 that the guest is refused whatever its arguments.

    The two probe trampolines are left out: Linux lets them past every filter and ends a caller that is not one.
    """
    table = policy.guest_policy(NATIVE)
    trampolines = {CALL.get("uprobe"), CALL.get("uretprobe")}
    return [number for number in range(501) if table.get(number) != ALLOW and number not in trampolines]


def declared_errno(number: int, arguments: Sequence[int]) -> int:
    verdict = judge(policy.guest_policy(NATIVE).get(number, refuse(errno.ENOSYS)), arguments)
    return 0 if verdict == ALLOW else verdict & 0xFFFF


def test_the_kernel_refuses_every_number_that_the_policy_refuses_with_the_error_it_declares() -> None:
    numbers = [number for number in refused_numbers() if declared_errno(number, NO_ARGUMENTS)]
    assert len(numbers) > 150

    def ask_all() -> int:
        wrong = [(number, call(number, *NO_ARGUMENTS)) for number in numbers]
        wrong = [(number, got) for number, got in wrong if got != declared_errno(number, NO_ARGUMENTS)]
        print(wrong, file=sys.stderr, flush=True)
        return len(wrong)

    assert as_guest(ask_all) == 0


def test_without_the_filters_the_same_calls_get_other_answers() -> None:
    """The proof that the test above can fail, as root and as anyone: the kernel alone answers otherwise."""
    open_to_anyone = """
        add_key capset clone3 get_robust_list io_setup keyctl name_to_handle_at pidfd_getfd request_key syncfs
        unshare vmsplice
    """
    numbers = [CALL[name] for name in open_to_anyone.split()]

    def ask_all() -> int:
        return sum(call(number, *NO_ARGUMENTS) != declared_errno(number, NO_ARGUMENTS) for number in numbers)

    assert in_a_child(ask_all) >= 10


@pytest.mark.parametrize(
    "name", ["getpid", "gettid", "getuid", "getppid", "sched_yield", "umask", "getpgid", "rt_sigpending"]
)
def test_allowed_calls_pass(name: str) -> None:
    assert answer_to_guest(CALL[name]) == 0


@pytest.mark.parametrize(
    ("name", "arguments", "expected"),
    [
        ("socket", (40, 1, 0), errno.EAFNOSUPPORT),  # vsock
        ("socket", (16, 3, 0), errno.EAFNOSUPPORT),  # netlink
        ("socket", (17, 3, 0), errno.EAFNOSUPPORT),  # packet
        ("socket", (38, 5, 0), errno.EAFNOSUPPORT),  # alg
        ("socket", (GARBAGE | 16, 3, 0), errno.EAFNOSUPPORT),
        ("socket", (2, 3, 255), errno.EPERM),  # raw
        ("socket", (2, GARBAGE | 3, 255), errno.EPERM),
        ("socket", (2, 3 | os.O_CLOEXEC, 255), errno.EPERM),
        ("socket", (2, 1, 262), errno.EPROTONOSUPPORT),  # MPTCP
        ("socket", (2, 2, 1), errno.EPERM),  # ping
        ("socket", (1, 1, 0), 0),
        ("socket", (GARBAGE | 1, GARBAGE | 1, GARBAGE), 0),
        ("socket", (2, 1 | os.O_CLOEXEC | os.O_NONBLOCK, 6), 0),
        ("socket", (10, 2, 0), 0),
        ("socketpair", (16, 3, 0, 0), errno.EAFNOSUPPORT),
        ("socketpair", (30, 1, 0, 0), errno.EAFNOSUPPORT),  # tipc
        ("clone", (0x10000000 | signal.SIGCHLD, 0, 0, 0, 0), errno.EPERM),
        ("clone", (GARBAGE | 0x10000000 | signal.SIGCHLD, 0, 0, 0, 0), errno.EPERM),
        ("clone", (0x8000 | signal.SIGCHLD, 0, 0, 0, 0), errno.EPERM),
        ("ioctl", (0, 0x5412, 0), errno.EPERM),  # TIOCSTI
        ("ioctl", (0, GARBAGE | 0x5412, 0), errno.EPERM),
        ("ioctl", (0, GARBAGE | 0x541C, 0), errno.EPERM),
        ("personality", (0x0400000,), errno.EPERM),  # READ_IMPLIES_EXEC
        ("personality", (0xFFFFFFFF,), 0),
        ("prctl", (35, 1, 0, 0, 0), errno.EINVAL),  # SET_MM
        ("prctl", (15, 0, 0, 0, 0), errno.EFAULT),  # SET_NAME reaches the kernel
        ("prlimit64", (1, 7, 0, 0), errno.EPERM),
        ("prlimit64", (0, 7, 0, 0), 0),
        ("prlimit64", (0, 4, 0, 0), errno.EPERM),  # a limit of 0 on core dumps starts the host's handler
        ("prlimit64", (GARBAGE, GARBAGE | 4, 1 << 32, 0), errno.EPERM),
        ("setrlimit", (4, 0), errno.EPERM),
        ("setrlimit", (7, 0), errno.EFAULT),
        ("mknodat", (0, 0, 0o020666, 0), errno.EPERM),
        ("seccomp", (1, 8, 0), errno.EPERM),
        ("seccomp", (1, 0, 0), errno.EFAULT),
    ],
)
def test_the_kernel_looks_at_arguments_as_declared(name: str, arguments: tuple[int, ...], expected: int) -> None:
    declared = declared_errno(CALL[name], [*arguments, *NO_ARGUMENTS])
    assert declared in (expected, 0)
    assert answer_to_guest(CALL[name], *arguments) == expected


def test_init_can_build_a_box_under_the_base_filter_but_not_after_the_seal() -> None:
    new_namespace = 0x10000000
    unshare = CALL["unshare"]
    assert in_a_child(lambda: call(unshare, 0), base_filter(MACHINE)) == 0
    assert answer_to_guest(unshare, 0) == errno.EPERM
    assert answer_to_guest(unshare, new_namespace) == errno.EPERM
    assert in_a_child(lambda: call(CALL["fsopen"], 0, 0), base_filter(MACHINE)) != errno.ENOSYS


@pytest.mark.skipif(MACHINE != "x86_64", reason="x32 exists on x86_64 alone")
def test_a_call_by_its_x32_number_ends_the_process() -> None:
    assert answer_to_guest(0x40000000 | CALL["getpid"]) == -signal.SIGSYS


@pytest.mark.skipif(MACHINE != "x86_64", reason="int 0x80 is an instruction of x86")
def test_a_call_through_the_32_bit_door_ends_the_process() -> None:
    # mov eax, 20 (getpid of i386); int 0x80; ret
    code = bytes.fromhex("b814000000cd80c3")

    def through_the_door() -> int:
        page = mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
        page.write(code)
        address = ctypes.addressof(ctypes.c_char.from_buffer(page))
        return 0 if ctypes.CFUNCTYPE(ctypes.c_int)(address)() == os.getpid() else 1

    assert in_a_child(through_the_door) in (0, -signal.SIGSEGV)  # 32-bit calls may be compiled out of the kernel
    assert as_guest(through_the_door) == -signal.SIGSYS


def test_init_reads_waits_and_ends_and_is_killed_for_anything_else() -> None:
    filters = base_filter(MACHINE), seal_filter(MACHINE), init_filter(MACHINE)

    def pass_on() -> int:
        mine, other = os.pipe()
        load(init_filter(MACHINE))
        os.write(other, b"x")
        allocated = [bytearray(1 << 20) for _ in range(8)]
        return 7 if os.read(mine, 1) == b"x" and len(allocated) == 8 else 1

    assert in_a_child(pass_on, *filters[:2]) == 7
    assert in_a_child(lambda: os.open("/", os.O_RDONLY), *filters) == -signal.SIGSYS
    assert in_a_child(lambda: call(CALL["socket"], 1, 1, 0), *filters) == -signal.SIGSYS
    executable = 1 | 4
    assert in_a_child(lambda: call(CALL["mmap"], 0, 4096, executable, 0x22, -1, 0), *filters) == -signal.SIGSYS


def test_a_guest_still_runs_threads_processes_locks_and_shared_memory() -> None:
    program = """
import asyncio, concurrent.futures, mmap, multiprocessing as m, os, sqlite3, subprocess, sys, tempfile, threading
def double(number): return number * 2
if __name__ == "__main__":
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        assert sum(pool.map(double, range(10))) == 90
    assert subprocess.run([sys.executable, "-c", "print(1)"], capture_output=True).stdout == b"1\\n"
    assert subprocess.run("echo a | cat && exit 3", shell=True, stdout=subprocess.DEVNULL).returncode == 3
    async def child():
        return await (await asyncio.create_subprocess_exec(sys.executable, "-c", "raise SystemExit(4)")).wait()
    assert asyncio.run(child()) == 4
    for method in ("fork", "forkserver", "spawn"):
        with m.get_context(method).Pool(2) as pool:
            assert pool.map(double, range(3)) == [0, 2, 4]
    from multiprocessing import shared_memory
    shared = shared_memory.SharedMemory(create=True, size=64); shared.close(); shared.unlink()
    os.close(os.memfd_create("x")); mmap.mmap(-1, 4096).close()
    with tempfile.TemporaryDirectory() as place:
        database = sqlite3.connect(os.path.join(place, "db"))
        database.execute("pragma journal_mode=wal"); database.execute("create table t (x)"); database.commit()
        os.mkfifo(os.path.join(place, "fifo"))
"""
    with tempfile.NamedTemporaryFile("w", suffix=".py") as script:
        script.write(program)
        script.flush()

        def run() -> int:
            os.execv(sys.executable, [sys.executable, "-I", script.name])

        assert as_guest(run) == 0


def test_the_policy_names_nothing_setup_needs_as_refused_before_the_seal() -> None:
    before_the_seal = policy.base_policy(NATIVE)
    assert {before_the_seal[CALL[name]] for name in policy.names_in(policy.SETUP)} == {ALLOW}
    after = policy.guest_policy(NATIVE)
    assert {after[CALL[name]] for name in policy.names_in(policy.SETUP)} == {EPERM}
