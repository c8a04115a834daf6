"""Connections to one service: kept alive, bounded, never led elsewhere; the key is told to it and to nobody else."""

from __future__ import annotations

import http.client
import os
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from ringfence.dataclass import dataclass
from ringfence.errors import InvalidRequest, RingfenceError, TimedOut, Unavailable
from ringfence.version import __version__
from ringfence.wire.connection import CONNECT_SECONDS, Connection, Peer
from ringfence.wire.patience import Overrun
from ringfence.wire.stop import Stop

if TYPE_CHECKING:
    from ringfence.wire.address import Address

MOST_IDLE: Final = 64
BODY_SECONDS: Final = 60.0
_SLOWEST: Final = 64 * 1024
_HEADROOM: Final = 256 * 1024
_PIECE: Final = 64 * 1024


class Dropped(Unavailable):
    """The connection was lost or never made; `sent` says whether the service may have got the request."""

    sent = False


@dataclass(frozen=True, slots=True)
class Speaker:
    """Who is meant to answer, in the words of a message for whom nobody, or somebody else, did."""

    name: str = "a ringfence service"
    starting: str = "'ringfence serve' starts one"


RINGFENCE: Final = Speaker()


@dataclass(frozen=True, slots=True)
class Reply:
    """One whole answer."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class Lines:
    """An answer that goes on, line by line."""

    def __init__(self, status: int, read: Callable[[], bytes], close: Callable[[], None]) -> None:
        """Made by `Transport.lines`."""
        self.status = status
        self._read = read
        self.close = close

    def __iter__(self) -> Iterator[bytes]:
        """Read until the other side ends it."""
        while line := self._read():
            yield line


class Transport:
    """Sends requests, from as many threads as there are callers; each has a connection of its own meanwhile."""

    def __init__(
        self, address: Address, api_key: object = None, *, peer: Peer | None = None, speaker: Speaker = RINGFENCE
    ) -> None:
        """Nothing is connected yet.

        Raises:
            InvalidRequest: The key has characters that no key has.
        """
        self._address = address
        self._peer = peer
        self._speaker = speaker
        self._headers = {"User-Agent": f"ringfence/{__version__}", "Accept-Encoding": "identity"}
        self._headers |= _authorization(api_key)
        self._lock = threading.Lock()
        self._idle: list[Connection] = []
        self._owner = os.getpid()
        self._keeps = True
        self.known = False
        """Whether this service has ever answered."""

    def __repr__(self) -> str:
        """Name the service; the key is nobody's business."""
        return f"Transport({self._address.shown!r})"

    @property
    def shown(self) -> str:
        """The service, as a message may name it."""
        return self._address.shown

    def connect(self) -> None:
        """Make sure that somebody is there, and the right one; what is asked first goes over this connection.

        Raises:
            Unavailable: Nobody is, or somebody else.
        """
        connection = Connection(self._address, self._peer)
        with self._speaking(connection, Stop()), self._lock:
            self._idle.append(connection)

    def exchange(
        self,
        method: str,
        target: str,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        *,
        seconds: float,
        longest: int,
        stop: Stop,
        repeatable: bool = True,
    ) -> Reply:
        """Send one request and take its whole answer.

        What may not be repeated goes over a new connection: one that was kept may have just been closed by the other
        side, and then nobody knows whether it took the request.

        Raises:
            Dropped: There is no connection, or no longer.
            TimedOut: The answer was not there in time.
            Unavailable: It is no answer of a service.
            Stopped: The caller has been told to stop.
        """
        connection = self._take() if repeatable else Connection(self._address, self._peer)
        try:
            with self._speaking(connection, stop):
                patient = connection.patient()
                patient.allow(seconds=seconds, received=longest + _HEADROOM)
                response = self._ask(connection, method, target, body, headers)
                # from here on it has something to say, and no more time than saying it takes
                patient.allow(seconds=BODY_SECONDS + (response.length or 0) / _SLOWEST, received=longest + _HEADROOM)
                reply = Reply(response.status, _headers_of(response), _whole(response, longest))
        except BaseException:
            connection.close()
            raise
        self._give_back(connection, response)
        return reply

    def lines(
        self, target: str, headers: Mapping[str, str] | None = None, *, idle_seconds: float, longest: int, stop: Stop
    ) -> Lines:
        """Open an answer that goes on; each of its lines comes within `idle_seconds` and has at most `longest` bytes.

        Raises:
            As `exchange` does, also while the lines are read.
        """
        connection = Connection(self._address, self._peer)
        try:
            with self._speaking(connection, stop):
                connection.patient().allow(seconds=idle_seconds, received=longest + _HEADROOM)
                response = self._ask(connection, "GET", target, None, headers)
        except BaseException:
            connection.close()
            raise

        def read() -> bytes:
            with self._speaking(connection, stop):
                connection.patient().allow(seconds=idle_seconds, received=longest + _HEADROOM)
                line = response.readline(longest + 1)
                if len(line) > longest:
                    raise Overrun("a line does not end")
                return line

        return Lines(response.status, read, connection.close)

    def close(self) -> None:
        """Close what nobody uses; whoever asks again connects for this once."""
        self._keeps = False
        with self._lock:
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    # --- one exchange ---

    def _ask(
        self,
        connection: Connection,
        method: str,
        target: str,
        body: bytes | None,
        headers: Mapping[str, str] | None,
    ) -> http.client.HTTPResponse:
        response = connection.ask(method, self._address.prefix + target, body, {**self._headers, **(headers or {})})
        self.known = True
        if 300 <= response.status < 400:
            # whoever is named there would be given the key
            raise self._bad(f"with a redirect (status {response.status}), which is not followed")
        return response

    @contextmanager
    def _speaking(self, connection: Connection, stop: Stop) -> Iterator[None]:
        """Connect where that is needed, and turn every failure into one of ours."""
        try:
            with stop.watching(connection.patient()):
                yield
        except Overrun:
            raise self._bad("with more than was asked for, and does not end") from None
        except (http.client.RemoteDisconnected, http.client.IncompleteRead) as error:
            raise self._dropped("closed the connection before its answer was there", sent=True) from error
        except http.client.HTTPException as error:
            raise self._bad(f"not in HTTP as it is written ({type(error).__name__})") from error
        except TimeoutError as error:
            raise self._late(sent=connection.asked) from error
        except OSError as error:
            raise self._failed(error, sent=connection.asked) from error

    # --- the pool ---

    def _take(self) -> Connection:
        with self._lock:
            if self._owner != os.getpid():  # the connections are the parent's, who goes on using them
                self._idle, self._owner = [], os.getpid()
            while self._idle:
                connection = self._idle.pop()
                if connection.is_quiet():
                    return connection
                connection.close()
        return Connection(self._address, self._peer)

    def _give_back(self, connection: Connection, response: http.client.HTTPResponse) -> None:
        with self._lock:
            reusable = self._keeps and not response.will_close and connection.sock is not None
            if reusable and len(self._idle) < MOST_IDLE:
                self._idle.append(connection)
                return
        connection.close()

    # --- what went wrong ---

    def _bad(self, how: str) -> Unavailable:
        return Unavailable(
            f"{self.shown} answers {how}",
            reason="bad_answer",
            fix=f"see that the address is that of {self._speaker.name}",
        )

    def _dropped(self, what: str, *, sent: bool) -> Dropped:
        dropped = Dropped(
            f"{self.shown} {what}",
            reason="connect_failed",
            fix=f"see that the service runs there: {self._speaker.starting}",
        )
        dropped.sent = sent
        return dropped

    def _late(self, *, sent: bool) -> TimedOut:
        if sent:
            return TimedOut(f"{self.shown} did not answer in time", reason="read_timeout")
        return TimedOut(f"{self.shown} took no connection within {CONNECT_SECONDS:g} s", reason="connect_timeout")

    def _failed(self, error: OSError, *, sent: bool) -> RingfenceError:
        if isinstance(error, socket.gaierror):
            return Unavailable(f"the name of {self.shown} could not be resolved", reason="name_resolution")
        if type(error).__module__ == "ssl":
            return Unavailable(
                f"{self.shown} cannot be trusted: {getattr(error, 'verify_message', '') or 'no TLS as it should be'}",
                reason="bad_answer",
                fix="give the service a certificate that this machine trusts (SSL_CERT_FILE names more of them)",
            )
        if sent:
            return self._dropped("lost the connection", sent=True)
        return self._dropped(f"takes no connection: {error.strerror or error}", sent=False)


def _authorization(api_key: object) -> dict[str, str]:
    if api_key is None:
        return {}
    if (
        not isinstance(api_key, str)
        or not api_key
        or not api_key.isascii()
        or not api_key.isprintable()
        or " " in api_key
    ):
        raise InvalidRequest("api_key is not a key", reason="invalid_value", fix="see 'ringfence key create'")
    return {"Authorization": f"Bearer {api_key}"}


def _headers_of(response: http.client.HTTPResponse) -> dict[str, str]:
    return {name.lower(): value for name, value in response.getheaders()}


def _whole(response: http.client.HTTPResponse, longest: int) -> bytes:
    if response.length is not None and response.length > longest:
        raise Overrun("the answer announces more than was asked for")
    if response.length is None and not response.chunked:
        raise http.client.HTTPException("nobody could tell whether the answer is whole")
    pieces: list[bytes] = []
    size = 0
    while piece := response.read(_PIECE):
        pieces.append(piece)
        size += len(piece)
        if size > longest:
            raise Overrun("the answer does not end")
    if response.length:  # it ended before what it had announced was there
        raise http.client.IncompleteRead(b"", response.length)
    return b"".join(pieces)
