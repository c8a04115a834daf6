"""A home whose evidence key was changed: what the old one signed is proven by the old one, and never by the new."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from tests.unit.journal.noting import Process

from ringfence.interfaces.cli.evidence import evidence_command
from ringfence.journal.signer import KEY_FILE, key_in_home

PROVEN, TAMPERED = 0, 3


def lived_in(home: Path) -> str:
    """Have a process write in a home, and return the key it was signed with."""
    process = Process(home)
    asyncio.run(process.live())
    process.journal.close()
    key = key_in_home(home)
    assert key is not None
    return key.text()


def test_after_a_change_of_the_key_both_prove_the_home_and_neither_does_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    old = lived_in(tmp_path)
    (tmp_path / "evidence" / KEY_FILE).rename(tmp_path / "old.key")
    new = lived_in(tmp_path)
    home = ["--home", str(tmp_path)]
    assert evidence_command(["verify", *home, "--key", old, "--key", new]) == PROVEN
    for alone in (["--key", new], ["--key", old], []):
        assert evidence_command(["verify", *home, *alone]) == TAMPERED
        assert "no key that is known here signed this note" in capsys.readouterr().out
