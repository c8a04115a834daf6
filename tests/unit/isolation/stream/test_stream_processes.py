"""Processes at the end of a byte stream, held to what they are held to on every backend."""

from __future__ import annotations

import pytest
from tests.contract.test_processes import *  # noqa: F403
from tests.stream_box import BoxBackend

from ringfence.wiring import box
from ringfence.wiring.settings import Settings

del isolation  # noqa: F821  theirs names the backends of the contract


@pytest.fixture(
    name="isolation", params=[pytest.param("bwrap", marks=[pytest.mark.needs("bwrap"), pytest.mark.timeout(60)])]
)
def boxes_of_a_stream(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The boxes of this directory, under the name of what builds them."""

    def backend(settings: Settings) -> BoxBackend:
        return BoxBackend(settings.files_home)

    monkeypatch.setattr(box, "bwrap_backend", backend)
    name: str = request.param
    return name
