"""Pid 1 of one run: builds the box around itself, gives everything up, forks the worker, reports how it ended.

It runs no guest code. What it holds (its status channel) the worker never had, and it is undumpable, so the worker
cannot read, trace or signal it: the exit status it reports cannot be forged from inside.
"""

from __future__ import annotations

import fcntl
import json
import os
import resource
import signal
import socket
import struct
from dataclasses import dataclass
from typing import Any, NoReturn

from ringfence.isolation import worker
from ringfence.isolation.native import channel, kernel, landlock
from ringfence.isolation.protocol import Kind, encode

GUEST_ID = 1000
_WORKSPACE = b"/workspace/work"
_WRITABLE = (_WORKSPACE, b"/workspace/artifacts", b"/tmp", b"/dev/shm", b"/home/sandbox")
_BINDS = (
    (b"/run/artifacts", b"/workspace/artifacts"),
    (b"/run/tmp", b"/tmp"),
    (b"/run/shm", b"/dev/shm"),
    (b"/run/home", b"/home/sandbox"),
)
_RUN_DIRECTORIES = (("inputs", 0o755), ("upper", 0o755), ("ovl", 0o755), ("artifacts", 0o755), ("home", 0o755))
_OPEN_TO_ALL = (("tmp", 0o1777), ("shm", 0o1777))
_NAMESPACES = (
    kernel.CLONE_NEWNS | kernel.CLONE_NEWIPC | kernel.CLONE_NEWUTS | kernel.CLONE_NEWCGROUP | kernel.CLONE_NEWNET
)
_OVERLAY = b"lowerdir=/run/lower,upperdir=/run/upper,workdir=/run/ovl,userxattr"
_SIOCSIFFLAGS, _IFF_UP = 0x8914, 1
_LOOPBACK_UP = struct.pack("16sH14x", b"lo", _IFF_UP)


@dataclass(frozen=True, slots=True)
class Sealing:
    """What every box of one zygote is sealed with; the same bytes for all of them."""

    seal_filter: bytes
    init_filter: bytes
    landlock_abi: int
    last_capability: int


@dataclass(slots=True)
class Endpoints:
    """The descriptors of one run, as the zygote received them."""

    status: int
    job: int
    stdin: int
    stdout: int
    stderr: int
    lower: int | None = None


def main(spec: dict[str, Any], ends: Endpoints, sealing: Sealing) -> NoReturn:
    """Build, seal, fork, report; whatever fails is told to the host with its stage, never taken for the guest's."""
    status = socket.socket(fileno=ends.status)
    stage = "start"
    try:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        stage = "descriptors"
        _keep_only(ends)
        stage = "namespaces"
        kernel.unshare(_NAMESPACES)
        socket.sethostname(spec["hostname"])
        _loopback_up()
        stage = "file system"
        directory = _build_file_system(spec, ends.lower)
        stage = "identity"
        _become(spec["uid"])
        stage = "limits"
        _limit(spec)
        stage = "privileges"
        kernel.drop_capabilities(sealing.last_capability)
        stage = "landlock"
        if sealing.landlock_abi:
            landlock.enter(sealing.landlock_abi, _WRITABLE)
            landlock.prove()
        stage = "seccomp"
        kernel.load_filter(sealing.seal_filter)
        _require_sealed()
        stage = "admission"
        channel.send(status, {"built": True}, [directory])
        os.close(directory)
        if not status.recv(1):
            os._exit(0)  # the host changed its mind
        stage = "fork"
        os.chdir(_WORKSPACE)
        pid = os.fork()
        if pid == 0:
            status.detach()
            os.close(ends.status)
            _become_worker(spec, ends)
        _watch(pid, status, sealing)
    except BaseException as error:
        report = {"stage": stage, "error": str(error), "errno": getattr(error, "errno", None)}
        status.send(encode(Kind.FAILED, json.dumps(report).encode()))
    os._exit(1)


def _keep_only(ends: Endpoints) -> None:
    """Put the run's streams on 0, 1, 2 and close all that is not this run's own."""
    os.dup2(ends.stdin, 0)
    os.dup2(ends.stdout, 1)
    os.dup2(ends.stderr, 2)
    previous = 2
    for fd in sorted(fd for fd in (ends.status, ends.job, ends.lower) if fd is not None):
        kernel.close_all_from(previous + 1, fd - 1)
        previous = fd
    kernel.close_all_from(previous + 1)


