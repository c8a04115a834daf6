"""AES-256-GCM from the OpenSSL that this Python's own `hashlib` is linked to, so that kept content needs no package.

Plain bytes leave `decrypt` only after the tag was found right. Every call works on a context of its own, which is what
OpenSSL asks of threads; the error queue of the thread is emptied after a failure, since `ssl` reads it.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
from collections.abc import Iterator
from ctypes import POINTER, byref, c_char_p, c_int, c_void_p
from typing import Any, Final, Protocol

from ringfence.errors import InternalError, Unavailable

KEY_BYTES: Final = 32
NONCE_BYTES: Final = 12
TAG_BYTES: Final = 16
MOST_BYTES: Final = 2**31 - 1 - TAG_BYTES
"""OpenSSL counts in C's `int`."""

_LIBRARY_NAMES: Final = ("libcrypto.so.3", "libcrypto.so.1.1")
_GET_TAG: Final = 0x10
_SET_TAG: Final = 0x11


class TagMismatch(Exception):
    """The bytes, what was authenticated with them, or the key are not those of the encryption."""


class Aes256Gcm(Protocol):
    """Something that computes AES-256-GCM."""

    name: str

    def encrypt(self, key: bytes, nonce: bytes, plain: bytes, associated: bytes) -> bytes:
        """Return the encrypted bytes with their tag at the end."""

    def decrypt(self, key: bytes, nonce: bytes, sealed: bytes, associated: bytes) -> bytes:
        """Return the plain bytes.

        Raises:
            TagMismatch: Nothing of them can be believed.
        """


@functools.cache
def implementation() -> Aes256Gcm:
    """Return OpenSSL, or for an interpreter with OpenSSL linked into it the `cryptography` package, if it is there.

    Raises:
        Unavailable: Neither is there.
    """
    for path in (*_library_of_hashlib(), *_LIBRARY_NAMES):
        with contextlib.suppress(OSError, AttributeError, InternalError):
            openssl = OpenSSL(path)
            _require_known_answer(openssl)
            return openssl
    try:
        return Cryptography()
    except ImportError:
        raise Unavailable(
            "nothing on this machine computes AES-256-GCM: OpenSSL's libcrypto was not found",
            reason="extra_missing",
            fix="install OpenSSL's library (libssl3), or the Python package cryptography",
        ) from None


