"""Attack: be somebody: keep a capability, gain one through a set-uid program, or be root on the host."""

from __future__ import annotations

import glob
import os
import stat
from pathlib import Path

import pytest
from tests.security.conftest import Ask, Run

import ringfence

pytestmark = pytest.mark.guarantee(5)

STATUS = """
status = dict(line.split(':\\t', 1) for line in open('/proc/self/status').read().splitlines() if ':\\t' in line)
said.update({name: status[name] for name in status if name.startswith('Cap') or name in ('NoNewPrivs', 'Seccomp')})
"""

RAISE = """
import resource
header = (ctypes.c_uint32 * 2)(0x20080522, 0)
everything = (ctypes.c_uint32 * 6)(*[0xffffffff] * 6)
said['capset'] = call('capset', header, everything)
said['ambient'] = 'done' if libc.prctl(47, 2, 21, 0, 0) == 0 else errno.errorcode[ctypes.get_errno()]
said['setuid'] = attempt(os.setuid, 0)
said['setgid'] = attempt(os.setgid, 0)
said['setreuid'] = attempt(os.setreuid, 0, 0)
said['setgroups'] = attempt(os.setgroups, [0])
said['fsuid'] = 'done' if libc.setfsuid(0) == 0 else 'refused'
said['new privileges'] = 'done' if libc.prctl(38, 0, 0, 0, 0) == 0 else 'EINVAL'
said['securebits'] = 'done' if libc.prctl(28, 0, 0, 0, 0) == 0 else 'EPERM'
said['nice'] = attempt(os.nice, -5)
said['realtime'] = attempt(os.sched_setscheduler, 0, os.SCHED_FIFO, os.sched_param(10))
said['chown'] = attempt(os.chown, '/tmp', 0, 0)
said['raise a limit'] = attempt(resource.setrlimit, resource.RLIMIT_NPROC, (1 << 20, 1 << 20))
"""

# The loader complains about a library that is not there, unless the kernel started it with privileges.
ASK_THE_LOADER = """
import subprocess
for path in filter(os.path.exists, given):
    child = subprocess.Popen([path, '--version'], env={'LD_PRELOAD': '/nowhere.so'}, stdin=subprocess.DEVNULL,
                             stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    said[path] = b'LD_PRELOAD' in child.stderr.readline()
    attempt(child.kill)
    child.wait()
"""


def set_uid_programs() -> list[str]:
    """Return the set-uid and set-gid programs of this machine, which a box shows or an image has copies of."""
    return [
        path
        for path in glob.glob("/usr/*bin/*") + glob.glob("/usr/lib/*/*")
        if os.path.isfile(path) and os.lstat(path).st_mode & (stat.S_ISUID | stat.S_ISGID)
        if os.lstat(path).st_mode & stat.S_IXOTH
    ]


@pytest.mark.promise("G6 Linux's own interface")
def test_every_capability_set_is_empty_and_can_not_be_filled_by_exec(ask: Ask, box: Run) -> None:
    sealed = {f"Cap{name}": "0000000000000000" for name in ("Inh", "Prm", "Eff", "Bnd", "Amb")}
    assert ask(STATUS) == {**sealed, "NoNewPrivs": "1", "Seccomp": "2"}
    shown = box("grep -E '^(Cap|NoNew|Seccomp:)' /proc/self/status", language="bash").stdout
    assert dict(line.split(":\t") for line in shown.splitlines()) == {**sealed, "NoNewPrivs": "1", "Seccomp": "2"}


@pytest.mark.promise("G6 Linux's own interface")
def test_no_call_raises_anything(ask: Ask) -> None:
    assert "done" not in ask(RAISE).values()


def test_set_uid_programs_give_nothing(ask: Ask) -> None:
    programs = set_uid_programs()
    assert programs, "this machine has no set-uid program to try"
    said = ask(ASK_THE_LOADER, *programs)
    assert set(said.values()) == {True}, "the kernel gave privileges to one of them"


@pytest.mark.needs("user")
def test_outside_the_loader_tells_a_privileged_program_apart(unboxed: Ask) -> None:
    assert unboxed(ASK_THE_LOADER, "/usr/bin/mount", "/usr/bin/env") == {"/usr/bin/mount": False, "/usr/bin/env": True}


def test_a_program_that_a_guest_makes_set_uid_gives_nothing_either(box: Run) -> None:
    result = box("cp /usr/bin/id id && chmod 6755 id && ./id -u", language="bash")
    assert result.stdout == "1000\n"


def test_file_capabilities_cannot_be_made(ask: Ask) -> None:
    program = """
open('/tmp/x', 'w').close()
said['v2'] = attempt(os.setxattr, '/tmp/x', 'security.capability', struct.pack('<5I', 0x02000001, 1 << 21, 0, 0, 0))
said['v3'] = attempt(os.setxattr, '/tmp/x', 'security.capability', struct.pack('<6I', 0x03000001, 1 << 21, 0, 0, 0, 0))
said['trusted'] = attempt(os.setxattr, '/tmp/x', 'trusted.overlay.opaque', b'y')
"""
    assert "done" not in ask(program).values()


def test_the_host_sees_an_ordinary_id_and_says_so(box: Run) -> None:
    result = box("import os; print(os.getresuid(), os.getresgid())")
    assert result.stdout == "(1000, 1000, 1000) (1000, 1000, 1000)\n"
    assert result.isolation.host_uid > 0
    if os.geteuid():
        assert result.isolation.host_uid == os.geteuid()


@pytest.mark.needs("root", "native")
def test_as_root_each_native_run_has_an_id_that_belongs_to_nobody_and_to_no_other_run() -> None:
    seen = {ringfence.run("pass", isolation="native").isolation.host_uid for _ in range(5)}
    assert len(seen) == 5
    assert all(uid > 0x7000_0000 for uid in seen)


@pytest.mark.needs("root")
def test_as_root_the_guest_is_in_no_group_of_the_host(box: Run) -> None:
    # its own, which is nobody's unless the machine has a group of that number
    assert box("import os; print(set(os.getgroups()) - {os.getgid()})").stdout == "set()\n"


def test_a_user_database_of_the_host_is_no_use(box: Run) -> None:
    result = box("su -c id root; sudo -n id; mount -t tmpfs x /tmp; ping -c1 127.0.0.1; echo end", language="bash")
    assert "uid=0" not in result.stdout
    assert result.stdout.endswith("end\n")
    assert not Path("/tmp/x").exists()
