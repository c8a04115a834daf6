"""Files that only their owner may read or replace: keys, what was revoked, kept content; each is there whole or not."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from ringfence.errors import Unavailable

_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# A fifo planted under the name must not block us.
_FILE: Final = os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
_CHUNK_BYTES: Final = 1 << 20


# --- directories ---


@contextlib.contextmanager
def private_directory(path: Path, *, make: bool) -> Iterator[int]:
    """Open a directory of ours and nobody else's, made with mode 0700 when it is missing and `make` says so.

    Raises:
        FileNotFoundError: It is missing, and was not to be made.
        Unavailable: It is a link, belongs to somebody else, or others may look into it.
    """
    try:
        if make:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            # mkdir makes it and sets its mode in one step, and follows no link under that name
            with contextlib.suppress(FileExistsError):
                path.mkdir(mode=0o700)
        fd = os.open(path, _DIRECTORY)
    except FileNotFoundError:
        raise
    except OSError as error:  # a link or a file is ENOTDIR, or ELOOP
        raise _unsafe(path, f"cannot be opened as a directory of ours: {error.strerror}") from error
    with _closing(fd):
        _require_private(fd, path)
        yield fd


@contextlib.contextmanager
def private_directory_if_any(path: Path) -> Iterator[int | None]:
    """Open a directory of ours, and nothing where it is missing; otherwise raises what `private_directory` raises."""
    with contextlib.ExitStack() as stack:
        fd: int | None = None
        with contextlib.suppress(FileNotFoundError):
            fd = stack.enter_context(private_directory(path, make=False))
        yield fd


@contextlib.contextmanager
def inner_directory(directory_fd: int, name: str) -> Iterator[int]:
    """Open a directory inside a private one, made where it is missing.

    Raises:
        Unavailable: It is a link, belongs to somebody else, or others may look into it.
    """
    with contextlib.suppress(FileExistsError):
        os.mkdir(name, 0o700, dir_fd=directory_fd)
    path = _path(directory_fd, name)
    try:
        fd = os.open(name, _DIRECTORY, dir_fd=directory_fd)
    except OSError as error:
        raise _unsafe(path, f"cannot be opened as a directory of ours: {error.strerror}") from error
    with _closing(fd):
        _require_private(fd, path)
        yield fd


def list_names(directory_fd: int) -> list[str]:
    """Return what is in a directory."""
    return os.listdir(directory_fd)


# --- files, by their name in a directory ---


def create_file(directory_fd: int, name: str, content: bytes) -> None:
    """Make a file that never was there half written; one of the same name is not touched.

    Raises:
        FileExistsError: The name is taken.
    """
    with _draft(directory_fd, content) as draft:
        os.link(draft, name, src_dir_fd=directory_fd, dst_dir_fd=directory_fd, follow_symlinks=False)


def replace_file(directory_fd: int, name: str, content: bytes, *, keep_free: int = 0) -> None:
    """Make a file, or put it in the place of the one of that name; whoever reads sees all of one of them.

    Raises:
        OSError: With `ENOSPC`, also where fewer than `keep_free` bytes would be left on the disk.
    """
    if keep_free and _free_bytes(directory_fd) < len(content) + keep_free:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    with _draft(directory_fd, content) as draft:
        os.rename(draft, name, src_dir_fd=directory_fd, dst_dir_fd=directory_fd)


def read_file(directory_fd: int, name: str, most: int) -> bytes:
    """Return the content of a private file.

    Raises:
        FileNotFoundError: There is none.
        Unavailable: It is a link or no file, belongs to somebody else, others may read it, or has more than `most`
            bytes.
    """
    with _closing(open_file(directory_fd, name, os.O_RDONLY)) as fd:
        content = read_some(fd, most + 1)
    if len(content) > most:
        raise _unsafe(_path(directory_fd, name), f"has more than the {most} bytes we would write")
    return content


def written_at_ms(directory_fd: int, name: str) -> int | None:
    """Return when a file was written last, and nothing where there is none."""
    try:
        return os.stat(name, dir_fd=directory_fd, follow_symlinks=False).st_mtime_ns // 1_000_000
    except FileNotFoundError:
        return None


def remove_file(directory_fd: int, name: str) -> bool:
    """Remove a file; False where there was none."""
    try:
        os.unlink(name, dir_fd=directory_fd)
    except FileNotFoundError:
        return False
    return True


def destroy_file(directory_fd: int, name: str) -> bool:
    """Overwrite a file, whoever else could read it, and remove it; False where there was none.

    Raises:
        Unavailable: A link or no file has its name: what it was to destroy may be elsewhere.
    """
    try:
        fd = _open_regular(directory_fd, name, os.O_WRONLY)
    except FileNotFoundError:
        return False
    with _closing(fd):
        write_all(fd, os.urandom(os.fstat(fd).st_size))
        os.fsync(fd)
    removed = remove_file(directory_fd, name)
    os.fsync(directory_fd)
    return removed


# --- files, by descriptor ---


def open_file(directory_fd: int, name: str, flags: int) -> int:
    """Open a private file; raises what `read_file` raises."""
    fd = _open_regular(directory_fd, name, flags)
    try:
        _require_private(fd, _path(directory_fd, name))
    except BaseException:
        os.close(fd)
        raise
    return fd


def read_some(fd: int, most: int) -> bytes:
    """Read until the end, or `most` bytes."""
    content = bytearray()
    while len(content) < most and (part := os.read(fd, min(_CHUNK_BYTES, most - len(content)))):
        content += part
    return bytes(content)


def write_all(fd: int, content: bytes) -> None:
    """Write all of it, however often the kernel takes a part."""
    view = memoryview(content)
    while view:
        view = view[os.write(fd, view) :]


@contextlib.contextmanager
def _draft(directory_fd: int, content: bytes) -> Iterator[str]:
    """Give the name of a file that holds `content`, on the disk already; that name is gone afterwards."""
    draft = f".{os.urandom(8).hex()}"
    fd = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _FILE, 0o600, dir_fd=directory_fd)
    try:
        with _closing(fd):
            os.fchmod(fd, 0o600)  # whatever the umask of the host application
            write_all(fd, content)
            os.fsync(fd)
        yield draft
    finally:
        remove_file(directory_fd, draft)
    os.fsync(directory_fd)


@contextlib.contextmanager
def _closing(fd: int) -> Iterator[int]:
    try:
        yield fd
    finally:
        os.close(fd)


def _open_regular(directory_fd: int, name: str, flags: int) -> int:
    try:
        fd = os.open(name, flags | _FILE, dir_fd=directory_fd)
    except FileNotFoundError:
        raise
    except OSError as error:
        problem = f"cannot be opened as a file of ours: {error.strerror}"
        raise _unsafe(_path(directory_fd, name), problem) from error
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise _unsafe(_path(directory_fd, name), "is not a file")
    return fd


def _free_bytes(directory_fd: int) -> int:
    disk = os.fstatvfs(directory_fd)
    return disk.f_bavail * disk.f_frsize


def _path(directory_fd: int, name: str) -> Path:
    return Path(f"/proc/self/fd/{directory_fd}").readlink() / name


def _require_private(fd: int, path: Path) -> None:
    seen = os.fstat(fd)
    if seen.st_uid != os.geteuid():
        raise _unsafe(path, f"belongs to user {seen.st_uid}")
    if stat.S_IMODE(seen.st_mode) & 0o077:
        mode = "700" if stat.S_ISDIR(seen.st_mode) else "600"
        raise _unsafe(path, f"has mode {stat.S_IMODE(seen.st_mode):o}", f"chmod {mode} {path}")


def _unsafe(path: Path, problem: str, fix: str | None = None) -> Unavailable:
    return Unavailable(
        f"{path} {problem}, so nothing in it is trusted",
        reason="key_store_unsafe",
        fix=fix or "find out who put it there, and remove it",
    )
