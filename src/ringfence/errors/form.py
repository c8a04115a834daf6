"""A problem that a service answered with, read back as the very error that was raised there."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from ringfence.errors import (
    CapabilityBlocked,
    Denied,
    ExecutionFailed,
    InternalError,
    InvalidRequest,
    IsolationUnavailable,
    Overloaded,
    PathTraversalError,
    QuotaExceeded,
    RingfenceError,
    RuntimeMissing,
    TimedOut,
    ToolDenied,
    Unavailable,
)

_CLASSES: Final[Mapping[str, type[RingfenceError]]] = {
    kind.code: kind
    for kind in (
        InvalidRequest,
        Denied,
        ToolDenied,
        CapabilityBlocked,
        Unavailable,
        TimedOut,
        QuotaExceeded,
        ExecutionFailed,
        InternalError,
    )
}
_FINER: Final[Mapping[tuple[str, str], type[RingfenceError]]] = {
    (InvalidRequest.code, "path_traversal"): PathTraversalError,
    (CapabilityBlocked.code, "path_traversal"): PathTraversalError,
    (QuotaExceeded.code, "queue_full"): Overloaded,
    (Unavailable.code, "isolation_unavailable"): IsolationUnavailable,
    (Unavailable.code, "cgroups_missing"): IsolationUnavailable,
    (Unavailable.code, "interpreter_unreadable"): IsolationUnavailable,
    (Unavailable.code, "runtime_missing"): RuntimeMissing,
}
_CODE: Final = re.compile(r"[A-Z]{1,32}\.[A-Z_]{1,64}\Z")
_WORD: Final = re.compile(r"[a-z][a-z0-9_]{0,63}\Z")
_LONGEST_TEXT: Final = 2_000
_MOST_DETAILS: Final = 32


def read_problem(form: object) -> RingfenceError | None:
    """Return the error that a problem tells of, or None if it tells of none.

    Whoever answers chose every character of it: texts are cut, and kept to one printable line.
    """
    if not isinstance(form, dict):
        return None
    code, reason, told = form.get("code"), form.get("reason"), form.get("detail")
    if not isinstance(code, str) or _CODE.match(code) is None:
        return None
    if not isinstance(reason, str) or _WORD.match(reason) is None:
        return None
    details = _details(form.get("details"))
    kind = _FINER.get((code, reason)) or _CLASSES.get(code, InternalError)
    if code == CapabilityBlocked.code and "rule" in details:  # the guard said no, before anything was under way
        kind = CapabilityBlocked
    error = kind(
        _harmless(told if isinstance(told, str) else reason),
        reason=reason,
        fix=_harmless(form["fix"]) if isinstance(form.get("fix"), str) else None,
    )
    error.details = details
    error.code = code  # a traversal under way has another than its class, and a newer release may have more
    return error


def _details(form: object) -> dict[str, str | int]:
    if not isinstance(form, dict):
        return {}
    details: dict[str, str | int] = {}
    for name, value in list(form.items())[:_MOST_DETAILS]:
        if isinstance(name, str) and _WORD.match(name) is not None and isinstance(value, str | int):
            details[name] = _harmless(value) if isinstance(value, str) else value
    return details


def _harmless(text: str) -> str:
    cut = text if len(text) <= _LONGEST_TEXT else text[:_LONGEST_TEXT] + "…"
    return "".join(
        letter if letter.isprintable() else letter.encode("unicode_escape", "replace").decode() for letter in cut
    )
