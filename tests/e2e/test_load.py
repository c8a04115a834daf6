"""Sixteen callers at once for a long time: every answer is right, and the host is afterwards what it was before."""

from __future__ import annotations

import asyncio
import gc
import glob
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from ringfence import ExecutionResult, SandboxManager, engines, wiring
from ringfence.authority.profile import Isolation
from ringfence.executors.code import CodeExecutor
from ringfence.isolation.linux.outfit import outfit
from ringfence.isolation.native.backend import NativeBackend, Recycling
from ringfence.isolation.pool.decide import PoolPolicy
from ringfence.isolation.pool.keeper import Keeper
from ringfence.isolation.pool.pools import Pools
from ringfence.operation import CodeRun, Language
from ringfence.ports import WorkerSpec
from ringfence.runtimes.node import NodeCommand
from ringfence.testing import orchestrator_over, standard_profile
from ringfence.workspaces.session import SessionWorkspace

pytestmark = [pytest.mark.needs("native"), pytest.mark.timeout(0)]

CALLERS = 16
RSS_GROWTH_BYTES = 16 * 1024 * 1024  # what allocators keep; two thousand leaked results would be far more


@dataclass(frozen=True)
class Host:
    """What a leak would make grow."""

    descriptors: int
    threads: int
    cgroups: int
    mounts: int
    zombies: int
    rss_bytes: int

    def grown_since(self, before: Host) -> dict[str, tuple[int, int]]:
        allowed = {"rss_bytes": RSS_GROWTH_BYTES}
        names = self.__dataclass_fields__
        pairs = {name: (getattr(before, name), getattr(self, name)) for name in names}
        return {name: (then, now) for name, (then, now) in pairs.items() if now - then > allowed.get(name, 0)}


def look() -> Host:
    gc.collect()
    pids = [name for name in os.listdir("/proc") if name.isdigit()]
    return Host(
        descriptors=len(os.listdir("/proc/self/fd")),
        # the loop's own helpers, and those that move files, come as they are needed, up to a bound
        threads=sum(not thread.name.startswith(("asyncio_", "ringfence-work")) for thread in threading.enumerate()),
        cgroups=len(glob.glob(f"/sys/fs/cgroup/**/ringfence-{os.getpid()}-*/rf-*", recursive=True)),
        mounts=Path("/proc/self/mountinfo").read_text().count("\n"),
        zombies=sum(map(is_our_zombie, pids)),
        rss_bytes=int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE"),
    )


def is_our_zombie(pid: str) -> bool:
    try:
        state, parent = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[:2]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state == "Z" and int(parent) == os.getpid()


async def crowd(manager: SandboxManager, runs: int) -> None:
    """Have sixteen callers share `runs` different runs; each knows the one right answer to its own."""
    numbers = iter(range(runs))

    async def caller() -> None:
        for number in numbers:
            result = await ask(manager, number)
            assert (result.stdout, result.stderr) == (expected(number), ""), result

    await asyncio.gather(*(caller() for _ in range(CALLERS)))


async def ask(manager: SandboxManager, number: int) -> ExecutionResult:
    match number % 5:
        case 0:
            return await manager.execute_code("python", f"print({number} * 3)")
        case 1:
            return await manager.execute_code("python", "print(int(input()) * 3)", stdin=str(number))
        case 2:
            return await manager.execute_shell("echo $(( $(cat n) * 3 ))", files={"n": str(number)})
        case 3:
            code = "import sys; open('/output/n', 'w').write(sys.argv[1]); print(int(sys.argv[1]) * 3)"
            result = await manager.execute_code("python", code, args=[str(number)])
            assert [artifact.read() for artifact in result.artifacts] == [str(number).encode()]
            return result
        case _:
            code = "import os; os.fork() or os._exit(0); print(int(os.environ['N']) * 3)"
            return await manager.execute_code("python", code, env={"N": str(number)})


def expected(number: int) -> str:
    return f"{number * 3}\n"


async def quiet(manager: SandboxManager) -> None:
    """Wait until the pool has refilled after a crowd that wanted all it may keep."""
    full = {"idle": PoolPolicy().max_idle, "starting": 0, "busy": 0, "waiting": 0}
    while manager.pool_status() != full:  # noqa: ASYNC110  other threads fill it
        await asyncio.sleep(0.01)


async def settled(manager: SandboxManager, before: Host) -> Host:
    """Look until nothing has grown, or for as long as things still change."""
    await quiet(manager)
    now = look()
    for _ in range(200):
        if not now.grown_since(before):
            break
        await asyncio.sleep(0.01)
        now = look()
    return now


