"""AES-256-GCM against the vectors of its specification and against an implementation that is not ours."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringfence.crypto import aead, libcrypto
from ringfence.errors import Unavailable

# Test cases 13 to 16 of McGrew and Viega, "The Galois/Counter Mode of Operation".
KEY = "feffe9928665731c6d6a8f9467308308feffe9928665731c6d6a8f9467308308"
PLAIN = (
    "d9313225f88406e5a55909c5aff5269a86a7a9531534f7da2e4c303d8a318a72"
    "1c3c0c95956809532fcf0e2449a6b525b16aedf5aa0de657ba637b391aafd255"
)
SEALED = (
    "522dc1f099567d07f47f37a32a84427d643a8cdcbfe5c0c97598a2bd2555d1aa"
    "8cb08e48590dbb3da7b08b1056828838c5f61e6393ba7a0abcc9f662898015ad"
)
VECTORS = [
    ("00" * 32, "00" * 12, "", "", "530f8afbc74536b9a963b4f1c4cb738b"),
    ("00" * 32, "00" * 12, "00" * 16, "", "cea7403d4d606b6e074ec5d3baf39d18d0d1c8a799996bf0265b98b5d48ab919"),
    (KEY, "cafebabefacedbaddecaf888", PLAIN, "", SEALED + "b094dac5d93471bdec1a502270e3cc6c"),
    (
        KEY,
        "cafebabefacedbaddecaf888",
        PLAIN[:120],
        "feedfacedeadbeeffeedfacedeadbeefabaddad2",
        SEALED[:120] + "76fc6ece0f4e1768cddf8853bb2d551b",
    ),
]


@pytest.mark.parametrize(("key", "nonce", "plain", "associated", "sealed"), VECTORS)
def test_the_vectors_of_the_specification_come_out(
    key: str, nonce: str, plain: str, associated: str, sealed: str
) -> None:
    gcm = aead.implementation()
    given_ = tuple(map(bytes.fromhex, (key, nonce, plain, associated)))
    assert gcm.encrypt(*given_).hex() == sealed
    assert gcm.decrypt(given_[0], given_[1], bytes.fromhex(sealed), given_[3]).hex() == plain


@given(st.binary(max_size=200), st.binary(max_size=40), st.binary(min_size=32, max_size=32), st.data())
def test_whatever_bit_is_changed_nothing_comes_out(
    plain: bytes, associated: bytes, key: bytes, data: st.DataObject
) -> None:
    gcm, nonce = aead.implementation(), bytes(12)
    sealed = bytearray(gcm.encrypt(key, nonce, plain, associated))
    assert gcm.decrypt(key, nonce, bytes(sealed), associated) == plain
    place = data.draw(st.integers(0, len(sealed) * 8 - 1))
    sealed[place // 8] ^= 1 << place % 8
    with pytest.raises(aead.TagMismatch):
        gcm.decrypt(key, nonce, bytes(sealed), associated)


def test_what_was_authenticated_with_it_must_come_with_it() -> None:
    gcm = aead.implementation()
    sealed = gcm.encrypt(bytes(32), bytes(12), b"plain", b"one")
    for associated in (b"two", b"", b"one "):
        with pytest.raises(aead.TagMismatch):
            gcm.decrypt(bytes(32), bytes(12), sealed, associated)
    with pytest.raises(aead.TagMismatch):
        gcm.decrypt(bytes(32), bytes(12), b"short", b"one")


@given(st.binary(max_size=100), st.binary(max_size=20))
def test_an_independent_library_agrees(plain: bytes, associated: bytes) -> None:
    other = pytest.importorskip("cryptography.hazmat.primitives.ciphers.aead").AESGCM(b"k" * 32)
    sealed = aead.implementation().encrypt(b"k" * 32, b"n" * 12, plain, associated)
    assert other.decrypt(b"n" * 12, sealed, associated) == plain
    assert aead.Cryptography().decrypt(b"k" * 32, b"n" * 12, sealed, associated) == plain


@pytest.mark.parametrize(("key", "nonce"), [(31, 12), (33, 12), (0, 12), (32, 11), (32, 13), (32, 0)])
def test_a_key_or_a_nonce_of_another_length_is_refused_and_nothing_behind_it_is_read(key: int, nonce: int) -> None:
    gcm = aead.implementation()
    for attempt in (gcm.encrypt, gcm.decrypt):
        with pytest.raises(ValueError, match="32 bytes, and a nonce 12"):
            attempt(bytes(key), bytes(nonce), bytes(16), b"")


def test_what_is_longer_than_openssl_can_count_is_refused_and_not_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(aead, "MOST_BYTES", 8)
    gcm = aead.implementation()
    assert len(gcm.encrypt(bytes(32), bytes(12), bytes(8), b"")) == 8 + aead.TAG_BYTES
    for plain, associated in ((bytes(9), b""), (b"", bytes(9))):
        with pytest.raises(ValueError, match="at most 8 bytes"):
            gcm.encrypt(bytes(32), bytes(12), plain, associated)


@pytest.fixture
def without_a_library(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let the choice be made again on a machine that has no libcrypto."""
    monkeypatch.setattr(libcrypto, "_library_of_hashlib", lambda: iter(["libc.so.6"]))
    monkeypatch.setattr(libcrypto, "_LIBRARY_NAMES", ("libcrypto.so.0",))
    aead.implementation.cache_clear()
    yield
    aead.implementation.cache_clear()


@pytest.mark.usefixtures("without_a_library")
def test_an_interpreter_without_a_library_uses_the_package() -> None:
    assert aead.implementation().name == "cryptography"


@pytest.mark.usefixtures("without_a_library")
def test_with_neither_the_refusal_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cryptography.exceptions", None)
    with pytest.raises(Unavailable) as refused:
        aead.implementation()
    assert refused.value.reason == "extra_missing"
    assert "libssl3" in (refused.value.fix or "")


def test_a_library_that_computes_something_else_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(_: aead.OpenSSL, key: bytes, nonce: bytes, plain: bytes, associated: bytes) -> bytes:
        return bytes(16)

    aead.implementation.cache_clear()
    monkeypatch.setattr(aead.OpenSSL, "encrypt", wrong)
    try:
        assert aead.implementation().name == "cryptography"
    finally:
        aead.implementation.cache_clear()
