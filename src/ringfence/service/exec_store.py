"""What was promised and has not begun, and which idempotency key stands for which execution: table `service_exec`.

A row holds the request only until the execution is over: it is content, and evidence is elsewhere. Whether a promised
execution has begun is what the journal says, never what this table says, so a run is never begun twice.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final, NamedTuple

from ringfence.budgets.owner import Owner, announce, is_over, this_process
from ringfence.dataclass import dataclass
from ringfence.errors import InvalidRequest, Overloaded
from ringfence.journal import store as journal

if TYPE_CHECKING:
    from ringfence.database.port import Cursor, Database

KEPT_MS: Final = 24 * 3600 * 1000
"""How long a key stands for its execution."""
MOST_KEYS: Final = 1_000_000
"""How many keys of a tenant stand for executions at a time."""
_COUNT_EVERY: Final = 1000
_ADVICE_SECONDS: Final = 60
_QUEUED, _OVER = "queued", "over"
_COLUMNS = "exec_id, tenant, key_digest, digest, created_ms, state, owner, request, ending"


@dataclass(frozen=True, slots=True)
class Promised:
    """One execution that somebody was told will run, or that a key stands for."""

    exec_id: str
    tenant: str
    key_digest: str | None
    digest: str
    created_ms: int
    request: str | None = None
    """Who asked for what, as long as it is not over."""
    ending: str | None = None
    """How it ended, where the journal does not say: it was refused, or cancelled before it began."""
    is_over: bool = False


class Recovered(NamedTuple):
    """What whoever died had promised."""

    to_run: tuple[Promised, ...]
    """Those that have not begun."""
    begun: tuple[str, ...]
    """Those that had: they are over, however they ended."""


def key_digest(key: str) -> str:
    """Return what stands for a key in the table: a key may say more about its caller than anybody needs to keep."""
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).hexdigest()


class ExecStore:
    """The table in a database that other processes share; every method may block."""

    def __init__(self, database: Database) -> None:
        """Nothing is opened yet."""
        self._database = database
        self._keys: dict[str, int] = {}

    def promise(self, new: Promised, *, room: bool) -> Promised | None:
        """Keep a promise, durably; return it, or the one that its key stands for already, or None without room.

        Raises:
            InvalidRequest: The key stands for another request.
            Overloaded: The tenant has as many keys as it may.
            Unavailable: It cannot be kept, so nothing was promised.
        """
        with self._database.transaction() as cursor:
            if new.key_digest is not None:
                # a key whose day is over stands for nothing, though its row may still be there
                cursor.execute(
                    "DELETE FROM service_exec WHERE tenant = ? AND key_digest = ? AND created_ms <= ? AND state = ?",
                    (new.tenant, new.key_digest, new.created_ms - KEPT_MS, _OVER),
                )
                known = _one(cursor, "tenant = ? AND key_digest = ?", new.tenant, new.key_digest)
                if known is not None:
                    return _same(known, new)
            if not room:
                return None
            if new.key_digest is not None:
                self._require_few(cursor, new.tenant)
            owner = this_process()
            announce(cursor, owner)
            cursor.execute(
                f"INSERT INTO service_exec ({_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (
                    new.exec_id, new.tenant, new.key_digest, new.digest, new.created_ms,
                    _QUEUED, _shown(owner), new.request, None,
                ),
            )  # fmt: skip
        return new

    def over(self, exec_id: str, ending: str | None) -> None:
        """Forget what was asked for: it has ended, and its key stands for how."""
        with self._database.transaction() as cursor:
            _end(cursor, exec_id, ending)

    def find(self, exec_id: str) -> Promised | None:
        """Return a promise by the name of its execution."""
        with self._database.reading() as cursor:
            return _one(cursor, "exec_id = ?", exec_id)

    def recover(self, now_ms: int) -> Recovered:
        """Take over what processes that are gone had promised, and forget what is older than a day."""
        owner = this_process()
        left: list[Promised] = []
        begun: list[str] = []
        with self._database.transaction() as cursor:
            announce(cursor, owner)
            for promised, whose in _queued(cursor):
                if whose is not None and not is_over(cursor, whose):
                    continue
                if journal.exec_by_id(cursor, promised.exec_id) is not None:
                    _end(cursor, promised.exec_id, None)
                    begun.append(promised.exec_id)
                    continue
                cursor.execute("UPDATE service_exec SET owner = ? WHERE exec_id = ?", (_shown(owner), promised.exec_id))
                left.append(promised)
            self._forget(cursor, now_ms)
        return Recovered(tuple(left), tuple(begun))

    def forget_old(self, now_ms: int) -> None:
        """Forget what ended and is older than a day."""
        with self._database.transaction() as cursor:
            self._forget(cursor, now_ms)

    def release(self) -> None:
        """Leave what has not begun to whoever comes next."""
        with self._database.transaction() as cursor:
            cursor.execute(
                "UPDATE service_exec SET owner = '' WHERE state = ? AND owner = ?", (_QUEUED, _shown(this_process()))
            )

    def close(self) -> None:
        """Let go of the database."""
        self._database.close()

    def _require_few(self, cursor: Cursor, tenant: str) -> None:
        """Refuse a tenant one key too many; how many it has is counted now and then, and added up in between."""
        known = self._keys.get(tenant)
        if known is None or known % _COUNT_EVERY == 0:
            (known,) = cursor.execute(
                "SELECT count(*) FROM service_exec WHERE tenant = ? AND key_digest IS NOT NULL", (tenant,)
            ).fetchone()
            known = min(known, MOST_KEYS)
        if known >= MOST_KEYS:
            raise Overloaded(
                "as many idempotency keys of this tenant as may stand for something",
                reason="idempotency_keys",
                limit=MOST_KEYS,
                retry_after_seconds=_ADVICE_SECONDS,
                fix="a key is given back a day after its use; leave it out where nothing is sent twice",
            )
        self._keys[tenant] = known + 1

    def _forget(self, cursor: Cursor, now_ms: int) -> None:
        cursor.execute("DELETE FROM service_exec WHERE state = ? AND created_ms <= ?", (_OVER, now_ms - KEPT_MS))


def _same(known: Promised, new: Promised) -> Promised:
    if known.digest != new.digest:
        raise InvalidRequest(
            "this Idempotency-Key was used for another request within the last 24 hours",
            reason="idempotency_mismatch",
            fix="use a new key for a new request",
        )
    return known


def _end(cursor: Cursor, exec_id: str, ending: str | None) -> None:
    # what nobody has a key for is found in the journal, and needs no row unless that knows nothing of it
    cursor.execute(
        "UPDATE service_exec SET state = ?, request = NULL, ending = ? WHERE exec_id = ?", (_OVER, ending, exec_id)
    )
    cursor.execute("DELETE FROM service_exec WHERE exec_id = ? AND key_digest IS NULL AND ending IS NULL", (exec_id,))


def _one(cursor: Cursor, condition: str, *values: str) -> Promised | None:
    row = cursor.execute(f"SELECT {_COLUMNS} FROM service_exec WHERE {condition}", values).fetchone()
    return None if row is None else _promised(row)


def _queued(cursor: Cursor) -> Iterator[tuple[Promised, Owner | None]]:
    rows = cursor.execute(
        f"SELECT {_COLUMNS} FROM service_exec WHERE state = '{_QUEUED}' ORDER BY created_ms, exec_id"
    ).fetchall()
    return ((_promised(row), _owner(row[6])) for row in rows)


def _promised(row: tuple[str, str, str | None, str, int, str, str, str | None, str | None]) -> Promised:
    exec_id, tenant, key, digest, created_ms, state, _, request, ending = row
    return Promised(exec_id, tenant, key, digest, created_ms, request, ending, state == _OVER)


def _shown(owner: Owner) -> str:
    return f"{owner.boot_id} {owner.pid_namespace} {owner.pid} {owner.started}"


def _owner(text: str) -> Owner | None:
    """Return whose promise it is; nobody's is anybody's to keep."""
    words = text.split(" ")
    if len(words) != 4:
        return None
    return Owner(words[0], words[1], int(words[2]), int(words[3]))