class OpenSSL:
    """The functions of libcrypto that encrypt and decrypt, each with its types."""

    def __init__(self, path: str) -> None:
        """Load the library and bind what is used of it.

        Raises:
            OSError: There is no such library.
            AttributeError: It lacks a function.
        """
        self.name = path
        lib = ctypes.CDLL(path)
        start = (c_void_p, c_void_p, c_void_p, c_char_p, c_char_p)
        step = (c_void_p, c_void_p, POINTER(c_int), c_char_p, c_int)
        end = (c_void_p, c_void_p, POINTER(c_int))
        self._cipher = _bind(lib.EVP_aes_256_gcm, c_void_p)
        self._new_context = _bind(lib.EVP_CIPHER_CTX_new, c_void_p)
        self._free_context = _bind(lib.EVP_CIPHER_CTX_free, None, c_void_p)
        self._control = _bind(lib.EVP_CIPHER_CTX_ctrl, c_int, c_void_p, c_int, c_int, c_void_p)
        self._encrypt = tuple(
            _bind(getattr(lib, f"EVP_Encrypt{name}"), c_int, *types)
            for name, types in (("Init_ex", start), ("Update", step), ("Final_ex", end))
        )
        self._decrypt = tuple(
            _bind(getattr(lib, f"EVP_Decrypt{name}"), c_int, *types)
            for name, types in (("Init_ex", start), ("Update", step), ("Final_ex", end))
        )
        self._clear_errors = _bind(lib.ERR_clear_error, None)

    def encrypt(self, key: bytes, nonce: bytes, plain: bytes, associated: bytes) -> bytes:
        """Return the encrypted bytes with their tag at the end."""
        init, update, final = self._encrypt
        answer = ctypes.create_string_buffer(len(plain) + TAG_BYTES)
        tag = ctypes.create_string_buffer(TAG_BYTES)
        with self._context() as context:
            self._require(init(context, self._cipher(), None, key, nonce))
            self._feed(context, update, None, associated)
            done = self._feed(context, update, answer, plain)
            self._require(final(context, ctypes.addressof(answer) + done, byref(c_int())))
            self._require(self._control(context, _GET_TAG, TAG_BYTES, tag))
        return answer.raw[:done] + tag.raw

    def decrypt(self, key: bytes, nonce: bytes, sealed: bytes, associated: bytes) -> bytes:
        """Return the plain bytes, once their tag was found right."""
        if len(sealed) < TAG_BYTES:
            raise TagMismatch
        init, update, final = self._decrypt
        encrypted, tag = sealed[:-TAG_BYTES], sealed[-TAG_BYTES:]
        answer = ctypes.create_string_buffer(len(encrypted) + TAG_BYTES)
        with self._context() as context:
            self._require(init(context, self._cipher(), None, key, nonce))
            self._feed(context, update, None, associated)
            done = self._feed(context, update, answer, encrypted)
            self._require(self._control(context, _SET_TAG, TAG_BYTES, ctypes.create_string_buffer(tag, TAG_BYTES)))
            # 1 is the only yes
            if final(context, ctypes.addressof(answer) + done, byref(c_int())) != 1:
                self._clear_errors()
                raise TagMismatch
        return answer.raw[:done]

    def _feed(self, context: int, update: Any, answer: Any, content: bytes) -> int:
        if not content:  # an update with nothing is not the same to every version
            return 0
        done = c_int()
        self._require(update(context, answer, byref(done), content, len(content)))
        return done.value

    @contextlib.contextmanager
    def _context(self) -> Iterator[int]:
        context: int | None = self._new_context()
        if not context:
            raise self._failure()
        try:
            yield context
        finally:
            self._free_context(context)  # which also overwrites the key in it

    def _require(self, status: int) -> None:
        if status != 1:
            raise self._failure()

    def _failure(self) -> InternalError:
        self._clear_errors()
        return InternalError(f"AES-256-GCM of {self.name} failed")


class Cryptography:
    """The `cryptography` package, for an interpreter that has no OpenSSL beside it."""

    name = "cryptography"

    def __init__(self) -> None:
        """Import it.

        Raises:
            ImportError: It is not installed.
        """
        from cryptography.exceptions import InvalidTag
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        self._invalid = InvalidTag
        self._aesgcm = AESGCM

    def encrypt(self, key: bytes, nonce: bytes, plain: bytes, associated: bytes) -> bytes:
        """Return the encrypted bytes with their tag at the end."""
        return self._aesgcm(key).encrypt(nonce, plain, associated)

    def decrypt(self, key: bytes, nonce: bytes, sealed: bytes, associated: bytes) -> bytes:
        """Return the plain bytes, once their tag was found right."""
        try:
            return self._aesgcm(key).decrypt(nonce, sealed, associated)
        except self._invalid:
            raise TagMismatch from None


def _require_known_answer(found: Aes256Gcm) -> None:
    # Case 13 of the specification of GCM; a library that answers anything else is none to trust content to.
    if found.encrypt(bytes(KEY_BYTES), bytes(NONCE_BYTES), b"", b"").hex() != "530f8afbc74536b9a963b4f1c4cb738b":
        raise InternalError(f"{found.name} computes another AES-256-GCM")


def _bind(function: Any, result: Any, *arguments: Any) -> Any:
    function.restype, function.argtypes = result, arguments
    return function


def _library_of_hashlib() -> Iterator[str]:
    # Opening the extension module again also finds the symbols of what it is linked to: the one OpenSSL this process
    # has, where a name could bring in a second one beside it.
    with contextlib.suppress(ImportError, AttributeError):
        import _hashlib

        yield _hashlib.__file__
