"""A journal as one process has it, with what it noted, for tests in which that process dies."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ringfence.clock import SystemClock
from ringfence.database.sqlite import DATABASE_NAME, SqliteDatabase
from ringfence.evidence import records
from ringfence.identifiers import TimeOrdered
from ringfence.journal import store
from ringfence.journal.journal import Journal
from ringfence.journal.noted import Noted
from ringfence.journal.signer import Signer

NAMES = TimeOrdered()


def begun(**members: Any) -> records.Members:
    named = {"exec_id": NAMES.new("ex"), "envelope_id": NAMES.new("ev"), "tool_name": "code_run", "tenant": "local"}
    return {"type": records.BEGIN, "time_ms": 1, "produced_at_ms": 1, **named, **members}


def ended(begin: records.Members) -> records.Members:
    return records.end_by_cancelling(begin, now_ms=2)


class Process:
    """A journal as one process has it, which can also die."""

    def __init__(self, home: Path, **options: Any) -> None:
        self.database = SqliteDatabase.in_home(home)
        noted = Noted(home / DATABASE_NAME, self.database.could_write)
        signer = Signer.in_home(home)
        self.journal = Journal(self.database, lambda: signer, SystemClock(), NAMES, noted=noted, **options)

    async def live(self) -> None:
        """Write so much that the process notes from now on."""
        for _ in range(3):
            begin = begun()
            await self.journal.begin(begin)
            await self.journal.end(ended(begin))

    def die(self) -> None:
        """Let the locks go, as the kernel does, and write nothing more."""
        self.journal._queue.clear()
        self.journal._unfiled.clear()
        self.database.close()


def kept(home: Path) -> list[dict[str, Any]]:
    with SqliteDatabase.in_home(home).reading() as cursor:
        found = [row for log in store.logs(cursor) for row in store.rows(cursor, log.number)]
    return [json.loads(row.text or "{}") for row in found]


def of(exec_id: str, home: Path) -> list[tuple[str, str | None]]:
    return [(record["type"], record.get("reason")) for record in kept(home) if record.get("exec_id") == exec_id]


def slots_of(home: Path) -> Path:
    (slots,) = home.glob(f"{DATABASE_NAME}.begun-*")
    return slots


async def noted_in(process: Process, *, for_good: bool = True) -> records.Members:
    await process.live()
    begin = begun()
    await process.journal.note(begin)
    if for_good:
        await process.journal.on_disk()
    return begin


@pytest.fixture
def unhurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave to the event loop what it is to file, however busy this machine is, so that a process can die first."""
    monkeypatch.setattr("ringfence.journal.disk._OVERDUE_SECONDS", 3600.0)
    monkeypatch.setattr("ringfence.journal.journal._A_MOMENT", 3600.0)
    monkeypatch.setattr("ringfence.journal.journal._TOO_SLOW_FOR_A_LOOP", 3600.0)
