"""What the kernel answers a broker, in the codes of Ringfence and without a path of the host."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager

from ringfence.errors import (
    CapabilityBlocked,
    ExecutionFailed,
    InvalidRequest,
    PathTraversalError,
    QuotaExceeded,
    RingfenceError,
)


@contextmanager
def refusals(path: str) -> Iterator[None]:
    """Turn what goes wrong at `path` into an error of ours; a path that leads outside is one of a running operation.

    Raises:
        RingfenceError: Always one of ours; the message names `path` as the caller wrote it and nothing of the host.
    """
    try:
        yield
    except PathTraversalError as error:
        raise error.at_runtime() from error.__cause__
    except OSError as error:
        raise refusal(error.errno, path) from error


def refusal(number: int | None, path: str) -> RingfenceError:
    """Return the error that an `errno` at `path` is."""
    shown = ascii(path[:100])
    match number:
        case errno.ENOENT:
            return InvalidRequest(f"{shown}: there is nothing of this name", reason="not_found")
        case errno.EEXIST:
            return InvalidRequest(f"{shown}: something has this name", reason="exists", fix="ask to overwrite it")
        case errno.ENOTEMPTY:
            return InvalidRequest(f"{shown}: the directory has entries", reason="not_empty")
        case errno.EISDIR:
            return InvalidRequest(f"{shown}: is a directory", reason="is_a_directory")
        case errno.ENOTDIR:
            return InvalidRequest(f"{shown}: is not a directory, or lies below a file", reason="not_a_directory")
        case errno.ENAMETOOLONG:
            return InvalidRequest(f"{shown}: the name is too long here", reason="invalid_path")
        case errno.EACCES | errno.EPERM:
            return CapabilityBlocked(f"{shown}: its permissions forbid it", reason="unreadable")
        case errno.EROFS:
            return CapabilityBlocked(f"{shown}: is for reading", reason="read_only")
        case errno.ENXIO | errno.ENODEV:
            return CapabilityBlocked(f"{shown}: is a device, a fifo or a socket", reason="special_file")
        case errno.EAGAIN | errno.ESTALE | errno.EBUSY:
            return CapabilityBlocked(f"{shown}: changed meanwhile", reason="changed")
        case errno.ENOSPC | errno.EDQUOT | errno.EFBIG:
            return QuotaExceeded(f"{shown}: does not fit on the disk", reason="disk")
        case _:
            why = "unknown" if number is None else os.strerror(number)
            return ExecutionFailed(f"{shown}: the file system failed: {why}", reason="io")
