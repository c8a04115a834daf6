"""The one way to an AIO service: JSON for JSON, in bounded time and bytes, with a key that is told to nobody else."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from typing import Any, Final
from urllib.parse import urlencode

from ringfence.errors import InvalidRequest, RingfenceError
from ringfence.isolation.aio import answers
from ringfence.isolation.aio.answers import Form
from ringfence.wire.address import parse_address
from ringfence.wire.lane import Lane
from ringfence.wire.stop import Stop
from ringfence.wire.transport import Reply, Speaker, Transport
from ringfence.wire.waiting import awaited

LONGEST_ANSWER: Final = 16 << 20
LONGEST_REQUEST: Final = 64 << 20
_LONGEST_WAIT: Final = 86_400
_AIO: Final = Speaker("an AIO Sandbox service", "its image listens on port 8080")
_LONGEST_HOME: Final = 1024
_JSON: Final = {"Content-Type": "application/json", "Accept": "application/json"}


@cache
def _lane() -> Lane:
    """Return the threads that wait for AIO services; all doors share them."""
    return Lane()


class Door:
    """One service; safe to use from any task."""

    def __init__(self, base_url: object, *, api_key: object = None, seconds: float = 60.0) -> None:
        """Nothing is connected yet; `seconds` is how long an answer may take where nothing else is said.

        Raises:
            InvalidRequest: The address or the key is none, or the key would travel in the clear.
        """
        if not 0 < seconds <= _LONGEST_WAIT:
            raise InvalidRequest(
                f"timeout must be up to {_LONGEST_WAIT} seconds, not {seconds!r}", reason="invalid_value"
            )
        address = parse_address(base_url, keyless=api_key is None)
        self._transport = Transport(address, api_key, speaker=_AIO)
        self.seconds = float(seconds)

    @property
    def shown(self) -> str:
        """The service, as a message may name it."""
        return self._transport.shown

    async def post(self, target: str, form: Mapping[str, Any], *, seconds: float | None = None) -> Form:
        """Ask for something that may have effects, so that it is never sent twice; what is None is left out."""
        body = json.dumps({name: value for name, value in form.items() if value is not None}).encode()
        if len(body) > LONGEST_REQUEST:
            raise InvalidRequest("the request has more bytes than one may have", reason="too_large")
        reply = await self._ask("POST", target, body, seconds=seconds)
        return answers.read_envelope(reply.status, reply.body)

    async def get(self, target: str, *, seconds: float | None = None, **query: str) -> Form:
        """Ask for something that changes nothing."""
        reply = await self._ask("GET", _with_query(target, query), seconds=seconds)
        return answers.read_envelope(reply.status, reply.body)

    async def delete(self, target: str) -> Form:
        """Have something removed."""
        reply = await self._ask("DELETE", target)
        return answers.read_envelope(reply.status, reply.body)

    async def content(self, target: str, *, longest: int = LONGEST_ANSWER, **query: str) -> bytes:
        """Ask for bytes; an answer in JSON is none, whatever its status says.

        Raises:
            RingfenceError: As `get` does; longer than `longest` is no answer.
        """
        reply = await self._ask("GET", _with_query(target, query), longest=longest)
        kind = reply.headers.get("content-type", "").partition(";")[0].strip().lower()
        if reply.status == 200 and kind != "application/json":
            return reply.body
        raise _refusal(reply)

    def close(self) -> None:
        """Close the connections that nobody uses."""
        self._transport.close()

    def look(self, seconds: float) -> str:
        """Return the home directory that the service says it has: whether it is there and well, from any thread.

        Raises:
            RingfenceError: It is not.
        """
        # over a connection of its own: one that was kept may be answered by what no longer takes any other
        reply = self._exchange("GET", "sandbox", None, seconds, LONGEST_ANSWER, Stop(), anew=True)
        home: str = answers.member(answers.read_envelope(reply.status, reply.body), "home_dir", str)
        if not home.startswith("/") or not home.isprintable() or ".." in home.split("/") or len(home) > _LONGEST_HOME:
            raise answers.no_answer("'home_dir'")
        return home

    async def _ask(
        self,
        method: str,
        target: str,
        body: bytes | None = None,
        *,
        seconds: float | None = None,
        longest: int = LONGEST_ANSWER,
    ) -> Reply:
        wait = self.seconds if seconds is None else seconds
        return await awaited(_lane(), lambda stop: self._exchange(method, target, body, wait, longest, stop))

    def _exchange(
        self,
        method: str,
        target: str,
        body: bytes | None,
        seconds: float,
        longest: int,
        stop: Stop,
        *,
        anew: bool = False,
    ) -> Reply:
        return self._transport.exchange(
            method,
            f"/v1/{target}",
            body,
            None if body is None else _JSON,
            seconds=seconds,
            longest=longest,
            stop=stop,
            repeatable=method == "GET" and not anew,
        )


def _with_query(target: str, query: Mapping[str, str]) -> str:
    return f"{target}?{urlencode(query)}" if query else target


def _refusal(reply: Reply) -> RingfenceError:
    """Return what an answer without the content that was asked for says."""
    try:
        answers.read_envelope(reply.status, reply.body)
    except RingfenceError as error:
        missing = reply.status == 404 and error.reason == "bad_answer"
        return InvalidRequest("the AIO service has no such file", reason="not_found") if missing else error
    return answers.no_answer("content", reply.status)
