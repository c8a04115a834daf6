"""The namespaces and the file system of one run, which its worker builds around itself while it may still do so."""

from __future__ import annotations

import ctypes
import os
import socket
import struct

from ringfence.isolation.linux import kernel
from ringfence.isolation.linux.steps import AT_FDCWD, Steps

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

WORKSPACE = b"/workspace/work"
WRITABLE = (WORKSPACE, b"/workspace/artifacts", b"/tmp", b"/dev/shm", b"/home/sandbox")

_NAMESPACES = kernel.CLONE_NEWNS | kernel.CLONE_NEWIPC | kernel.CLONE_NEWUTS | kernel.CLONE_NEWNET
_OWNED = (b"inputs", b"upper", b"ovl", b"artifacts", b"home")
_OPEN_TO_ALL = (b"tmp", b"shm")
_BINDS = (
    (b"/run/artifacts", b"/workspace/artifacts"),
    (b"/run/tmp", b"/tmp"),
    (b"/run/shm", b"/dev/shm"),
    (b"/run/home", b"/home/sandbox"),
    (b"/run/inputs", b"/workspace/inputs"),
)
_NO_SETUID_NO_DEVICES = kernel.MS_NOSUID | kernel.MS_NODEV
_OVERLAY = b"lowerdir=/run/lower,upperdir=/run/upper,workdir=/run/ovl,userxattr"
_PROC = b"subset=pid,hidepid=invisible"
# the kernel has so many for the whole machine, so a box gets a few; made by the guest, they are of its own group
TERMINALS = b"newinstance,ptmxmode=0666,mode=620,max=16"
_MOVE_MOUNT_F_EMPTY_PATH = 4
_HOSTNAME_BYTES = 64
_SIOCSIFFLAGS, _IFF_UP = 0x8914, 1
_LOOPBACK_UP = struct.pack("16sH14x", b"lo", _IFF_UP)


class Furnishing:
    """The steps by which a worker makes its box around itself."""

    def __init__(self, steps: Steps, spec: dict[str, Any], lower: int | None, directory: int) -> None:
        """Add them; the first free descriptor, `directory`, is afterwards the run's own file system.

        `lower` is a detached tree for the work directory to lie over, on the number before.
        """
        self._steps = steps
        self._hostname = ctypes.create_string_buffer(_HOSTNAME_BYTES)
        steps.add("unshare", _NAMESPACES)
        self._naming = steps.add("sethostname", self._hostname)
        self._loopback_up(directory)
        if spec["terminal"]:
            self._terminals()
        caps = b"size=%d,nr_inodes=%d,mode=755" % (spec["disk_bytes"], spec["inodes"])
        steps.add("mount", b"tmpfs", b"/run", b"tmpfs", _NO_SETUID_NO_DEVICES, caps)
        steps.add("openat", AT_FDCWD, b"/run", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, expect=directory)
        self._owned = self._make_directories(directory)
        for source, target in _BINDS:
            steps.add("mount", source, target, 0, kernel.MS_BIND)
        read_only = kernel.MS_REMOUNT | kernel.MS_BIND | kernel.MS_RDONLY | _NO_SETUID_NO_DEVICES
        steps.add("mount", 0, b"/workspace/inputs", 0, read_only)
        if lower is None:
            steps.add("mount", b"/run/upper", WORKSPACE, 0, kernel.MS_BIND)
        else:
            steps.add("mkdirat", directory, b"lower", 0o755)
            steps.add("move_mount", lower, b"", AT_FDCWD, b"/run/lower", _MOVE_MOUNT_F_EMPTY_PATH)
            steps.add("mount", b"overlay", WORKSPACE, b"overlay", _NO_SETUID_NO_DEVICES, _OVERLAY)
        # covered, because there `inputs` could be written; unmounting would cost a grace period
        steps.add("mount", b"/var/empty", b"/run", 0, kernel.MS_BIND)
        # the processes of the worker's own pid namespace, and only those it may look into
        steps.add("mount", b"proc", b"/proc", b"proc", _NO_SETUID_NO_DEVICES | kernel.MS_NOEXEC, _PROC)

    def prepare(self, hostname: str, uid: int) -> None:
        """Put in what is this run's alone."""
        self._hostname.value = hostname.encode()
        self._steps.set(self._naming, 1, len(hostname))
        for row in self._owned:
            self._steps.set(row, 2, uid)
            self._steps.set(row, 3, uid)

    def _terminals(self) -> None:
        """Give the box an instance of devpts: no terminal in it was ever the host's or another run's."""
        no_programs = kernel.MS_NOSUID | kernel.MS_NOEXEC
        self._steps.add("mount", b"devpts", b"/dev/pts", b"devpts", no_programs, TERMINALS)
        self._steps.add("mount", b"/run/terminal", b"/dev/terminal", 0, kernel.MS_BIND | kernel.MS_REC)

    def _loopback_up(self, free: int) -> None:
        """Give the box a loopback of its own; it is the only interface there is."""
        steps = self._steps
        steps.add("socket", socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC, 0, expect=free)
        steps.add("ioctl", free, _SIOCSIFFLAGS, _LOOPBACK_UP)
        steps.add("close", free)

    def _make_directories(self, directory: int) -> list[int]:
        """Make the places of the one tmpfs that holds all a run may write; return the rows that give them away."""
        steps = self._steps
        owned = []
        for name in _OWNED:
            steps.add("mkdirat", directory, name, 0o755)
            owned.append(steps.add("fchownat", directory, name, 0, 0, 0))
        for name in _OPEN_TO_ALL:
            steps.add("mkdirat", directory, name, 0o777)
            steps.add("fchmodat", directory, name, 0o1777)
        return owned
