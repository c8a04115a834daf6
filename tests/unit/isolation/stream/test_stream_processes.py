"""Processes at the end of a byte stream, held to what they are held to on every backend."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.contract.test_processes import *  # noqa: F403
from tests.stream_box import BoxBackend

from ringfence.wiring import box
from ringfence.wiring.settings import Settings

pytestmark = [pytest.mark.needs("bwrap"), pytest.mark.timeout(60)]


@pytest.fixture
def isolation(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    """The boxes of this directory, under the name of what builds them."""

    def backend(settings: Settings) -> BoxBackend:
        return BoxBackend(settings.files_home)

    monkeypatch.setattr(box, "bwrap_backend", backend)
    return "bwrap"
