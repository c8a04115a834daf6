"""What other boxes bound, keep apart, hand back and say truly, tried through an AIO pool in `ringfence serve --aio`.

The limits are those that the service's own policy sets, as in every AIO service: what a pool asks for is not passed on.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests import service_process
from tests.security import test_between_runs as between
from tests.security import test_forgery as forgery
from tests.security import test_limits as bounds
from tests.security.conftest import PRELUDE, Run
from tests.security.test_aio_boxed import Shared, make_box
from tests.security.test_aio_boxed import backend as backend
from tests.security.test_between_runs import *  # noqa: F403
from tests.security.test_collection import *  # noqa: F403
from tests.security.test_forgery import *  # noqa: F403
from tests.security.test_limits import *  # noqa: F403
from tests.security.test_nothing_left import *  # noqa: F403

from ringfence import AIOSandboxPool, PoolConfig
from ringfence.capability.limits import MIB, Limits
from ringfence.outcome import ExecutionResult, Status

pytestmark = [  # type: ignore[assignment]  # in place of that of each of those modules
    pytest.mark.guarantee(7, 8, 9, 11, 13, 31),
    pytest.mark.needs("native"),
    pytest.mark.timeout(120),
]

TOLD_AS_A_CODE = "what ended a run is told by its exit code alone (G13); that it was ended is tried below"
NOT_LOCAL = "about the host that builds the box itself (G8, G12)"
NOT_KEPT = {
    "test_nothing_that_a_run_left_is_there_in_the_next": "in one instance it is (G9); with one for each, below",
    "test_the_status_is_the_one_the_kernel_saw": "a raised KeyboardInterrupt is 130 there; all others are tried below",
    "test_a_memory_hog_is_ended_or_refused": TOLD_AS_A_CODE,
    "test_memory_that_the_kernel_has_for_a_guest_is_held_too": TOLD_AS_A_CODE,
    "test_memory_that_no_process_shows_is_held_by_the_cgroup_or_cannot_be_had": TOLD_AS_A_CODE,
    "test_a_run_ends_at_its_cpu_time_however_it_spends_it": TOLD_AS_A_CODE,
    "test_a_guest_that_sends_itself_the_signal_of_the_cpu_limit_has_not_reached_it": TOLD_AS_A_CODE,
    "test_little_memory_can_be_locked_and_no_message_queue_made": NOT_LOCAL,
    "test_what_holds_the_memory_is_in_the_result": "nobody here sees what holds it (G12)",
    "test_a_flood_of_output_is_cut_and_the_host_does_not_grow": "its host application is not allowed AIO; tried below",
    "test_too_much_output_does_not_end_the_run": "what the service dropped before it was fetched is in nobody's count",
    "test_natively_the_number_of_files_is_limited": NOT_LOCAL,
    "test_the_result_names_the_box_and_not_what_the_guest_says_it_is": NOT_LOCAL,
    "test_after_hostile_runs_and_a_cancelled_one_the_host_is_as_it_was": NOT_LOCAL,
    "test_a_host_killed_at_any_moment_leaves_no_process": "a run there lives until its time there is over (G8)",
}
"""The tests that cannot hold there, each with the reason; docs/limitations/aio-client.md has them too.

Of the tests of sealing (`test_sealed.py`) none can be: nobody here sees the box (G12).
"""

for name in NOT_KEPT:
    del globals()[name]

ALL_HOGS = bounds.HOGS | bounds.HIDDEN_HOGS | bounds.KERNEL_HOGS
POLICY = """
policies:
  default: {max_memory: 96MB, max_processes: 40, max_disk: 16MB}
