"""The hostile programs of every other box, run through an AIO pool in `ringfence serve --aio`.

A pool believes its services in nothing, so `AIOBackend` gives up most guarantees, whoever the service is. This one is
ours, with real boxes behind it: what its callers' code can do there is what code in those boxes can do.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests import service_process
from tests.security.conftest import Run
from tests.security.test_host_files import *  # noqa: F403
from tests.security.test_kernel_doors import *  # noqa: F403
from tests.security.test_network import *  # noqa: F403
from tests.security.test_privileges import *  # noqa: F403
from tests.security.test_processes import *  # noqa: F403
from tests.security.test_read_only import *  # noqa: F403

from ringfence import AIOSandboxPool, ExecutionRequest, PoolConfig, SandboxManager
from ringfence.errors import IsolationUnavailable
from ringfence.outcome import ExecutionResult, OnOutput

pytestmark = [  # type: ignore[assignment]  # in place of that of each of those modules
    pytest.mark.guarantee(1, 2, 3, 4, 5, 6, 31),
    pytest.mark.needs("native"),
    pytest.mark.timeout(120),
]

NOT_SENT = "what looks like an attack needs a box of class container, and is refused before it is sent to a service"
ELSEWHERE = "the run's directories lie below the home of the service, not at /workspace (G1, G2)"
NOT_NATIVE = "about what a native box alone promises"
NOT_KEPT = {
    "test_no_way_around_the_root_leads_to_the_host": NOT_SENT,
    "test_the_tools_of_the_distribution_fail_as_well": NOT_SENT,
    "test_nothing_leaves_the_box": NOT_SENT,
    "test_no_call_raises_anything": NOT_SENT,
    "test_a_user_database_of_the_host_is_no_use": NOT_SENT,
    "test_files_in_memory_run_but_stay_inside": NOT_SENT,
    "test_the_working_directory_of_the_application_does_not_shine_through": ELSEWHERE,
    "test_inputs_keep_their_content": ELSEWHERE,
    "test_the_host_sees_an_ordinary_id_and_says_so": "nobody here sees the box (G12)",
    "test_natively_not_even_the_init_is_listed": NOT_NATIVE,
    "test_natively_the_guest_cannot_even_name_its_init_in_proc": NOT_NATIVE,
    "test_natively_not_even_the_mode_or_time_of_an_input_can_be_changed": NOT_NATIVE,
    "test_as_root_each_native_run_has_an_id_that_belongs_to_nobody_and_to_no_other_run": NOT_NATIVE,
    "test_mounts_of_a_box_do_not_come_up_on_the_host_where_mounts_are_shared": NOT_NATIVE,
}
"""The tests that cannot hold there, each with the reason; docs/limitations/aio-client.md has them too."""

for name in NOT_KEPT:
    del globals()[name]


def test_what_looks_like_an_attack_is_sent_to_no_service(box: Run) -> None:
    with pytest.raises(IsolationUnavailable, match="aio gives os at most"):
        box("nsenter -t 1 -a true; mount -t proc proc /tmp; mknod /tmp/x b 8 0; losetup -f", language="bash")


@dataclass
class Shared:
    """Implements `Instance`: every run there has a box of its own, so one service is as good as one for each run."""

    base_url: str

    def is_running(self) -> bool:
        return True

    def last_words(self) -> str:
        return ""

    def destroy(self) -> None:
        """The service is everybody's."""


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AIOSandboxPool]:
    with service_process.running(tmp_path_factory.mktemp("service"), "--aio") as service:
        made = AIOSandboxPool(PoolConfig(2, 0), starter=lambda: Shared(service.url), api_key=service.key)
        asyncio.run(made.start())
        yield made
        asyncio.run(made.stop())


@pytest.fixture
def backend() -> str:
    return "aio"


@pytest.fixture
def box(backend: str, pool: AIOSandboxPool, tmp_path_factory: pytest.TempPathFactory) -> Run:
    return make_box(pool, tmp_path_factory.mktemp("home"))


def make_box(pool: AIOSandboxPool, home: Path) -> Run:
    """Run a program in an instance of `pool`, through the public door."""

    def run(program: str, *, on_output: OnOutput | None = None, **options: Any) -> ExecutionResult:
        async def once() -> ExecutionResult:
            async with SandboxManager(aio_pool=pool, home=home, security_mode="permissive", pool_size=0) as manager:
                request = ExecutionRequest(program, **{"timeout": 20, **options})
                return await manager.execute(request, on_output=on_output)

        return asyncio.run(once())

    return run
