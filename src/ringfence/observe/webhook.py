"""Events by HTTP POST to one address that the operator named; nothing the other side answers can lead elsewhere."""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from ringfence.observe.settings import check_url
from ringfence.observe.sinks import SinkFailed, SinkRefused, SinkUnready

if TYPE_CHECKING:
    import ssl
    from http.client import HTTPConnection

_LONGEST_HEAD: Final = 65_536
_STATUS = re.compile(rb"HTTP/1\.[01] (\d{3})(?:[ \r])")
# A gateway says so of a service that is down, and a service of itself: the event is not at fault.
_LATER: Final = frozenset({408, 425, 429, 502, 503, 504})


class Webhook:
    """One connection an event, and one deadline for its answer: a side that answers byte by byte gains no time.

    Of the answer only the status counts. No redirect is followed and no proxy of the environment is asked: either
    would let somebody other than the operator choose who reads the events.
    """

    def __init__(self, url: str, *, timeout_ms: int = 5_000, tls: ssl.SSLContext | None = None) -> None:
        """Nothing is sent yet.

        Raises:
            InvalidRequest: `url` is neither https nor on this machine.
        """
        check_url(url, "the webhook's URL")
        parts = urlsplit(url)
        self._secure = parts.scheme == "https"
        self._host = parts.hostname or ""
        self._port = parts.port
        self._target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        self._timeout_seconds = timeout_ms / 1_000
        self._tls = tls
        self._shown = f"{parts.scheme}://{parts.netloc}"  # the path may be the password of the hook

    def send(self, body: bytes, content_type: str) -> None:
        """POST one body; any status from 200 to 299 is taken as thanks."""
        status = self._status_of(body, content_type)
        if 200 <= status < 300:
            return
        if status in _LATER:
            raise SinkUnready(f"{self._shown} answers with status {status}")
        if status >= 500:
            raise SinkFailed(f"{self._shown} answers with status {status}")
        raise SinkRefused(f"{self._shown} answers with status {status}")

    def close(self) -> None:
        """Hold nothing open between events."""

    def _status_of(self, body: bytes, content_type: str) -> int:
        deadline = time.monotonic() + self._timeout_seconds
        connection = self._connection()
        try:
            connection.request(
                "POST",
                self._target,
                body,
                {"Content-Type": content_type, "Connection": "close", "User-Agent": "ringfence"},
            )
            return self._read_status(connection, deadline)
        except OSError as error:  # a time-out and a bad certificate are such, too
            raise SinkUnready(f"{self._shown} cannot be reached: {error}") from error
        finally:
            connection.close()

    def _connection(self) -> HTTPConnection:
        from http.client import HTTPConnection, HTTPSConnection

        if self._secure:
            return HTTPSConnection(self._host, self._port, timeout=self._timeout_seconds, context=self._tls)
        return HTTPConnection(self._host, self._port, timeout=self._timeout_seconds)

    def _read_status(self, connection: HTTPConnection, deadline: float) -> int:
        head = b""
        while True:
            remaining = deadline - time.monotonic()
            if remaining <= 0:
                raise TimeoutError("no answer in time")
            connection.sock.settimeout(remaining)
            chunk = connection.sock.recv(4_096)
            head += chunk
            status, head = _final_status(head)
            if status is not None:
                return status
            if not chunk or len(head) > _LONGEST_HEAD:
                raise ConnectionError("it does not answer in HTTP")


def _final_status(head: bytes) -> tuple[int | None, bytes]:
    """Return the first status that is not interim, if it is there; and what is left to look at."""
    while True:
        found = _STATUS.match(head)
        if found is None:
            return None, head
        status = int(found[1])
        if status >= 200:
            return status, head
        _, complete, rest = head.partition(b"\r\n\r\n")
        if not complete:
            return None, head
        head = rest
