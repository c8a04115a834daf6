"""What a caller was answered under an idempotency key, for whatever is not an execution: table `service_answer`.

A row is there before anything of the request happens, and has the answer before the caller does. So a request whose
row has no answer is never carried out again: it is under way, or was lost with the service that had begun it.
"""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any, Final

from ringfence.dataclass import dataclass
from ringfence.errors import InvalidRequest, Overloaded
from ringfence.service.exec_store import KEPT_MS, key_digest

if TYPE_CHECKING:
    from ringfence.database.port import Database

MOST_KEYS: Final = 10_000
"""How many keys of a tenant stand for something at a time."""
MOST_BYTES: Final = 256 * 1024 * 1024
MOST_ANSWER_BYTES: Final = 8 * 1024 * 1024
_ADVICE_SECONDS: Final = 60


@dataclass(frozen=True, slots=True)
class Kept:
    """One answer as it was given."""

    status: int
    headers: tuple[tuple[str, str], ...]
    body: bytes


@dataclass(frozen=True, slots=True)
class Claim:
    """A request that is to be carried out once: whose it is, by which key, and what it asks for."""

    tenant: str
    key: str
    digest: str


def claim_for(tenant: str, key: str, *asked: str | bytes) -> Claim:
    """Return the claim of a request; `asked` is all that makes it another one."""
    parts = [hashlib.sha256(part.encode() if isinstance(part, str) else part).hexdigest() for part in asked]
    return Claim(tenant, key_digest(key), hashlib.sha256(json.dumps(parts).encode()).hexdigest())


class AnswerStore:
    """The table in a database that other processes share; every method may block."""

    def __init__(self, database: Database) -> None:
        """Nothing is opened yet."""
        self._database = database

    def begin(self, claim: Claim, now_ms: int) -> Kept | None:
        """Take the key for this request, durably; or return the answer that it stands for already.

        Raises:
            InvalidRequest: The key stands for another request, or for one that has no answer.
            Overloaded: The tenant has as many keys as it may.
            Unavailable: It cannot be kept, so nothing may happen.
        """
        with self._database.transaction() as cursor:
            cursor.execute("DELETE FROM service_answer WHERE created_ms <= ?", (now_ms - KEPT_MS,))
            row = cursor.execute(
                "SELECT digest, status, headers, body FROM service_answer WHERE tenant = ? AND key_digest = ?",
                (claim.tenant, claim.key),
            ).fetchone()
            if row is not None:
                return _known(row, claim)
            count, size = cursor.execute(
                "SELECT count(*), coalesce(sum(size), 0) FROM service_answer WHERE tenant = ?", (claim.tenant,)
            ).fetchone()
            if count >= MOST_KEYS or size >= MOST_BYTES:
                raise Overloaded(
                    "as many idempotency keys of this tenant as may stand for something",
                    reason="idempotency_keys",
                    limit=MOST_KEYS,
                    retry_after_seconds=_ADVICE_SECONDS,
                    fix="a key is given back a day after its use; leave it out where nothing is sent twice",
                )
            cursor.execute(
                "INSERT INTO service_answer (tenant, key_digest, digest, created_ms, size) VALUES (?, ?, ?, ?, 0)",
                (claim.tenant, claim.key, claim.digest, now_ms),
            )
        return None

    def answered(self, claim: Claim, kept: Kept) -> None:
        """Keep the answer, durably; one that is too large is answered once and not again."""
        if len(kept.body) > MOST_ANSWER_BYTES:
            return
        with self._database.transaction() as cursor:
            cursor.execute(
                "UPDATE service_answer SET status = ?, headers = ?, body = ?, size = ? "
                "WHERE tenant = ? AND key_digest = ?",
                (kept.status, json.dumps(kept.headers), kept.body, len(kept.body), claim.tenant, claim.key),
            )

    def forget(self, claim: Claim) -> None:
        """Give the key back: nothing happened, and the same request may be taken later."""
        with self._database.transaction() as cursor:
            cursor.execute("DELETE FROM service_answer WHERE tenant = ? AND key_digest = ?", (claim.tenant, claim.key))


def mismatch() -> InvalidRequest:
    """Return the refusal of a key that stands for another request."""
    return InvalidRequest(
        "this Idempotency-Key was used for another request within the last 24 hours",
        reason="idempotency_mismatch",
        fix="use a new key for a new request",
    )


def unanswered() -> InvalidRequest:
    """Return the refusal of a request that was begun, and of which there is no answer to give."""
    return InvalidRequest(
        "the request of this key was begun, and its answer is not known: it is not carried out again",
        reason="unanswered",
        fix="look at what there is of it; a new key carries it out anew",
    )


def _known(row: Any, claim: Claim) -> Kept:
    digest, status, headers, body = row
    if digest != claim.digest:
        raise mismatch()
    if status is None:
        raise unanswered()
    return Kept(status, tuple((name, value) for name, value in json.loads(headers)), bytes(body))
