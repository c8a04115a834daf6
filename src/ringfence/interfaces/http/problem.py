"""Every refusal over HTTP as one RFC 9457 problem, with the code and reason that `errors.table` gives its status."""

from __future__ import annotations

import json
import logging
import traceback
from collections.abc import Mapping
from typing import Any, Final

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, ConfigDict, Field
from starlette.exceptions import HTTPException
from starlette.requests import HTTPConnection, Request
from starlette.responses import Response
from starlette.routing import Match

from ringfence.errors import InternalError, InvalidRequest, RingfenceError
from ringfence.service.callers import Access, Principal

MEDIA_TYPE: Final = "application/problem+json"
_log = logging.getLogger("ringfence.http")


class Problem(BaseModel):
    """How every error is answered."""

    model_config = ConfigDict(title="Problem", extra="forbid")

    type: str = Field(description="urn:ringfence:error:<code>")
    title: str
    status: int
    detail: str
    code: str
    reason: str
    retryable: bool
    details: dict[str, str | int] = Field(default_factory=dict)
    fix: str | None = None


def documented(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Return the `responses=` of a route that can answer with these problems, for the OpenAPI document."""
    return {
        status: {"description": _DESCRIPTIONS.get(status, "Problem"), "content": {MEDIA_TYPE: {"schema": _SCHEMA}}}
        for status in statuses
    }


def problem_of(error: RingfenceError, *, show_fix: bool = False) -> dict[str, Any]:
    """Return the members of the problem; what a caller could learn about the host from our own failure is left out."""
    answer = error.answer
    body: dict[str, Any] = {
        "type": f"urn:ringfence:error:{error.code}",
        "title": answer.title,
        "status": answer.http_status,
        "detail": str(error),
        "code": error.code,
        "reason": error.reason,
        "retryable": answer.retryable,
        "details": dict(error.details),
    }
    if error.reason == "not_found":  # byte by byte the same for what is another's and for what is not there
        body["details"].pop("evidence_id", None)
    if isinstance(error, InternalError) and not show_fix:
        body |= {"detail": "Ringfence itself failed; its log has more under the id of this request", "details": {}}
    # a fix can name files of the host: it is for whoever can mend them, unless the request itself is to be mended
    if error.fix is not None and (show_fix or answer.http_status < 500):
        body["fix"] = error.fix
    return body


def response(error: RingfenceError, *, show_fix: bool = False) -> Response:
    """Return the error as an answer."""
    body = problem_of(error, show_fix=show_fix)
    status: int = body["status"]
    return Response(
        json.dumps(body, ensure_ascii=False).encode("utf-8", "replace"),
        status_code=status,
        media_type=MEDIA_TYPE,
        headers=_headers(error, status),
    )


def install(app: FastAPI) -> None:
    """Have the application answer with problems, whoever raises: we, the framework, or a mistake of ours."""
    app.add_exception_handler(RingfenceError, answer)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(HTTPException, _of_framework)


async def answer(request: Request, error: Exception) -> Response:
    """Answer whatever went wrong with a request, and log what is a failure of ours."""
    if not isinstance(error, RingfenceError):
        return await _unforeseen(request, error)
    if isinstance(error, InternalError):
        log_failure(request, error)
    elif error.answer.http_status >= 500:
        _log.warning("request %s: %s %s", request_id_of(request), error.code, error.reason)
    return response(error, show_fix=_mends(request))


async def _invalid(request: Request, error: Exception) -> Response:
    """Say where the request is wrong, and repeat nothing of it."""
    found = error.errors() if isinstance(error, RequestValidationError) else []
    if any(entry["loc"] == ("body",) for entry in found) and not _is_json(request.headers.get("content-type", "")):
        return response(_refusal(415))
    if any(entry["type"] == "json_invalid" for entry in found):
        return response(InvalidRequest("body: this is not JSON", reason="not_json"))
    told = "; ".join(f"{_place(entry['loc'])}: {_harmless(entry['msg'])}" for entry in found[:_MOST_TOLD])
    return response(InvalidRequest(told or "the request is not as this path takes it"))


async def _of_framework(request: Request, error: Exception) -> Response:
    if isinstance(error.__cause__, RingfenceError):  # raised while the framework read the body
        return await answer(request, error.__cause__)
    status = error.status_code if isinstance(error, HTTPException) else 500
    refused = response(_refusal(status))
    if status == 405:
        refused.headers["Allow"] = ", ".join(sorted(_methods(request)))
    return refused


def _refusal(status: int) -> InvalidRequest:
    """Return what the framework means by a status, in our words."""
    match status:
        case 404:
            return InvalidRequest("there is nothing of this name", reason="not_found")
        case 405:
            return InvalidRequest("this path does not know the method", reason="method_not_allowed")
        case 413:
            return InvalidRequest("the body has more bytes than are taken", reason="body_too_large")
        case 415:
            return InvalidRequest(
                "the body must come with Content-Type: application/json", reason="unsupported_media_type"
            )
        case _:
            return InvalidRequest("body: this cannot be read as JSON", reason="not_json")


def _methods(request: Request) -> set[str]:
    """Return every method that the path knows; the framework names those of the first route alone."""
    routes = [route for router in request.app.state.routers for route in router.routes]
    of_path = (route for route in routes if route.matches(request.scope)[0] is not Match.NONE)
    return {method for route in of_path for method in getattr(route, "methods", None) or ()}


async def _unforeseen(request: Request, error: Exception) -> Response:
    log_failure(request, error)
    return response(InternalError("an error nobody foresaw"))


def log_failure(connection: HTTPConnection, error: Exception) -> None:
    """Write down where we failed; not the message, which may quote what the caller sent."""
    where = "".join(traceback.format_tb(error.__traceback__))
    _log.error("request %s failed with %s\n%s", request_id_of(connection), type(error).__name__, where)


def request_id_of(connection: HTTPConnection) -> str:
    """Return the id that the answer carries as `X-Request-Id`."""
    return str(getattr(connection.state, "request_id", "unknown"))


def _mends(connection: HTTPConnection) -> bool:
    principal = getattr(connection.state, "principal", None)
    return isinstance(principal, Principal) and principal.may(Access.OPERATOR)


def _headers(error: RingfenceError, status: int) -> Mapping[str, str]:
    if status == 401:
        return {"WWW-Authenticate": "Bearer"}
    if status in (429, 503) and error.answer.retryable:
        return {"Retry-After": str(error.details.get("retry_after_seconds", 1))}
    return {}


def _is_json(content_type: str) -> bool:
    kind = content_type.partition(";")[0].strip().lower()
    return kind == "application/json" or (kind.startswith("application/") and kind.endswith("+json"))


def _place(location: tuple[int | str, ...]) -> str:
    return ".".join(_harmless(str(part))[:64] for part in location)


def _harmless(text: str) -> str:
    return "".join(letter if letter.isprintable() else "?" for letter in text)[:200]


_MOST_TOLD = 8
_SCHEMA: Final = {"$ref": "#/components/schemas/Problem"}
_DESCRIPTIONS: Final = {
    400: "The request cannot be read",
    401: "No API key, or none that is valid",
    403: "The key, the policy or the sandbox does not allow it",
    404: "Nothing of this name is the caller's",
    405: "The path does not know the method",
    408: "The request came too slowly",
    409: "It is not in a state for this",
    413: "The body is too large",
    415: "The body is of another type",
    421: "The Host header names another place",
    422: "The request is not as it must be",
    429: "Too much at once, or a budget is used up",
    431: "The headers are too large",
    500: "Our own failure",
    503: "Not available now",
    504: "Something did not answer in time",
}
