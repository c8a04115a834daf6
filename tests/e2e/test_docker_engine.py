"""An engine that is not there, too old, killed, stopped, hung or started again: one line, and then it works again."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from tests import container_engine
from tests.command_line import ringfence
from tests.container_engine import Engine

from ringfence import ExecutionRequest, SandboxManager, Unavailable
from ringfence.budgets.owner import this_process
from ringfence.capability.limits import Limits
from ringfence.errors import IsolationUnavailable
from ringfence.isolation.docker.backend import DockerBackend
from ringfence.isolation.docker.reaper import HOME_LABEL, OWNER_LABEL, home_id, own_directory, write_owner
from ringfence.isolation.docker.settings import EngineSettings
from ringfence.isolation.stream import running
from ringfence.operation import Language
from ringfence.outcome import Status
from ringfence.ports import Ending, Job, WorkerLost, WorkerSpec
from ringfence.workspaces.session import SessionWorkspace

pytestmark = [pytest.mark.needs("docker"), pytest.mark.guarantee(29), pytest.mark.timeout(180)]

SLEEPER = "print('on', flush=True)\nimport time\ntime.sleep(100)"


@pytest.fixture
def engine(docker_engine: Engine) -> Iterator[Engine]:
    """Give the test the engine of this test run, and have it running again for the next."""
    yield docker_engine
    if docker_engine.process is not None and docker_engine.docker("version").returncode != 0:
        with contextlib.suppress(ProcessLookupError):
            docker_engine.process.send_signal(signal.SIGCONT)
        docker_engine.stop(signal.SIGKILL)
        docker_engine.start()


@pytest.fixture
def own_engine(engine: Engine) -> Engine:
    """Give the test an engine that it may stop."""
    if engine.process is None:
        pytest.skip("this engine is the machine's, and not a test's to stop")
    return engine


def settings() -> EngineSettings:
    return EngineSettings(url=os.environ["RINGFENCE_DOCKER_URL"], image=os.environ["RINGFENCE_DOCKER_IMAGE"])


@contextlib.contextmanager
def backend(home: Path, used: EngineSettings | None = None, *, patience: float = 15.0) -> Iterator[DockerBackend]:
    def session(session_id: str, tenant: str) -> SessionWorkspace:
        return SessionWorkspace.create(home, session_id, tenant=tenant)

    made = DockerBackend(used or settings(), home=home, session=session, limits=Limits(), patience=patience)
    try:
        yield made
    finally:
        made.close()


def run_in(made: DockerBackend, code: str = "print(1)") -> Ending:
    worker = made.start(WorkerSpec())
    try:
        return asyncio.run(worker.run(Job(Language.PYTHON, code, (), {}, b"", Limits()), None))
    finally:
        worker.discard()


def containers_of(engine: Engine, home: Path) -> list[str]:
    done = engine.docker("ps", "--all", "--quiet", "--filter", f"label={HOME_LABEL}={home_id(home)}")
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def eventually(condition: Callable[[], bool], seconds: float = 30.0) -> bool:
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.02)
    return condition()


# --- one line with the fix ---


def refused(home: Path, **environment: str) -> str:
    done = ringfence(home, "run", "--isolation", "docker", "-c", "print('RAN')", **environment)
    assert done.returncode == 7
    assert "RAN" not in done.stdout
    lines = done.stderr.strip().splitlines()
    assert "PROVIDER.UNAVAILABLE" in lines[0]
    return " ".join(lines)


def test_without_the_command_there_is_one_line_with_the_fix(tmp_path: Path) -> None:
    said = refused(tmp_path, RINGFENCE_DOCKER_COMMAND="/nowhere/docker")
    assert "engine_missing" in said
    assert "install docker, podman or nerdctl" in said


def test_without_an_engine_there_is_one_line_with_the_fix(tmp_path: Path) -> None:
    said = refused(tmp_path, RINGFENCE_DOCKER_URL=f"unix://{tmp_path}/none.sock")
    assert "engine_unreachable" in said
    assert "start it" in said


def test_without_the_image_there_is_one_line_with_the_fix(engine: Engine, tmp_path: Path) -> None:
    said = refused(tmp_path, RINGFENCE_DOCKER_URL=engine.url, RINGFENCE_DOCKER_IMAGE="nobody/has:it")
    assert "image_missing" in said
    assert "ringfence image build" in said
    assert containers_of(engine, tmp_path) == []


def test_an_engine_that_is_too_old_is_told_so_before_anything_is_asked_of_it(tmp_path: Path) -> None:
    old = tmp_path / "docker"
    old.write_text("#!/bin/sh\necho 19.03.5\n")
    old.chmod(0o755)
    said = refused(tmp_path, RINGFENCE_DOCKER_COMMAND=str(old))
    assert "engine_too_old" in said
    assert "20.10 or newer" in said


@pytest.mark.needs("root")
def test_an_engine_without_disk_space_is_told_so_and_used_again_when_it_has_some(tmp_path: Path) -> None:
    with container_engine.running("--storage-driver=overlay2", disk="size=900m") as small:
        assert small.directory is not None
        small.load(container_engine.sandbox_rootfs(), container_engine.IMAGE)
        filler = small.directory / "data/filler"
        with contextlib.suppress(OSError), filler.open("wb", buffering=0) as file:
            while file.write(bytes(1 << 12)):
                pass
        wanted = {"RINGFENCE_DOCKER_URL": small.url, "RINGFENCE_DOCKER_IMAGE": container_engine.IMAGE}
        said = refused(tmp_path, **wanted)
        assert "engine_full" in said
        filler.unlink()
        done = ringfence(tmp_path, "run", "--isolation", "docker", "-c", "print('RAN')", **wanted)
        assert (done.returncode, done.stdout) == (0, "RAN\n"), done.stderr


def test_a_runtime_the_engine_does_not_know_is_named(engine: Engine, tmp_path: Path) -> None:
    said = refused(
        tmp_path,
        RINGFENCE_DOCKER_URL=engine.url,
        RINGFENCE_DOCKER_IMAGE=os.environ["RINGFENCE_DOCKER_IMAGE"],
        RINGFENCE_DOCKER_RUNTIME="nobodys",
    )
    assert "knows no runtime nobodys" in said


def test_a_profile_that_is_not_there_starts_nothing(engine: Engine, tmp_path: Path) -> None:
    used = replace(settings(), seccomp=tmp_path / "none.json")
    with backend(tmp_path, used) as made, pytest.raises(IsolationUnavailable, match=r"none\.json"):
        made.start(WorkerSpec())
    assert containers_of(engine, tmp_path) == []


@pytest.mark.parametrize("option", ["seccomp=unconfined"])
def test_a_container_that_is_not_held_runs_nothing(engine: Engine, tmp_path: Path, option: str) -> None:
    # what the operator names as a profile is taken; that the kernel filters nothing then is seen from outside
    used = replace(settings(), seccomp=Path(option.partition("=")[2]))
    with backend(tmp_path, used) as made, pytest.raises(IsolationUnavailable, match="without seccomp"):
        made.start(WorkerSpec())
    assert eventually(lambda: containers_of(engine, tmp_path) == [])


# --- what an engine does to every container unless it is told otherwise ---


@pytest.mark.needs("root")
def test_an_engine_with_defaults_of_its_own_makes_the_same_boxes(tmp_path: Path) -> None:
    # an init of its own for every container, and less time of the processor than a run may have
    with container_engine.running("--init", "--default-ulimit=cpu=9:9") as other:
        image = other.load(container_engine.sandbox_rootfs(), container_engine.IMAGE)
        words = {"RINGFENCE_DOCKER_URL": other.url, "RINGFENCE_DOCKER_IMAGE": image}
        look = "import os, resource; print(os.getppid(), resource.getrlimit(resource.RLIMIT_CPU))"
        done = ringfence(tmp_path, "run", "--isolation", "docker", "-c", look, **words)
    assert (done.stdout, done.returncode) == ("1 (9, 9)\n", 0), done.stderr


@pytest.mark.needs("root", "gvisor")
def test_an_engine_whose_usual_runtime_is_gvisor_is_told_of_in_one_line_with_the_fix(tmp_path: Path) -> None:
    with container_engine.running("--default-runtime=runsc") as other:
        image = other.load(container_engine.sandbox_rootfs(), container_engine.IMAGE)
        words = {"RINGFENCE_DOCKER_URL": other.url, "RINGFENCE_DOCKER_IMAGE": image}
        call = ("run", "--isolation", "docker", "--security", "permissive", "-c", "print(1)")
        refused = ringfence(tmp_path, *call, **words)
        named = ringfence(tmp_path, *call, RINGFENCE_DOCKER_RUNTIME="runsc", **words)
    assert refused.returncode == 7
    assert 'runtime = "runsc"' in refused.stderr
    assert named.stdout == "1\n", named.stderr


# --- trouble in the middle of things ---


def test_an_engine_killed_while_workers_are_parked_is_recovered_from(own_engine: Engine, tmp_path: Path) -> None:
    with backend(tmp_path) as made:
        parked = made.start(WorkerSpec())
        own_engine.stop(signal.SIGKILL)
        with pytest.raises(WorkerLost):
            asyncio.run(parked.run(Job(Language.PYTHON, "print(1)", (), {}, b"", Limits()), None))
        parked.discard()
        with pytest.raises(IsolationUnavailable) as refusal:
            made.start(WorkerSpec())
        assert refusal.value.reason == "engine_unreachable"
        own_engine.start()
        assert run_in(made).stdout == b"1\n"
    assert eventually(lambda: containers_of(own_engine, tmp_path) == [])


async def test_an_engine_stopped_in_the_middle_of_a_run_ends_it_as_a_result(own_engine: Engine, tmp_path: Path) -> None:
    async with SandboxManager(home=tmp_path, isolation="docker", pool_size=0) as manager:
        begun = asyncio.Event()
        loop = asyncio.get_running_loop()

        def heard(*_: object) -> None:
            loop.call_soon_threadsafe(begun.set)

        running = asyncio.ensure_future(manager.execute(ExecutionRequest(SLEEPER), on_output=heard))
        await asyncio.wait_for(begun.wait(), 60)
        await asyncio.to_thread(own_engine.stop)
        result = await asyncio.wait_for(running, 60)
        assert (result.status, result.killed_by, result.stdout) == (Status.KILLED, "unknown", "on\n")
        with pytest.raises(Unavailable) as refusal:
            await manager.execute(ExecutionRequest("print(1)"))
        assert refusal.value.reason == "engine_unreachable"
        await asyncio.to_thread(own_engine.start)
        assert (await manager.execute(ExecutionRequest("print(2)"))).stdout == "2\n"
    assert eventually(lambda: containers_of(own_engine, tmp_path) == [])


def test_an_engine_that_hangs_is_told_so_and_used_again_when_it_answers(own_engine: Engine, tmp_path: Path) -> None:
    assert own_engine.process is not None
    with backend(tmp_path, patience=3.0) as made:
        assert run_in(made).stdout == b"1\n"
        own_engine.hang()
        try:
            with pytest.raises(IsolationUnavailable) as refusal:
                made.start(WorkerSpec())
            assert refusal.value.reason == "engine_hung"
        finally:
            own_engine.process.send_signal(signal.SIGCONT)
        assert eventually(lambda: own_engine.docker("version").returncode == 0)
        assert run_in(made).stdout == b"1\n"
    assert eventually(lambda: containers_of(own_engine, tmp_path) == [])


async def test_an_engine_that_hangs_before_a_parked_container_has_its_job_is_told_so(
    own_engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert own_engine.process is not None
    monkeypatch.setattr(running, "END_SECONDS", 0.5)
    with backend(tmp_path) as made:
        parked = made.start(WorkerSpec())
        own_engine.hang()
        try:
            job = Job(Language.PYTHON, "print(1)", (), {}, b"", Limits(wall_seconds=1))
            with pytest.raises(IsolationUnavailable) as refusal:
                await parked.run(job, None)
            assert refusal.value.reason == "engine_hung"
            parked.discard()
        finally:
            own_engine.process.send_signal(signal.SIGCONT)
    assert eventually(lambda: containers_of(own_engine, tmp_path) == [])


# --- nobody outlives us ---


def test_containers_of_a_killed_application_end_by_themselves(engine: Engine, tmp_path: Path) -> None:
    say = "lambda *_: print('on', flush=True)"
    text = f"import ringfence\nringfence.run({SLEEPER!r}, isolation='docker', on_output={say})"
    environment = {**os.environ, "RINGFENCE_HOME": str(tmp_path)}
    with subprocess.Popen([sys.executable, "-c", text], env=environment, stdout=subprocess.PIPE) as host:
        assert host.stdout is not None
        assert host.stdout.readline() == b"on\n"
        assert containers_of(engine, tmp_path)
        host.kill()
    assert eventually(lambda: containers_of(engine, tmp_path) == [])


def test_what_a_dead_owner_left_is_removed_and_nobody_elses(engine: Engine, tmp_path: Path) -> None:
    me = this_process()
    owners = {
        "dead": replace(me, started=me.started + 1),
        "mine": me,
        "elsewhere": replace(me, pid_namespace="pid:[1]"),
    }
    names = {}
    for name, owner in owners.items():
        labels = [f"--label={HOME_LABEL}={home_id(tmp_path)}", f"--label={OWNER_LABEL}={write_owner(owner)}"]
        image = os.environ["RINGFENCE_DOCKER_IMAGE"]
        done = engine.docker("create", "--network=none", *labels, "--entrypoint=true", image)
        names[done.stdout.strip()[:12]] = name
    left = own_directory(tmp_path).parent / write_owner(owners["dead"])
    (left / "rf-1" / "inputs").mkdir(parents=True)
    try:
        with backend(tmp_path) as made:
            run_in(made)
        assert {names[each] for each in containers_of(engine, tmp_path)} == {"mine", "elsewhere"}
        assert not left.exists()
    finally:
        engine.docker("rm", "--force", *containers_of(engine, tmp_path))


async def test_many_callers_leave_no_container(engine: Engine, tmp_path: Path, count: Callable[[int], int]) -> None:
    async with SandboxManager(home=tmp_path, isolation="docker", pool_size=2) as manager:

        async def call(caller: int) -> None:
            for number in range(max(1, count(200) // 8)):
                request = ExecutionRequest(f"print({caller}, {number})")
                assert (await manager.execute(request)).stdout == f"{caller} {number}\n"

        await asyncio.gather(*(call(caller) for caller in range(8)))
    assert containers_of(engine, tmp_path) == []
