"""A service, asked in operations: each happens once, however often the connection breaks, and ends as it would here."""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from ringfence.client.artifacts import RemoteArtifact
from ringfence.client.events import LONGEST_EVENT, output_of, read_events
from ringfence.client.forms import Asking, exec_form
from ringfence.client.retry import Retrying
from ringfence.client.transport import Dropped, Reply, Stop, Stopped, Transport
from ringfence.errors import RingfenceError, Unavailable
from ringfence.errors.form import read_problem
from ringfence.isolation.capture import gap_line
from ringfence.outcome_form import read_broker, read_result, wrong_form

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

    def __init__(self, transport: Transport) -> None:
        """Ask through this transport."""
        self._transport = transport

    def execute(
        self, operation: CodeRun, asking: Asking, on_output: OnOutput | None = None, stop: Stop | None = None
    ) -> ExecutionResult:
        """Run code; when told to stop, the run is cancelled before `Stopped` is raised.

        Raises:
            RingfenceError: What the pipeline refused or failed at, or the way to it.
        """
        stop, key, body = stop or Stop(), new_key(), exec_form(operation, asking)
        stop.wait(0)
        try:
            status, answer = self.call(
                "POST", "/sandbox/execs", {**body, "wait": on_output is None}, asking=asking, key=key,
                seconds=RUN_SECONDS, stop=stop,
            )  # fmt: skip
            if status != 202:
                return self._result(answer)
            return self._follow(_exec_id(answer), asking, on_output, stop)
        except Stopped:
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
        result = self._result(answer)
        for name, data in (("stdout", result.stdout_raw), ("stderr", result.stderr_raw)):
            if on_output is not None and data:
                on_output(name, data)
        return result

    def end_call(self, asking: Asking, stop: Stop | None = None) -> None:
        """Use up the grant that was presented for a call."""
        if asking.grant is not None:
            target = f"/grants/calls/{quote(asking.grant[1], safe='')}"
            self.call("DELETE", target, asking=asking, repeatable=True, stop=stop)

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
        stop, retrying = stop or Stop(), Retrying()
        repeatable = repeatable or key is not None or method == "GET"
        headers = {**(headers or {}), **({"Idempotency-Key": key} if key is not None else {})}
        while True:
            try:
                reply = self._transport.exchange(
                    method, target, body, headers, seconds=seconds, longest=longest, stop=stop, repeatable=repeatable
                )
            except Dropped as dropped:
                pause = retrying.after_drop(repeatable=repeatable, known=self._transport.known)
                if pause is None:
                    raise
                del dropped
            else:
                if reply.status < 300:
                    return reply
                refused = self._problem(reply)
                pause = retrying.after_refusal(reply.status, reply.headers.get("retry-after"))
                if pause is None or not refused.retryable:
                    raise refused
            stop.wait(pause)
            retrying = retrying.waited(pause)

    def result_of(self, answer: object) -> ExecutionResult:
        """Read a result, whose artifacts are fetched when they are read.

        Raises:
            Unavailable: It is none.
        """
        return self._result(answer)

    def close(self) -> None:
        """Close the connections that nobody uses."""
        self._transport.close()

    def _result(self, answer: object) -> ExecutionResult:
        exec_id = answer.get("exec_id") if isinstance(answer, dict) else None

        def artifact(path: str, size: int, sha256: str) -> RemoteArtifact:
            target = f"/sandbox/execs/{quote(str(exec_id), safe='')}/artifacts/{quote(path)}"
            return RemoteArtifact(path, size, sha256, lambda longest: self._fetch(target, longest))

        return read_result(answer, artifact)

    def _fetch(self, target: str, size: int) -> bytes:
        return self.send("GET", target, longest=size).body

    def _follow(self, exec_id: str, asking: Asking, on_output: OnOutput | None, stop: Stop) -> ExecutionResult:
        """Tell what a run puts out as it comes, and return its result; a lost connection is taken up where it ended."""
        target = f"/sandbox/execs/{quote(exec_id, safe='')}/events"
        told: dict[str, int] = {}
        retrying = Retrying()
        while True:
            try:
                lines = self._transport.lines(
                    target,
                    {**asking.headers(), "Accept": "text/event-stream"},
                    idle_seconds=_IDLE_SECONDS,
                    longest=LONGEST_EVENT,
                    stop=stop,
                )
                try:
                    if lines.status != 200:
                        raise self._problem(Reply(lines.status, {}, b"".join(lines)))
                    for event in read_events(lines):
                        retrying = Retrying()
                        if event.kind == "result":
                            return self._result(event.data)
                        if event.kind == "problem":
                            raise read_problem(event.data) or wrong_form("problem")
                        if event.kind == "output" and on_output is not None:
                            _tell(*output_of(event), told, on_output)
                finally:
                    lines.close()
            except Dropped:
                pass
            pause = retrying.after_drop(repeatable=True, known=True)
            if pause is None:
                raise Unavailable(f"{self._transport.shown} no longer tells how the run goes", reason="connect_failed")
            stop.wait(pause)
            retrying = retrying.waited(pause)

    def _cancel(self, body: Mapping[str, Any], asking: Asking, key: str) -> None:
        """End the run that `key` began; nobody is left to be told if that fails, and its time limit ends it then."""
        try:
            _, answer = self.call(
                "POST", "/sandbox/execs", {**body, "wait": False}, asking=asking, key=key, seconds=CANCEL_SECONDS
            )
            target = f"/sandbox/execs/{quote(_exec_id(answer), safe='')}/cancel"
            self.call("POST", target, asking=asking, repeatable=True, seconds=CANCEL_SECONDS)
        except RingfenceError:
            return

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
    return f"rfi_{secrets.token_urlsafe(32)}"


def _exec_id(answer: object) -> str:
    exec_id = answer.get("exec_id") if isinstance(answer, dict) else None
    if not isinstance(exec_id, str) or _EXEC_ID.match(exec_id) is None:
        raise wrong_form("'exec_id'")
    return exec_id


def _tell(name: str, offset: int, data: bytes, told: dict[str, int], on_output: OnOutput) -> None:
    """Pass on what is new of one stream: after a lost connection it begins again."""
    known = told.get(name, 0)
    if offset > known:  # the service keeps only so much for a reader who is slow
        on_output(name, gap_line(offset - known))
    new = data[max(0, known - offset) :]
    if new:
        told[name] = offset + len(data)
        on_output(name, new)


def _json(body: bytes) -> Any:
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        raise wrong_form("JSON") from None
