"""Files that only their owner may read or replace: issuer keys and the list of what was revoked."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path

from ringfence.errors import Unavailable

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# A fifo planted under the name must not block us.
_FILE = os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY


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
    try:
        _require_private(fd, path)
        yield fd
    finally:
        os.close(fd)


def list_names(directory_fd: int) -> list[str]:
    """Return what is in a directory."""
    return os.listdir(directory_fd)


def create_file(directory_fd: int, name: str, content: bytes) -> None:
    """Make a file that never was there half written; one of the same name is not touched.

    Raises:
        FileExistsError: The name is taken.
    """
    draft = f".{name}.{os.urandom(8).hex()}"
    fd = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _FILE, 0o600, dir_fd=directory_fd)
    try:
        try:
            write_all(fd, content)
            os.fsync(fd)
        finally:
            os.close(fd)
        os.link(draft, name, src_dir_fd=directory_fd, dst_dir_fd=directory_fd, follow_symlinks=False)
    finally:
        os.unlink(draft, dir_fd=directory_fd)
    os.fsync(directory_fd)


def read_file(directory_fd: int, name: str, most: int) -> bytes:
    """Return the content of a private file, at most `most` bytes and one.

    Raises:
        FileNotFoundError: There is none.
        Unavailable: It is a link or no file, belongs to somebody else, or others may read it.
    """
    fd = open_file(directory_fd, name, os.O_RDONLY)
    try:
        return read_some(fd, most + 1)
    finally:
        os.close(fd)


def open_file(directory_fd: int, name: str, flags: int) -> int:
    """Open a private file; raises what `read_file` raises."""
    path = Path(os.readlink(f"/proc/self/fd/{directory_fd}"), name)
    try:
        fd = os.open(name, flags | _FILE, 0o600, dir_fd=directory_fd)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise _unsafe(path, f"cannot be opened as a file of ours: {error.strerror}") from error
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise _unsafe(path, "is not a file")
        _require_private(fd, path)
    except BaseException:
        os.close(fd)
        raise
    return fd


def read_some(fd: int, most: int) -> bytes:
    """Read until the end, or `most` bytes."""
    parts: list[bytes] = []
    left = most
    while left and (part := os.read(fd, left)):
        parts.append(part)
        left -= len(part)
    return b"".join(parts)


def write_all(fd: int, content: bytes) -> None:
    """Write all of it, however often the kernel takes a part."""
    view = memoryview(content)
    while view:
        view = view[os.write(fd, view) :]


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
