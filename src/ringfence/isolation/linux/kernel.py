"""The system calls the box is built with, as thin as ctypes allows; a failing call is an `OSError` naming it.

Everything here is stdlib only and is prepared at import time, because these functions run in freshly forked
children where the first use of anything costs copy-on-write faults.
"""

from __future__ import annotations

import ctypes
import errno
import os
import sys

CLONE_NEWNS = 0x0002_0000
CLONE_NEWCGROUP = 0x0200_0000
CLONE_NEWUTS = 0x0400_0000
CLONE_NEWIPC = 0x0800_0000
CLONE_NEWUSER = 0x1000_0000
CLONE_NEWPID = 0x2000_0000
CLONE_NEWNET = 0x4000_0000

MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_REMOUNT = 0x1, 0x2, 0x4, 0x8, 0x20
MS_BIND, MS_REC, MS_PRIVATE = 0x1000, 0x4000, 0x4_0000
MNT_DETACH = 2

_AT_FDCWD = -100
_AT_EMPTY_PATH = 0x1000
_AT_RECURSIVE = 0x8000
_OPEN_TREE_CLONE = 1
_MOVE_MOUNT_F_EMPTY_PATH = 4
_MOUNT_ATTR_RDONLY, _MOUNT_ATTR_NOSUID, _MOUNT_ATTR_NODEV = 1, 2, 4

_PR_SET_PDEATHSIG = 1
_PR_SET_DUMPABLE = 4
_PR_CAPBSET_DROP = 24
_PR_SET_NO_NEW_PRIVS = 38
_CAPABILITIES = 64

_SECCOMP_SET_MODE_FILTER = 1

# Numbers above 423 are the same on every architecture; the older ones are not.
_OPEN_TREE, _MOVE_MOUNT, _CLOSE_RANGE, _MOUNT_SETATTR = 428, 429, 436, 442
_LANDLOCK_CREATE_RULESET = 444
_PIVOT_ROOT, _SECCOMP, _KCMP = {"x86_64": (155, 317, 312), "aarch64": (41, 277, 272)}.get(
    os.uname().machine, (-1, -1, -1)
)
_KCMP_VM = 1
_SYSINFO_BYTES, _SYSINFO_PROCS = 128, 80

_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long
_libc.mount.argtypes = [ctypes.c_char_p, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_ulong, ctypes.c_char_p]
_libc.umount2.argtypes = [ctypes.c_char_p, ctypes.c_int]
_libc.prctl.argtypes = [ctypes.c_int, ctypes.c_ulong, ctypes.c_ulong, ctypes.c_ulong, ctypes.c_ulong]
_libc.unshare.argtypes = [ctypes.c_int]
_libc.setns.argtypes = [ctypes.c_int, ctypes.c_int]

_long = ctypes.c_long


class _MountAttr(ctypes.Structure):
    _fields_ = (
        ("attr_set", ctypes.c_uint64),
        ("attr_clr", ctypes.c_uint64),
        ("propagation", ctypes.c_uint64),
        ("userns_fd", ctypes.c_uint64),
    )


class _FilterProgram(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_char_p))


