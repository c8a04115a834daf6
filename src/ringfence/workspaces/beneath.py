"""The only place where a guest's path becomes an open file: nothing outside the given directory is reachable."""

from __future__ import annotations

import ctypes
import errno
import os
import stat
from functools import lru_cache

from ringfence.errors import CapabilityBlocked, InvalidRequest, PathTraversalError

MAX_PATH_BYTES = 4095
MAX_NAME_BYTES = 255

_SYS_OPENAT2 = 437  # the same number on every architecture
_NO_XDEV, _NO_MAGICLINKS, _NO_SYMLINKS, _BENEATH = 0x01, 0x02, 0x04, 0x08
_RESOLVE = _NO_XDEV | _NO_MAGICLINKS | _NO_SYMLINKS | _BENEATH
_RENAME_NOREPLACE, _RENAME_EXCHANGE = 1, 2
_MOST_ATTEMPTS = 64
_ALWAYS = os.O_CLOEXEC | os.O_NOFOLLOW
# A fifo or a terminal planted by the guest must neither block the host nor become its controlling terminal.
_UNLESS_PATH = os.O_NONBLOCK | os.O_NOCTTY
_MODE_FLAGS = os.O_CREAT | (os.O_TMPFILE & ~os.O_DIRECTORY)


class _OpenHow(ctypes.Structure):
    _fields_ = (("flags", ctypes.c_uint64), ("mode", ctypes.c_uint64), ("resolve", ctypes.c_uint64))


_HOW_BYTES = ctypes.sizeof(_OpenHow)

_libc = ctypes.CDLL(None, use_errno=True)
_call_openat2 = ctypes.CFUNCTYPE(
    ctypes.c_long, ctypes.c_long, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p, ctypes.c_size_t, use_errno=True
)(("syscall", _libc))


def open_beneath(root_fd: int, path: str | bytes, flags: int, mode: int = 0, *, in_tree_links: bool = False) -> int:
    """Open `path` below the directory `root_fd`, crossing no symlink and no mount.

    The kernel resolves it in one step (`openat2`); where that call is missing or filtered, a walk of single
    `O_NOFOLLOW` steps from descriptor to descriptor refuses the same paths. With `in_tree_links` the kernel follows
    links that stay below `root_fd`; the walk still refuses them all. An `O_PATH` descriptor may be of a link itself.

    Raises:
        PathTraversalError: `path` is absolute, climbs with `..`, or meets a symlink or another mount.
        InvalidRequest: `path` is no path at all: empty, too long, or with a NUL byte.
    """
    parts = _split(path)
    flags |= _ALWAYS if flags & os.O_PATH else _ALWAYS | _UNLESS_PATH
    mode = mode if flags & _MODE_FLAGS else 0
    try:
        try:
            return _openat2(root_fd, b"/".join(parts), flags, mode, in_tree_links=in_tree_links)
        except OSError as error:
            # EPERM is what a seccomp filter around the host answers; a genuine one comes back from the walk.
            if error.errno not in (errno.ENOSYS, errno.EPERM):
                raise
        return _walk(root_fd, parts, flags, mode)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.EXDEV):
            raise PathTraversalError(f"{_shown(path)} crosses a symlink or a mount") from error
        raise


