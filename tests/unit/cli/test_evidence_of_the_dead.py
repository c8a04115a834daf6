"""Whoever looks at the home of a killed process: what was noted is filed, and nothing else changes under an auditor."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.unit.journal.noting import Process, ended, noted_in, unhurried

from ringfence.database.sqlite import DATABASE_NAME
from ringfence.evidence import records
from ringfence.interfaces.cli.evidence import evidence_command as run
from ringfence.journal.signer import key_in_home

__all__ = ["unhurried"]

pytestmark = pytest.mark.usefixtures("unhurried")

TAMPERED = 3


@pytest.fixture
def killed(tmp_path: Path) -> tuple[Path, str]:
    """Return the home of a process that died after it had told a result, and the run's name."""
    home = tmp_path / "home"
    dead = Process(home)

    async def write() -> str:
        begin = await noted_in(dead)
        dead.journal.checkpoint()
        await dead.journal.end(ended(begin))
        exec_id: str = begin["exec_id"]
        dead.die()
        return exec_id

    exec_id = asyncio.run(write())
    return home, exec_id


def test_what_was_told_before_a_kill_is_shown(killed: tuple[Path, str], capsys: pytest.CaptureFixture[str]) -> None:
    home, exec_id = killed
    assert run(["show", exec_id, "--home", str(home)]) == 0
    assert records.END in capsys.readouterr().out


def test_a_copy_without_the_key_is_given_none(killed: tuple[Path, str], tmp_path: Path) -> None:
    home, _ = killed
    copy = tmp_path / "copy"
    shutil.copytree(home, copy, ignore=shutil.ignore_patterns("evidence"))
    run(["list", "--home", str(copy)])
    assert key_in_home(copy) is None
    assert list(copy.glob(f"{DATABASE_NAME}.begun-*"))  # and what is noted stays for who has the key


def _altered(cursor: sqlite3.Connection) -> None:
    cursor.execute("UPDATE journal_record SET body = replace(body, 'code_run', 'code_ruN') WHERE seq = 2")


def _removed(cursor: sqlite3.Connection) -> None:
    cursor.execute("DELETE FROM journal_record WHERE seq = 2")


def _cut(cursor: sqlite3.Connection) -> None:
    cursor.execute("DELETE FROM journal_record WHERE seq >= 3")


def _damaged(cursor: sqlite3.Connection) -> None:
    cursor.execute("UPDATE journal_checkpoint SET frontier = 'none'")


def _no_number(cursor: sqlite3.Connection) -> None:
    cursor.execute("UPDATE journal_record SET hash = 'x' WHERE seq = 1")


@pytest.mark.parametrize(
    ("tamper", "finding"),
    [
        (_altered, "record 2 was altered"),
        (_removed, "record 2 was removed"),
        (_cut, "truncated"),
        (_damaged, "is not what it signs"),
        (_no_number, "record 1 was altered"),
    ],
)
def test_what_was_done_to_the_log_of_a_killed_process_is_found(
    killed: tuple[Path, str],
    tamper: Callable[[sqlite3.Connection], None],
    finding: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    home, _ = killed
    with contextlib.closing(sqlite3.connect(home / DATABASE_NAME)) as database:
        tamper(database)
        database.commit()
    for _ in range(2):
        assert run(["verify", "--home", str(home)]) == TAMPERED
        assert finding in capsys.readouterr().out
