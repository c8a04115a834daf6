"""The one way to OpenSSL: opened once, asked only for what it has, and not before something is to be computed."""

from __future__ import annotations

import _hashlib
import subprocess
import sys
from ctypes import c_char_p, c_int, c_size_t, c_void_p
from pathlib import Path

import pytest

from ringfence.crypto import aead, ed25519, libcrypto
from ringfence.errors import InternalError

SRC = Path(__file__).resolve().parents[3] / "src"


def test_signatures_and_encryption_come_from_one_library_that_was_opened_once() -> None:
    assert ed25519.implementation().name == aead.implementation().name == _hashlib.__file__
    assert libcrypto.opened(_hashlib.__file__) is libcrypto.opened(_hashlib.__file__)


def test_one_way_of_calling_a_function_does_not_change_another() -> None:
    library = libcrypto.opened(_hashlib.__file__)
    one, two = library.bind("ERR_clear_error", None), library.bind("ERR_clear_error", c_int, c_int)
    assert (one.restype, two.restype, len(one.argtypes), len(two.argtypes)) == (None, c_int, 0, 1)


def test_what_is_not_openssl_is_not_opened() -> None:
    with pytest.raises(AttributeError):
        libcrypto.opened("libc.so.6")
    with pytest.raises(OSError, match="nonexistent"):
        libcrypto.opened("/nonexistent/libcrypto.so.3")


def test_what_was_made_is_freed_once_whatever_happens_and_nothing_is_never_freed() -> None:
    library = libcrypto.opened(_hashlib.__file__)
    freed: list[int] = []
    with pytest.raises(KeyError), library.holding(7, freed.append, "maker"):
        raise KeyError
    with pytest.raises(InternalError, match="maker of"), library.holding(None, freed.append, "maker"):
        pass
    assert freed == [7]


@pytest.mark.parametrize("status", [0, -1, 2])
def test_one_is_the_only_yes(status: int) -> None:
    library = libcrypto.opened(_hashlib.__file__)
    library.require(1, "f")
    with pytest.raises(InternalError, match="f of"):
        library.require(status, "f")


def test_a_failure_is_told_with_its_number_and_taken_out_of_the_queue_that_ssl_reads() -> None:
    library = libcrypto.opened(_hashlib.__file__)
    number = leave_an_error()
    with pytest.raises(InternalError, match=f"{number:#x}"):
        library.require(0, "f")
    assert library.last_error() == 0
    leave_an_error()
    with pytest.raises(aead.TagMismatch):
        aead.implementation().decrypt(bytes(32), bytes(12), bytes(40), b"")
    assert library.last_error() == 0
    leave_an_error()
    assert not ed25519.verify(ed25519.public_key(bytes(32)), b"", bytes(64))
    assert library.last_error() == 0


def leave_an_error() -> int:
    """Ask OpenSSL for a key that is too short, and leave what it says in the queue."""
    library = libcrypto.opened(_hashlib.__file__)
    make_key = library.bind("EVP_PKEY_new_raw_private_key", c_void_p, c_int, c_void_p, c_char_p, c_size_t)
    assert make_key(1087, None, b"short", 5) is None
    assert library.last_error() != 0
    return library.last_error()


def test_one_module_alone_opens_libraries_of_openssl() -> None:
    naming = {str(path.relative_to(SRC)) for path in SRC.rglob("*.py") if "libcrypto.so" in path.read_text()}
    assert naming == {"ringfence/crypto/libcrypto.py"}


def test_a_run_whose_log_is_not_signed_yet_imports_nothing_of_it() -> None:
    code = "import sys, ringfence, ringfence.wiring, ringfence.interfaces.cli.main; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True)
    assert [name for name in done.stdout.split() if name.startswith(("ringfence.crypto", "cryptography"))] == []