def open_regular(root_fd: int, path: str | bytes, *, in_tree_links: bool = False) -> int:
    """Open a regular file below `root_fd` for reading; what it is is known before it is opened.

    Opening alone can act: a tape rewinds, a watchdog starts, a fifo wakes its writer. So the file is first held by an
    `O_PATH` descriptor, looked at, and reopened through that very descriptor: no name is looked up twice.

    Raises:
        PathTraversalError: As `open_beneath`; also when it is a link itself.
        CapabilityBlocked: It is a device, a fifo or a socket.
        IsADirectoryError: It is a directory.
    """
    handle = open_beneath(root_fd, path, os.O_PATH, in_tree_links=in_tree_links)
    try:
        require_plain(os.fstat(handle).st_mode, path)
        if stat.S_ISDIR(os.fstat(handle).st_mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        return os.open(f"/proc/self/fd/{handle}", os.O_RDONLY | os.O_CLOEXEC | _UNLESS_PATH)
    finally:
        os.close(handle)


def require_plain(mode: int, path: str | bytes) -> None:
    """Refuse what is neither a regular file nor a directory.

    Raises:
        PathTraversalError: It is a symlink.
        CapabilityBlocked: It is a device, a fifo or a socket.
    """
    if stat.S_ISLNK(mode):
        raise PathTraversalError(f"{_shown(path)} is a symlink")
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        raise CapabilityBlocked(f"{_shown(path)} is a device, a fifo or a socket", reason="special_file")


def open_parent(root_fd: int, path: str | bytes, *, in_tree_links: bool = False) -> tuple[int, bytes]:
    """Open the directory that holds `path` and return its descriptor with the last name, which was not looked at.

    Raises:
        PathTraversalError: As `open_beneath`.
    """
    *parents, name = _split(path)
    if not parents:
        return os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=root_fd), name
    directory = os.O_RDONLY | os.O_DIRECTORY
    return open_beneath(root_fd, b"/".join(parents), directory, in_tree_links=in_tree_links), name


def lies_beneath(root_fd: int, path: bytes) -> bool:
    """Whether anything, also a link, has this name; on the way there is no link."""
    try:
        parent, name = open_parent(root_fd, path)
    except (FileNotFoundError, NotADirectoryError, PathTraversalError):
        return False
    try:
        os.stat(name, dir_fd=parent, follow_symlinks=False)
    except FileNotFoundError:
        return False
    finally:
        os.close(parent)
    return True


def rename_in(directory_fd: int, old: bytes, new: bytes, *, replace: bool) -> None:
    """Rename within one directory, in one step that no reader sees half done; a link named `new` is not followed.

    Raises:
        FileExistsError: `new` is there, and `replace` is false.
    """
    for name in (old, new):
        if len(_split(name)) != 1:
            raise InvalidRequest(f"{_shown(name)} is not one name", reason="invalid_path")
    if replace:
        os.rename(old, new, src_dir_fd=directory_fd, dst_dir_fd=directory_fd)
        return
    code = _rename_to_new(directory_fd, old, new)
    if code in (errno.ENOSYS, errno.EINVAL):  # a C library or file system without it: a second name is as atomic
        os.link(old, new, src_dir_fd=directory_fd, dst_dir_fd=directory_fd, follow_symlinks=False)
        os.unlink(old, dir_fd=directory_fd)
    elif code:
        raise OSError(code, os.strerror(code))


def exchange(one_fd: int, one: str, other_fd: int, other: str) -> None:
    """Have two directory entries change places, in one step that is whole or did not happen.

    Raises:
        OSError: The file system cannot do this.
    """
    for name in (one, other):
        if len(_split(name)) != 1:
            raise InvalidRequest(f"{_shown(name)} is not one name", reason="invalid_path")
    names = (os.fsencode(one), os.fsencode(other))
    if _libc.renameat2(one_fd, names[0], other_fd, names[1], ctypes.c_uint(_RENAME_EXCHANGE)):
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


def _rename_to_new(directory_fd: int, old: bytes, new: bytes) -> int:
    if not hasattr(_libc, "renameat2"):
        return errno.ENOSYS
    failed = _libc.renameat2(directory_fd, old, directory_fd, new, ctypes.c_uint(_RENAME_NOREPLACE))
    return ctypes.get_errno() if failed else 0


def make_parents(root_fd: int, path: str | bytes, mode: int = 0o755) -> int:
    """Open the directory that holds `path`, making the missing ones, and return its descriptor.

    Raises:
        PathTraversalError: As `open_beneath`.
        NotADirectoryError: A parent exists and is something else.
    """
    current = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=root_fd)
    try:
        for name in _split(path)[:-1]:
            try:
                deeper = open_beneath(current, name, os.O_RDONLY | os.O_DIRECTORY)
            except FileNotFoundError:
                made = _make_directory(current, name, mode)
                deeper = open_beneath(current, name, os.O_RDONLY | os.O_DIRECTORY)
                if made:
                    os.fchmod(deeper, mode)  # whatever the umask of the host application
            os.close(current)
            current = deeper
    except BaseException:
        os.close(current)
        raise
    return current


