"""Attack: open a part of the kernel that has let guests out before: namespaces, mounts, keyrings, io_uring, bpf."""

from __future__ import annotations

import os

import pytest
from tests.security.conftest import Ask, Run

pytestmark = pytest.mark.guarantee(6)

NAMESPACES = """
kinds = dict(mnt=0x20000, cgroup=0x2000000, uts=0x4000000, ipc=0x8000000, user=0x10000000, pid=0x20000000,
             net=0x40000000, time=0x80)
for name, flag in kinds.items():
    said['unshare ' + name] = call('unshare', flag)
    said['unshare with user ' + name] = call('unshare', flag | kinds['user'])
    if name != 'time':
        said['clone ' + name] = call('clone', flag | 17, 0, 0, 0, 0)
    arguments = struct.pack('11Q', flag, 0, 0, 0, 17, 0, 0, 0, 0, 0, 0)
    said['clone3 ' + name] = call('clone3', arguments, len(arguments))
    for pid in ('self', '1', str(os.getppid())):
        try:
            fd = os.open(f'/proc/{pid}/ns/{name}', os.O_RDONLY)
        except OSError:
            continue
        said[f'setns {pid} {name}'] = call('setns', fd, flag)
for kind in ('user', 'pid'):
    said['climb ' + kind] = call('ioctl', os.open('/proc/self/ns/' + kind, os.O_RDONLY), 0xb702, 0)  # NS_GET_PARENT
if attempt(os.pidfd_open, os.getpid()) != 'ENOSYS':
    said['setns pidfd'] = call('setns', os.pidfd_open(os.getpid()), kinds['mnt'])
"""

MOUNTS = """
said['mount tmpfs'] = call('mount', b'x', b'/tmp', b'tmpfs', 0, 0)
said['mount proc'] = call('mount', b'x', b'/tmp', b'proc', 0, 0)
said['bind'] = call('mount', b'/', b'/tmp', 0, 0x1000, 0)
said['remount'] = call('mount', 0, b'/usr', 0, 0x20 | 0x1000, 0)
said['private'] = call('mount', 0, b'/', 0, 0x44000, 0)
said['umount'] = call('umount2', b'/proc', 2)
said['umount run'] = call('umount2', b'/run', 2)
said['fsopen'] = call('fsopen', b'tmpfs', 0)
said['fspick'] = call('fspick', -100, b'/', 0)
said['fsconfig'] = call('fsconfig', 0, 0, 0, 0, 0)
said['fsmount'] = call('fsmount', 0, 0, 0)
said['open_tree'] = call('open_tree', -100, b'/', 1)
said['open_tree without a copy'] = call('open_tree', -100, b'/', 0)
said['move_mount'] = call('move_mount', -100, b'/usr', -100, b'/tmp', 0)
said['mount_setattr'] = call('mount_setattr', -100, b'/', 0, bytes(32), 32)
said['pivot_root'] = call('pivot_root', b'/tmp', b'/tmp')
said['chroot'] = call('chroot', b'/tmp')
said['swapon'] = call('swapon', b'/tmp/x', 0)
said['statmount'] = call('statmount', bytes(32), bytes(512), 512, 0)
said['listmount'] = call('listmount', bytes(32), bytes(512), 8, 0)
"""

DOORS = """
page = ctypes.create_string_buffer(4096)
said['bpf'] = call('bpf', 0, page, 128)
said['perf_event_open'] = call('perf_event_open', page, 0, -1, -1, 0)
said['userfaultfd'] = call('userfaultfd', 1)
said['add_key'] = call('add_key', b'user', b'x', b'y', 1, -3)
said['request_key'] = call('request_key', b'user', b'x', 0, 0)
said['keyctl'] = call('keyctl', 0, -3, 1)
said['io_uring'] = call('io_uring_setup', 8, page)
said['ptrace me'] = call('ptrace', 0, 0, 0, 0)
said['kexec'] = call('kexec_load', 0, 0, 0, 0)
said['init_module'] = call('init_module', page, 4096, b'')
said['finit_module'] = call('finit_module', 0, b'', 0)
said['delete_module'] = call('delete_module', b'loop', 0)
said['quotactl'] = call('quotactl', 0, 0, 0, 0)
said['open_by_handle_at'] = call('open_by_handle_at', -100, page, 0)
said['name_to_handle_at'] = call('name_to_handle_at', -100, b'/usr', page, page, 0)
said['fanotify'] = call('fanotify_init', 0, 0)
said['reboot'] = call('reboot', 0xfee1dead, 672274793, 0, 0)
said['syslog'] = call('syslog', 3, page, 4096)
said['acct'] = call('acct', b'/tmp/x')
said['settimeofday'] = call('settimeofday', page, 0)
said['clock_settime'] = call('clock_settime', 0, page)
said['sethostname'] = call('sethostname', b'x', 1)
said['setdomainname'] = call('setdomainname', b'x', 1)
said['move_pages'] = call('move_pages', 0, 0, 0, 0, 0, 0)
said['kcmp'] = call('kcmp', os.getpid(), 1, 0, 0, 0)
said['io_setup'] = call('io_setup', 1, page)
said['memfd_secret'] = call('memfd_secret', 0)
said['personality'] = call('personality', 0x0400000)
said['lookup_dcookie'] = call('lookup_dcookie', 0, 0, 0) if 'lookup_dcookie' in CALL else 'ENOSYS'
for name in ('iopl', 'ioperm', 'modify_ldt', 'uselib'):
    if name in CALL:
        said[name] = call(name, 3, 3, 3)
"""

