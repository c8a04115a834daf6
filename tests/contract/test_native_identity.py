"""As root every native run has a host uid of its own, whichever number it is."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

from ringfence.authority.profile import Isolation
from ringfence.isolation.linux.view import GUEST_ID
from ringfence.isolation.native.backend import NativeBackend
from ringfence.isolation.native.identity import RANGE
from ringfence.ports import WorkerSpec
from ringfence.wiring.box import make_backend
from ringfence.wiring.settings import Settings

pytestmark = [pytest.mark.needs("native"), pytest.mark.needs("root")]


@pytest.fixture
def backend(tmp_path: Path) -> Iterator[NativeBackend]:
    made = make_backend(Settings(home=tmp_path, isolation=Isolation.NATIVE))
    assert isinstance(made, NativeBackend)
    yield made
    made.close()


# the first, the one whose host offset is the guest's own id, and the wrap-around
@pytest.mark.parametrize("first", [0, GUEST_ID - 2, RANGE - 3])
def test_every_number_gives_a_worker_with_an_id_of_its_own(backend: NativeBackend, first: int) -> None:
    backend._counter = itertools.count(first)
    workers = [backend.start(WorkerSpec()) for _ in range(4)]
    try:
        assert len({worker.layers.host_uid for worker in workers}) == 4
        assert min(worker.layers.host_uid for worker in workers) > 65_535
    finally:
        for worker in workers:
            worker.discard()
