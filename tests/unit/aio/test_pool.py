"""`AIOSandboxPool` over services that really run: in threads of this process, or as processes of their own."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import threading
from pathlib import Path

import pytest
from tests import aio_service
from tests.aio_services import Services

from ringfence.errors import InvalidRequest, Overloaded, Unavailable
from ringfence.isolation.aio.binding import PoolConfig
from ringfence.isolation.aio.pool import AIOSandboxPool
from ringfence.isolation.aio.starting import CommandStarter, Instance
from ringfence.requests import ExecutionRequest

pytestmark = pytest.mark.needs("bwrap")


@pytest.fixture
def services(tmp_path: Path) -> Services:
    return Services(tmp_path)


def states(pool: AIOSandboxPool) -> list[tuple[str, str | None]]:
    return [(each["state"], each["session_id"]) for each in pool.status()["instances"]]


async def test_starting_brings_the_first_up_and_stopping_leaves_none(services: Services) -> None:
    pool = AIOSandboxPool(PoolConfig(max_instances=10, min_instances=2), starter=services)
    await pool.start()
    assert (services.alive, states(pool)) == (2, [("idle", None), ("idle", None)])
    await pool.stop()
    assert (services.alive, states(pool)) == (0, [])
    with pytest.raises(Unavailable, match="closed"):
        await pool.acquire("session_123")


async def test_the_example_of_the_document_runs(services: Services) -> None:
    async with AIOSandboxPool(config=PoolConfig(max_instances=10, min_instances=2), starter=services) as pool:
        sandbox = await pool.acquire("session_123")
        result = await sandbox.execute(ExecutionRequest("print('hi')"))
        assert (result.success, result.stdout, states(pool)[0]) == (True, "hi\n", ("busy", "session_123"))
        assert await pool.acquire("session_123") is sandbox
        await pool.release("session_123")
        assert states(pool)[0] == ("busy", "session_123")
        await pool.release("session_123")
        assert states(pool)[0] == ("idle", "session_123")
        assert await pool.acquire("session_123") is sandbox


async def test_fifty_at_once_for_one_session_make_one_instance(services: Services) -> None:
    """From five event loops, while the one instance is held back: each finds it ACQUIRING, and none makes another."""
    services.gate.clear()
    pool = AIOSandboxPool(PoolConfig(min_instances=0), starter=services)
    await pool.start()
    got: list[object] = []

    async def ten() -> None:
        got.extend(await asyncio.gather(*(pool.acquire("session_123") for _ in range(10))))

    threads = [threading.Thread(target=lambda: asyncio.run(ten())) for _ in range(5)]
    for thread in threads:
        thread.start()
    while pool.status()["waiting"] < 50:  # noqa: ASYNC110  they come from other loops
        await asyncio.sleep(0)
    assert states(pool) == [("acquiring", "session_123")]
    services.gate.set()
    for thread in threads:
        await asyncio.to_thread(thread.join)
    assert (len(services.started), len(got), len(set(map(id, got)))) == (1, 50, 1)
    assert pool.status()["instances"][0]["leases"] == 50
    await pool.stop()


async def test_no_session_ever_gets_the_instance_of_another(services: Services) -> None:
    """Two places, twenty sessions that come and go: each finds a home that nobody wrote to before."""
    config = PoolConfig(max_instances=2, min_instances=1)
    async with AIOSandboxPool(config, starter=services) as pool:

        async def visit(session: str) -> list[str]:
            sandbox = await pool.acquire(session)
            try:
                home = await sandbox.home()
                before = [entry.name for entry in await sandbox.file.list(home)]
                await sandbox.file.write(f"{home}/left-by-{session}", b"x")
                return before
            finally:
                await pool.release(session)

        found = await asyncio.gather(*(visit(f"s{number}") for number in range(20)))
        assert found == [[]] * 20
        assert services.alive <= 2
    assert services.alive == 0


async def test_an_instance_that_is_only_named_stays_with_its_session(tmp_path: Path) -> None:
    with aio_service.running(tmp_path) as service:
        config = PoolConfig(1, 0, acquire_seconds=0.1)
        async with AIOSandboxPool(config, instances=[service.url]) as pool:
            await pool.acquire("a")
            await pool.release("a", forget=True)
            with pytest.raises(Overloaded, match="every instance is another session's"):
                await pool.acquire("b")
            assert (await pool.acquire("a")).shown == service.url


async def test_an_instance_that_no_longer_answers_is_replaced(services: Services) -> None:
    config = PoolConfig(2, 1, health_seconds=0.001, most_failures=1)
    async with AIOSandboxPool(config, starter=services) as pool:
        first = await pool.acquire("a")
        await pool.release("a")
        services.started[0].ending.close()
        pool.report("a")
        while (second := await pool.acquire("a")) is first:
            await pool.release("a")
        assert not (await second.home()).endswith("/0")
        # what the first was lent is given back to nobody else's account
        while ("idle", "a") not in states(pool):
            await pool.release("a")
    assert services.alive == 0


async def test_one_that_waits_in_vain_is_told_and_leaves_nothing_behind(services: Services) -> None:
    config = PoolConfig(1, 0, acquire_seconds=0.05)
    async with AIOSandboxPool(config, starter=services) as pool:
        await pool.acquire("a")
        with pytest.raises(Overloaded):
            await pool.acquire("b")
        waiting = asyncio.create_task(pool.acquire("c"))
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert (pool.status()["waiting"], states(pool)) == (0, [("busy", "a")])


async def test_a_failure_to_start_is_told_to_whoever_waits_and_the_next_one_tries_again(services: Services) -> None:
    failing = [True]

    def start() -> Instance:
        if failing[0]:
            raise Unavailable("the engine is not there")
        return services()

    pool = AIOSandboxPool(PoolConfig(min_instances=0), starter=start)
    await pool.start()
    with pytest.raises(Unavailable, match="engine"):
        await pool.acquire("a")
    failing[0] = False
    await pool.acquire("a")
    await pool.stop()
    failing[0] = True
    with pytest.raises(Unavailable, match="engine"):
        await AIOSandboxPool(PoolConfig(), starter=start).start()


async def test_without_an_instance_it_says_what_to_set(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("RINGFENCE_AIO_INSTANCES", raising=False)
    with pytest.raises(Unavailable) as refused:
        await AIOSandboxPool().start()
    assert "RINGFENCE_AIO_INSTANCES" in str(refused.value.fix)
    with aio_service.running(tmp_path, key="k1") as service:
        monkeypatch.setenv("RINGFENCE_AIO_INSTANCES", service.url)
        monkeypatch.setenv("RINGFENCE_AIO_API_KEY", "k1")
        async with AIOSandboxPool() as pool:
            assert (await pool.acquire("a")).shown == service.url


# --- instances that are processes ---

COMMAND = [sys.executable, "-m", "tests.aio_service", "{port}"]


async def test_an_instance_is_a_command_that_ends_with_the_pool(tmp_path: Path) -> None:
    starter = CommandStarter([*COMMAND, str(tmp_path)])
    async with AIOSandboxPool(PoolConfig(1, 1), starter=starter) as pool:
        await pool.acquire("a")
        pid = int((tmp_path / "pid").read_text())
        os.kill(pid, 0)
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_an_instance_ends_with_an_application_that_is_killed(tmp_path: Path) -> None:
    program = (
        "import asyncio, os, signal, sys\n"
        "from ringfence.isolation.aio.pool import AIOSandboxPool\n"
        "from ringfence.isolation.aio.binding import PoolConfig\n"
        "from ringfence.isolation.aio.starting import CommandStarter\n"
        "async def main():\n"
        f"    pool = AIOSandboxPool(PoolConfig(1, 1), starter=CommandStarter({[*COMMAND, str(tmp_path)]!r}))\n"
        "    await pool.start()\n"
        "    await pool.acquire('a')\n"
        f"    print(open({str(tmp_path / 'pid')!r}).read(), flush=True)\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
        "asyncio.run(main())\n"
    )
    import subprocess

    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=50, check=False)
    assert done.returncode == -9, done.stderr
    pidfd = None
    with contextlib.suppress(ProcessLookupError):
        pidfd = os.pidfd_open(int(done.stdout))
    if pidfd is not None:
        import select

        assert select.select([pidfd], [], [], 30)[0]
        os.close(pidfd)


async def test_a_command_that_ends_at_once_is_told_with_its_last_words() -> None:
    starter = CommandStarter(["sh", "-c", "echo no such image >&2; exit 125", "{port}"])
    with pytest.raises(Unavailable, match="no such image"):
        await AIOSandboxPool(PoolConfig(1, 1), starter=starter).start()


@pytest.mark.parametrize("command", ["docker run {port}", ["docker", "run"], []])
def test_a_command_without_a_place_for_its_port_is_refused(command: list[str]) -> None:
    with pytest.raises(InvalidRequest, match="port"):
        CommandStarter(command)
