"""The preconditions that published escape check-lists look for first: each one is a question, and each answer is no."""

from __future__ import annotations

import pytest
from tests.security.conftest import Ask, does_not_keep

pytestmark = [pytest.mark.guarantee(5), pytest.mark.guarantee(6)]

QUESTIONS = r"""
import glob, stat
def exists(*paths): return any(os.path.lexists(path) for path in paths)
def opens(path, flags=os.O_WRONLY): return attempt(os.open, path, flags) == 'done'
status = open('/proc/self/status').read()
mounts = [line.split() for line in open('/proc/self/mountinfo')]
fields = dict(line.split(':\t', 1) for line in status.splitlines() if ':\t' in line)
own = ('/workspace', '/tmp', '/dev/shm', '/home/sandbox', '/proc', '/run')

said['a socket of a container engine'] = exists('/var/run/docker.sock', '/run/docker.sock', '/run/crio/crio.sock',
    '/run/containerd/containerd.sock', '/run/podman/podman.sock')
said['a token of an orchestrator'] = exists('/var/run/secrets', '/run/secrets') or 'KUBERNETES' in repr(os.environ)
said['a capability in any set'] = any(int(fields[key], 16) for key in fields if key.startswith('Cap'))
said['no seccomp'] = fields['Seccomp'] != '2'
said['new privileges'] = libc.prctl(39, 0, 0, 0, 0) != 1  # asked: not every kernel writes it down
said['host processes'] = any(int(pid) > 100 for pid in os.listdir('/proc') if pid.isdigit())
said['a writable mount of a real file system'] = [line[4] for line in mounts if 'rw' in line[5].split(',') and not
    line[4].startswith(own) and not line[4].startswith('/dev/')]
said['a mount that honours set-uid'] = [line[4] for line in mounts if 'nosuid' not in line[5]]
said['a block device'] = [path for path in glob.glob('/dev/*') if stat.S_ISBLK(os.lstat(path).st_mode)]
harmless = {f'/dev/{name}' for name in ('null', 'zero', 'full', 'random', 'urandom')}
said['a foreign character device'] = [path for path in glob.glob('/dev/*')
    if stat.S_ISCHR(os.lstat(path).st_mode) and path not in harmless]
said['the file systems of the kernel'] = exists('/sys/kernel', '/sys/fs/cgroup', '/sys/kernel/debug', '/sys/firmware')
said['a cgroup to write in'] = any(opens(path) for path in glob.glob('/sys/fs/cgroup/**/*', recursive=True))
said['a program the kernel would start for us'] = any(map(opens, ('/sys/fs/cgroup/release_agent',
    '/proc/sys/kernel/core_pattern', '/sys/kernel/uevent_helper', '/proc/sys/fs/binfmt_misc/register',
    '/proc/sys/kernel/modprobe')))
said['sysrq'] = opens('/proc/sysrq-trigger')
said['kernel memory'] = any(opens(path, os.O_RDONLY) for path in ('/dev/mem', '/dev/kmem', '/proc/kcore', '/dev/port'))
said['kernel log'] = call('syslog', 2, 0, 0) == 'done' or opens('/dev/kmsg', os.O_RDONLY)
said['kernel addresses'] = os.path.exists('/proc/kallsyms') and any(
    int(line.split()[0], 16) for line in open('/proc/kallsyms').readlines()[:50])
said['nested user namespaces'] = call('unshare', 0x10000000) == 'done'
said['file handles of the host (shocker)'] = call('open_by_handle_at', 0, bytes(64), 0) == 'done'
said['modules'] = call('init_module', bytes(8), 8, b'') == 'done'
said['packet and raw sockets'] = any(attempt(socket.socket, family, 3) == 'done' for family in (17, 2, 10, 16))
said['another interface than the loopback'] = open('/proc/self/net/dev').read().count(':') != 1
said['a route out'] = len(open('/proc/self/net/route').read().splitlines()) > 1
said['a preloaded library to plant'] = attempt(open, '/etc/ld.so.preload', 'w') == 'done'
said['the runtime to overwrite'] = opens('/proc/self/exe') or opens('/proc/1/exe')
said['a descriptor that leads out'] = any(os.path.isdir(f'/proc/self/fd/{number}') for number in range(3, 64))
said['a secret of the cloud'] = attempt(socket.create_connection, ('169.254.169.254', 80), 1) == 'done'
said['the host root through proc'] = exists('/proc/1/root/etc/shadow')
# /dev/tty is a name that leads nowhere but in a box with a terminal of its own
said['a terminal to type into'] = os.isatty(0) or os.isatty(1) or exists('/dev/console', '/dev/pts/0', '/dev/pts/ptmx')
said['the terminal of whoever started us'] = os.path.exists('/dev/tty')
"""


# What an engine puts into every container, and nobody inside can write: not met is that it leads anywhere.
OF_AN_ENGINE = {
    "a writable mount of a real file system": ["/dev", "/sys/fs/cgroup"],  # of root's, in memory
    "a foreign character device": ["/dev/tty"],
    "the file systems of the kernel": True,
    "a terminal to type into": True,
    "the terminal of whoever started us": True,
}


@pytest.mark.promise("G6 Linux's own interface")
def test_no_precondition_of_a_known_escape_is_met(backend: str, ask: Ask) -> None:
    met = {question: answer for question, answer in ask(QUESTIONS).items() if answer}
    if "G1 bare view" in does_not_keep(backend):
        met.pop("a mount that honours set-uid", None)  # without new privileges none does
        met = {question: answer for question, answer in met.items() if answer != OF_AN_ENGINE.get(question)}
    assert met == {}
