"""API keys of a service: made once, shown once, kept as a hash, void at once when revoked."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import os
import re
import secrets
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ringfence.authority.caller import LOCAL, Caller, check_tenant
from ringfence.dataclass import dataclass
from ringfence.errors import InvalidRequest, QuotaExceeded
from ringfence.private_files import replace_file
from ringfence.service.callers import EVERY_TENANT, Access, Principal

if TYPE_CHECKING:
    from ringfence.database.port import Database
    from ringfence.ports import Clock

_KEY: Final = re.compile(r"rfk_([a-z2-7]{12})_([A-Za-z0-9_-]{43})\Z")
_KEY_ID: Final = re.compile(r"[a-z2-7]{12}\Z")
_STAMP: Final = "api-keys.changed"
_LONGEST_TRUST: Final = 5.0
_MOST_NAME: Final = 64
MOST_KEYS: Final = 10_000
_DAY_MS: Final = 24 * 3600 * 1000
_NO_DIGEST: Final = bytes(32)
_COLUMNS: Final = "key_id, tenant, access, name, digest, created_ms, expires_ms, revoked_ms, role"
_OF_THE_INSTANCE: Final = frozenset({Access.ADMIN, Access.OPERATOR, Access.AUDITOR})


@dataclass(frozen=True, slots=True)
class ApiKey:
    """What is kept of a key: enough to recognise it, nothing to call with."""

    key_id: str
    tenant: str
    access: Access
    name: str
    digest: bytes
    created_ms: int
    expires_ms: int | None
    revoked_ms: int | None
    role: str | None = None
    """The agent role of the policy that whoever calls with it acts in."""

    def state(self, now_ms: int) -> str:
        """Return `active`, `expired` or `revoked`."""
        if self.revoked_ms is not None:
            return "revoked"
        return "active" if self.expires_ms is None or now_ms < self.expires_ms else "expired"

    def principal(self) -> Principal:
        """Return whom it speaks for; keys of one name speak for one subject, so that a key can be exchanged."""
        everywhere = self.tenant == EVERY_TENANT or self.access is Access.ADMIN
        tenant = LOCAL if self.tenant == EVERY_TENANT else self.tenant
        return Principal(Caller(tenant, self.name or self.key_id), self.access, self.key_id, everywhere, self.role)

    def to_json(self, now_ms: int) -> dict[str, Any]:
        """Return it as it is listed."""
        return {
            "key_id": self.key_id,
            "kind": "api",
            "state": self.state(now_ms),
            "access": str(self.access),
            "tenant": self.tenant,
            "name": self.name,
            "role": self.role,
            "created_at": self.created_ms,
            "expires_at": self.expires_ms,
        }


class ApiKeys:
    """The keys in one database; every process that shares it sees the same ones."""

    def __init__(self, database: Database, clock: Clock, home: Path, *, shared: bool = False) -> None:
        """Nothing is opened yet; `shared` is for a database that other hosts write to, whose changes no file tells."""
        self._database = database
        self._clock = clock
        self._stamp_path = home / _STAMP
        self._shared = shared
        # protects what is remembered
        self._lock = threading.Lock()
        self._known: dict[str, ApiKey] = {}
        self._stamp: tuple[int, int] | None = None
        self._read_at = float("-inf")

    def create(
        self,
        access: Access,
        *,
        tenant: str = LOCAL,
        name: str = "",
        days: int | None = None,
        role: str | None = None,
    ) -> tuple[ApiKey, str]:
        """Make a key and return it with its text, which nobody can be shown again.

        Raises:
            InvalidRequest: No tenant or key can be called that.
            QuotaExceeded: There are as many as may be.
            Unavailable: It cannot be kept.
        """
        if tenant == EVERY_TENANT:
            if access not in _OF_THE_INSTANCE:
                raise InvalidRequest("an agent's key belongs to one tenant", reason="invalid_name", fix="name it")
        else:
            check_tenant(tenant)
        if access is Access.ADMIN and tenant not in (LOCAL, EVERY_TENANT):
            # who asks for one wants somebody to rule over this tenant, and would let him rule over all of them
            raise InvalidRequest(
                "an admin's key reaches every tenant, so it is made for none",
                reason="invalid_name",
                fix="leave the tenant out, or make keys for operators, auditors and agents of the tenant",
            )
        if len(name) > _MOST_NAME or not name.isprintable() or name != name.strip():
            raise InvalidRequest(f"a name has at most {_MOST_NAME} printable characters", reason="invalid_name")
        if role is not None and (not role or len(role) > _MOST_NAME or not role.isprintable()):
            raise InvalidRequest(f"a role has at most {_MOST_NAME} printable characters", reason="invalid_name")
        now = self._clock.now_ms()
        key_id = base64.b32encode(secrets.token_bytes(8)).decode().lower()[:12]
        text = f"rfk_{key_id}_{secrets.token_urlsafe(32)}"
        expires = None if days is None else now + days * _DAY_MS
        key = ApiKey(key_id, tenant, access, name, _digest(text), now, expires, None, role)
        with self._database.transaction() as cursor:
            (count,) = cursor.execute(
                "SELECT count(*) FROM api_key WHERE revoked_ms IS NULL AND (expires_ms IS NULL OR expires_ms > ?)",
                (now,),
            ).fetchone()
            if count >= MOST_KEYS:  # all of them are in the memory of each service
                raise QuotaExceeded(
                    f"there are {MOST_KEYS} keys already", reason="keys", limit=MOST_KEYS, fix="revoke some first"
                )
            cursor.execute(
                f"INSERT INTO api_key ({_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",  # noqa: S608  names of our columns
                (key_id, tenant, str(access), name, key.digest, now, expires, None, role),
            )
        self._tell_others()
        return key, text

    def all(self) -> tuple[ApiKey, ...]:
        """Return every key, oldest first."""
        with self._database.reading() as cursor:
            rows = cursor.execute(f"SELECT {_COLUMNS} FROM api_key").fetchall()  # noqa: S608  names of our columns
        return tuple(sorted(map(_from_row, rows), key=lambda key: (key.created_ms, key.key_id)))

    def get(self, key_id: str) -> ApiKey | None:
        """Return a key by its id."""
        if _KEY_ID.match(key_id) is None:
            return None
        with self._database.reading() as cursor:
            one = f"SELECT {_COLUMNS} FROM api_key WHERE key_id = ?"  # noqa: S608  names of our columns
            row = cursor.execute(one, (key_id,)).fetchone()
        return None if row is None else _from_row(row)

    def revoke(self, key_id: str) -> ApiKey:
        """Make a key void, for every process and at once; one that is void already stays so.

        Raises:
            InvalidRequest: There is no such key.
            Unavailable: That cannot be kept, and the key is as good as before.
        """
        if self.get(key_id) is None:
            raise InvalidRequest("there is no such API key", reason="not_found")
        with self._database.transaction() as cursor:
            cursor.execute(
                "UPDATE api_key SET revoked_ms = ? WHERE key_id = ? AND revoked_ms IS NULL",
                (self._clock.now_ms(), key_id),
            )
        self._tell_others()
        key = self.get(key_id)
        if key is None:
            raise InvalidRequest("there is no such API key", reason="not_found")
        return key

    def has_active(self) -> bool:
        """Whether anybody could call with a key now."""
        now = self._clock.now_ms()
        return any(key.state(now) == "active" for key in self.all())

    async def find(self, text: str) -> Principal | None:
        """Return whom a key speaks for, if it is valid now; None for every other text.

        Raises:
            Unavailable: Nobody can tell, which lets nobody in.
        """
        found = _KEY.match(text)
        if found is None:
            return None
        key = await self._kept(found[1])
        # an unknown id takes as long as a wrong secret
        matches = hmac.compare_digest(_digest(text), _NO_DIGEST if key is None else key.digest)
        if key is None or not matches or key.state(self._clock.now_ms()) != "active":
            return None
        return key.principal()

    async def is_active(self, key_id: str) -> bool:
        """Whether a key is valid now, for whoever once showed it.

        Raises:
            Unavailable: Nobody can tell.
        """
        key = await self._kept(key_id)
        return key is not None and key.state(self._clock.now_ms()) == "active"

    async def _kept(self, key_id: str) -> ApiKey | None:
        if self._shared:  # others make and revoke keys too, and tell nobody here
            return await asyncio.to_thread(self.get, key_id)
        if not self._is_fresh():
            await asyncio.to_thread(self._read)
        return self._known.get(key_id)

    def _is_fresh(self) -> bool:
        """Whether what is remembered is what is kept: one `stat` tells, and no more than seconds without it."""
        if time.monotonic() - self._read_at > _LONGEST_TRUST:
            return False
        return self._stamp == self._stamp_now()

    def _read(self) -> None:
        with self._lock:
            # the stamp first: a change in between is seen again
            stamp, at = self._stamp_now(), time.monotonic()
            self._known = {key.key_id: key for key in self.all()}
            self._stamp, self._read_at = stamp, at

    def _stamp_now(self) -> tuple[int, int] | None:
        try:
            seen = os.stat(self._stamp_path, follow_symlinks=False)  # noqa: PTH116  once for every request
        except OSError:
            return None
        return seen.st_ino, seen.st_mtime_ns

    def _tell_others(self) -> None:
        # new content under the name is a new inode, which no clock has to be fine enough for
        fd = os.open(self._stamp_path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            replace_file(fd, _STAMP, str(self._clock.now_ms()).encode())
        finally:
            os.close(fd)
        self._read_at = float("-inf")


def told(key: ApiKey) -> dict[str, Any]:
    """Return what a record says about a key that was made or revoked."""
    members: dict[str, Any] = {
        "key_id": key.key_id,
        "kind": "api",
        "access": str(key.access),
        "tenant": LOCAL if key.tenant == EVERY_TENANT else key.tenant,
        "every_tenant": key.tenant == EVERY_TENANT,
        **({} if key.role is None else {"role": key.role}),
    }
    return members if key.expires_ms is None else {**members, "expires_at_ms": key.expires_ms}


def _from_row(row: Sequence[Any]) -> ApiKey:
    return ApiKey(row[0], row[1], Access(row[2]), row[3], bytes(row[4]), *row[5:])


def _digest(text: str) -> bytes:
    """Return what is kept of a key; its secret has 256 random bits, so no slow hash is needed."""
    return hashlib.sha256(text.encode()).digest()
