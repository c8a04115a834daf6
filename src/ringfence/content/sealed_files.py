"""The files of the content store: each encrypted under a key of its own, bound to its name, and there whole or not."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import hmac
import os
from collections.abc import Iterator
from typing import Final

from ringfence.crypto import aead
from ringfence.errors import QuotaExceeded, Unavailable
from ringfence.private_files import create_file, destroy_file, read_file, replace_file

_KEY_FILE: Final = "key"
_KEY_HEADER: Final = b"ringfence content key 1\n"
_MAGIC: Final = b"RFCONT1\n"
_SALT_BYTES: Final = 32
_HEAD_BYTES: Final = len(_MAGIC) + _SALT_BYTES + aead.NONCE_BYTES
_MOST_KEY_BYTES: Final = 256


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


def write(directory: int, name: str, content: bytes, *, keep_free: int = 0) -> None:
    """Write a file whole, or leave what was there.

    Raises:
        QuotaExceeded: The disk is full, or less than `keep_free` bytes would be left on it.
    """
    with _a_full_disk_is_a_quota():
        replace_file(directory, name, content, keep_free=keep_free)


def read(directory: int, name: str, most: int) -> bytes | None:
    """Return a file, or None where there is none; raises what `private_files.read_file` raises."""
    try:
        return read_file(directory, name, most)
    except FileNotFoundError:
        return None


def read_key(directory: int) -> bytes | None:
    """Return the master key, or None where there is none yet, or no more.

    Raises:
        Unavailable: Somebody else could have read or replaced it, or it is no key.
    """
    text = read(directory, _KEY_FILE, _MOST_KEY_BYTES)
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
        with contextlib.suppress(FileExistsError), _a_full_disk_is_a_quota():
            text = _KEY_HEADER + os.urandom(aead.KEY_BYTES).hex().encode() + b"\n"
            create_file(directory, _KEY_FILE, text)
        found = read_key(directory)
        if found is None:
            raise Unavailable("the key of the content store was removed just now", reason="busy")
    return found


def destroy_key(directory: int) -> None:
    """Overwrite and remove the master key: whatever it encrypted, wherever a copy of that is, is gone with it."""
    destroy_file(directory, _KEY_FILE)


def damaged() -> Unavailable:
    """Return the refusal of what is not what was written."""
    return Unavailable("a file of the content store is not what was written", reason="damaged")


@contextlib.contextmanager
def _a_full_disk_is_a_quota() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise QuotaExceeded("the disk is too full for kept content", reason="disk") from error
        raise
