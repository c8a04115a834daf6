"""Attack: change anything that outlives the run: a system file, an input, a setting of the kernel, the interpreter."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.security.conftest import Ask, Run

import ringfence

pytestmark = pytest.mark.guarantee(2)

OWN = (
    "/workspace/work",
    "/workspace/artifacts",
    "/tmp",
    "/dev/shm",
    "/home/sandbox",
    "/workspace/.private",
)
DEVICES = {f"/dev/{name}" for name in ("null", "zero", "full", "random", "urandom")}

FIND_WRITABLE = """
own = tuple(given)
for directory, folders, files in os.walk('/'):
    if directory.startswith(own):
        folders.clear()
        continue
    try:
        probe = os.path.join(directory, 'planted-by-a-guest')
        os.close(os.open(probe, os.O_WRONLY | os.O_CREAT | os.O_NONBLOCK, 0o600))
        said[directory] = 'a new file'
    except OSError:
        pass
    for name in files:
        path = os.path.join(directory, name)
        try:
            os.close(os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_NOFOLLOW))
        except OSError:
            continue
        said[path] = 'opened to write'
"""

CHANGE = """
for path in given:
    said[path] = [
        attempt(open, path, 'r+b'),
        attempt(os.truncate, path, 0),
        attempt(os.unlink, path),
        attempt(os.rename, path, '/tmp/x'),
        attempt(os.link, path, '/workspace/work/x'),
        attempt(os.chmod, path, 0o777),
        attempt(os.chown, path, os.getuid(), os.getgid()),
        attempt(os.utime, path, (1, 1)),
        attempt(os.setxattr, path, 'user.x', b'y'),
    ]
"""

KERNEL_FILES = """
for path in given:
    said[path] = attempt(os.open, path, os.O_WRONLY)
"""


def test_nothing_in_the_whole_box_can_be_written_but_the_own_directories_and_devices(backend: str, ask: Ask) -> None:
    allowed = set(DEVICES)
    if backend in ("docker", "gvisor"):
        allowed |= {"/dev/ptmx", "/dev/pts/ptmx", "/dev/tty"}  # of its own instance
    written = set(ask(FIND_WRITABLE, *OWN))
    if backend == "gvisor":  # drivers of its own kernel, and where a process may open what is said of itself
        allowed |= {"/dev/fuse", "/dev/net/tun"}
        own = re.compile(r"/proc/\d+/(task/\d+/)?(uid_map|gid_map|oom_score_adj|comm)")
        written = {path for path in written if not own.fullmatch(path)}
    assert written <= allowed


def test_system_files_can_be_changed_in_no_way(ask: Ask, unboxed: Ask, tmp_path: Path) -> None:
    (tmp_path / "victim").write_text("x")
    assert "done" in unboxed(CHANGE, str(tmp_path / "victim"))[str(tmp_path / "victim")]
    paths = [
        "/usr/bin/env",
        "/usr/bin",
        "/etc/passwd",
        "/etc/ld.so.cache",
        "/usr/lib",
        "/",
        "/etc",
        "/dev",
        "/proc/self",
    ]
    assert {outcome for each in ask(CHANGE, *paths).values() for outcome in each} <= {
        *("EROFS", "EPERM", "EACCES", "EXDEV", "EISDIR", "EBUSY", "EINVAL", "ENOTSUP", "EOPNOTSUPP"),
    }


def test_device_nodes_keep_their_mode_and_owner(ask: Ask) -> None:
    said = ask(CHANGE.replace("attempt(open, path, 'r+b'),", ""), *sorted(DEVICES))
    assert "done" not in {outcome for each in said.values() for outcome in each}


def test_inputs_keep_their_content(ask: Ask, box: Run) -> None:
    program = """
for name in ('/workspace/inputs/a', '/workspace/inputs/d/b'):
    said[name] = [attempt(open, name, 'r+b'), attempt(os.truncate, name, 0), attempt(os.unlink, name),
                  attempt(os.rename, name, '/tmp/x'), attempt(open, name + 'new', 'w')]
