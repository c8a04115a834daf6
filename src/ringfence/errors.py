"""Every deliberate failure of Ringfence, one hierarchy with codes that never change meaning.

RingfenceError
├── InvalidRequest            SCHEMA.VALIDATION_FAILED       the request itself is wrong; nothing ran
│   └── PathTraversalError      … reason path_traversal      a path tries to leave the workspace
├── Unavailable               PROVIDER.UNAVAILABLE           something needed is not there now
│   ├── IsolationUnavailable    … reason isolation_unavailable   the required isolation cannot be had here
│   └── RuntimeMissing          … reason runtime_missing     no interpreter for the language
├── QuotaExceeded             QUOTA.BUDGET_EXCEEDED          a budget or a ceiling would be exceeded
└── InternalError             SYSTEM.INTERNAL                our own failure, never the guest's

What guest code does to itself (exit 7, time-out, out of memory) is a result, not an error.
"""

from __future__ import annotations

from typing import ClassVar


class RingfenceError(Exception):
    """Base of every deliberate error; `code` and `reason` are stable across releases."""

    code: ClassVar[str] = "SYSTEM.INTERNAL"
    default_reason: ClassVar[str] = "internal"
    retryable: ClassVar[bool] = False

    def __init__(
        self, message: str, *, reason: str | None = None, fix: str | None = None, **details: str | int
    ) -> None:
        """Keep `details` flat and safe to show to the agent; `fix` tells a person what to do."""
        super().__init__(message)
        self.reason = reason or self.default_reason
        self.fix = fix
        self.details = details


class InvalidRequest(RingfenceError):
    """The request cannot be carried out as written; nothing ran."""

    code = "SCHEMA.VALIDATION_FAILED"
    default_reason = "invalid_request"


class PathTraversalError(InvalidRequest):
    """A path is absolute, climbs with `..`, or crosses a symlink."""

    default_reason = "path_traversal"


class Unavailable(RingfenceError):
    """Something this run needs is not available now."""

    code = "PROVIDER.UNAVAILABLE"
    default_reason = "unavailable"
    retryable = True


class IsolationUnavailable(Unavailable):
    """The required isolation cannot be had on this machine; nothing ran."""

    default_reason = "isolation_unavailable"
    retryable = False


class RuntimeMissing(Unavailable):
    """No interpreter on this machine runs the language asked for."""

    default_reason = "runtime_missing"
    retryable = False


class QuotaExceeded(RingfenceError):
    """A budget or ceiling would be exceeded; nothing ran."""

    code = "QUOTA.BUDGET_EXCEEDED"
    default_reason = "budget"


class InternalError(RingfenceError):
    """Ringfence itself failed; the guest is not to blame."""
