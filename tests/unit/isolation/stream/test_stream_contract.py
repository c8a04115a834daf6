"""The byte-stream worker, held to what every backend is held to; here its container has no engine."""

from __future__ import annotations

import pytest
from tests.contract.conftest import Bench
from tests.contract.leftovers import STREAM
from tests.contract.test_effects import *  # noqa: F403
from tests.contract.test_ending import *  # noqa: F403
from tests.contract.test_files import *  # noqa: F403
from tests.contract.test_running import *  # noqa: F403
from tests.stream_box import BoxBackend


@pytest.fixture(scope="module", params=[pytest.param("bwrap", marks=pytest.mark.needs("bwrap"))])
def bench(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Bench:
    """One backend, of boxes that bubblewrap builds."""
    return Bench(BoxBackend(tmp_path_factory.mktemp("home")), STREAM)