async def test_many_callers_get_right_answers_and_leave_no_trace(count: Callable[[int], int], tmp_path: Path) -> None:
    # of a size that was set: what a pool keeps for a crowd of its own accord varies by one or two
    async with SandboxManager(home=tmp_path, pool_size=PoolPolicy().max_idle) as manager:
        await crowd(manager, 400)  # the pool, the loop's threads and the allocators reach their size
        await quiet(manager)
        before = look()
        await crowd(manager, count(2000))
        after = await settled(manager, before)
        assert after.grown_since(before) == {}


async def test_a_burst_of_a_hundred_is_served(tmp_path: Path) -> None:
    async with SandboxManager(home=tmp_path) as manager:
        results = await asyncio.gather(*(ask(manager, number) for number in range(100)))
        assert [result.stdout for result in results] == [expected(number) for number in range(100)]
        assert len({result.sandbox_id for result in results}) == 100


@pytest.mark.timeout(60)
async def test_a_pool_whose_size_nobody_set_is_prepared_for_the_crowd_that_came(tmp_path: Path) -> None:
    async with SandboxManager(home=tmp_path) as manager:
        await asyncio.gather(*(ask(manager, number) for number in range(40)))
        while manager.pool_status()["idle"] <= PoolPolicy().max_idle:  # noqa: ASYNC110  other threads fill it
            await asyncio.sleep(0.01)


async def test_everything_is_gone_after_the_last_manager(tmp_path: Path) -> None:
    async def once() -> None:
        async with SandboxManager(home=tmp_path) as manager:
            await crowd(manager, 40)

    await once()
    before = look()
    for _ in range(3):
        await once()
    assert look().grown_since(before) == {}
    assert glob.glob(f"/sys/fs/cgroup/**/ringfence-{os.getpid()}-*", recursive=True) == []


async def test_a_cleanup_during_a_run_ends_it_and_leaves_nothing(tmp_path: Path) -> None:
    async def once() -> None:
        manager = SandboxManager(home=tmp_path)
        heard = asyncio.Event()
        code = "print(1)\nwhile True: pass"
        run = asyncio.ensure_future(manager.execute_code("python", code, on_output=lambda *_: heard.set()))
        await heard.wait()
        await manager.cleanup()
        result = await run
        assert (result.killed_by, result.stdout) == ("unknown", "1\n")

    await once()
    before = look()
    for _ in range(3):
        await once()
    assert look().grown_since(before) == {}
    assert glob.glob(f"/sys/fs/cgroup/**/ringfence-{os.getpid()}-*", recursive=True) == []


async def test_zygotes_are_recycled_under_load_without_an_error(count: Callable[[int], int], tmp_path: Path) -> None:
    backend = NativeBackend(
        outfit=lambda spec, counted: outfit(spec.packages, spec.preload, None, memory_is_counted=counted),
        session=lambda session_id, tenant: SessionWorkspace.create(tmp_path, session_id, tenant=tenant),
        node_command=lambda language: NodeCommand([language], "node"),
        limits=wiring.Settings(home=tmp_path).limits,
        recycling=Recycling(after_spawns=10),
    )
    keeper = Keeper(backend, PoolPolicy(), default=WorkerSpec())
    orchestrator = orchestrator_over(CodeExecutor(Pools(Isolation.AUTO, lambda _: keeper), lambda *_: ""))
    others = child_pids()  # of engines that other tests have left running
    zygotes: set[int] = set()

    async def caller() -> None:
        for number in range(count(400)):
            operation = CodeRun(Language.PYTHON, f"print({number})")
            result = await orchestrator.run(operation, standard_profile(operation))
            assert result.stdout == f"{number}\n"
            zygotes.update(child_pids())

    try:
        await asyncio.gather(*(caller() for _ in range(8)))
        assert len(zygotes) > count(400) * 8 // 10 // 2
        # the retired ones are closed as soon as nobody of theirs is left
        while len(child_pids() - others) > 2 + len(keeper.parked()):  # noqa: ASYNC110  other threads close them
            await asyncio.sleep(0.01)
    finally:
        await asyncio.to_thread(keeper.close)
    assert child_pids() <= others


def child_pids() -> set[int]:
    """List the launchers: the only children of this process."""
    found = set()
    for task in os.listdir("/proc/self/task"):
        try:
            found |= {int(pid) for pid in Path(f"/proc/self/task/{task}/children").read_text().split()}
        except FileNotFoundError:
            continue
    return found


@pytest.fixture(autouse=True)
def no_engine_of_other_tests() -> None:
    engines._end_all()
    engines._kept.clear()
