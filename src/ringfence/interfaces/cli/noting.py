"""Writes down what a command changes about the rules themselves: grants, keys, holds, what is kept."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ringfence.journal.journal import Journal


def open_journal(home: Path) -> Journal:
    """Return the journal of `home`, to be closed by the caller."""
    from ringfence import wiring
    from ringfence.clock import SystemClock
    from ringfence.database.address import open_database

    settings = wiring.Settings(home=home, database=wiring.default_database())
    return wiring.make_journal(settings, open_database(home, settings.database), SystemClock())


def keeps_records(home: Path) -> bool:
    """Whether anything was ever written down for `home`; asking makes nothing."""
    from ringfence import wiring
    from ringfence.database.sqlite import DATABASE_NAME

    return wiring.default_database() is not None or (home / DATABASE_NAME).exists()


def note(home: Path, kind: str, members: Mapping[str, Any]) -> None:
    """Write one record of what was done, or is about to be, in `home`.

    Raises:
        Unavailable: It cannot be written down.
    """
    journal = open_journal(home)
    try:
        record(journal, kind, members)
    finally:
        journal.close()


def record(journal: Journal, kind: str, members: Mapping[str, Any]) -> None:
    """Write one record to a journal that is open."""
    import asyncio

    from ringfence.clock import SystemClock
    from ringfence.identifiers import TimeOrdered

    known = {"envelope_id": TimeOrdered().new("ev"), "time_ms": SystemClock().now_ms(), "tenant": "local"}
    asyncio.run(journal.record({"type": kind, **known, **members}))