"""


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AIOSandboxPool]:
    home = tmp_path_factory.mktemp("service")
    policy = home / "policy.yaml"
    policy.write_text(POLICY)
    with service_process.running(home, "--aio", "--policy", str(policy)) as service:
        made = AIOSandboxPool(PoolConfig(2, 0), starter=lambda: Shared(service.url), api_key=service.key)
        asyncio.run(made.start())
        yield made
        asyncio.run(made.stop())


@pytest.fixture
def box(pool: AIOSandboxPool, tmp_path_factory: pytest.TempPathFactory) -> Run:
    run = make_box(pool, tmp_path_factory.mktemp("home"))

    def there(program: str, *, args: tuple[str, ...] = (), **options: Any) -> ExecutionResult:
        program = program.replace("/etc/shadow", "/etc/passwd")  # with that name it would not be sent
        program = program.replace("truncate(64 << 20)", "truncate(8 << 20)")  # what fills its disk is its last run
        return run(beside(program), args=tuple(map(beside, args)), **options)

    return there


def beside(text: str) -> str:
    """Name the directories of a run as they lie there: beside each other, and not at /workspace."""
    return text.replace("/workspace/work", "../work").replace("/workspace/artifacts", "../artifacts")


@dataclass
class Own(Shared):
    """A service that is one run's alone."""

    service: service_process.ServiceProcess

    def destroy(self) -> None:
        if self.service.process.poll() is None:
            service_process.stop(self.service)


@pytest.fixture
def one_for_each(backend: str, tmp_path: Path) -> Iterator[Run]:
    """Run every program in an instance that is made for it and destroyed after it."""
    first = service_process.start(tmp_path / "first", "--aio")
    service_process.stop(first)
    made: list[Own] = []

    def start() -> Own:
        home = tmp_path / str(len(made))
        shutil.copytree(first.home, home)  # for its key
        service = service_process.start(home, "--aio", key=first.key)
        made.append(Own(service.url, service))
        return made[-1]

    pool = AIOSandboxPool(PoolConfig(1, 0), starter=start, api_key=first.key)
    asyncio.run(pool.start())
    yield make_box(pool, tmp_path / "home")
    asyncio.run(pool.stop())
    assert len(made) == 2
    assert [each.service.process.poll() for each in made] == [0, 0]


def test_nothing_that_a_run_left_is_there_in_the_instance_of_the_next(one_for_each: Run) -> None:
    def ask(program: str) -> str:
        result = one_for_each(f"import sys; sys.argv.append('{{}}')\n{PRELUDE}{program}\nprint(json.dumps(said))")
        assert result.exit_code == 0, result.stderr
        return result.stdout

    assert '"write /workspace/work": "done"' in ask(between.LEAVE)
    assert ask(between.LOOK) == "{}\n"


@pytest.mark.parametrize(("program", "code"), [each for each in forgery.STATUSES if "KeyboardInterrupt" not in each[0]])
def test_the_status_is_the_one_the_kernel_there_saw(box: Run, program: str, code: int) -> None:
    forgery.test_the_status_is_the_one_the_kernel_saw(box, program, code)


@pytest.mark.parametrize("hog", ALL_HOGS)
def test_a_memory_hog_is_ended_there_and_is_no_success(box: Run, hog: str) -> None:
    result = box(ALL_HOGS[hog])
    assert (result.status, result.killed_by) in {(Status.KILLED, "unknown"), (Status.FAILED, None)}, result


@pytest.mark.parametrize("burner", set(bounds.BURNERS) - {"in turns"})  # each process has the time for itself (G7)
def test_the_cpu_time_of_a_process_ends_it_there_and_is_no_success(box: Run, burner: str) -> None:
    result = box(bounds.BURNERS[burner], limits=Limits(cpu_seconds=1))
    assert (result.status, result.killed_by) == (Status.FAILED, None)


def test_a_flood_of_output_is_cut(box: Run) -> None:
    result = box(bounds.FLOOD, timeout=1.5)
    assert result.status is Status.TIMED_OUT
    assert result.stdout_truncated
    assert max(len(result.stdout_raw), len(result.stderr_raw)) <= MIB + 100


def test_too_much_output_is_cut_and_does_not_end_the_run(box: Run) -> None:
    result = box("print('x' * 3_000_000); raise SystemExit(3)", limits=Limits(stdout_bytes=1000))
    assert (result.exit_code, result.stdout_truncated) == (3, True)
    assert result.stdout.startswith("x" * 500 + "\n[… ")
