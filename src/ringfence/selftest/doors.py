"""Probes at the doors of a box: its network, the processes beside it, what it may become, and the kernel under it."""

from __future__ import annotations

from typing import Final

from ringfence.selftest.probe import Probe

DOORS: Final = (
    Probe(
        "host_loopback",
        3,
        "reach a service that listens on the host's loopback",
        """
for host in ('127.0.0.1', '::ffff:127.0.0.1'):
    try:
        socket.create_connection((host, given['port']), 2).close()
    except OSError:
        pass
""",
    ),
    Probe(
        "host_sockets",
        3,
        "reach a socket file and an abstract socket of the host",
        """
for address in (given['socket_path'], '\\0' + given['abstract'], '/proc/1/root' + given['socket_path']):
    knocking = socket.socket(socket.AF_UNIX)
    try:
        knocking.connect(address)
    except OSError:
        pass
    knocking.close()
""",
    ),
    Probe(
        "foreign_sockets",
        3,
        "make sockets of families that lead past the network of the box",
        """
for name, family, kind, protocol in (('packet', 17, socket.SOCK_RAW, 3), ('vsock', 40, socket.SOCK_STREAM, 0),
                                     ('netlink', 16, socket.SOCK_RAW, 15), ('raw', socket.AF_INET, socket.SOCK_RAW, 1)):
    attempt('a socket of family ' + name, socket.socket, family, kind, protocol)
""",
    ),
    Probe(
        "host_processes",
        4,
        "see a process of the host, and signal it",
        """
for entry in os.listdir('/proc'):
    if entry.isdecimal() and int(entry) not in (os.getpid(), os.getppid()):
        try:
            words = open('/proc/' + entry + '/cmdline', 'rb').read()
        except OSError:
            continue
        if b'sys.stdin.read()' in words and given['secret'].encode() in words:
            got.append('it is process ' + entry)
            attempt('and takes signals', os.kill, int(entry), 0)
""",
    ),
    Probe(
        "memory_of_others",
        4,
        "read the memory of a process beside it, or of its own init",
        """
pids = {1, os.getppid(), given['pid']}
for entry in os.listdir('/proc'):
    try:
        if entry.isdecimal() and given['secret'].encode() in open('/proc/' + entry + '/cmdline', 'rb').read():
            pids.add(int(entry))
    except OSError:
        pass
for pid in pids - {os.getpid(), 0}:
    # seized, not attached to: outside a box nothing is stopped by it, and it ends with this program
    how = call('ptrace', 0x4206, pid, 0, 0)
    note('process %d was traced' % pid, 'EPERM' if how == 'ESRCH' else how)
    try:
        os.close(os.open('/proc/%d/mem' % pid, os.O_RDWR))
        got.append('the memory of %d was opened' % pid)
    except OSError:
        pass
""",
    ),
    Probe(
        "privileges",
        5,
        "have or gain a capability, root's id or the way to a set-id program",
        """
about = dict(line.split(':', 1) for line in open('/proc/self/status').read().splitlines() if ':' in line)
for name in ('CapInh', 'CapPrm', 'CapEff', 'CapAmb'):
    if int(about.get(name, '0'), 16):  # not every kernel shows all of them
        got.append(name + about[name].strip())
if libc.prctl(39, 0, 0, 0, 0) != 1:
    got.append('set-id programs give their rights')
attempt('became root', os.setuid, 0) if os.getuid() else None
""",
    ),
    Probe(
        "namespaces",
        6,
        "make namespaces of its own, or enter others",
        """
for name, flag in (('user', 0x10000000), ('mount', 0x20000), ('pid', 0x20000000), ('net', 0x40000000)):
    pid = os.fork()
    if pid == 0:
        os._exit(0 if call('unshare', flag) == 'done' else 1)
    if os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0:
        got.append('a ' + name + ' namespace')
""",
    ),
    Probe(
        "mounts",
        6,
        "mount something",
        """
text = ctypes.create_string_buffer
os.makedirs('mounted', exist_ok=True)
how = call('mount', text(b'none'), text(b'mounted'), text(b'tmpfs'), 0, 0)
note('a tmpfs', how)
if how == 'done':
    call('umount2', text(b'mounted'), 2)
""",
    ),
    Probe(
        "kernel_interfaces",
        6,
        "open interfaces of the kernel that have led out of boxes before",
        """
room = ctypes.create_string_buffer(256)
for name, arguments in (
    ('keyctl', (0, -3, 1)),
    ('io_uring_setup', (1, room)),
    ('bpf', (0, ctypes.create_string_buffer(struct.pack('<IIII', 2, 4, 4, 1).ljust(128, b'\\0')), 72)),
    ('userfaultfd', (0x80000,)),
    ('perf_event_open', (ctypes.create_string_buffer(struct.pack('<II', 1, 112).ljust(112, b'\\0')), 0, -1, -1, 0)),
    ('open_by_handle_at', (-100, room, 0)),
    ('kexec_load', (0, 0, room, 1 << 20)),
    ('init_module', (room, 0, room)),
):
    note(name, call(name, *arguments))
""",
    ),
    Probe(
        "kernel_memory",
        6,
        "open the devices and files that are the kernel's own memory or settings",
        """
for path, flags in (('/dev/mem', os.O_RDONLY), ('/dev/kmsg', os.O_RDONLY), ('/proc/kcore', os.O_RDONLY),
                    ('/proc/sysrq-trigger', os.O_WRONLY), ('/proc/sys/kernel/core_pattern', os.O_WRONLY),
                    ('/sys/kernel/uevent_helper', os.O_WRONLY), ('/dev/kvm', os.O_RDWR)):
    found = attempt(path, os.open, path, flags)
""",
    ),
)
