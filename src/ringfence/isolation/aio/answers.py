"""What an AIO service answers, read as what it is: the words of whoever happens to be there.

Expected failures come with status 200 and `success: false`, in three forms: `data` with the members of the error, as
AIO documents it; `data: null`; and the members of the error beside those of the answer, which its own client insists
on. All three are refusals.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final, TypeVar

from ringfence.errors import CapabilityBlocked, Denied, ExecutionFailed, InvalidRequest, RingfenceError, Unavailable

Form = Mapping[str, Any]
_T = TypeVar("_T")
_MOST_SAID: Final = 300


def read_envelope(status: int, body: bytes) -> Form:
    """Return the whole answer, if it is one of success.

    Raises:
        RingfenceError: The service refuses or fails, or what answers is no such service.
    """
    form = _object(body) if body[:1] == b"{" else None
    if status == 200 and form is not None and form.get("success") is not False:
        data = form.get("data")
        if not (isinstance(data, dict) and isinstance(data.get("error_type"), str)):
            return form
    if status in (401, 403):
        raise Denied(f"the AIO service refuses the key{_because(form)}", reason="no_key", fix="give its api_key")
    if form is None:
        raise no_answer("an answer in JSON", status)
    if status == 200:
        raise refusal(form)
    if status == 422:
        raise InvalidRequest(f"the AIO service does not take the request{_because(form)}", reason="invalid_request")
    if status in (404, 405):
        raise no_answer("this operation", status)
    raise Unavailable(f"the AIO service fails with status {status}{_because(form)}", reason="unavailable")


def read_data(form: Form) -> Form:
    """Return the `data` of an answer."""
    data = form.get("data")
    if not isinstance(data, dict):
        raise no_answer("'data'")
    return data


def member(form: Form, name: str, kind: type[_T]) -> _T:
    """Return a member of this type."""
    value = form.get(name)
    # true is a whole number to Python, and to nobody else
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise no_answer(f"{name!r}")
    return value


def maybe(form: Form, name: str, kind: type[_T]) -> _T | None:
    """Return a member of this type; it may be absent or null."""
    return None if form.get(name) is None else member(form, name, kind)


def texts(form: Form, name: str) -> tuple[str, ...]:
    """Return a member that is a list of text; it may be absent or null."""
    found = maybe(form, name, list) or []
    if not all(isinstance(each, str) for each in found):
        raise no_answer(f"{name!r}")
    return tuple(found)


def refusal(form: Form) -> RingfenceError:
    """Return the error for an answer with `success: false`."""
    data = form.get("data")
    kind = data.get("error_type") if isinstance(data, dict) else None
    words = f"the AIO service refuses{_because(form)}"
    match kind:
        case "not_found":
            return InvalidRequest(words, reason="not_found")
        case "permission_denied":
            return CapabilityBlocked(words, reason="unreadable")
        case "is_directory" | "is_a_directory":
            return InvalidRequest(words, reason="is_a_directory")
        case "not_a_directory":
            return InvalidRequest(words, reason="not_a_directory")
        case _:
            return ExecutionFailed(words, reason="refused_there")


def no_answer(what: str, status: int | None = None) -> Unavailable:
    """Return the error for an answer that no AIO service gives."""
    shown = "" if status is None else f" (status {status})"
    return Unavailable(
        f"the answer has no {what} that can be read{shown}",
        reason="bad_answer",
        fix="see that the address is that of an AIO Sandbox service, version 1.9 or later",
    )


def harmless(said: str) -> str:
    """Return what a service said as one line that can do nothing to a terminal or a log."""
    return "".join(each if each.isprintable() else " " for each in said[:_MOST_SAID]).strip()


def _because(form: Form | None) -> str:
    if form is None:
        return ""
    data = form.get("data")
    inner = data.get("message") if isinstance(data, dict) else None
    detail = form.get("detail")
    if isinstance(detail, list) and detail and isinstance(detail[0], dict):
        detail = detail[0].get("msg")
    for said in (inner, form.get("message"), detail, form.get("hint")):
        if isinstance(said, str) and harmless(said):
            return f": {harmless(said)}"
    return ""


def _object(body: bytes) -> Form | None:
    try:
        form = json.loads(body)
    except (ValueError, RecursionError):
        return None
    return form if isinstance(form, dict) else None
