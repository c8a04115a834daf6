"""Runs in a throwaway process: make a user namespace and try the file systems a work directory is layered from.

Started by path with `python -I -S`, so it imports nothing of Ringfence; prints one `name=yes|no` per line. The
mounts live in a mount namespace of this process and vanish with it.
"""

from __future__ import annotations

import ctypes
import os
import sys
from pathlib import Path

_CLONE_NEWNS = 0x00020000
_CLONE_NEWUSER = 0x10000000
_MS_REC = 0x4000
_MS_PRIVATE = 1 << 18


def main() -> int:
    """Try each thing and print what worked; exit code 1 when not even the namespace could be made."""
    libc = ctypes.CDLL(None, use_errno=True)
    uid, gid = os.getuid(), os.getgid()
    if libc.unshare(_CLONE_NEWUSER | _CLONE_NEWNS):
        return 1
    try:
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"0 {uid} 1")
        Path("/proc/self/gid_map").write_text(f"0 {gid} 1")
    except OSError:
        return 1
    if not _mount(libc, "none", "/", "", _MS_REC | _MS_PRIVATE, ""):
        return 1
    place = next((path for path in ("/mnt", "/tmp", "/var") if Path(path).is_dir()), None)  # noqa: S108 a mount point
    if place is None or not _mount(libc, "tmpfs", place, "tmpfs", 0, "size=1m"):
        return 1
    _say("tmpfs_user_xattr", _keeps_attributes(place))
    _say("overlay", _overlays(libc, place))
    return 0


def _keeps_attributes(place: str) -> bool:
    try:
        os.setxattr(place, "user.ringfence", b"1")
    except OSError:
        return False
    return True


def _overlays(libc: ctypes.CDLL, place: str) -> bool:
    for name in ("lower", "upper", "work", "merged"):
        Path(place, name).mkdir()
    where = f"lowerdir={place}/lower,upperdir={place}/upper,workdir={place}/work"
    return any(_mount(libc, "overlay", f"{place}/merged", "overlay", 0, where + extra) for extra in (",userxattr", ""))


def _mount(libc: ctypes.CDLL, source: str, target: str, kind: str, flags: int, data: str) -> bool:
    result: int = libc.mount(
        source.encode(), target.encode(), kind.encode() or None, ctypes.c_ulong(flags), data.encode() or None
    )
    return result == 0


def _say(name: str, worked: bool) -> None:
    sys.stdout.write(f"{name}={'yes' if worked else 'no'}\n")


if __name__ == "__main__":
    sys.exit(main())
