"""What makes boxes dies, hangs or is cut off under a run that is outside, in TLS that we opened: one end, no rest."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.container_engine import Engine
from tests.e2e.test_docker_engine import containers_of, eventually
from tests.e2e.test_docker_engine import engine as engine
from tests.e2e.test_docker_engine import own_engine as own_engine
from tests.e2e.test_egress import OPENED, destinations, said
from tests.egress_box import Boxes
from tests.egress_lab import WEB, EgressLab, running_lab

from ringfence import ExecutionRequest, SandboxManager, Unavailable
from ringfence.database.address import open_database
from ringfence.isolation.linux.metering import descendants
from ringfence.journal.reader import reading
from ringfence.outcome import ExecutionResult, Status

pytestmark = [pytest.mark.needs("egress_lab"), pytest.mark.guarantee(29, 30, 32), pytest.mark.timeout(180)]

FETCH = f"import urllib.request; print(urllib.request.urlopen('https://{WEB}/').read().decode())"
OUTSIDE = f"""
import http.client, time
tunnel = http.client.HTTPSConnection('127.0.0.1', 3128)
tunnel.set_tunnel('{WEB}')
def ask(path):
    tunnel.request('GET', path)
    answer = tunnel.getresponse()
    answer.read()
    return answer.status
ask('/')
print('on', flush=True)
while ask('/go') != 200:
    time.sleep(0.05)
