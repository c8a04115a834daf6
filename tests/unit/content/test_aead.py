"""AES-256-GCM against the vectors of its specification and against an implementation that is not ours."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringfence.content import aead
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


def test_a_machine_without_any_implementation_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*_: object) -> None:
        raise ImportError

    monkeypatch.setattr(aead, "OpenSSL", missing_library)
    monkeypatch.setattr(aead, "Cryptography", missing)
    aead.implementation.cache_clear()
    try:
        with pytest.raises(Unavailable) as caught:
            aead.implementation()
    finally:
        aead.implementation.cache_clear()
    assert caught.value.reason == "extra_missing"


def missing_library(_: str) -> None:
    raise OSError