said['swap'] = attempt(os.rename, '/workspace/inputs', '/workspace/was')
said['read'] = open('/workspace/inputs/a').read()
"""
    said = ask(program, inputs={"a": "kept", "d/b": "kept"})
    assert said.pop("read") == "kept"
    assert "done" not in str(said)


@pytest.mark.needs("native")
def test_natively_not_even_the_mode_or_time_of_an_input_can_be_changed() -> None:
    program = "import os\nfor change in (lambda p: os.chmod(p, 0), lambda p: os.utime(p, (1, 1))):\n"
    program += (
        "    try: change('/workspace/inputs/a'); print('done')\n    except OSError as error: print(error.errno)\n"
    )
    assert ringfence.run(program, inputs={"a": "x"}, isolation="native").stdout == "30\n30\n"


@pytest.mark.promise("G6 Linux's own interface")
def test_settings_of_the_kernel_cannot_be_written(ask: Ask) -> None:
    paths = [
        *("/proc/sys/kernel/core_pattern", "/proc/sys/kernel/modprobe", "/proc/sys/vm/overcommit_memory"),
        *("/proc/sys/fs/binfmt_misc/register", "/proc/sys/kernel/hostname", "/proc/sys/user/max_user_namespaces"),
        *("/proc/sysrq-trigger", "/proc/self/oom_score_adj", "/proc/self/uid_map", "/proc/self/setgroups"),
        *("/proc/self/mem", "/proc/self/attr/current", "/proc/self/comm", "/proc/self/clear_refs", "/proc/1/mem"),
        *("/sys/kernel/uevent_helper", "/sys/fs/cgroup/release_agent", "/sys/power/state", "/proc/self/timerslack_ns"),
        *("/proc/acpi/wakeup", "/proc/mtrr", "/proc/irq/default_smp_affinity", "/proc/self/coredump_filter"),
    ]
    assert set(ask(KERNEL_FILES, *paths).values()) <= {"ENOENT", "EACCES", "EROFS", "EPERM"}


def test_the_running_interpreter_cannot_be_overwritten_through_proc(ask: Ask) -> None:
    program = """
import glob
for path in ['/proc/self/exe', '/proc/1/exe', '/proc/thread-self/exe', *glob.glob('/proc/[0-9]*/exe')]:
    said[path] = attempt(os.open, path, os.O_WRONLY)
child = os.fork()
if child == 0:
    os.execv('/proc/self/exe', ['python', '-c', 'import os; os.open("/proc/%d/exe" % os.getppid(), os.O_WRONLY)'])
said['from a child'] = 'done' if os.waitstatus_to_exitcode(os.wait()[1]) == 0 else 'refused'
"""
    assert "done" not in ask(program).values()


def test_devices_cannot_be_made(ask: Ask) -> None:
    program = """
import stat
for kind in ('S_IFBLK', 'S_IFCHR'):
    for number in ((8, 0), (1, 1), (254, 0), (0, 0)):
        said[f'{kind} {number}'] = attempt(os.mknod, '/tmp/node', 0o600 | getattr(stat, kind), os.makedev(*number))
"""
    assert set(ask(program).values()) == {"EPERM"}


def test_files_in_memory_run_but_stay_inside(box: Run) -> None:
    program = """
import os
fd = os.memfd_create('x')
os.write(fd, open('/bin/cat', 'rb').read())
if os.fork() == 0:
    os.execve(fd, ['cat', '/proc/self/status', '/etc/shadow'], {})
os.wait()
"""
    result = box(program)
    if result.isolation.memory_limit != "cgroup":
        assert "PermissionError" in result.stderr  # there are no files in memory where no cgroup counts them
        return
    assert "CapEff:\t0000000000000000" in result.stdout
    assert "Seccomp:\t2" in result.stdout
    assert "No such file" in result.stderr or "Permission denied" in result.stderr  # an image may have one


# what a machine with systemd is: every mount below / shared with its copies
SHARED = """
import ringfence
def mounts():
    return {line.split()[0]: line.split()[4] for line in open('/proc/self/mountinfo')}
before = mounts()
result = ringfence.run("print(open('/proc/self/mountinfo').read())", isolation='native')
print([where for number, where in mounts().items() if number not in before])
print([line for line in result.stdout.splitlines() if 'shared:' in line or 'master:' in line])
"""


@pytest.mark.needs("native", "root")
def test_mounts_of_a_box_do_not_come_up_on_the_host_where_mounts_are_shared(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(Path(ringfence.__file__).parents[1]), "HOME": str(tmp_path)}
    done = subprocess.run(
        ["unshare", "--mount", "--propagation", "shared", sys.executable, "-c", SHARED],
        capture_output=True,
        text=True,
        env=environment,
        timeout=50,
        check=False,
    )
    assert done.stdout == "[]\n[]\n", done.stderr
