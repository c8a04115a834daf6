"""How AIO answers: `{success, message, data, hint?}`, with 200 for what a caller must expect to fail.

A failed operation carries the documented fields of a failure and, beside them, those that the same answer always has:
AIO's own client refuses to read it without.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final, Generic, TypeVar

from fastapi import FastAPI
from pydantic import BaseModel, ConfigDict, Field
from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ringfence.errors import InvalidRequest, RingfenceError
from ringfence.interfaces.http.aio.key import is_aio
from ringfence.interfaces.http.execs import as_json
from ringfence.interfaces.http.problem import MEDIA_TYPE
from ringfence.service.aio.failure import failure_fields, is_expected

_Data = TypeVar("_Data")


class Envelope(BaseModel, Generic[_Data]):
    """The answer of every route; `data` of a failure has `error_type`, `errno_name`, `reason` and more."""

    model_config = ConfigDict(extra="allow")

    success: bool
    message: str
    data: _Data | None
    hint: str | None = None


class Refused(BaseModel):
    """The answer to a request that did not come as far as an operation."""

    model_config = ConfigDict(title="Refused")

    success: bool
    message: str
    data: dict[str, Any] | None
    hint: str | None = None
    detail: list[dict[str, Any]] | None = Field(None, description="with 422: where the request is wrong")


def refusals(statuses: Iterable[int]) -> dict[int | str, dict[str, Any]]:
    """Return how this surface refuses, for the OpenAPI document."""
    schema = {"$ref": "#/components/schemas/Refused"}
    return {
        status: {"description": "Refused", "content": {"application/json": {"schema": schema}}} for status in statuses
    }


class View(BaseModel):
    """The `data` of an answer; a failure has further fields."""

    model_config = ConfigDict(extra="allow")


def told(data: Any, message: str = "ok", *, hint: str | None = None) -> Response:
    """Return an answer that something was done."""
    return as_json(_envelope(data, message, hint, success=True))


def _envelope(data: Any, message: str, hint: str | None, *, success: bool) -> dict[str, Any]:
    body = {"success": success, "message": message, "data": data}
    return body if hint is None else {**body, "hint": hint}


class ExpectedFailure(Exception):
    """An operation that failed in a way its caller is told of with 200."""

    def __init__(self, error: RingfenceError, data: Mapping[str, Any] | None) -> None:
        super().__init__(str(error))
        self.error = error
        self.data = data


@contextmanager
def expected(operation: str, path: str | None = None, /, **required: Any) -> Iterator[None]:
    """Have what fails in the block told as a failure of `operation`; `required` is what its answer always has.

    Raises:
        ExpectedFailure: Which `install` answers.
    """
    try:
        yield
    except RingfenceError as error:
        if not is_expected(error):
            raise
        raise ExpectedFailure(error, {**required, **failure_fields(error, operation, path)}) from error


def install(app: FastAPI) -> None:
    """Have the application answer expected failures."""
    app.add_exception_handler(ExpectedFailure, _failed)


def absent(what: str) -> ExpectedFailure:
    """Return the refusal of a call to a part that is not here: without data, which every client can read."""
    return ExpectedFailure(InvalidRequest(f"this service has no {what}", reason="not_in_this_version"), None)


async def _failed(_request: Request, failure: Exception) -> Response:
    if not isinstance(failure, ExpectedFailure):
        raise failure
    error, data = failure.error, None if failure.data is None else dict(failure.data)
    body = _envelope(data, str(failure), error.fix, success=False)
    if data is None:
        body |= {"error_type": "not_available", "reason": error.reason}
    return as_json(body)


class Envelopes:
    """The outermost layer: every problem on this surface, whoever tells it, leaves as an envelope."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass one request on."""
        if scope["type"] != "http" or not is_aio(scope["path"]):
            await self._app(scope, receive, send)
            return
        await self._app(scope, receive, _Rewriting(send).send)


class _Rewriting:
    """Holds a problem back until it is whole, and passes everything else on."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._start: Message | None = None
        self._body = b""

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start" and _is_problem(message):
            self._start = message
            return
        if self._start is None or message["type"] != "http.response.body":
            await self._send(message)
            return
        self._body += message.get("body", b"")
        if message.get("more_body", False):
            return
        body = json.dumps(refused(json.loads(self._body))).encode("ascii")
        headers = MutableHeaders(scope=self._start)
        headers["content-type"] = "application/json"
        headers["content-length"] = str(len(body))
        await self._send(self._start)
        await self._send({"type": "http.response.body", "body": body})


def refused(problem: Mapping[str, Any]) -> dict[str, Any]:
    """Return a problem of the service as this surface tells it."""
    known = ("code", "reason", "retryable")
    body = _envelope({name: problem[name] for name in known}, problem["detail"], problem.get("fix"), success=False)
    if problem["status"] == _INVALID:
        # AIO's client reads these three, and gives them to whoever catches its error
        body["detail"] = [{"loc": ["body"], "msg": problem["detail"], "type": problem["reason"]}]
    return body


_INVALID: Final = 422


def _is_problem(start: Message) -> bool:
    return any(name.lower() == b"content-type" and value == MEDIA_TYPE.encode() for name, value in start["headers"])
