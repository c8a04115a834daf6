"""Ed25519 from the OpenSSL that this Python's own `hashlib` is linked to, so that a bare interpreter signs evidence."""

from __future__ import annotations

import ctypes
import functools
from contextlib import AbstractContextManager
from ctypes import POINTER, byref, c_char_p, c_int, c_size_t, c_void_p
from typing import Final, Protocol

from ringfence.crypto import libcrypto
from ringfence.crypto.libcrypto import Library

SEED_BYTES: Final = 32
PUBLIC_BYTES: Final = 32
SIGNATURE_BYTES: Final = 64

_NID_ED25519: Final = 1087


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
    return libcrypto.first_that_computes("Ed25519", _tried, Cryptography, reason="signing_unavailable")


class OpenSSL:
    """The functions of libcrypto that sign and verify."""

    def __init__(self, library: Library) -> None:
        """Bind them.

        Raises:
            AttributeError: The library is from before 1.1.1, and has no Ed25519.
        """
        self.name = library.path
        self._library = library
        pair = (c_int, c_void_p, c_char_p, c_size_t)
        self._private = library.bind("EVP_PKEY_new_raw_private_key", c_void_p, *pair)
        self._public = library.bind("EVP_PKEY_new_raw_public_key", c_void_p, *pair)
        raw = (c_void_p, c_char_p, POINTER(c_size_t))
        self._get_public = library.bind("EVP_PKEY_get_raw_public_key", c_int, *raw)
        self._free_key = library.bind("EVP_PKEY_free", None, c_void_p)
        self._new_context = library.bind("EVP_MD_CTX_new", c_void_p)
        self._free_context = library.bind("EVP_MD_CTX_free", None, c_void_p)
        start = (c_void_p, c_void_p, c_void_p, c_void_p, c_void_p)
        self._sign_init = library.bind("EVP_DigestSignInit", c_int, *start)
        self._verify_init = library.bind("EVP_DigestVerifyInit", c_int, *start)
        signing = (c_void_p, c_char_p, POINTER(c_size_t), c_char_p, c_size_t)
        self._sign = library.bind("EVP_DigestSign", c_int, *signing)
        verifying = (c_void_p, c_char_p, c_size_t, c_char_p, c_size_t)
        self._verify = library.bind("EVP_DigestVerify", c_int, *verifying)

    def public_key(self, seed: bytes) -> bytes:
        """Return the public key of a seed."""
        answer = ctypes.create_string_buffer(PUBLIC_BYTES)
        length = c_size_t(PUBLIC_BYTES)
        with self._key(self._private(_NID_ED25519, None, seed, len(seed))) as key:
            self._library.require(self._get_public(key, answer, byref(length)), "EVP_PKEY_get_raw_public_key")
        return answer.raw[: length.value]

    def sign(self, seed: bytes, message: bytes) -> bytes:
        """Return the signature of a message."""
        answer = ctypes.create_string_buffer(SIGNATURE_BYTES)
        length = c_size_t(SIGNATURE_BYTES)
        with self._key(self._private(_NID_ED25519, None, seed, len(seed))) as key, self._context() as context:
            self._library.require(self._sign_init(context, None, None, None, key), "EVP_DigestSignInit")
            self._library.require(self._sign(context, answer, byref(length), message, len(message)), "EVP_DigestSign")
        return answer.raw[: length.value]

    def verify(self, public: bytes, message: bytes, signature: bytes) -> bool:
        """Tell whether a signature holds."""
        key = self._public(_NID_ED25519, None, public, len(public))
        with self._key(key) as key, self._context() as context:
            self._library.require(self._verify_init(context, None, None, None, key), "EVP_DigestVerifyInit")
            # 1 is the only yes: 0 is a signature that does not hold, below 0 one that could not be looked at
            holds: bool = self._verify(context, signature, len(signature), message, len(message)) == 1
        if not holds:
            self._library.clear_errors()
        return holds

    def _key(self, key: int | None) -> AbstractContextManager[int]:
        return self._library.holding(key, self._free_key, "EVP_PKEY_new_raw_key")

    def _context(self) -> AbstractContextManager[int]:
        return self._library.holding(self._new_context(), self._free_context, "EVP_MD_CTX_new")


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


def _tried(library: Library) -> Implementation:
    openssl = OpenSSL(library)
    openssl.sign(bytes(SEED_BYTES), b"")
    return openssl


def _require_length(name: str, value: bytes, length: int) -> None:
    if len(value) != length:
        raise ValueError(f"the {name} of an Ed25519 key has {length} bytes, not {len(value)}")
