"""Attacks on the evidence itself: on who writes it, who recovers it, and who says that it is whole."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.journal_checks import verified

from ringfence.clock import SystemClock
from ringfence.database.sqlite import SqliteDatabase
from ringfence.errors import Unavailable
from ringfence.evidence import records
from ringfence.identifiers import TimeOrdered
from ringfence.journal.journal import Journal
from ringfence.journal.signer import Signer

NAMES = TimeOrdered()
PATIENCE = 10.0


def begun(**members: Any) -> records.Members:
    named = {"exec_id": NAMES.new("ex"), "envelope_id": NAMES.new("ev"), "tool_name": "code_run", "tenant": "local"}
    return {"type": records.BEGIN, "time_ms": 1, "produced_at_ms": 1, **named, **members}


def ended(begin: records.Members) -> records.Members:
    return records.end_by_cancelling(begin, now_ms=2)


def denied() -> records.Members:
    return {**begun(), "type": records.DENIED, "status": "denied", "outcome": "denied"}


def journal_in(home: Path, signer: Callable[[], Signer] | None = None, **options: Any) -> Journal:
    return Journal(
        SqliteDatabase.in_home(home), signer or (lambda: Signer.in_home(home)), SystemClock(), NAMES, **options
    )


async def one_run(journal: Journal) -> None:
    begin = begun()
    await journal.begin(begin)
    await journal.end(ended(begin))


# --- who writes ---


class SlowSigner:
    """A signer that is at it for as long as the test wants."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self.is_signing = threading.Event()
        self.may_end = threading.Event()

    def __call__(self) -> Signer:
        self.is_signing.set()
        assert self.may_end.wait(PATIENCE)
        return Signer.in_home(self._home)


@pytest.mark.parametrize("ending", ["checkpoint", "close"])
async def test_a_run_that_begins_while_the_log_is_signed_does_not_wait_for_ever(tmp_path: Path, ending: str) -> None:
    slow = SlowSigner(tmp_path)
    journal = journal_in(tmp_path, slow)
    await one_run(journal)
    journal._pace = 0.0  # as on a warm machine, where a record is written by its own caller
    signing = threading.Thread(target=getattr(journal, ending))
    signing.start()
    assert await asyncio.to_thread(slow.is_signing.wait, PATIENCE)
    second = asyncio.ensure_future(journal.begin(begun()))
    await asyncio.sleep(0)  # it has found the turn taken
    slow.may_end.set()
    await asyncio.to_thread(signing.join)
    if ending == "checkpoint":
        await asyncio.wait_for(second, PATIENCE)
        journal.close()
    else:
        with pytest.raises(Unavailable):
            await asyncio.wait_for(second, PATIENCE)
    verified(tmp_path)


async def test_what_comes_after_a_slow_journal_was_closed_is_refused_in_our_words(tmp_path: Path) -> None:
    journal = journal_in(tmp_path, in_thread=True)
    await one_run(journal)
    await asyncio.to_thread(journal.close)
    with pytest.raises(Unavailable):
        await journal.begin(begun())


class NearlyFull:
    """A disk with room or without, as the test says."""

    def __init__(self) -> None:
        self.is_full = False

    def __call__(self) -> None:
        if self.is_full:
            raise Unavailable("the disk is nearly full", reason="disk_full")


async def test_endless_denials_do_not_use_up_the_room_that_is_kept_for_ends(tmp_path: Path) -> None:
    disk = NearlyFull()
    journal = journal_in(tmp_path, room=disk)
    begin = begun()
    await journal.begin(begin)
    disk.is_full = True
    with pytest.raises(Unavailable):
        await journal.record(denied())
    await journal.end(ended(begin))
    journal.close()


async def test_an_end_is_written_on_a_full_disk_though_others_want_to_begin_in_that_moment(tmp_path: Path) -> None:
    disk = NearlyFull()
    journal = journal_in(tmp_path, room=disk)
    runs = [begun() for _ in range(3)]
    for begin in runs:
        await journal.begin(begin)
    disk.is_full = True
    wanted = [journal.end(ended(begin)) for begin in runs] + [journal.begin(begun())]
    *ends, began = await asyncio.gather(*wanted, return_exceptions=True)
    assert ends == [None, None, None]
    assert isinstance(began, Unavailable)
    journal.close()


@pytest.mark.parametrize("together", [1, 5])
async def test_somebody_who_watches_and_fails_makes_no_run_fail(tmp_path: Path, together: int) -> None:
    def fail(_: object) -> None:
        raise RuntimeError("can't start new thread")

    journal = journal_in(tmp_path, on_written=fail, on_checkpoint=fail)
    await one_run(journal)
    await asyncio.gather(*(one_run(journal) for _ in range(together)))
    journal.checkpoint()
    journal.close()
    assert sum(report.open_execs for report in verified(tmp_path).reports) == 0
