"""Ed25519 through OpenSSL: the vectors of RFC 8032, an independent library beside it, threads, and memory."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from hypothesis import given
from hypothesis import strategies as st

from ringfence.crypto import libcrypto
from ringfence.crypto.ed25519 import Cryptography, Implementation, OpenSSL, implementation, public_key, sign, verify
from ringfence.errors import InternalError, Unavailable

# RFC 8032, 7.1: seed, public key, message, signature
VECTORS = [
    (
        "9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60",
        "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a",
        "",
        "e5564300c360ac729086e2cc806e828a84877f1eb8e5d974d873e065224901555fb8821590a33bacc61e39701cf9b46bd25bf5f0595bbe24655141438e7a100b",
    ),
    (
        "4ccd089b28ff96da9db6c346ec114e0f5b8a319f35aba624da8cf6ed4fb8a6fb",
        "3d4017c3e843895a92b70aa74d1b7ebc9c982ccf2ec4968cc0cd55f12af4660c",
        "72",
        "92a009a9f0d4cab8720e820b5f642540a2b27b5416503f8fb3762223ebdb69da085ac1e43e15996e458f3613d0f11d8c387b2eaeb4302aeeb00d291612bb0c00",
    ),
    (
        "c5aa8df43f9f837bedb7442f31dcb7b166d38535076f094b85ce3a2e0b4458f7",
        "fc51cd8e6218a1a38da47ed00230f0580816ed13ba3303ac5deb911548908025",
        "af82",
        "6291d657deec24024827e69c3abe01a30ce548a284743a445e3680d7db5ac3ac18ff9b538d16f290ae67f760984dc6594a7c15e9716ed28dc027beceea1ec40a",
    ),
]
SEED = bytes(range(32))


@pytest.fixture(params=["openssl", "cryptography"])
def computer(request: pytest.FixtureRequest) -> Implementation:
    """Each of the two ways in which a machine may compute it."""
    return Cryptography() if request.param == "cryptography" else implementation()


@pytest.fixture
def anew() -> Iterator[None]:
    """Let the choice of an implementation be made again, before and after."""
    implementation.cache_clear()
    yield
    implementation.cache_clear()


@pytest.mark.parametrize(("seed", "public", "message", "signature"), VECTORS)
def test_the_vectors_of_rfc_8032_come_out(
    computer: Implementation, seed: str, public: str, message: str, signature: str
) -> None:
    assert computer.public_key(bytes.fromhex(seed)).hex() == public
    assert computer.sign(bytes.fromhex(seed), bytes.fromhex(message)).hex() == signature
    assert computer.verify(bytes.fromhex(public), bytes.fromhex(message), bytes.fromhex(signature))


def test_the_library_of_hashlib_is_the_one_that_signs() -> None:
    import _hashlib

    assert implementation().name == _hashlib.__file__


@given(st.binary(min_size=32, max_size=32), st.binary(max_size=300))
def test_an_independent_library_makes_and_accepts_the_same(seed: bytes, message: bytes) -> None:
    theirs = Ed25519PrivateKey.from_private_bytes(seed)
    assert public_key(seed) == theirs.public_key().public_bytes_raw()
    assert sign(seed, message) == theirs.sign(message)


@given(st.binary(min_size=32, max_size=32), st.binary(max_size=8), st.binary(min_size=64, max_size=64))
def test_what_an_independent_library_refuses_is_refused(public: bytes, message: bytes, signature: bytes) -> None:
    try:
        Ed25519PublicKey.from_public_bytes(public).verify(signature, message)
    except InvalidSignature:
        assert not verify(public, message, signature)
    else:
        assert verify(public, message, signature)


@given(st.integers(0, 64 * 8 - 1))
def test_no_bit_of_a_signature_can_be_another(bit: int) -> None:
    signature = bytearray(sign(SEED, b"message"))
    signature[bit // 8] ^= 1 << bit % 8
    assert not verify(public_key(SEED), b"message", bytes(signature))


def test_the_second_form_of_a_signature_is_not_accepted(computer: Implementation) -> None:
    # adding the order of the group to s gives the same point: a verifier without the range check takes both
    order = 2**252 + 27742317777372353535851937790883648493
    signature = sign(SEED, b"message")
    grown = int.from_bytes(signature[32:], "little") + order
    assert not computer.verify(public_key(SEED), b"message", signature[:32] + grown.to_bytes(32, "little"))


@pytest.mark.parametrize(("public", "signature"), [(31, 64), (33, 64), (32, 63), (32, 65), (0, 0)])
def test_keys_and_signatures_of_another_length_never_hold(public: int, signature: int) -> None:
    assert not verify(bytes(public), b"", bytes(signature))


@pytest.mark.parametrize("length", [0, 31, 33])
def test_a_seed_of_another_length_is_refused(length: int) -> None:
    with pytest.raises(ValueError, match="32 bytes"):
        sign(bytes(length), b"")
    with pytest.raises(ValueError, match="32 bytes"):
        public_key(bytes(length))


def test_threads_do_not_disturb_each_other() -> None:
    seeds = [bytes([number]) * 32 for number in range(16)]
    expected = [Ed25519PrivateKey.from_private_bytes(seed).sign(seed) for seed in seeds]
    with ThreadPoolExecutor(8) as threads:
        for _ in range(20):
            assert list(threads.map(sign, seeds, seeds)) == expected
            assert all(threads.map(verify, map(public_key, seeds), seeds, expected))


def test_ten_thousand_signatures_leave_no_memory_behind() -> None:
    public, good = public_key(SEED), sign(SEED, b"message")

    def rounds(count: int) -> None:
        for _ in range(count):
            assert sign(SEED, b"message") == good
            assert verify(public, b"message", good)
            assert not verify(public, b"other", good)

    rounds(500)
    before = resident_bytes()
    rounds(10_000)
    # a key or a context left behind each time would be some 5 MiB
    assert resident_bytes() - before < 1 << 20


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_a_failure_leaves_no_error_in_the_queue_that_ssl_reads() -> None:
    openssl = implementation()
    assert isinstance(openssl, OpenSSL)
    with pytest.raises(InternalError, match="EVP_PKEY_new_raw"):
        openssl.sign(b"short", b"")
    assert not openssl.verify(public_key(SEED), b"", bytes(64))
    assert libcrypto.opened(openssl.name).last_error() == 0


@pytest.mark.usefixtures("anew")
def test_an_interpreter_without_a_library_uses_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(libcrypto, "_library_of_hashlib", lambda: iter(["/nonexistent/libcrypto.so.3"]))
    monkeypatch.setattr(libcrypto, "_LIBRARY_NAMES", ("libcrypto.so.0",))
    assert implementation().name == "cryptography"
    assert verify(public_key(SEED), b"m", sign(SEED, b"m"))


@pytest.mark.usefixtures("anew")
def test_a_library_without_ed25519_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(libcrypto, "_library_of_hashlib", lambda: iter(["libc.so.6"]))
    assert implementation().name == "libcrypto.so.3"


@pytest.mark.usefixtures("anew")
def test_with_neither_the_refusal_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(libcrypto, "_library_of_hashlib", lambda: iter(()))
    monkeypatch.setattr(libcrypto, "_LIBRARY_NAMES", ())
    monkeypatch.setitem(sys.modules, "cryptography.exceptions", None)
    with pytest.raises(Unavailable) as refused:
        sign(SEED, b"")
    assert refused.value.reason == "signing_unavailable"
    assert "libssl3" in (refused.value.fix or "")


def test_signing_loads_no_package_where_there_is_a_library() -> None:
    code = "import sys; from ringfence.crypto import ed25519; ed25519.sign(bytes(32), b''); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True)
    assert "cryptography" not in done.stdout.split()
