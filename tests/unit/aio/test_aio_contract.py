"""Runs in an AIO service, held to what every backend is held to, but for what no AIO service keeps.

The service is one with an empty `/workspace`: in one without, a run has its directories elsewhere, and a contract that
names `/workspace` has nothing to hold it to.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.aio_services import Services
from tests.contract.conftest import Bench
from tests.contract.test_effects import *  # noqa: F403
from tests.contract.test_ending import *  # noqa: F403
from tests.contract.test_files import *  # noqa: F403
from tests.contract.test_running import *  # noqa: F403

from ringfence.isolation.aio.backend import AIOBackend
from ringfence.isolation.aio.binding import PoolConfig
from ringfence.isolation.aio.pool import AIOSandboxPool
from ringfence.workspaces.session import SessionWorkspace

NOT_SEALED = "nobody here builds, sees or ends the box (G12)"
NOT_BOUNDED = "memory, processes, disk and inodes are bounded by nobody there (G7)"
NOT_ITS_VIEW = "the user, the home directory and the other names of a workspace are the image's (G1, G2)"
NOT_TOLD = "cpu time, memory and processes of a run are not told, and a signal is told as an exit code (G13)"
NOT_PARKED = "there is no worker that waits: packages and preloads cannot be brought along"
COUNTED_THERE = "time is counted from the request on, and an interpreter starts in it"
LOST_TOGETHER = "too many artifacts are lost together"
NOT_KEPT = {
    "test_a_worker_is_sealed_and_seen_before_it_is_given_anything": NOT_SEALED,
    "test_a_parked_worker_that_is_discarded_is_gone": NOT_SEALED,
    "test_a_running_worker_that_is_discarded_is_gone": NOT_SEALED,
    "test_nothing_is_left_of_any_run": NOT_SEALED,
    "test_another_worker_starts_after_whatever_made_the_last_was_killed": NOT_SEALED,
    "test_a_worker_that_died_while_parked_is_lost_and_not_the_guests_failure": NOT_SEALED,
    "test_a_worker_that_dies_while_its_beginning_is_written_is_lost_and_not_the_guests_failure": NOT_SEALED,
    "test_what_a_cancelled_run_had_said_comes_with_the_cancellation": "what it had said there is nobody's any more",
    "test_a_box_without_a_route_has_no_destinations_and_that_is_all": "an AIO service has a network (G3)",
    "test_memory_is_limited": NOT_BOUNDED,
    "test_processes_are_limited": NOT_BOUNDED,
    "test_a_text_that_is_too_much_to_read_is_the_guests_failure_also_before_it_starts": NOT_BOUNDED,
    "test_cpu_time_is_limited_over_all_processes": NOT_BOUNDED,
    "test_open_files_and_the_size_of_one_are_limited": NOT_BOUNDED,
    "test_the_disk_limit_holds_wherever_the_guest_writes": NOT_BOUNDED,
    "test_the_guest_finds_itself_in_its_workspace": NOT_ITS_VIEW,
    "test_other_layouts_names_lead_to_the_same_places": NOT_ITS_VIEW,
    "test_files_lie_in_the_working_directory_and_belong_to_the_guest": NOT_ITS_VIEW,
    "test_inputs_can_be_read_and_nothing_else": NOT_ITS_VIEW,
    "test_nothing_of_one_run_is_seen_by_the_next": NOT_ITS_VIEW,
    "test_artifacts_are_taken_over_with_their_digests": NOT_ITS_VIEW,
    "test_files_written_are_what_changed_in_work_and_artifacts": NOT_ITS_VIEW,
    "test_what_could_not_be_collected_was_still_written": NOT_ITS_VIEW,
    "test_what_is_kept_of_a_run_is_what_the_guest_left_beside_what_is_ours": NOT_ITS_VIEW,
    "test_use_is_reported": NOT_TOLD,
    "test_memory_cpu_and_processes_are_near_what_was_used": NOT_TOLD,
    "test_a_signal_the_guest_dies_of_is_reported": NOT_TOLD,
    "test_modules_are_preloaded_only_where_asked_for": NOT_PARKED,
    "test_a_package_environment_is_shown_to_those_who_asked": NOT_PARKED,
    "test_a_text_is_read_without_anything_of_the_guests": NOT_PARKED,
    "test_a_preload_that_cannot_be_shared_is_a_wrong_request": NOT_PARKED,
    "test_a_timeout_keeps_what_was_said_before_it": COUNTED_THERE,
    "test_files_of_a_killed_guest_are_still_there": COUNTED_THERE,
    "test_artifacts_beyond_their_limit_are_named_and_not_read": LOST_TOGETHER,
    "test_more_artifacts_than_allowed_are_named_and_the_run_is_marked_while_work_is_not_counted": NOT_ITS_VIEW,
    "test_every_language_runs": "TypeScript is not run there",
}
"""The tests of the contract that cannot hold, each with the reason; docs/limitations/aio-client.md has them too."""

for name in NOT_KEPT:
    del globals()[name]


@pytest.fixture(scope="module", params=[pytest.param("aio", marks=pytest.mark.needs("bwrap"))])
def bench(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    """A pool of services with an empty /workspace, each of which is made for one run or session."""
    services = Services(tmp_path_factory.mktemp("services"), has_workspace=True)
    home = tmp_path_factory.mktemp("home")
    backend = AIOBackend(
        AIOSandboxPool(PoolConfig(4, 0), starter=services),
        lambda name, tenant: SessionWorkspace.create(home, name, tenant=tenant),
        owns_pool=True,
    )
    yield Bench(backend, "aio")
    backend.close()
