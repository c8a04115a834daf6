"""The files of the content store: each encrypted under a key of its own, bound to its name, and there whole or not."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import hmac
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from ringfence.content import aead
from ringfence.errors import QuotaExceeded, Unavailable

KEY_FILE: Final = "key"
_KEY_HEADER: Final = b"ringfence content key 1\n"
_MAGIC: Final = b"RFCONT1\n"
_SALT_BYTES: Final = 32
_HEAD_BYTES: Final = len(_MAGIC) + _SALT_BYTES + aead.NONCE_BYTES
_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# A fifo planted under the name must not block us.
_FILE: Final = os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY


def seal(master: bytes, plain: bytes, bound_to: bytes) -> bytes:
    """Return `plain` encrypted; it opens only together with `bound_to`.

    Each file has a key of its own, derived with 32 random bytes, so no nonce can ever meet the same key twice.
    """
    salt, nonce = os.urandom(_SALT_BYTES), os.urandom(aead.NONCE_BYTES)
    key = derive(master, b"file", salt)
    return _MAGIC + salt + nonce + aead.implementation().encrypt(key, nonce, plain, _MAGIC + bound_to)


def unseal(master: bytes, sealed: bytes, bound_to: bytes) -> bytes | None:
    """Return what was encrypted, or None where this is not it."""
    if len(sealed) < _HEAD_BYTES + aead.TAG_BYTES or not sealed.startswith(_MAGIC):
        return None
    salt, nonce = sealed[len(_MAGIC) : len(_MAGIC) + _SALT_BYTES], sealed[_HEAD_BYTES - aead.NONCE_BYTES : _HEAD_BYTES]
    key = derive(master, b"file", salt)
    try:
        return aead.implementation().decrypt(key, nonce, sealed[_HEAD_BYTES:], _MAGIC + bound_to)
    except aead.TagMismatch:
        return None


def derive(master: bytes, purpose: bytes, what: bytes) -> bytes:
    """Return a key, or a name that nobody without the master key can connect with `what`."""
    return hmac.new(master, purpose + b"\0" + what, hashlib.sha256).digest()


@contextlib.contextmanager
def private_directory(path: Path, *, make: bool) -> Iterator[int | None]:
    """Open a directory of ours and nobody else's; None where it is missing and not to be made.

    Raises:
        Unavailable: It is a link, belongs to somebody else, or others may look into it.
    """
    try:
        if make:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            # mkdir makes it and sets its mode in one step, and follows no link under that name
            with contextlib.suppress(FileExistsError):
                path.mkdir(mode=0o700)
        fd: int | None = os.open(path, _DIRECTORY)
    except FileNotFoundError:
        fd = None
    except OSError as error:
        raise _unsafe(f"{path} cannot be opened as a directory of ours") from error
    if fd is None:
        yield None
        return
    try:
        _require_ours(fd)
        yield fd
    finally:
        os.close(fd)


def open_inner(directory: int, name: str) -> int:
    """Open a directory in a private one, made where it is missing."""
    with contextlib.suppress(FileExistsError):
        os.mkdir(name, 0o700, dir_fd=directory)
    try:
        fd = os.open(name, _DIRECTORY, dir_fd=directory)
    except OSError as error:
        raise _unsafe(f"{name} of the content store is no directory of ours") from error
    try:
        _require_ours(fd)
    except BaseException:
        os.close(fd)
        raise
    return fd


def names(directory: int) -> list[str]:
    """Return what is in a directory."""
    return os.listdir(directory)


def write(directory: int, name: str, content: bytes, *, replace: bool = True, keep_free: int = 0) -> None:
    """Write a private file whole, or leave what was there.

    Raises:
        FileExistsError: The name is taken, and `replace` is false.
        QuotaExceeded: The disk is full, or less than `keep_free` bytes would be left on it.
    """
    _require_room(directory, len(content) + keep_free)
    draft = f".{os.urandom(8).hex()}"
    try:
        fd = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _FILE, 0o600, dir_fd=directory)
        try:
            try:
                os.fchmod(fd, 0o600)  # whatever the umask of the host application
                rest = memoryview(content)
                while rest:
                    rest = rest[os.write(fd, rest) :]
                os.fsync(fd)
            finally:
                os.close(fd)
            if replace:
                os.rename(draft, name, src_dir_fd=directory, dst_dir_fd=directory)
            else:
                os.link(draft, name, src_dir_fd=directory, dst_dir_fd=directory, follow_symlinks=False)
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(draft, dir_fd=directory)
        os.fsync(directory)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise QuotaExceeded("the disk is too full for kept content", reason="disk") from error
        raise


def read(directory: int, name: str, most: int) -> bytes | None:
    """Return a private file, or None where there is none.

    Raises:
        Unavailable: It is a link or no file, belongs to somebody else, others may read it, or it is larger than `most`.
    """
    try:
        fd = os.open(name, os.O_RDONLY | _FILE, dir_fd=directory)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise _unsafe(f"{name} of the content store cannot be opened as a file of ours") from error
    try:
        _require_ours(fd)
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode) or status.st_size > most:
            raise damaged()
        content = bytearray()
        while len(content) <= most and (chunk := os.read(fd, min(1 << 20, most + 1 - len(content)))):
            content += chunk
    finally:
        os.close(fd)
    return bytes(content)


def read_key(directory: int) -> bytes | None:
    """Return the master key, or None where there is none yet, or no more.

    Raises:
        Unavailable: Somebody else could have read or replaced it, or it is no key.
    """
    text = read(directory, KEY_FILE, 256)
    if text is None:
        return None
    try:
        key = bytes.fromhex(text.removeprefix(_KEY_HEADER).decode("ascii"))
    except ValueError:
        key = b""
    if not text.startswith(_KEY_HEADER) or len(key) != aead.KEY_BYTES:
        raise damaged()
    return key


def make_key(directory: int) -> bytes:
    """Return the master key, made where there is none; processes that make one at once agree on it."""
    found = read_key(directory)
    if found is None:
        with contextlib.suppress(FileExistsError):
            text = _KEY_HEADER + os.urandom(aead.KEY_BYTES).hex().encode() + b"\n"
            write(directory, KEY_FILE, text, replace=False)
        found = read_key(directory)
        if found is None:
            raise Unavailable("the key of the content store was removed just now", reason="busy")
    return found


def destroy_key(directory: int) -> None:
    """Overwrite and remove the master key: whatever it encrypted, wherever a copy of that is, is gone with it."""
    with contextlib.suppress(FileNotFoundError):
        fd = os.open(KEY_FILE, os.O_WRONLY | _FILE, dir_fd=directory)
        try:
            os.pwrite(fd, os.urandom(os.fstat(fd).st_size), 0)
            os.fsync(fd)
        finally:
            os.close(fd)
        os.unlink(KEY_FILE, dir_fd=directory)
        os.fsync(directory)


def damaged() -> Unavailable:
    """Return the refusal of what is not what was written."""
    return Unavailable("a file of the content store is not what was written", reason="damaged")


def _require_room(directory: int, size: int) -> None:
    disk = os.fstatvfs(directory)
    if disk.f_bavail * disk.f_frsize < size:
        raise QuotaExceeded("the disk is too full for kept content", reason="disk")


def _require_ours(fd: int) -> None:
    seen = os.fstat(fd)
    if seen.st_uid != os.geteuid() or stat.S_IMODE(seen.st_mode) & 0o077:
        raise _unsafe("others could read or replace what is in the content store")


def _unsafe(problem: str) -> Unavailable:
    return Unavailable(problem, reason="key_store_unsafe", fix="find out who put it there, and remove it")