def _loopback_up() -> None:
    """Give the box a loopback of its own; it is the only interface there is."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        fcntl.ioctl(sock, _SIOCSIFFLAGS, _LOOPBACK_UP)


def _build_file_system(spec: dict[str, Any], lower: int | None) -> int:
    """Mount the run's one capped tmpfs in its places and return a descriptor of its root."""
    caps = f"size={spec['disk_bytes']},nr_inodes={spec['inodes']},mode=755".encode()
    kernel.mount(b"tmpfs", b"/run", b"tmpfs", kernel.MS_NOSUID | kernel.MS_NODEV, caps)
    uid = spec["uid"]
    for name, mode in _RUN_DIRECTORIES:
        path = f"/run/{name}"
        os.mkdir(path, mode)
        os.chown(path, uid, uid)
    for name, mode in _OPEN_TO_ALL:
        path = f"/run/{name}"
        os.mkdir(path)
        os.chmod(path, mode)
    for source, target in _BINDS:
        kernel.mount(source, target, None, kernel.MS_BIND)
    kernel.mount(b"/run/inputs", b"/workspace/inputs", None, kernel.MS_BIND)
    read_only = kernel.MS_RDONLY | kernel.MS_NOSUID | kernel.MS_NODEV
    kernel.mount(None, b"/workspace/inputs", None, kernel.MS_REMOUNT | kernel.MS_BIND | read_only)
    if lower is None:
        kernel.mount(b"/run/upper", _WORKSPACE, None, kernel.MS_BIND)
    else:
        os.mkdir("/run/lower")
        kernel.attach_tree(lower, b"/run/lower")
        os.close(lower)
        kernel.mount(b"overlay", _WORKSPACE, b"overlay", kernel.MS_NOSUID | kernel.MS_NODEV, _OVERLAY)
    directory = os.open("/run", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    # the binds stay; the way to write `inputs` through /run goes
    kernel.unmount(b"/run")
    options = kernel.MS_NOSUID | kernel.MS_NODEV | kernel.MS_NOEXEC
    kernel.mount(b"proc", b"/proc", b"proc", options, b"subset=pid,hidepid=invisible")
    return directory


def _become(uid: int) -> None:
    """Take an id of this run alone, then a user namespace of its own that owns nothing but it."""
    if uid != os.getuid():
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
    kernel.set_dumpable(1)  # a process that changed its ids cannot write its own maps otherwise
    kernel.unshare(kernel.CLONE_NEWUSER)
    kernel.set_dumpable(1)
    kernel.write_file("/proc/self/setgroups", b"deny")
    kernel.write_file("/proc/self/uid_map", f"{GUEST_ID} {uid} 1".encode())
    kernel.write_file("/proc/self/gid_map", f"{GUEST_ID} {uid} 1".encode())
    kernel.write_file("/proc/self/oom_score_adj", b"1000")



def _limit(spec: dict[str, Any]) -> None:
    for what, most in (
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_FSIZE, spec["file_bytes"]),
        (resource.RLIMIT_NOFILE, spec["open_files"]),
        # this process is counted too
        (resource.RLIMIT_NPROC, spec["pids"] + 1),
        (resource.RLIMIT_MEMLOCK, 65536),
        (resource.RLIMIT_MSGQUEUE, 0),
    ):
        hard = resource.getrlimit(what)[1]
        most = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(what, (most, most))
    os.setsid()


def _require_sealed() -> None:
    """Read back what the kernel says of this process; the host will read it again, from outside."""
    with open("/proc/self/status", "rb") as file:
        status = dict(line.split(b":\t", 1) for line in file.read().splitlines() if b":\t" in line)
    for name in (b"CapInh", b"CapPrm", b"CapEff", b"CapBnd", b"CapAmb"):
        if int(status[name], 16):
            raise PermissionError(f"{name.decode()} is {status[name].decode()} and should be empty")
    if status[b"NoNewPrivs"] != b"1" or status[b"Seccomp"] != b"2":
        raise PermissionError("no_new_privs or seccomp is not in force")


def _become_worker(spec: dict[str, Any], ends: Endpoints) -> NoReturn:
    kernel.set_dumpable(1)  # so that the host, as an ordinary user, may look at its namespaces
    os.dup2(ends.job, 3)
    kernel.close_all_from(4)
    if spec["exec"]:
        os.set_inheritable(3, True)
        os.execve(spec["exec"][0], spec["exec"], os.environ)
    worker.warm()
    worker.serve(3)


def _watch(pid: int, status: socket.socket, sealing: Sealing) -> NoReturn:
    """Reap until the guest is gone, report, and take whatever it left behind along."""
    kernel.set_dumpable(0)
    status_fd = status.fileno()
    kernel.close_all_from(0, status_fd - 1)
    kernel.close_all_from(status_fd + 1)
    kernel.load_filter(sealing.init_filter)
    while True:
        ended, wait_status, usage = os.wait4(-1, 0)
        if ended == pid:
            break
    cpu_us = round((usage.ru_utime + usage.ru_stime) * 1e6)
    report = {"wait_status": wait_status, "cpu_us": cpu_us, "peak_kib": usage.ru_maxrss}
    os.write(status_fd, encode(Kind.EXIT, json.dumps(report).encode()))
    os._exit(0)
