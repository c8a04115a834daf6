"""The API keys of a service, as `ringfence key` makes, lists and revokes them; whether one runs makes no difference."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ringfence.clock import SystemClock
from ringfence.database.address import default_database, open_database
from ringfence.database.sqlite import DATABASE_NAME
from ringfence.interfaces.cli.noting import note
from ringfence.service.callers import Access
from ringfence.service.keys import ApiKeys, told


def create_key(
    home: Path, access: str, *, tenant: str, name: str, days: int | None, role: str | None = None
) -> dict[str, Any]:
    """Make a key and return it with its text, which is shown this once."""
    with _keys(home) as keys:
        made, text = keys.create(Access(access), tenant=tenant, name=name, days=days, role=role)
    note(home, "admin.key_created", told(made))
    return {**made.to_json(SystemClock().now_ms()), "key": text}


def list_keys(home: Path) -> list[dict[str, Any]]:
    """Return the keys of a home, oldest first; looking for them makes no home."""
    if default_database() is None and not (home / DATABASE_NAME).exists():
        return []
    now = SystemClock().now_ms()
    with _keys(home) as keys:
        return [key.to_json(now) for key in keys.all()]


def revoke_key(home: Path, key_id: str) -> dict[str, Any] | None:
    """Make a key void and return it, or nothing where no API key has this id."""
    if default_database() is None and not (home / DATABASE_NAME).exists():
        return None
    with _keys(home) as keys:
        if keys.get(key_id) is None:
            return None
        revoked = keys.revoke(key_id)
    note(home, "admin.key_revoked", told(revoked))
    return revoked.to_json(SystemClock().now_ms())


@contextmanager
def _keys(home: Path) -> Iterator[ApiKeys]:
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    url = default_database()
    database = open_database(home, url)
    try:
        yield ApiKeys(database, SystemClock(), home, shared=url is not None)
    finally:
        database.close()
