"""The namespaces and the file system of one run, built by the zygote and inherited by the run's processes.

The zygote builds because its pages are its own: the same steps in a fresh fork add copy-on-write faults. It is never
in a box when guest code is: it leaves the namespaces as soon as the worker is forked.
"""

from __future__ import annotations

import fcntl
import os
import socket
import struct

from ringfence.isolation.linux import kernel

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
_OWNED = (("inputs", 0o755), ("upper", 0o755), ("ovl", 0o755), ("artifacts", 0o755), ("home", 0o755))
_OPEN_TO_ALL = (("tmp", 0o1777), ("shm", 0o1777))
_BINDS = (
    (b"/run/artifacts", b"/workspace/artifacts"),
    (b"/run/tmp", b"/tmp"),
    (b"/run/shm", b"/dev/shm"),
    (b"/run/home", b"/home/sandbox"),
    (b"/run/inputs", b"/workspace/inputs"),
)
_NO_SETUID_NO_DEVICES = kernel.MS_NOSUID | kernel.MS_NODEV
_OVERLAY = b"lowerdir=/run/lower,upperdir=/run/upper,workdir=/run/ovl,userxattr"
_SIOCSIFFLAGS, _IFF_UP = 0x8914, 1
_LOOPBACK_UP = struct.pack("16sH14x", b"lo", _IFF_UP)


def own_namespaces() -> dict[str, int]:
    """Open what the zygote returns to after each box."""
    return {name: os.open(f"/proc/self/ns/{name}", os.O_RDONLY | os.O_CLOEXEC) for name in _LEFT_BEHIND}


def leave(own: dict[str, int]) -> None:
    """Go back, so that nothing of a box outlives its run by being held here."""
    for name, kind in _LEFT_BEHIND.items():
        kernel.setns(own[name], kind)


def build(spec: dict[str, Any], lower: int | None) -> int:
    """Enter new namespaces, furnish them, and return a descriptor of the run's own file system."""
    kernel.unshare(_NAMESPACES)
    socket.sethostname(spec["hostname"])
    _loopback_up()
    directory = _furnish(spec, lower)
    kernel.unshare(kernel.CLONE_NEWPID)
    return directory


def mount_proc() -> None:
    """Show the processes of the caller's own pid namespace, and only those it may look into."""
    options = _NO_SETUID_NO_DEVICES | kernel.MS_NOEXEC
    kernel.mount(b"proc", b"/proc", b"proc", options, b"subset=pid,hidepid=invisible")


def _loopback_up() -> None:
    """Give the box a loopback of its own; it is the only interface there is."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        fcntl.ioctl(sock, _SIOCSIFFLAGS, _LOOPBACK_UP)


def _furnish(spec: dict[str, Any], lower: int | None) -> int:
    """Mount the run's one capped tmpfs in its places."""
    caps = b"size=%d,nr_inodes=%d,mode=755" % (spec["disk_bytes"], spec["inodes"])
    kernel.mount(b"tmpfs", b"/run", b"tmpfs", _NO_SETUID_NO_DEVICES, caps)
    directory = os.open("/run", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    uid = spec["uid"]
    for name, mode in _OWNED:
        os.mkdir(name, mode, dir_fd=directory)
        os.chown(name, uid, uid, dir_fd=directory)
    for name, mode in _OPEN_TO_ALL:
        os.mkdir(name, dir_fd=directory)
        os.chmod(name, mode, dir_fd=directory)
    for source, target in _BINDS:
        kernel.mount(source, target, None, kernel.MS_BIND)
    read_only = kernel.MS_REMOUNT | kernel.MS_BIND | kernel.MS_RDONLY | _NO_SETUID_NO_DEVICES
    kernel.mount(None, b"/workspace/inputs", None, read_only)
    if lower is None:
        kernel.mount(b"/run/upper", WORKSPACE, None, kernel.MS_BIND)
    else:
        os.mkdir("lower", dir_fd=directory)
        kernel.attach_tree(lower, b"/run/lower")
        kernel.mount(b"overlay", WORKSPACE, b"overlay", _NO_SETUID_NO_DEVICES, _OVERLAY)
    # covered, because there `inputs` could be written; unmounting would cost a grace period
    kernel.mount(b"/var/empty", b"/run", None, kernel.MS_BIND)
    return directory