print('went on')
"""


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EgressLab]:
    with running_lab(tmp_path_factory.mktemp("lab")) as lab:
        yield lab


MAKING = ("--interactive", "gvisor.launcher", "runsc")


class Outside:
    """A manager whose runs are outside when the trouble comes."""

    def __init__(self, boxes: Boxes, is_clear: Callable[[], bool] = lambda: True) -> None:
        self.boxes, self.is_clear = boxes, is_clear
        self.ended: list[ExecutionResult] = []

    @contextlib.asynccontextmanager
    async def manager(self) -> AsyncIterator[SandboxManager]:
        """Give a manager, and look after it what is left of it and of every run that ended."""
        before, parked = (_descriptors(), _threads()), set(_named(*MAKING))
        async with SandboxManager(
            home=self.boxes.home,
            isolation=self.boxes.isolation,
            pool_size=0,
            policy_file=self.boxes.policy(more=OPENED),
        ) as manager:
            yield manager
        assert eventually(lambda: _descriptors() <= before[0]), "descriptors are left"
        assert eventually(lambda: _threads() <= before[1]), "threads are left"
        assert eventually(lambda: parked.issuperset(_named(*MAKING))), "processes are left"
        assert eventually(self.is_clear), "containers are left"
        for result in self.ended:
            assert destinations(result)[WEB, 443, "allowed"].method == "GET"
            end = _end(self.boxes.home, result.exec_id)
            assert (end["type"], end["outcome"]) == ("exec.end", result.status)
            assert {(place["host"], place["method"]) for place in end["network"]["destinations"]} == {(WEB, "GET")}

    async def begin(self, manager: SandboxManager, seconds: float = 60) -> asyncio.Task[ExecutionResult]:
        """Start a run, and return when it is outside and has had an answer."""
        begun, loop = asyncio.Event(), asyncio.get_running_loop()

        def heard(*_: object) -> None:
            loop.call_soon_threadsafe(begun.set)

        request = ExecutionRequest(OUTSIDE, timeout=seconds, allow_domains=(WEB,))
        running = asyncio.ensure_future(manager.execute(request, on_output=heard))
        await asyncio.wait_for(begun.wait(), 60)
        return running

    async def end(self, running: asyncio.Task[ExecutionResult]) -> ExecutionResult:
        self.ended.append(await asyncio.wait_for(running, 90))
        return self.ended[-1]

    async def works(self, manager: SandboxManager) -> None:
        """See that the same manager has a way out again."""
        result = await manager.execute(ExecutionRequest(FETCH, timeout=40, allow_domains=(WEB,)))
        self.ended.append(result)
        assert said(result) == "hello"


def _descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def _threads() -> int:
    """Count what serves a way out; other threads of an application may stay."""
    return sum(each.name in ("ringfence-egress", "ringfence-ports") for each in threading.enumerate())


def _end(home: Path, exec_id: str) -> dict[str, Any]:
    """Return the record of how an execution ended."""
    database = open_database(home)
    try:
        with reading(database) as reader:
            execution = reader.execution(exec_id)
    finally:
        database.close()
    assert execution is not None
    assert execution.end is not None
    end: dict[str, Any] = json.loads(execution.end.text or "")
    return end


@pytest.fixture
def in_docker(own_engine: Engine, tmp_path: Path, lab: EgressLab, monkeypatch: pytest.MonkeyPatch) -> Iterator[Outside]:
    boxes = Boxes(tmp_path / "home", lab, monkeypatch, isolation="docker")
    yield Outside(boxes, lambda: containers_of(own_engine, boxes.home) == [])
    (lab.directory / "go").unlink(missing_ok=True)


@pytest.mark.needs("docker")
async def test_an_engine_killed_under_a_run_that_is_outside(own_engine: Engine, in_docker: Outside) -> None:
    async with in_docker.manager() as manager:
        running = await in_docker.begin(manager)
        await asyncio.to_thread(own_engine.stop, signal.SIGKILL)
        result = await in_docker.end(running)
        assert (result.status, result.killed_by, result.stdout) == (Status.KILLED, "unknown", "on\n")
        with pytest.raises(Unavailable) as refusal:
            await manager.execute(ExecutionRequest(FETCH, allow_domains=(WEB,)))
        assert (refusal.value.reason, "\n" in str(refusal.value)) == ("engine_unreachable", False)
        await asyncio.to_thread(own_engine.start)
        await in_docker.works(manager)


@pytest.mark.needs("docker")
async def test_an_engine_that_hangs_under_a_run_that_is_outside(own_engine: Engine, in_docker: Outside) -> None:
    assert own_engine.process is not None
    async with in_docker.manager() as manager:
        running = await in_docker.begin(manager, 3)
        own_engine.hang()
        try:
            result = await in_docker.end(running)
        finally:
            own_engine.process.send_signal(signal.SIGCONT)
        assert (result.status, result.killed_by, result.stdout) == (Status.TIMED_OUT, "wall_timeout", "on\n")
        await in_docker.works(manager)


@pytest.mark.needs("docker")
async def test_an_engine_whose_socket_is_gone_under_a_run_that_is_outside(
    own_engine: Engine, in_docker: Outside, lab: EgressLab
) -> None:
    async with in_docker.manager() as manager:
        running = await in_docker.begin(manager)
        await asyncio.to_thread(Path(own_engine.url.removeprefix("unix://")).unlink)
        with pytest.raises(Unavailable) as refusal:
            await manager.execute(ExecutionRequest(FETCH, allow_domains=(WEB,)))
        assert refusal.value.reason == "engine_unreachable"
        (lab.directory / "go").write_text("")
        assert said(await in_docker.end(running)) == "on\nwent on"  # what runs needs nobody to be asked
        await asyncio.to_thread(own_engine.stop)
        await asyncio.to_thread(own_engine.start)
        await in_docker.works(manager)


@pytest.fixture
def in_gvisor(gvisor_image: None, tmp_path: Path, lab: EgressLab, monkeypatch: pytest.MonkeyPatch) -> Outside:
    return Outside(Boxes(tmp_path / "home", lab, monkeypatch, isolation="gvisor"))


def _named(*words: str) -> list[int]:
    """Return the processes below this one in whose command line one of `words` is."""
    found = []
    for pid in descendants((os.getpid(),)):
        with contextlib.suppress(OSError):
            if any(word in Path(f"/proc/{pid}/cmdline").read_text() for word in words):
                found.append(pid)
    return found


@pytest.mark.needs("gvisor")
@pytest.mark.parametrize("who", ["gvisor.launcher", "runsc-sandbox"])
async def test_what_makes_gvisors_boxes_killed_under_a_run_that_is_outside(in_gvisor: Outside, who: str) -> None:
    async with in_gvisor.manager() as manager:
        running = await in_gvisor.begin(manager)
        killed = _named(who)
        assert killed
        for pid in killed:
            os.kill(pid, signal.SIGKILL)
        result = await in_gvisor.end(running)
        assert (result.status, result.killed_by, result.stdout) == (Status.KILLED, "unknown", "on\n")
        await in_gvisor.works(manager)


@pytest.mark.needs("gvisor")
@pytest.mark.parametrize("who", ["gvisor.launcher", "runsc-sandbox"])
async def test_what_makes_gvisors_boxes_hangs_under_a_run_that_is_outside(in_gvisor: Outside, who: str) -> None:
    async with in_gvisor.manager() as manager:
        running = await in_gvisor.begin(manager, 3)
        hung = _named(who)
        assert hung
        for pid in hung:
            os.kill(pid, signal.SIGSTOP)
        result = await in_gvisor.end(running)
        assert (result.status, result.killed_by, result.stdout) == (Status.TIMED_OUT, "wall_timeout", "on\n")
        for pid in hung:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
        await in_gvisor.works(manager)
