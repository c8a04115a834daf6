"""Budgets that an external quota service counts, over HTTP; without its word nothing runs."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from ringfence.budgets import wire
from ringfence.budgets.port import Measured
from ringfence.budgets.reservation import MeterSource, Reservation, Settlement, Usage
from ringfence.budgets.scope import Chain, Scope, check_name
from ringfence.capability.budget import Budget
from ringfence.errors import InvalidRequest, RingfenceError, TimedOut, Unavailable

if TYPE_CHECKING:
    import ssl
    from urllib.request import OpenerDirector

TIMEOUT_SECONDS: Final = 2.0
_ATTEMPTS_TO_SETTLE = 3
_LONGEST_ANSWER = 65_536
_LOOPBACK = ("127.0.0.1", "::1", "localhost")


class RemoteMeter:
    """Implements `BudgetMeter`; it asks for every run, since only the service knows what is bounded."""

    waits = True

    def __init__(
        self,
        url: str,
        *,
        token: str | None = None,
        timeout_seconds: float = TIMEOUT_SECONDS,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        """Nothing is asked yet.

        Raises:
            InvalidRequest: `url` is neither https nor on this machine.
        """
        parts = urlsplit(url)
        if parts.scheme != "https" and not (parts.scheme == "http" and parts.hostname in _LOOPBACK):
            raise InvalidRequest(
                f"the quota service must be reached by https, not {parts.scheme!r}: {parts.hostname!r}",
                reason="invalid_url",
            )
        self._url = url.rstrip("/")
        self._token = token
        self._timeout_seconds = timeout_seconds
        self._tls = tls
        self._opener: OpenerDirector | None = None

    def reserve(self, chain: Chain, amounts: Budget, exec_id: str, *, least: Budget | None = None) -> Reservation:
        """Have the service hold `amounts` for `exec_id`; see `BudgetMeter.reserve`."""
        check_name(exec_id, "the exec_id")
        path, body = wire.reserve_request(chain, amounts, exec_id, least)
        try:
            answer = self._ask(path, body)
            with self._understood():
                return wire.read_reservation(answer, amounts, exec_id, least)
        except (Unavailable, TimedOut):
            # it may hold what nobody will settle: an answer can be lost, or be one that we do not understand
            with contextlib.suppress(RingfenceError):
                self._ask(*wire.release_request(exec_id))
            raise

    def settle(self, reservation: Reservation, used: Usage) -> Settlement:
        """Have the service charge what was used; see `BudgetMeter.settle`."""
        return self._close(wire.settle_request(reservation.exec_id, used), reservation.exec_id, used.source)

    def settling(self, reservation: Reservation, used: Usage) -> None:
        """Return nothing: the service is in no transaction of ours."""
        del reservation, used

    def release(self, reservation: Reservation) -> Settlement:
        """Have the service take all of it back; see `BudgetMeter.release`."""
        return self._close(wire.release_request(reservation.exec_id), reservation.exec_id, MeterSource.COUNTED)

    def recover(self, measured: Measured = lambda _: None) -> tuple[Settlement, ...]:
        """Return nothing: the service itself gives up what nobody settles."""
        del measured
        return ()

    def forget(self, scopes: Iterable[Scope]) -> None:
        """Do nothing: which accounts are over is the service's business."""
        del scopes

    def _close(self, request: tuple[str, dict[str, Any]], exec_id: str, source: MeterSource) -> Settlement:
        attempts_left = _ATTEMPTS_TO_SETTLE
        while True:
            attempts_left -= 1
            try:
                answer = self._ask(*request)
                with self._understood():
                    return wire.read_settlement(answer, exec_id, source)
            except (Unavailable, TimedOut):
                if not attempts_left:
                    raise

    def _ask(self, path: str, body: dict[str, Any]) -> bytes:
        from http.client import HTTPException
        from urllib.error import HTTPError, URLError
        from urllib.request import Request

        headers = {"Content-Type": "application/json", "Accept": "application/json"}
        if self._token is not None:
            headers["Authorization"] = f"Bearer {self._token}"
        request = Request(self._url + path, json.dumps(body).encode(), headers, method="POST")  # noqa: S310
        try:
            with self._opened().open(request, timeout=self._timeout_seconds) as response:
                if response.status != 200:
                    raise self._unavailable(f"it answers with status {response.status}")
                return self._body(response)
        except HTTPError as error:
            with error:
                if error.code == 429:
                    raise wire.read_refusal(self._body(error)) from None
                raise self._unavailable(f"it answers with status {error.code}") from None
        except TimeoutError as error:
            raise self._timed_out() from error
        except URLError as error:
            if isinstance(error.reason, TimeoutError):
                raise self._timed_out() from error
            raise Unavailable(f"the quota service does not answer: {error.reason}", reason="connect_failed") from error
        except (OSError, HTTPException) as error:
            raise self._unavailable(str(error)) from error

    def _body(self, response: Any) -> bytes:
        answer: bytes = response.read(_LONGEST_ANSWER + 1)
        if len(answer) > _LONGEST_ANSWER:
            raise self._unavailable("its answer is too long")
        return answer

    def _opened(self) -> OpenerDirector:
        if self._opener is None:
            from urllib.request import HTTPRedirectHandler, HTTPSHandler, ProxyHandler, build_opener

            class NoRedirect(HTTPRedirectHandler):
                # a redirect would carry the token, and the decision, to somebody else
                def redirect_request(self, *_: Any) -> None:
                    return None

            # no proxy from the environment: whoever sets a variable would decide over budgets
            self._opener = build_opener(ProxyHandler({}), NoRedirect(), HTTPSHandler(context=self._tls))
        return self._opener

    @contextlib.contextmanager
    def _understood(self) -> Iterator[None]:
        try:
            yield
        except ValueError as error:
            raise self._unavailable(f"its answer cannot be used: {error}") from error

    def _unavailable(self, why: str) -> Unavailable:
        return Unavailable(f"the quota service cannot be asked, so nothing runs: {why}")

    def _timed_out(self) -> TimedOut:
        return TimedOut(f"the quota service did not answer within {self._timeout_seconds:g} s", reason="read_timeout")
