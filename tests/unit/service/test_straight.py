"""The straight way to an execution: whatever is asked, it answers as the framework's own way does."""

from __future__ import annotations

import asyncio
import json
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from types import FrameType, SimpleNamespace
from typing import Any

from fastapi import FastAPI
from hypothesis import given
from hypothesis import strategies as st
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ringfence.authority.caller import Caller
from ringfence.clock import SystemClock
from ringfence.database.sqlite import SqliteDatabase
from ringfence.interfaces.http import execs as routes
from ringfence.interfaces.http import problem
from ringfence.interfaces.http.app import build
from ringfence.interfaces.http.exec_models import ExecBody
from ringfence.interfaces.http.straight import Straight
from ringfence.outcome import ExecutionResult, Status
from ringfence.service.callers import Access, Principal
from ringfence.service.exec_finder import Finder
from ringfence.service.exec_store import ExecStore
from ringfence.service.execs import Execs
from ringfence.service.house import House, open_house
from ringfence.service.settings import usual_settings

AGENT = Principal(Caller("acme", "anna"), Access.AGENT, "k1")
AUDITOR = Principal(Caller("acme", "adam"), Access.AUDITOR, "k2")
PLAIN = {"project_id": "p", "exec": {"kind": "python", "code": "print(1)"}}
JSON = b"application/json"


class Echo:
    """Runs nothing; what a request came to is its output."""

    async def execute(self, request: Any, *, on_output: Any = None, exec_id: str | None = None) -> ExecutionResult:
        told = repr(request).encode()
        return ExecutionResult(
            Status.SUCCEEDED, 0, told, stdout_bytes=len(told), exec_id=exec_id or "", sandbox_id="none"
        )


@contextmanager
def both_ways() -> Iterator[tuple[FastAPI, FastAPI]]:
    """Give an application whose requests may go straight, and the same without that way."""
    with TemporaryDirectory() as home:
        house = open_house(Path(home), usual_settings())
        database = SqliteDatabase(Path(home) / "queue.db")
        house.execs = queue_over(database, Path(home))
        yield _app(house, straight=True), _app(house, straight=False)
        database.close()


def queue_over(database: SqliteDatabase, home: Path) -> Execs:
    return Execs(
        lambda who, form: Echo(),
        ExecStore(database),
        Finder(database, home),
        clock=SystemClock(),
        identifiers=SimpleNamespace(new=lambda kind: f"{kind}_same"),
    )


def _app(house: House, *, straight: bool) -> FastAPI:
    app = FastAPI()
    app.state.house = house
    app.state.routers = [routes.router]
    problem.install(app)
    app.include_router(routes.router)
    if straight:
        app.add_middleware(Straight)
    return app


def asked(app: ASGIApp, pieces: list[bytes], who: Principal = AGENT, content_type: bytes | None = JSON) -> Any:
    """Return status, headers and body of the answer."""
    headers = [] if content_type is None else [(b"content-type", content_type)]
    scope = {
        "type": "http", "method": "POST", "path": "/sandbox/execs", "raw_path": b"/sandbox/execs", "root_path": "",
        "query_string": b"", "headers": headers, "http_version": "1.1", "state": {"principal": who},
    }  # fmt: skip
    told: list[Message] = []
    coming: list[Message] = [
        {"type": "http.request", "body": piece, "more_body": n + 1 < len(pieces)} for n, piece in enumerate(pieces)
    ]

    async def receive() -> Message:
        if not coming:
            await asyncio.Event().wait()
        return coming.pop(0)

    async def send(message: Message) -> None:
        told.append(message)

    asyncio.run(app(scope, receive, send))  # type: ignore[arg-type]  # which is a coroutine
    return told[0]["status"], sorted(told[0]["headers"]), b"".join(each.get("body", b"") for each in told[1:])


JUNK = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=8), st.just([]), st.just({}),
    st.lists(st.text(max_size=4), max_size=2), st.dictionaries(st.text(max_size=4), st.integers(), max_size=2),
    st.sampled_from(["python", "shell", "../x", "\ud800", {"kind": "shell", "code": "true"}, {"mode": "none"}]),
)  # fmt: skip
FIELDS = st.sampled_from([*ExecBody.model_fields, "unknown"])
BODIES = st.one_of(
    st.dictionaries(FIELDS, JUNK, max_size=3).map(lambda more: json.dumps({**PLAIN, **more}).encode()),
    st.dictionaries(FIELDS, JUNK, max_size=3).map(lambda body: json.dumps(body).encode()),
    st.binary(max_size=20),
    st.integers(0, 60).map(lambda n: json.dumps(PLAIN).encode()[:n]),
    st.just(b'{"project_id": "p", "project_id": "q", "exec": {"kind": "python", "code": "1"}}'),
    st.just(b"\xef\xbb\xbf" + json.dumps(PLAIN).encode()),
    st.just(b"[" * 3000),
)
TYPES = st.sampled_from(
    [JSON, JSON, JSON, None, b"text/plain", b"application/json; charset=utf-8", b"application/x+json"]
)


def test_whatever_is_asked_is_answered_as_the_framework_answers_it() -> None:
    with both_ways() as (straight, framework):

        @given(body=BODIES, content_type=TYPES, who=st.sampled_from([AGENT, AGENT, AUDITOR]), cut=st.integers(0, 40))
        def check(body: bytes, content_type: bytes | None, who: Principal, cut: int) -> None:
            pieces = [body] if cut == 0 else [body[:cut], body[cut:]]
            assert asked(straight, pieces, who, content_type) == asked(framework, pieces, who, content_type)

        check()


def test_what_is_plainly_right_never_gets_to_the_framework() -> None:
    with both_ways() as (straight, _):
        straight.router.routes.clear()
        assert asked(straight, [json.dumps(PLAIN).encode()])[0] == 201
        assert asked(straight, [b"{}"])[0] == 404


MOST_CALLS = 800
"""Of functions, of whomever, for a whole request whose run is scripted: 741 when this was written, and 915 before."""


def test_a_request_that_is_plainly_right_takes_a_bounded_number_of_calls() -> None:
    counted = []
    with TemporaryDirectory() as home:
        house = open_house(Path(home), usual_settings())
        database = SqliteDatabase(Path(home) / "queue.db")
        house.execs = queue_over(database, Path(home))
        app = build(house)
        for _ in range(40):  # methods of records are written when they are often used
            calls: Counter[str] = Counter()

            def note(frame: FrameType, event: str, called: Any, calls: Counter[str] = calls) -> None:
                if event in ("call", "c_call"):
                    calls[frame.f_code.co_name if event == "call" else called.__name__] += 1

            async def watched(scope: Scope, receive: Receive, send: Send, note: Any = note) -> None:
                sys.setprofile(note)
                try:
                    await app(scope, receive, send)
                finally:
                    sys.setprofile(None)

            assert asked(watched, [json.dumps(PLAIN).encode()])[0] == 201
            counted.append(calls)
        database.close()
    fewest = min(counted, key=Counter.total)
    assert fewest.total() <= MOST_CALLS, fewest.most_common(40)
    assert fewest["enabled"] == 0, "the framework looked for telemetry"
    assert fewest["deepcopy"] <= 1, "defaults were copied that nobody can change"
