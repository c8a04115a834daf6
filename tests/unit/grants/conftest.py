"""A home with one issuer key, new for every test."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.unit.grants.desk import Desk, StillClock


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    made = Desk(tmp_path / "home", StillClock())
    made.keys.create()
    return made
