"""The one libcrypto of this process: the OpenSSL that Python's own `hashlib` is linked to, called through `ctypes`.

`ctypes` gives the interpreter lock away for the time of each call, so whoever calls works on objects of its own, which
is what OpenSSL asks of threads. The error queue of the calling thread is emptied after a failure, since `ssl` reads it.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
from collections.abc import Callable, Iterator
from typing import Any, Final, TypeVar

from ringfence.errors import InternalError, Unavailable

_LIBRARY_NAMES: Final = ("libcrypto.so.3", "libcrypto.so.1.1")

_T = TypeVar("_T")


def first_that_computes(what: str, openssl: Callable[[Library], _T], package: Callable[[], _T], *, reason: str) -> _T:
    """Return what computes `what`: `openssl` of the first library with which it works, else `package`.

    The package is `cryptography`, for an interpreter with OpenSSL linked into it. `openssl` tries what it made: a
    library that lacks a function, or whose configuration (FIPS) takes the algorithm away, is passed over.

    Raises:
        Unavailable: Neither is there, for this `reason`.
    """
    for path in (*_library_of_hashlib(), *_LIBRARY_NAMES):
        with contextlib.suppress(OSError, AttributeError, InternalError):
            return openssl(opened(path))
    try:
        return package()
    except ImportError:
        raise Unavailable(
            f"nothing on this machine computes {what}: OpenSSL's libcrypto (1.1.1 or newer) was not found",
            reason=reason,
            fix="install OpenSSL's library (libssl3), or the Python package cryptography",
        ) from None


@functools.cache
def opened(path: str) -> Library:
    """Return the library at `path`, opened once.

    Raises:
        OSError: There is none.
        AttributeError: It is not OpenSSL's.
    """
    return Library(path)


class Library:
    """One libcrypto, whose functions are bound each with its types."""

    def __init__(self, path: str) -> None:
        """Open it; raises what `opened` raises."""
        self.path = path
        self._library = ctypes.CDLL(path)
        self._clear_errors = self.bind("ERR_clear_error", None)
        self._last_error = self.bind("ERR_peek_last_error", ctypes.c_ulong)

    def bind(self, name: str, result: Any, *arguments: Any) -> Any:
        """Return the function of this name.

        Raises:
            AttributeError: The library has none.
        """
        function = self._library[name]
        function.restype, function.argtypes = result, arguments
        return function

    @contextlib.contextmanager
    def holding(self, pointer: int | None, free: Callable[[int], object], maker: str) -> Iterator[int]:
        """Use what the function `maker` has made, and free it on every path.

        Raises:
            InternalError: It has made nothing.
        """
        if not pointer:
            raise self._failure(maker)
        try:
            yield pointer
        finally:
            free(pointer)

    def require(self, status: int, function: str) -> None:
        """Pass where a function answered 1, which is OpenSSL's only yes.

        Raises:
            InternalError: It answered something else.
        """
        if status != 1:
            raise self._failure(function)

    def clear_errors(self) -> None:
        """Empty the error queue of this thread."""
        self._clear_errors()

    def last_error(self) -> int:
        """Return the newest number in the error queue of this thread; 0 where it is empty."""
        number: int = self._last_error()
        return number

    def _failure(self, function: str) -> InternalError:
        number = self.last_error()
        self.clear_errors()
        return InternalError(f"{function} of {self.path} failed (OpenSSL error {number:#x})")


def _library_of_hashlib() -> Iterator[str]:
    # Opening the extension module again also finds the symbols of what it is linked to: the one OpenSSL this process
    # has, where a name could bring in a second one beside it.
    with contextlib.suppress(ImportError, AttributeError):
        import _hashlib

        yield _hashlib.__file__
