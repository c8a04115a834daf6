"""A refusal as AIO documents it: an operation that failed, with an `error_type`, an errno and what else is known."""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping
from typing import Any, Final

from ringfence.errors import QuotaExceeded, RingfenceError

_BY_REASON: Final[Mapping[str, tuple[str, int | None]]] = {
    "not_found": ("not_found", errno.ENOENT),
    "exists": ("already_exists", errno.EEXIST),
    "is_a_directory": ("invalid_target", errno.EISDIR),
    "not_a_directory": ("invalid_target", errno.ENOTDIR),
    "special_file": ("invalid_target", errno.ENXIO),
    "invalid_path": ("invalid_path", errno.EINVAL),
    "path_traversal": ("permission_denied", errno.EACCES),
    "read_only": ("read_only_filesystem", errno.EROFS),
    "disk": ("no_space_left", errno.ENOSPC),
    "workspace_disk": ("no_space_left", errno.ENOSPC),
    "max_files": ("no_space_left", errno.ENOSPC),
    "too_large": ("io_error", errno.EFBIG),
    "io": ("io_error", errno.EIO),
    "invalid_text": ("decode_error", errno.EILSEQ),
    "not_in_this_version": ("not_available", errno.ENOSYS),
    "process_ended": ("not_running", errno.ESRCH),
    "input_closed": ("not_running", errno.EPIPE),
    "changed": ("io_error", errno.EAGAIN),
    "conflict": ("busy", errno.EBUSY),
    "session_over": ("not_running", errno.ESRCH),
}
_FORBIDDEN: Final = 403
_OF_THE_REQUEST: Final = frozenset({400, 403, 404, 409, 413, 422})


def is_expected(error: RingfenceError) -> bool:
    """Whether AIO answers it with 200: what a caller can run into by what it asked, and not by whom or how often."""
    if isinstance(error, QuotaExceeded):
        return _kind_of(error)[0] == "no_space_left"
    return error.answer.http_status in _OF_THE_REQUEST


def failure_fields(error: RingfenceError, operation: str, path: str | None = None) -> dict[str, Any]:
    """Return the documented fields of a failed operation, with our own code and reason beside them."""
    kind, number = _kind_of(error)
    fields: dict[str, Any] = {
        "operation": operation,
        "message": str(error),
        "error_type": kind,
        "retryable": error.answer.retryable,
        "code": error.code,
        "reason": error.reason,
    }
    if path is not None:
        fields["path"] = path
    if number is not None:
        fields |= {"errno": number, "errno_name": errno.errorcode[number], "strerror": os.strerror(number)}
    return fields


def _kind_of(error: RingfenceError) -> tuple[str, int | None]:
    found = _BY_REASON.get(error.reason)
    if found is not None:
        return found
    if error.answer.http_status == _FORBIDDEN:
        return "permission_denied", errno.EACCES
    return "invalid_request", errno.EINVAL
