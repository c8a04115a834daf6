"""Which calls are open and which are over, on disk: a grant used up is refused after a restart and by every process."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ringfence.errors import Denied, QuotaExceeded

if TYPE_CHECKING:
    from ringfence.authority.credential import Credential
    from ringfence.database.port import Cursor, Database
    from ringfence.ports import Clock

_SWEEP_EVERY: Final = 256
_OPEN = """
    INSERT INTO grant_call (tenant, fingerprint, forget_at, spent, closed) VALUES (?, ?, ?, 0, 0)
    ON CONFLICT DO NOTHING
"""
_FOUND = "SELECT forget_at, spent, closed FROM grant_call WHERE tenant = ? AND fingerprint = ?"


class CallsInDatabase:
    """Implements `ports.CallRegister`; every step is durable before it returns, and nothing is admitted without."""

    def __init__(self, database: Database, clock: Clock) -> None:
        """Count in `database`, which everybody who accepts the same grants must share."""
        self._database = database
        self._clock = clock
        self._now = 0
        self._opened = 0

    def spend(self, credential: Credential) -> None:
        """Count one operation of the grant's call; see `CallRegister.spend`.

        Raises:
            QuotaExceeded: The grant allows no more.
            Denied: The call is closed: the grant is replayed.
            Unavailable: It could not be written, so the operation may not be carried out.
        """
        most = credential.grant.budget.calls
        with self._database.transaction() as cursor:
            spent, closed = self._open(cursor, credential)
            allowed = not closed and not (isinstance(most, int) and spent >= most)
            if allowed:
                cursor.execute(
                    "UPDATE grant_call SET spent = spent + 1 WHERE tenant = ? AND fingerprint = ?", _name(credential)
                )
        # after the transaction: how long the call must be remembered is kept even where it is refused
        if closed:
            raise Denied("the call this grant was made for is over", reason="replayed")
        if not allowed:
            raise QuotaExceeded(f"the grant allows {most} operations in its call", reason="calls", limit=int(most or 0))

    def close(self, credential: Credential) -> None:
        """End the grant's call, whether or not anything was spent in it.

        Raises:
            Unavailable: It could not be written; the call is still open.
        """
        with self._database.transaction() as cursor:
            self._open(cursor, credential)
            cursor.execute("UPDATE grant_call SET closed = 1 WHERE tenant = ? AND fingerprint = ?", _name(credential))

    def is_closed(self, credential: Credential) -> bool:
        """Whether the grant's call is over.

        Raises:
            Unavailable: Nobody can tell.
        """
        # in the turn of those who write: another process may be closing it right now
        with self._database.transaction() as cursor:
            found = cursor.execute(_FOUND, _name(credential)).fetchone()
        return found is not None and bool(found[2])

    def _open(self, cursor: Cursor, credential: Credential) -> tuple[int, bool]:
        """Return how much was spent in the call and whether it is closed."""
        name = _name(credential)
        if cursor.execute(_OPEN, (*name, credential.first_expires_at)).rowcount:
            self._sweep(cursor, name)
        forget_at, spent, closed = cursor.execute(_FOUND, name).fetchone()
        # as it was issued: whoever holds it with less taken away could present it after the narrowed one expired
        if credential.first_expires_at > forget_at:
            cursor.execute(
                "UPDATE grant_call SET forget_at = ? WHERE tenant = ? AND fingerprint = ?",
                (credential.first_expires_at, *name),
            )
        return spent, bool(closed)

    def _sweep(self, cursor: Cursor, but: tuple[str, str]) -> None:
        """Forget calls whose grants have expired as they were issued, now and then; never the one just opened."""
        if self._opened % _SWEEP_EVERY == 0:
            self._now = max(self._now, self._clock.now_ms())
            cursor.execute(
                "DELETE FROM grant_call WHERE forget_at <= ? AND NOT (tenant = ? AND fingerprint = ?)",
                (self._now, *but),
            )
        self._opened += 1


def _name(credential: Credential) -> tuple[str, str]:
    return credential.grant.tenant, credential.grant.decision_key_fingerprint
