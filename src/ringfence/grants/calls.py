"""Which calls are open and which are over, in memory: a grant cannot outlive its call within one process."""

from __future__ import annotations

import threading

from ringfence.authority.credential import Credential
from ringfence.dataclass import dataclass
from ringfence.errors import Denied, QuotaExceeded
from ringfence.ports import Clock

_FIRST_SWEEP = 1024


@dataclass(slots=True)
class _Call:
    forget_at: int = 0
    spent: int = 0
    closed: bool = False


class CallsInMemory:
    """Implements `ports.CallRegister`; safe to use from any thread."""

    def __init__(self, clock: Clock) -> None:
        """No call is known yet."""
        self._clock = clock
        self._lock = threading.Lock()
        self._calls: dict[tuple[str, str], _Call] = {}
        self._now = 0
        self._sweep_at = _FIRST_SWEEP

    def spend(self, credential: Credential) -> None:
        """Count one operation of the grant's call; the first opens it.

        Grants made from one another by narrowing share the count, so that handing on halves of a grant gives no more
        than the whole.

        Raises:
            QuotaExceeded: The grant allows no more.
            Denied: The call is closed: the grant is replayed.
        """
        most = credential.grant.budget.calls
        with self._lock:
            call = self._open(credential)
            if call.closed:
                raise Denied("the call this grant was made for is over", reason="replayed")
            if isinstance(most, int) and call.spent >= most:
                raise QuotaExceeded(f"the grant allows {most} operations in its call", reason="calls", limit=most)
            call.spent += 1

    def close(self, credential: Credential) -> None:
        """End the grant's call, whether or not anything was spent in it."""
        with self._lock:
            self._open(credential).closed = True

    def is_closed(self, credential: Credential) -> bool:
        """Whether the grant's call is over."""
        with self._lock:
            call = self._calls.get(_name(credential))
            return call is not None and call.closed

    def _open(self, credential: Credential) -> _Call:
        name = _name(credential)
        call = self._calls.get(name)
        if call is None:
            self._sweep()
            call = self._calls[name] = _Call()
        # as it was issued: whoever holds it with less taken away could present it after the narrowed one expired
        call.forget_at = max(call.forget_at, credential.first_expires_at)
        return call

    def _sweep(self) -> None:
        """Forget calls whose grants have expired as they were issued; a clock set back brings none of them back."""
        if len(self._calls) < self._sweep_at:
            return
        self._now = max(self._now, self._clock.now_ms())
        self._calls = {name: call for name, call in self._calls.items() if call.forget_at > self._now}
        self._sweep_at = max(_FIRST_SWEEP, 2 * len(self._calls))


def _name(credential: Credential) -> tuple[str, str]:
    return credential.grant.tenant, credential.grant.decision_key_fingerprint
