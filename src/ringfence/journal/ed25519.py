"""Ed25519 from the OpenSSL that this Python's own `hashlib` is linked to, so that a bare interpreter signs evidence.

`ctypes` gives the interpreter lock away for the time of each call; every call here works on objects of its own, which
is what OpenSSL asks of threads. The error queue of the calling thread is emptied after a failure, since `ssl` reads it.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
from collections.abc import Iterator
from ctypes import POINTER, byref, c_char_p, c_int, c_size_t, c_ulong, c_void_p
from typing import Any, Final, Protocol

from ringfence.errors import InternalError, Unavailable

SEED_BYTES: Final = 32
PUBLIC_BYTES: Final = 32
SIGNATURE_BYTES: Final = 64

_NID_ED25519: Final = 1087
_LIBRARY_NAMES: Final = ("libcrypto.so.3", "libcrypto.so.1.1")


def public_key(seed: bytes) -> bytes:
    """Return the public key that belongs to a 32-byte seed."""
    _require_length("seed", seed, SEED_BYTES)
    return implementation().public_key(seed)


def sign(seed: bytes, message: bytes) -> bytes:
    """Return the signature that RFC 8032 gives this message under the key of a seed."""
    _require_length("seed", seed, SEED_BYTES)
    return implementation().sign(seed, message)


def verify(public: bytes, message: bytes, signature: bytes) -> bool:
    """Tell whether a signature holds; one of another length, or a key that is no point of the curve, never does."""
    if len(public) != PUBLIC_BYTES or len(signature) != SIGNATURE_BYTES:
        return False
    return implementation().verify(public, message, signature)


class Implementation(Protocol):
    """Something that computes Ed25519."""

    name: str

    def public_key(self, seed: bytes) -> bytes:
        """Return the public key of a seed."""

    def sign(self, seed: bytes, message: bytes) -> bytes:
        """Return the signature of a message."""

    def verify(self, public: bytes, message: bytes, signature: bytes) -> bool:
        """Tell whether a signature holds."""


@functools.cache
def implementation() -> Implementation:
    """Return OpenSSL, or for an interpreter with OpenSSL linked into it the `cryptography` package, if it is there.

    Raises:
        Unavailable: Neither is there.
    """
    for path in (*_library_of_hashlib(), *_LIBRARY_NAMES):
        # no such library; one from before 1.1.1; one whose configuration (FIPS) takes Ed25519 away
        with contextlib.suppress(OSError, AttributeError, InternalError):
            openssl = OpenSSL(path)
            openssl.sign(bytes(SEED_BYTES), b"")
            return openssl
    try:
        return Cryptography()
    except ImportError:
        raise Unavailable(
            "nothing on this machine computes Ed25519: OpenSSL's libcrypto (1.1.1 or newer) was not found",
            reason="signing_unavailable",
            fix="install OpenSSL's library (libssl3), or the Python package cryptography",
        ) from None


class OpenSSL:
    """The functions of libcrypto that sign and verify, each with its types."""

    def __init__(self, path: str) -> None:
        """Load the library and bind what is used of it.

        Raises:
            OSError: There is no such library.
            AttributeError: It has no Ed25519.
        """
        self.name = path
        lib = ctypes.CDLL(path)
        pair = (c_int, c_void_p, c_char_p, c_size_t)
        self._private = _bind(lib.EVP_PKEY_new_raw_private_key, c_void_p, *pair)
        self._public = _bind(lib.EVP_PKEY_new_raw_public_key, c_void_p, *pair)
        raw = (c_void_p, c_char_p, POINTER(c_size_t))
        self._get_public = _bind(lib.EVP_PKEY_get_raw_public_key, c_int, *raw)
        self._free_key = _bind(lib.EVP_PKEY_free, None, c_void_p)
        self._new_context = _bind(lib.EVP_MD_CTX_new, c_void_p)
        self._free_context = _bind(lib.EVP_MD_CTX_free, None, c_void_p)
        start = (c_void_p, c_void_p, c_void_p, c_void_p, c_void_p)
        self._sign_init = _bind(lib.EVP_DigestSignInit, c_int, *start)
        self._verify_init = _bind(lib.EVP_DigestVerifyInit, c_int, *start)
        self._sign = _bind(lib.EVP_DigestSign, c_int, c_void_p, c_char_p, POINTER(c_size_t), c_char_p, c_size_t)
        self._verify = _bind(lib.EVP_DigestVerify, c_int, c_void_p, c_char_p, c_size_t, c_char_p, c_size_t)
        self._clear_errors = _bind(lib.ERR_clear_error, None)
        self._last_error = _bind(lib.ERR_peek_last_error, c_ulong)

    def public_key(self, seed: bytes) -> bytes:
        """Return the public key of a seed."""
        answer = ctypes.create_string_buffer(PUBLIC_BYTES)
        length = c_size_t(PUBLIC_BYTES)
        with self._key(self._private(_NID_ED25519, None, seed, len(seed))) as key:
            self._require(self._get_public(key, answer, byref(length)), "EVP_PKEY_get_raw_public_key")
        return answer.raw[: length.value]

    def sign(self, seed: bytes, message: bytes) -> bytes:
        """Return the signature of a message."""
        answer = ctypes.create_string_buffer(SIGNATURE_BYTES)
        length = c_size_t(SIGNATURE_BYTES)
        with self._key(self._private(_NID_ED25519, None, seed, len(seed))) as key, self._context() as context:
            self._require(self._sign_init(context, None, None, None, key), "EVP_DigestSignInit")
            self._require(self._sign(context, answer, byref(length), message, len(message)), "EVP_DigestSign")
        return answer.raw[: length.value]

    def verify(self, public: bytes, message: bytes, signature: bytes) -> bool:
        """Tell whether a signature holds."""
        key = self._public(_NID_ED25519, None, public, len(public))
        with self._key(key) as key, self._context() as context:
            self._require(self._verify_init(context, None, None, None, key), "EVP_DigestVerifyInit")
            # 1 is the only yes: 0 is a signature that does not hold, below 0 one that could not be looked at
            holds: bool = self._verify(context, signature, len(signature), message, len(message)) == 1
        if not holds:
            self._clear_errors()
        return holds

    @contextlib.contextmanager
    def _key(self, key: int | None) -> Iterator[int]:
        if not key:
            raise self._failure("EVP_PKEY_new_raw_key")
        try:
            yield key
        finally:
            self._free_key(key)

    @contextlib.contextmanager
    def _context(self) -> Iterator[int]:
        context: int | None = self._new_context()
        if not context:
            raise self._failure("EVP_MD_CTX_new")
        try:
            yield context
        finally:
            self._free_context(context)

    def _require(self, status: int, function: str) -> None:
        if status != 1:
            raise self._failure(function)

    def _failure(self, function: str) -> InternalError:
        number = self._last_error()
        self._clear_errors()
        return InternalError(f"{function} of {self.name} failed (OpenSSL error {number:#x})")


class Cryptography:
    """The `cryptography` package, for an interpreter that has no OpenSSL beside it."""

    name = "cryptography"

    def __init__(self) -> None:
        """Import it.

        Raises:
            ImportError: It is not installed.
        """
        from cryptography.exceptions import InvalidSignature
        from cryptography.hazmat.primitives.asymmetric import ed25519

        self._invalid = InvalidSignature
        self._ed25519 = ed25519

    def public_key(self, seed: bytes) -> bytes:
        """Return the public key of a seed."""
        return self._ed25519.Ed25519PrivateKey.from_private_bytes(seed).public_key().public_bytes_raw()

    def sign(self, seed: bytes, message: bytes) -> bytes:
        """Return the signature of a message."""
        return self._ed25519.Ed25519PrivateKey.from_private_bytes(seed).sign(message)

    def verify(self, public: bytes, message: bytes, signature: bytes) -> bool:
        """Tell whether a signature holds."""
        try:
            self._ed25519.Ed25519PublicKey.from_public_bytes(public).verify(signature, message)
        except (self._invalid, ValueError):
            return False
        return True


def _bind(function: Any, result: Any, *arguments: Any) -> Any:
    function.restype, function.argtypes = result, arguments
    return function


def _library_of_hashlib() -> Iterator[str]:
    # Opening the extension module again also finds the symbols of what it is linked to: the one OpenSSL this process
    # has, where a name could bring in a second one beside it.
    with contextlib.suppress(ImportError, AttributeError):
        import _hashlib

        yield _hashlib.__file__


def _require_length(name: str, value: bytes, length: int) -> None:
    if len(value) != length:
        raise ValueError(f"the {name} of an Ed25519 key has {length} bytes, not {len(value)}")