def _check(result: int, what: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return result


def unshare(flags: int) -> None:
    """Leave the namespaces named by `flags` for new ones."""
    _check(_libc.unshare(flags), "unshare")


def setns(fd: int, kind: int) -> None:
    """Enter the namespace behind `fd`."""
    _check(_libc.setns(fd, kind), "setns")


def mount(source: bytes | None, target: bytes, fstype: bytes | None, flags: int, data: bytes | None = None) -> None:
    """Mount in the classic way: one call where the new interface needs five."""
    _check(_libc.mount(source, target, fstype, flags, data), f"mount {os.fsdecode(target)}")


def unmount(target: bytes) -> None:
    """Detach whatever is mounted at `target`."""
    _check(_libc.umount2(target, MNT_DETACH), f"umount2 {os.fsdecode(target)}")


def clone_tree(path: bytes, directory: int = _AT_FDCWD, *, devices: bool = False) -> int:
    """Return a detached copy of the mounts at and below `path`, read-only, without set-uid, and without devices.

    With an empty path it is the tree at the descriptor `directory`; `devices` is for a device node itself.
    """
    flags = _OPEN_TREE_CLONE | _AT_RECURSIVE | os.O_CLOEXEC | (0 if path else _AT_EMPTY_PATH)
    number, at, how = _long(_OPEN_TREE), _long(directory), _long(flags)
    fd = _check(_libc.syscall(number, at, path, how), f"open_tree {os.fsdecode(path)}")
    try:
        flags = _MOUNT_ATTR_RDONLY | _MOUNT_ATTR_NOSUID | (0 if devices else _MOUNT_ATTR_NODEV)
        # private: a copy of a shared mount would share what is mounted below it, with the host, in both directions
        attr = _MountAttr(attr_set=flags, propagation=MS_PRIVATE)
        size, what = _long(ctypes.sizeof(attr)), _long(_AT_EMPTY_PATH | _AT_RECURSIVE)
        result = _libc.syscall(_long(_MOUNT_SETATTR), _long(fd), b"", what, ctypes.byref(attr), size)
        _check(result, f"mount_setattr {os.fsdecode(path)}")
    except OSError:
        os.close(fd)
        raise
    return fd


def attach_tree(fd: int, target: bytes) -> None:
    """Mount the detached tree `fd` at `target`."""
    at, how = _long(_AT_FDCWD), _long(_MOVE_MOUNT_F_EMPTY_PATH)
    _check(_libc.syscall(_long(_MOVE_MOUNT), _long(fd), b"", at, target, how), f"move_mount {os.fsdecode(target)}")


def pivot_root_here() -> None:
    """Make the working directory the root and let go of the old one."""
    _check(_libc.syscall(_long(_PIVOT_ROOT), b".", b"."), "pivot_root")
    unmount(b".")
    os.chdir("/")


def close_all_from(first: int, last: int = 0xFFFF_FFFF) -> None:
    """Close every descriptor from `first` up to `last`."""
    if first <= last:
        _check(_libc.syscall(_long(_CLOSE_RANGE), _long(first), _long(last), _long(0)), "close_range")


def share_memory(one: int, other: int) -> bool:
    """Whether two processes have one memory.

    Raises:
        OSError: One of them is gone, or the kernel will not compare them.
    """
    return (
        _check(_libc.syscall(_long(_KCMP), _long(one), _long(other), _long(_KCMP_VM), _long(0), _long(0)), "kcmp") == 0
    )


def write_file(path: str, data: bytes) -> None:
    """Write `data` to a kernel file in one call, as such files want it."""
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, data)
    finally:
        os.close(fd)


def die_with_parent(signal_number: int) -> None:
    """Ask for `signal_number` when the thread that made this process ends."""
    _check(_libc.prctl(_PR_SET_PDEATHSIG, signal_number, 0, 0, 0), "prctl PDEATHSIG")


def set_dumpable(value: int) -> None:
    """Open (1) or close (0) this process's memory and descriptors to others of the same user."""
    _check(_libc.prctl(_PR_SET_DUMPABLE, value, 0, 0, 0), "prctl DUMPABLE")


def drop_bounding_set() -> None:
    """Give up, for good, every capability that a program could bring; needs one of them."""
    for capability in range(_CAPABILITIES):
        if _libc.prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0) and ctypes.get_errno() != errno.EINVAL:
            _check(-1, "prctl CAPBSET_DROP")  # one that this kernel does not have is no more to be given up


def tasks_in_view() -> int:
    """Return how many tasks this kernel has, threads and the unburied included: in gVisor, those of one container."""
    said = ctypes.create_string_buffer(_SYSINFO_BYTES)
    _check(_libc.sysinfo(said), "sysinfo")
    return int.from_bytes(said.raw[_SYSINFO_PROCS : _SYSINFO_PROCS + 2], sys.byteorder)


def no_new_privileges() -> None:
    """Give up, for good, gaining privileges through exec."""
    _check(_libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "prctl NO_NEW_PRIVS")


def load_filter(program: bytes) -> None:
    """Install a seccomp filter, eight bytes an instruction."""
    loaded = _FilterProgram(len(program) // 8, program)
    number, mode = _long(_SECCOMP), _long(_SECCOMP_SET_MODE_FILTER)
    _check(_libc.syscall(number, mode, _long(0), ctypes.byref(loaded)), "seccomp")


def landlock_abi() -> int:
    """Return the Landlock version of this kernel, 0 when it has none."""
    version: int = _libc.syscall(_long(_LANDLOCK_CREATE_RULESET), None, _long(0), _long(1))
    return max(version, 0)
