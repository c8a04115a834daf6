"""AES-256-GCM from the OpenSSL that this Python's own `hashlib` is linked to, so that kept content needs no package.

Plain bytes leave `decrypt` only after the tag was found right.
"""

from __future__ import annotations

import ctypes
import functools
from contextlib import AbstractContextManager
from ctypes import POINTER, byref, c_char_p, c_int, c_void_p
from typing import Any, Final, Protocol

from ringfence.crypto import libcrypto
from ringfence.crypto.libcrypto import Library
from ringfence.errors import InternalError

KEY_BYTES: Final = 32
NONCE_BYTES: Final = 12
TAG_BYTES: Final = 16
MOST_BYTES: Final = 2**31 - 1 - TAG_BYTES
"""OpenSSL counts in C's `int`."""

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
    return libcrypto.first_that_computes("AES-256-GCM", _tried, Cryptography, reason="extra_missing")


class OpenSSL:
    """The functions of libcrypto that encrypt and decrypt."""

    def __init__(self, library: Library) -> None:
        """Bind them.

        Raises:
            AttributeError: The library lacks one.
        """
        self.name = library.path
        self._library = library
        self._cipher = library.bind("EVP_aes_256_gcm", c_void_p)
        self._new_context = library.bind("EVP_CIPHER_CTX_new", c_void_p)
        self._free_context = library.bind("EVP_CIPHER_CTX_free", None, c_void_p)
        self._control = library.bind("EVP_CIPHER_CTX_ctrl", c_int, c_void_p, c_int, c_int, c_void_p)
        self._encrypt = _three_steps(library, "EVP_Encrypt")
        self._decrypt = _three_steps(library, "EVP_Decrypt")

    def encrypt(self, key: bytes, nonce: bytes, plain: bytes, associated: bytes) -> bytes:
        """Return the encrypted bytes with their tag at the end."""
        init, update, final = self._encrypt
        answer = ctypes.create_string_buffer(len(plain) + TAG_BYTES)
        tag = ctypes.create_string_buffer(TAG_BYTES)
        with self._context() as context:
            self._start(context, init, key, nonce)
            self._feed(context, update, None, associated)
            done = self._feed(context, update, answer, plain)
            self._library.require(
                final(context, ctypes.addressof(answer) + done, byref(c_int())), "EVP_EncryptFinal_ex"
            )
            self._library.require(self._control(context, _GET_TAG, TAG_BYTES, tag), "EVP_CIPHER_CTX_ctrl")
        return answer.raw[:done] + tag.raw

    def decrypt(self, key: bytes, nonce: bytes, sealed: bytes, associated: bytes) -> bytes:
        """Return the plain bytes, once their tag was found right."""
        if len(sealed) < TAG_BYTES:
            raise TagMismatch
        init, update, final = self._decrypt
        encrypted, tag = sealed[:-TAG_BYTES], sealed[-TAG_BYTES:]
        answer = ctypes.create_string_buffer(len(encrypted) + TAG_BYTES)
        with self._context() as context:
            self._start(context, init, key, nonce)
            self._feed(context, update, None, associated)
            done = self._feed(context, update, answer, encrypted)
            expected = ctypes.create_string_buffer(tag, TAG_BYTES)
            self._library.require(self._control(context, _SET_TAG, TAG_BYTES, expected), "EVP_CIPHER_CTX_ctrl")
            # 1 is the only yes
            if final(context, ctypes.addressof(answer) + done, byref(c_int())) != 1:
                self._library.clear_errors()
                raise TagMismatch
        return answer.raw[:done]

    def _start(self, context: int, init: Any, key: bytes, nonce: bytes) -> None:
        # OpenSSL is told neither length: it would read on behind what is shorter
        if len(key) != KEY_BYTES or len(nonce) != NONCE_BYTES:
            raise ValueError(f"a key of AES-256-GCM has {KEY_BYTES} bytes, and a nonce {NONCE_BYTES}")
        self._library.require(init(context, self._cipher(), None, key, nonce), "EVP_CipherInit_ex")

    def _feed(self, context: int, update: Any, answer: Any, content: bytes) -> int:
        if not content:  # an update with nothing is not the same to every version
            return 0
        if len(content) > MOST_BYTES:  # it would be taken modulo 2^32
            raise ValueError(f"AES-256-GCM takes at most {MOST_BYTES} bytes at once here")
        done = c_int()
        self._library.require(update(context, answer, byref(done), content, len(content)), "EVP_CipherUpdate")
        return done.value

    def _context(self) -> AbstractContextManager[int]:
        # freeing it also overwrites the key in it
        return self._library.holding(self._new_context(), self._free_context, "EVP_CIPHER_CTX_new")


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


def _tried(library: Library) -> Aes256Gcm:
    openssl = OpenSSL(library)
    # Case 13 of the specification of GCM; a library that answers anything else is none to trust content to.
    if openssl.encrypt(bytes(KEY_BYTES), bytes(NONCE_BYTES), b"", b"").hex() != "530f8afbc74536b9a963b4f1c4cb738b":
        raise InternalError(f"{openssl.name} computes another AES-256-GCM")
    return openssl


def _three_steps(library: Library, direction: str) -> tuple[Any, Any, Any]:
    return (
        library.bind(f"{direction}Init_ex", c_int, c_void_p, c_void_p, c_void_p, c_char_p, c_char_p),
        library.bind(f"{direction}Update", c_int, c_void_p, c_void_p, POINTER(c_int), c_char_p, c_int),
        library.bind(f"{direction}Final_ex", c_int, c_void_p, c_void_p, POINTER(c_int)),
    )
