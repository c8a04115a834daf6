"""A journal in a home of a test's own, and records that nobody ran anything for."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ringfence.clock import SystemClock
from ringfence.database.sqlite import SqliteDatabase
from ringfence.evidence import records
from ringfence.identifiers import TimeOrdered
from ringfence.journal.journal import Journal
from ringfence.journal.signer import Signer

NAMES = TimeOrdered()


@pytest.fixture(autouse=True)
def no_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Close at once what leaves runs open, as many of these do on purpose."""
    monkeypatch.setattr("ringfence.journal.journal._PATIENCE_WITH_ENDS", 0.0)


def begun(**members: Any) -> records.Members:
    """Return the beginning of a run."""
    named = {"exec_id": NAMES.new("ex"), "envelope_id": NAMES.new("ev"), "tool_name": "code_run", "tenant": "local"}
    return {"type": records.BEGIN, "time_ms": 1, "produced_at_ms": 1, **named, **members}


def ended(begin: records.Members) -> records.Members:
    """Return its end."""
    return records.end_by_cancelling(begin, now_ms=2)


def journal_in(home: Path, signer: Callable[[], Signer] | None = None, **options: Any) -> Journal:
    """Open the journal of a home as a process does."""
    return Journal(
        SqliteDatabase.in_home(home), signer or (lambda: Signer.in_home(home)), SystemClock(), NAMES, **options
    )


async def one_run(journal: Journal) -> None:
    """Write down a run from its beginning to its end."""
    begin = begun()
    await journal.begin(begin)
    await journal.end(ended(begin))
