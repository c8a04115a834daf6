"""The door for grants: signatures are checked once per token, everything that can change is checked every time."""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Final

from ringfence.authority.credential import Credential, ProposedCall, require_call, require_time
from ringfence.authority.issuer_key import IssuerKey
from ringfence.errors import Denied
from ringfence.ports import CallRegister, Clock, GrantCodec, RevocationWatcher

MOST_REMEMBERED: Final = 4096


class GrantVerifier:
    """Tells good grants from bad ones; safe to use from any thread."""

    def __init__(
        self,
        *,
        codec: GrantCodec,
        find_key: Callable[[str], IssuerKey | None],
        revocations: RevocationWatcher,
        calls: CallRegister,
        clock: Clock,
    ) -> None:
        """`find_key` returns the trusted key of an id."""
        self._codec = codec
        self._find_key = find_key
        self._revocations = revocations
        self._calls = calls
        self._clock = clock
        self._lock = threading.Lock()
        self._known: OrderedDict[bytes, Credential] = OrderedDict()

    def admit(self, token: str, call: ProposedCall) -> Credential:
        """Return what a token allows `call` now.

        Raises:
            Denied: With the reason that the table of errors has for it; nothing may run.
            Unavailable: The keys are not safe, or the token library is not installed; nothing may run either.
        """
        credential = self._decoded(token)
        self.check(credential, call)
        return credential

    def check(self, credential: Credential, call: ProposedCall) -> None:
        """Check what can have changed since a grant was last looked at; also for grants that were never signed.

        Raises:
            Denied: Revoked, out of its time, made for another call, or its call is over.
        """
        if self._revocations.is_revoked(credential):
            raise _revoked(credential, self._revocations)
        require_time(credential, self._clock.now_ms())
        require_call(credential.grant, call)
        if self._calls.is_closed(credential):
            raise Denied(
                "the call this grant was made for is over", reason="replayed", fix="get a grant for the new call"
            )

    def _decoded(self, token: object) -> Credential:
        if not isinstance(token, str) or not token.isascii():
            raise Denied("the grant cannot be read: it is not text", reason="bad_token")
        # by its hash: what is kept of a token must not be good for presenting it
        name = hashlib.sha256(token.encode()).digest()
        with self._lock:
            known = self._known.get(name)
            if known is not None:
                self._known.move_to_end(name)
                return known
        # outside the lock: whoever presents rubbish does not hold up the others
        credential = self._codec.decode(token, self._find_key)
        with self._lock:
            self._known[name] = credential
            while len(self._known) > MOST_REMEMBERED:
                self._known.popitem(last=False)
        return credential


def _revoked(credential: Credential, revocations: RevocationWatcher) -> Denied:
    if credential.key is not None and not revocations.is_revoked(credential.grant):
        unsigned = Credential(credential.grant, credential.first_expires_at, None, credential.revocation_ids)
        if not revocations.is_revoked(unsigned):
            return Denied("the key that signed the grant was revoked", reason="key_revoked")
    return Denied("the grant was revoked", reason="revoked", fix="get a new grant, if you may have one")
