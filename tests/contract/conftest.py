"""Every backend, and one way to have a worker of it run something, through `ringfence.ports` alone."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests import service_process
from tests.manager_doors import PROGRAMS, Door

from ringfence.authority.profile import Isolation
from ringfence.capability.limits import Limits
from ringfence.operation import Language
from ringfence.outcome import OnOutput
from ringfence.ports import Backend, Ending, Harvest, Job, Worker, WorkerSpec
from ringfence.wiring.box import make_backend
from ringfence.wiring.settings import Settings

BACKENDS = [
    pytest.param(Isolation.NATIVE, marks=pytest.mark.needs("native")),
    pytest.param(Isolation.BWRAP, marks=pytest.mark.needs("bwrap")),
    pytest.param(Isolation.DOCKER, marks=pytest.mark.needs("docker")),
    pytest.param(Isolation.GVISOR, marks=pytest.mark.needs("gvisor")),
]


@dataclass(frozen=True)
class Done:
    """One run, from all sides."""

    worker: Worker
    ending: Ending
    harvest: Harvest

    @property
    def stdout(self) -> str:
        return self.ending.stdout.decode()

    @property
    def stderr(self) -> str:
        return self.ending.stderr.decode()


@dataclass(frozen=True)
class Bench:
    """A backend under test."""

    backend: Backend
    name: str

    def start(self, runtime: Language = Language.PYTHON, **spec: Any) -> Worker:
        return self.backend.start(WorkerSpec(runtime=runtime, **spec))

    async def run(
        self,
        code: str,
        language: Language = Language.PYTHON,
        *,
        args: tuple[str, ...] = (),
        env: Mapping[str, str] | None = None,
        stdin: bytes = b"",
        files: Mapping[str, bytes] | None = None,
        inputs: Mapping[str, bytes] | None = None,
        on_output: OnOutput | None = None,
        begin: Callable[[Worker], Awaitable[None]] | None = None,
        spec: dict[str, Any] | None = None,
        **limits: Any,
    ) -> Done:
        """Start a worker, have it run `code` when it has begun, and discard it."""
        runtime = Language.PYTHON if language is Language.BASH else language
        bounds = replace(Limits(), **limits)
        fixed = {"memory_bytes": bounds.memory_bytes, "cpus": bounds.cpus} if self.backend.fixes_limits else {}
        worker = self.start(runtime, **fixed, **(spec or {}))
        try:
            worker.place(files or {}, inputs or {})
            job = Job(language, code, args, env or {}, stdin, bounds)
            ending = await worker.run(job, on_output, None if begin is None else partial(begin, worker))
            return Done(worker, ending, worker.harvest(bounds))
        finally:
            worker.discard()


@pytest.fixture(scope="module", params=BACKENDS)
def bench(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    """Each backend in turn; its launchers die with the thread that starts them, which is this one."""
    if request.param is Isolation.GVISOR:
        request.getfixturevalue("gvisor_image")
    if request.param is Isolation.DOCKER:
        request.getfixturevalue("docker_engine")
    home: Path = tmp_path_factory.mktemp("home")
    backend = make_backend(Settings(home=home, isolation=request.param))
    yield Bench(backend, request.param)
    backend.close()


# --- managers ---


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("policy") / "policy.yaml"
    path.write_text(PROGRAMS)
    return path


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory, policy: Path) -> Iterator[service_process.ServiceProcess]:
    with service_process.running(tmp_path_factory.mktemp("service"), "--policy", str(policy)) as running:
        yield running


@pytest.fixture(scope="module", params=["embedded", "tcp", "unix"])
def door(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, policy: Path) -> Door:
    name, home = request.param, tmp_path_factory.mktemp("home")
    if name == "embedded":
        return Door(name, home, policy, home, {"home": home, "policy_file": policy, "pool_size": 1})
    service: service_process.ServiceProcess = request.getfixturevalue("service")
    if name == "tcp":
        return Door(name, home, policy, service.home, {"url": service.url, "api_key": service.key})
    return Door(name, home, policy, service.home, {"url": service.socket_url})
