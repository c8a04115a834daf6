"""The namespaces and the file system of one run, built by the zygote and inherited by the run's processes.

The zygote builds because its pages are its own: the same steps in a fresh fork add copy-on-write faults. It is never
in a box when guest code is: it leaves the namespaces as soon as the worker is forked.
"""

from __future__ import annotations

import ctypes
import os
import socket
import struct

from ringfence.isolation.linux import kernel
from ringfence.isolation.linux.steps import AT_FDCWD, Code, Steps

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

WORKSPACE = b"/workspace/work"
WRITABLE = (WORKSPACE, b"/workspace/artifacts", b"/tmp", b"/dev/shm", b"/home/sandbox")

_NAMESPACES = kernel.CLONE_NEWNS | kernel.CLONE_NEWIPC | kernel.CLONE_NEWUTS | kernel.CLONE_NEWNET
_LEFT_BEHIND = {
    "mnt": kernel.CLONE_NEWNS,
    "ipc": kernel.CLONE_NEWIPC,
    "uts": kernel.CLONE_NEWUTS,
    "net": kernel.CLONE_NEWNET,
    "pid": kernel.CLONE_NEWPID,
}
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
_MOVE_MOUNT_F_EMPTY_PATH = 4
_HOSTNAME_BYTES = 64
_SIOCSIFFLAGS, _IFF_UP = 0x8914, 1
_LOOPBACK_UP = struct.pack("16sH14x", b"lo", _IFF_UP)


class Furnishing:
    """The steps to every box of one kind."""

    def __init__(self, spec: dict[str, Any], code: Code, hand: int, *, lower: bool) -> None:
        """List them; `hand` is the lowest free descriptor while the list runs, and then the box's directory."""
        self._steps = steps = Steps(code)
        self._hostname = ctypes.create_string_buffer(_HOSTNAME_BYTES)
        steps.add("unshare", _NAMESPACES)
        self._naming = steps.add("sethostname", self._hostname)
        self._loopback_up(hand)
        caps = b"size=%d,nr_inodes=%d,mode=755" % (spec["disk_bytes"], spec["inodes"])
        steps.add("mount", b"tmpfs", b"/run", b"tmpfs", _NO_SETUID_NO_DEVICES, caps)
        steps.add("openat", AT_FDCWD, b"/run", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, expect=hand)
        self._owned = self._make_directories(hand)
        for source, target in _BINDS:
            steps.add("mount", source, target, 0, kernel.MS_BIND)
        read_only = kernel.MS_REMOUNT | kernel.MS_BIND | kernel.MS_RDONLY | _NO_SETUID_NO_DEVICES
        steps.add("mount", 0, b"/workspace/inputs", 0, read_only)
        self._lower: int | None = None
        if lower:
            steps.add("mkdirat", hand, b"lower", 0o755)
            self._lower = steps.add("move_mount", 0, b"", AT_FDCWD, b"/run/lower", _MOVE_MOUNT_F_EMPTY_PATH)
            steps.add("mount", b"overlay", WORKSPACE, b"overlay", _NO_SETUID_NO_DEVICES, _OVERLAY)
        else:
            steps.add("mount", b"/run/upper", WORKSPACE, 0, kernel.MS_BIND)
        # covered, because there `inputs` could be written; unmounting would cost a grace period
        steps.add("mount", b"/var/empty", b"/run", 0, kernel.MS_BIND)
        steps.add("unshare", kernel.CLONE_NEWPID)

    def build(self, hostname: str, uid: int, lower: int | None) -> None:
        """Enter new namespaces and furnish them."""
        steps = self._steps
        self._hostname.value = hostname.encode()
        steps.set(self._naming, 1, len(hostname))
        for row in self._owned:
            steps.set(row, 2, uid)
            steps.set(row, 3, uid)
        if self._lower is not None and lower is not None:
            steps.set(self._lower, 0, lower)
        steps.run()

    def _loopback_up(self, hand: int) -> None:
        """Give the box a loopback of its own; it is the only interface there is."""
        steps = self._steps
        steps.add("socket", socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC, 0, expect=hand)
        steps.add("ioctl", hand, _SIOCSIFFLAGS, _LOOPBACK_UP)
        steps.add("close", hand)

    def _make_directories(self, hand: int) -> list[int]:
        """Make the places of the one tmpfs that holds all a run may write; return the rows that give them away."""
        steps = self._steps
        owned = []
        for name in _OWNED:
            steps.add("mkdirat", hand, name, 0o755)
            owned.append(steps.add("fchownat", hand, name, 0, 0, 0))
        for name in _OPEN_TO_ALL:
            steps.add("mkdirat", hand, name, 0o777)
            steps.add("fchmodat", hand, name, 0o1777)
        return owned


class Way:
    """The way back out of a box for the zygote, so that nothing of it outlives its run by being held there."""

    def __init__(self, code: Code) -> None:
        """Open what it returns to."""
        self._steps = Steps(code)
        for name, kind in _LEFT_BEHIND.items():
            own = os.open(f"/proc/self/ns/{name}", os.O_RDONLY | os.O_CLOEXEC)
            self._steps.add("setns", own, kind)

    def back(self) -> None:
        """Go."""
        self._steps.run()
