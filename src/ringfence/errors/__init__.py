"""Every deliberate failure of Ringfence, one hierarchy with codes that never change meaning.

RingfenceError
├── InvalidRequest            SCHEMA.VALIDATION_FAILED       the request itself is wrong; nothing ran
│   └── PathTraversalError      … reason path_traversal      a path tries to leave the workspace
├── Denied                    SANDBOX.PERMISSION_DENY        no grant allows this; nothing ran
│   ├── ToolDenied            POLICY.DENY_TOOL               manifest or policy does not know this use of the tool
│   └── CapabilityBlocked     SANDBOX.CAPABILITY_BLOCKED     a rule of the sandbox stopped the operation
├── Unavailable               PROVIDER.UNAVAILABLE           something needed is not there now
│   ├── IsolationUnavailable    … reason isolation_unavailable   the required isolation cannot be had here
│   └── RuntimeMissing          … reason runtime_missing     no interpreter for the language
├── TimedOut                  LLM.TIMEOUT                    something outside did not answer in time
├── QuotaExceeded             QUOTA.BUDGET_EXCEEDED          a budget or a ceiling would be exceeded
│   └── Overloaded              … reason queue_full          too much is waiting already; later there is room
├── ExecutionFailed           TOOL.EXECUTION_FAILED          an executor failed, not what it executed
└── InternalError             UNKNOWN.INTERNAL               our own failure, never the guest's

What guest code does to itself (exit 7, time-out, out of memory) is a result, not an error. What follows from a code and
its reason (HTTP status, exit code, whether to try again) is in `errors.table` and nowhere else.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:  # every run imports this module, and few runs make an error
    from typing import Self

    from ringfence.errors.table import Answer


_MOST_TOLD = 4000
"""A message quotes what somebody wrote, which may be as long as he liked."""


class _Retryable:
    """Reads off the table whether to try again, for an error and for a class of errors with its default reason."""

    def __get__(self, error: RingfenceError | None, kind: type[RingfenceError]) -> bool:
        from ringfence.errors.table import answer

        return (answer(kind.code, kind.default_reason) if error is None else error.answer).retryable


class RingfenceError(Exception):
    """Base of every deliberate error; `code` and `reason` are stable across releases."""

    code: str = "UNKNOWN.INTERNAL"
    default_reason: str = "internal"
    retryable = _Retryable()

    def __init__(
        self, message: str, *, reason: str | None = None, fix: str | None = None, **details: str | int
    ) -> None:
        """Keep `details` flat and safe to show to the agent; `fix` tells a person what to do."""
        super().__init__(message if len(message) <= _MOST_TOLD else f"{message[:_MOST_TOLD]}…")
        self.reason = reason or self.default_reason
        self.fix = fix
        self.details = details
        self.done: object = None
        """The outcome of what an executor had done when it failed, if anything: it is recorded and charged."""

    @property
    def answer(self) -> Answer:
        """What the table says about this code and reason: title, HTTP status, exit code, whether to try again."""
        from ringfence.errors.table import answer

        return answer(self.code, self.reason)


class InvalidRequest(RingfenceError):
    """The request cannot be carried out as written; nothing ran."""

    code = "SCHEMA.VALIDATION_FAILED"
    default_reason = "invalid_request"


class PathTraversalError(InvalidRequest):
    """A path is absolute, climbs with `..`, or crosses a symlink."""

    default_reason = "path_traversal"

    def at_runtime(self) -> Self:
        """Make it the refusal of an operation that was under way, where it was one of a request's shape (C15)."""
        self.code = CapabilityBlocked.code
        return self


class Denied(RingfenceError):
    """Nobody who may allow this has allowed it; nothing ran."""

    code = "SANDBOX.PERMISSION_DENY"
    default_reason = "not_granted"


class ToolDenied(Denied):
    """The manifest or the policy does not provide for this use of the tool; nothing ran."""

    code = "POLICY.DENY_TOOL"
    default_reason = "tool_denied"


class CapabilityBlocked(Denied):
    """A rule of the sandbox (path, size, method, list) stopped the operation; it changed nothing."""

    code = "SANDBOX.CAPABILITY_BLOCKED"
    default_reason = "blocked"


class Unavailable(RingfenceError):
    """Something this run needs is not available now."""

    code = "PROVIDER.UNAVAILABLE"
    default_reason = "unavailable"


class IsolationUnavailable(Unavailable):
    """The required isolation cannot be had on this machine; nothing ran."""

    default_reason = "isolation_unavailable"


class RuntimeMissing(Unavailable):
    """No interpreter on this machine runs the language asked for."""

    default_reason = "runtime_missing"


class TimedOut(RingfenceError):
    """Something outside did not answer in time; a guest that runs too long is a result instead."""

    code = "LLM.TIMEOUT"
    default_reason = "timeout"


class QuotaExceeded(RingfenceError):
    """A budget or ceiling would be exceeded; nothing ran."""

    code = "QUOTA.BUDGET_EXCEEDED"
    default_reason = "budget"


class Overloaded(QuotaExceeded):
    """As much as may wait is waiting; nothing was taken on, and the same request may be taken later."""

    default_reason = "queue_full"


class ExecutionFailed(RingfenceError):
    """An executor failed at its own work; what it executed is not to blame."""

    code = "TOOL.EXECUTION_FAILED"
    default_reason = "execution_failed"


class InternalError(RingfenceError):
    """Ringfence itself failed; the guest is not to blame."""