def _make_directory(parent_fd: int, name: bytes, mode: int) -> bool:
    try:
        os.mkdir(name, mode, dir_fd=parent_fd)
    except FileExistsError:  # somebody else made it just now, or planted a link: opening it tells
        return False
    return True


@lru_cache(maxsize=256)  # most of what is opened has one of a few names, which are ours
def _split(path: str | bytes) -> tuple[bytes, ...]:
    raw = os.fsencode(path)
    if raw.startswith(b"/"):
        raise PathTraversalError(f"{_shown(path)} is absolute")
    parts = raw.split(b"/")
    if b".." in parts:
        raise PathTraversalError(f"{_shown(path)} climbs with '..'")
    if len(raw) > MAX_PATH_BYTES or any(len(part) > MAX_NAME_BYTES for part in parts):
        raise InvalidRequest("path or name too long", reason="invalid_path")
    if b"\0" in raw or b"" in parts or b"." in parts:
        raise InvalidRequest(f"{_shown(path)} is not a plain relative path", reason="invalid_path")
    return tuple(parts)


def _openat2(root_fd: int, path: bytes, flags: int, mode: int, *, in_tree_links: bool) -> int:
    if flags & os.O_DIRECTORY or in_tree_links:
        flags &= ~os.O_NOFOLLOW  # it would answer ENOTDIR for a symlink; _NO_SYMLINKS alone answers ELOOP
    how = _OpenHow(flags, mode, _RESOLVE & ~_NO_SYMLINKS if in_tree_links else _RESOLVE)
    for _ in range(_MOST_ATTEMPTS):
        fd: int = _call_openat2(_SYS_OPENAT2, root_fd, path, ctypes.byref(how), _HOW_BYTES)
        if fd >= 0:
            return fd
        code = ctypes.get_errno()
        # A rename somewhere on this machine while a link climbed: the kernel could not tell that it stayed inside.
        if code != errno.EAGAIN:
            break
    raise OSError(code, os.strerror(code), path)


def _walk(root_fd: int, parts: tuple[bytes, ...], flags: int, mode: int) -> int:
    mount = _mount_of(root_fd)
    current = os.dup(root_fd)
    try:
        for name in parts[:-1]:
            deeper = _step(current, name, os.O_PATH | os.O_DIRECTORY | _ALWAYS, 0)
            os.close(current)
            current = deeper
            _require_mount(current, mount)
        found = _step(current, parts[-1], flags, mode)
    finally:
        os.close(current)
    try:
        _require_mount(found, mount)
    except BaseException:
        os.close(found)
        raise
    return found


def _step(directory: int, name: bytes, flags: int, mode: int) -> int:
    try:
        return os.open(name, flags, mode, dir_fd=directory)
    except NotADirectoryError:
        # O_DIRECTORY hides a symlink behind ENOTDIR: say which of the two it was, as openat2 does.
        if stat.S_ISLNK(os.stat(name, dir_fd=directory, follow_symlinks=False).st_mode):
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), name) from None
        raise


def _require_mount(fd: int, mount: bytes) -> None:
    if _mount_of(fd) != mount:
        raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))


def _mount_of(fd: int) -> bytes:
    """Return the mount id: `st_dev` alone would not notice a bind mount of the same filesystem."""
    info = os.open(f"/proc/self/fdinfo/{fd}", os.O_RDONLY | os.O_CLOEXEC)
    try:
        lines = os.read(info, 4096).splitlines()
    finally:
        os.close(info)
    return next(line for line in lines if line.startswith(b"mnt_id:"))


def _shown(path: str | bytes) -> str:
    return ascii(os.fsdecode(path)[:100])
