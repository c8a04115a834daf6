"""A service, asked in operations: each happens once, however often the connection breaks, and ends as it would here."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Generator, Iterator, Mapping
from contextlib import closing, suppress
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from ringfence.client.artifacts import RemoteArtifact
from ringfence.client.events import LONGEST_EVENT, Event, output_of, read_events
from ringfence.client.forms import Asking, exec_form
from ringfence.client.retry import Retrying
from ringfence.errors import RingfenceError, Unavailable
from ringfence.errors.form import read_problem
from ringfence.isolation.capture import gap_line
from ringfence.operation.code import check
from ringfence.outcome_form import read_broker, read_result, wrong_form
from ringfence.wire.stop import Stop, Stopped
from ringfence.wire.transport import Dropped, Reply, Transport

if TYPE_CHECKING:
    from ringfence.operation.brokered import Brokered
    from ringfence.operation.code import CodeRun
    from ringfence.outcome import ExecutionResult, OnOutput, Outcome

RUN_SECONDS: Final = 3600.0 + 600.0
"""The longest that a run may take, and a while in the queue before it."""
ANSWER_SECONDS: Final = 60.0
CANCEL_SECONDS: Final = 15.0
LONGEST_ANSWER: Final = 256 * 1024 * 1024
_IDLE_SECONDS: Final = 60.0
_READS: Final = frozenset({"fs_read", "fs_list", "fs_stat"})
_EXEC_ID: Final = re.compile(r"[A-Za-z0-9_-]{1,128}\Z")


class Service:
    """One service; its methods wait, and may be called from any thread."""

    def __init__(self, transport: Transport, retrying: Retrying | None = None) -> None:
        """Ask through this transport; `retrying` is how long all the waiting for one answer may take."""
        self._transport = transport
        self._retrying = retrying or Retrying()

    def execute(
        self, operation: CodeRun, asking: Asking, on_output: OnOutput | None = None, stop: Stop | None = None
    ) -> ExecutionResult:
        """Run code; whoever stops waiting for it, for whatever reason, has it cancelled.

        Raises:
            RingfenceError: What the pipeline refused or failed at, or the way to it.
        """
        stop, key, body = stop or Stop(), new_key(), exec_form(operation, asking)
        check(operation)
        stop.wait(0)
        try:
            status, answer = self.call(
                "POST", "/sandbox/execs", {**body, "wait": on_output is None}, asking=asking, key=key,
                seconds=RUN_SECONDS, stop=stop,
            )  # fmt: skip
            if status != 202:
                return self.result(answer)
            return self._follow(_exec_id(answer), asking, on_output, stop)
        except RingfenceError:
            raise
        except BaseException:  # told to stop, interrupted, or whoever hears the output failed at it
            self._cancel(body, asking, key)
            raise

    def perform(
        self, operation: Brokered, asking: Asking, on_output: OnOutput | None = None, stop: Stop | None = None
    ) -> Outcome:
        """Carry out one brokered operation."""
        from ringfence.client.forms import operation_form

        _, answer = self.call(
            "POST",
            "/sandbox/ops",
            operation_form(operation, asking),
            asking=asking,
            repeatable=operation.kind in _READS,
            seconds=RUN_SECONDS,
            stop=stop,
        )
        if operation.kind != "proc_exec":
            return read_broker(answer)
        return _told(self.result(answer), on_output)

    def run_cell(
        self, operation: CodeRun, asking: Asking, on_output: OnOutput | None = None, stop: Stop | None = None
    ) -> ExecutionResult:
        """Run the next cell of an interpreter; it is interrupted when told to stop."""
        target = f"/sandbox/processes/{quote(operation.process_id or '', safe='')}"
        form: dict[str, Any] = {"code": operation.code}
        if "wall_seconds" in asking.limits:
            form["timeout_ms"] = asking.limits["wall_seconds"] * 1000
        try:
            _, answer = self.call("POST", f"{target}/cells", form, asking=asking, seconds=RUN_SECONDS, stop=stop)
        except Stopped:
            with suppress(RingfenceError):
                self.call("POST", f"{target}/signal", {"signal": "INT"}, asking=asking, seconds=CANCEL_SECONDS)
            raise
        return _told(self.result(answer), on_output)

    def call(
        self,
        method: str,
        target: str,
        form: Mapping[str, Any] | None = None,
        *,
        asking: Asking | None = None,
        key: str | None = None,
        repeatable: bool = False,
        seconds: float = ANSWER_SECONDS,
        stop: Stop | None = None,
    ) -> tuple[int, Any]:
        """Ask, with JSON for JSON, and again where that is safe; a problem is raised as the error it tells of."""
        headers = asking.headers() if asking is not None else {}
        body = None
        if form is not None:
            headers["Content-Type"] = "application/json"
            body = json.dumps(form, ensure_ascii=False).encode("utf-8", "surrogatepass")
        reply = self.send(method, target, body, headers, key=key, repeatable=repeatable, seconds=seconds, stop=stop)
        return reply.status, _json(reply.body) if reply.body else None

    def send(
        self,
        method: str,
        target: str,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        *,
        key: str | None = None,
        repeatable: bool = False,
        seconds: float = ANSWER_SECONDS,
        longest: int = LONGEST_ANSWER,
        stop: Stop | None = None,
    ) -> Reply:
        """Send bytes and return the answer as it came; what has a `key`, or is read, may be sent again."""
        stop, retrying = stop or Stop(), self._retrying
        repeatable = repeatable or key is not None or method == "GET"
        headers = {**(headers or {}), **({"Idempotency-Key": key} if key is not None else {})}
        while True:
            try:
                reply = self._transport.exchange(
                    method, target, body, headers, seconds=seconds, longest=longest, stop=stop, repeatable=repeatable
                )
            except Dropped as dropped:
                known = self._transport.known or dropped.sent
                pause = retrying.after_drop(repeatable=repeatable, known=known)
                if pause is None:
                    raise
            else:
                if reply.status < 300:
                    return reply
                refused = self._problem(reply)
                pause = retrying.after_refusal(reply.status, reply.headers.get("retry-after"))
                if pause is None or not refused.retryable:
                    raise refused
            stop.wait(pause)
            retrying = retrying.waited(pause)

    def close(self) -> None:
        """Close the connections that nobody uses."""
        self._transport.close()

    def result(self, answer: object) -> ExecutionResult:
        """Return the result that an answer tells of, its artifacts still there."""
        exec_id = answer.get("exec_id") if isinstance(answer, dict) else None

        def artifact(path: str, size: int, sha256: str) -> RemoteArtifact:
            target = f"/sandbox/execs/{quote(str(exec_id), safe='')}/artifacts/{quote(path)}"
            return RemoteArtifact(path, size, sha256, lambda longest: self._fetch(target, longest))

        return read_result(answer, artifact)

    def _fetch(self, target: str, size: int) -> bytes:
        return self.send("GET", target, longest=size).body

    def _follow(self, exec_id: str, asking: Asking, on_output: OnOutput | None, stop: Stop) -> ExecutionResult:
        """Tell what a run puts out as it comes, and return its result."""
        told: dict[str, int] = {}
        target = f"/sandbox/execs/{quote(exec_id, safe='')}/events"
        with closing(self._events(target, asking, stop)) as events:
            for event in events:
                if event.kind == "result":
                    return _told(self.result(event.data), on_output, told)
                if event.kind == "problem":
                    raise read_problem(event.data) or wrong_form("problem")
                if event.kind == "output" and on_output is not None:
                    _tell(*output_of(event), told, on_output)
        raise Unavailable(f"{self._transport.shown} no longer tells how the run goes", reason="connect_failed")

    def _events(self, target: str, asking: Asking, stop: Stop) -> Generator[Event, None, None]:
        """Yield events, from the first one again after a lost connection, for as long as anything may take."""
        retrying, end = self._retrying, time.monotonic() + RUN_SECONDS
        while time.monotonic() < end:
            with suppress(Dropped):
                for event in self._events_of_one_answer(target, asking, stop):
                    retrying = self._retrying
                    yield event
            pause = retrying.after_drop(repeatable=True, known=True)
            if pause is None:
                return
            stop.wait(pause)
            retrying = retrying.waited(pause)

    def _events_of_one_answer(self, target: str, asking: Asking, stop: Stop) -> Iterator[Event]:
        headers = {**asking.headers(), "Accept": "text/event-stream"}
        lines = self._transport.lines(target, headers, idle_seconds=_IDLE_SECONDS, longest=LONGEST_EVENT, stop=stop)
        with closing(lines):
            if lines.status != 200:  # a problem is one line of JSON
                raise self._problem(Reply(lines.status, {}, next(iter(lines), b"")))
            yield from read_events(lines)

    def _cancel(self, body: Mapping[str, Any], asking: Asking, key: str) -> None:
        """End the run that `key` began; nobody is left to be told if that fails, and its time limit ends it then."""
        with suppress(RingfenceError):
            _, answer = self.call(
                "POST", "/sandbox/execs", {**body, "wait": False}, asking=asking, key=key, seconds=CANCEL_SECONDS
            )
            target = f"/sandbox/execs/{quote(_exec_id(answer), safe='')}/cancel"
            self.call("POST", target, asking=asking, repeatable=True, seconds=CANCEL_SECONDS)

    def _problem(self, reply: Reply) -> RingfenceError:
        try:
            form = _json(reply.body)
        except Unavailable:
            form = None
        return read_problem(form) or Unavailable(
            f"{self._transport.shown} answers with status {reply.status} and does not say why",
            reason="bad_answer",
            fix="see that the address is a ringfence service's",
        )


def new_key() -> str:
    """Return a name for one request, by which the service knows it when it comes again."""
    return f"rfi_{os.urandom(32).hex()}"


def _exec_id(answer: object) -> str:
    exec_id = answer.get("exec_id") if isinstance(answer, dict) else None
    if not isinstance(exec_id, str) or _EXEC_ID.match(exec_id) is None:
        raise wrong_form("'exec_id'")
    return exec_id


def _tell(name: str, offset: int, data: bytes, told: dict[str, int], on_output: OnOutput) -> None:
    """Pass on what is new of one stream: after a lost connection it begins again.

    After a piece that the service no longer had, the rest of the stream is told from the result, in its order.
    """
    known = told.get(name, 0)
    if offset <= known < offset + len(data):
        told[name] = offset + len(data)
        on_output(name, data[known - offset :])


def _told(
    result: ExecutionResult, on_output: OnOutput | None, told: Mapping[str, int] | None = None
) -> ExecutionResult:
    """Return the result, with all of its output told that was not before."""
    if on_output is not None:
        known = told or {}
        for name, raw, total, left_out in (
            ("stdout", result.stdout_raw, result.stdout_bytes, result.stdout_left_out),
            ("stderr", result.stderr_raw, result.stderr_bytes, result.stderr_left_out),
        ):
            if rest := _rest(raw, total, left_out, known.get(name, 0)):
                on_output(name, rest)
    return result


def _rest(raw: bytes, total: int, left_out: int, known: int) -> bytes:
    """Return what a stream has after the first `known` of its bytes, with a line where the result has no more of it."""
    if not left_out or not known:
        return raw[known:]
    tail = raw.rpartition(gap_line(left_out))[2]
    start = total - len(tail)
    return tail[known - start :] if known >= start else gap_line(start - known) + tail


def _json(body: bytes) -> Any:
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        raise wrong_form("JSON") from None
