"""The byte-stream worker, held to what every backend is held to; here its container has no engine."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.contract.conftest import Bench
from tests.contract.test_effects import *  # noqa: F403
from tests.contract.test_ending import *  # noqa: F403
from tests.contract.test_files import *  # noqa: F403
from tests.contract.test_running import *  # noqa: F403
from tests.stream_box import BoxBackend

pytestmark = [pytest.mark.needs("bwrap"), pytest.mark.timeout(60)]


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    """One backend, of boxes that bubblewrap builds."""
    yield Bench(BoxBackend(tmp_path_factory.mktemp("home")))