TERMINAL = """
import fcntl
reader, writer = os.pipe()
for name, request in dict(TIOCSTI=0x5412, TIOCLINUX=0x541C, TIOCCONS=0x541D, TIOCSETD=0x5423).items():
    for garbage in (0, 1 << 32, 0xdeadbeef << 32, 1 << 63):
        number = request | garbage
        said[f'{name} {garbage:#x}'] = call('ioctl', 0, number - (1 << 64) if number >> 63 else number, b'x')
said['terminal'] = attempt(os.open, '/dev/tty', os.O_RDWR)
said['new terminal'] = attempt(os.openpty)
"""

MACHINE_CODE = """
import mmap
page = mmap.mmap(-1, 4096, flags=0x22, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)  # private, of no file
page.write(bytes.fromhex(given[0]))
child = os.fork()
if child == 0:
    ctypes.CFUNCTYPE(ctypes.c_long)(ctypes.addressof(ctypes.c_char.from_buffer(page)))()
    os._exit(0)
said['ended by'] = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
"""
INT_80_GETPID = "b814000000cd80c3"
X32_GETPID = "b8270000400f05c3"
NATIVE_GETPID = "b8270000000f05c3"


def test_no_namespace_can_be_made_or_entered(ask: Ask) -> None:
    said = ask(NAMESPACES)
    assert {outcome for name, outcome in said.items() if name.startswith("clone3")} == {"ENOSYS"}
    assert {outcome for name, outcome in said.items() if name.startswith(("unshare", "setns", "clone "))} == {"EPERM"}
    assert {outcome for name, outcome in said.items() if name.startswith("climb")} <= {"EPERM", "ENOTTY"}


@pytest.mark.needs("user")
def test_outside_an_ordinary_user_can_make_the_namespaces_that_are_refused_inside(unboxed: Ask) -> None:
    assert unboxed("said['user'] = call('unshare', 0x10000000)") == {"user": "done"}


def test_no_mount_can_be_made_changed_or_removed(ask: Ask) -> None:
    assert set(ask(MOUNTS).values()) == {"EPERM"}


def test_the_doors_that_have_let_guests_out_are_shut(ask: Ask, unboxed: Ask) -> None:
    outside = unboxed("said['key'] = call('add_key', b'user', b'ringfence-test', b'y', 1, -1)")
    assert outside == {"key": "done"}
    assert set(ask(DOORS).values()) <= {"EPERM", "ENOSYS"}


@pytest.mark.promise("G6 Linux's own interface")
def test_nothing_can_be_typed_into_a_terminal(backend: str, ask: Ask) -> None:
    said = ask(TERMINAL)
    refusals = {"ENOENT", "ENXIO", "OSError", "EACCES"}
    # a container can always open terminals, of its own alone
    assert said.pop("new terminal") in refusals | ({"done"} if backend == "docker" else set())
    assert said.pop("terminal") in refusals
    assert set(said.values()) == {"EPERM"}


@pytest.mark.promise("G6 Linux's own interface")
@pytest.mark.skipif(os.uname().machine != "x86_64", reason="machine code of x86")
@pytest.mark.parametrize("code", [INT_80_GETPID, X32_GETPID])
def test_calls_through_a_foreign_door_end_the_process(ask: Ask, code: str) -> None:
    assert ask(MACHINE_CODE, NATIVE_GETPID) == {"ended by": 0}
    assert ask(MACHINE_CODE, code) == {"ended by": -31}


def test_no_number_that_the_kernel_may_learn_tomorrow_is_open(ask: Ask) -> None:
    program = """
highest = max(CALL.values())
said['open'] = []
for number in range(highest + 1, highest + 400):
    ctypes.set_errno(0)
    if libc.syscall(ctypes.c_long(number), *[ctypes.c_long(-1)] * 6) != -1 or ctypes.get_errno() != errno.ENOSYS:
        said['open'].append(number)
"""
    assert ask(program) == {"open": []}


def test_filters_cannot_be_taken_off_or_supervised(ask: Ask) -> None:
    program = """
said['disable'] = 'done' if libc.prctl(22, 0, 0, 0, 0) == 0 else 'refused'
said['listener'] = call('seccomp', 1, 8, ctypes.create_string_buffer(16))
said['count'] = [line.split()[1] for line in open('/proc/self/status') if line.startswith('Seccomp_filters')]
"""
    said = ask(program)
    assert (said["disable"], said["listener"]) == ("refused", "EPERM")
    assert [int(count) >= 2 for count in said["count"]] in ([True], [])  # not every kernel counts them


def test_the_tools_of_the_distribution_fail_as_well(box: Run) -> None:
    tools = ["unshare -U true", "unshare -Urmpf true", "nsenter -t 1 -a true", "mount -t proc proc /tmp", "dmesg"]
    tools += ["chroot / true", "pivot_root / /tmp", "mknod /tmp/x b 8 0", "hostname x", "swapon /tmp", "losetup -f"]
    result = box("\n".join(f"{tool} >/dev/null 2>&1 && echo '{tool}'" for tool in tools) + "\ntrue", language="bash")
    assert (result.stdout, result.exit_code) == ("", 0)
