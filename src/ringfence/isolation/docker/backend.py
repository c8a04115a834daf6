"""The container backend: workers parked behind `docker run -i`, with no question to the engine on a run's path."""

from __future__ import annotations

import resource
import secrets
import shutil
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from ringfence.authority.profile import Isolation
from ringfence.capability.limits import Limits
from ringfence.dataclass import replace
from ringfence.errors import InternalError, IsolationUnavailable, RuntimeMissing
from ringfence.isolation.docker import observing, reaper
from ringfence.isolation.docker.argv import UID, Plan, mounts_of, places_of, run_argv
from ringfence.isolation.docker.carried import carried_python
from ringfence.isolation.docker.container import Ended, Running, Undertaker, launch
from ringfence.isolation.docker.engine import PATIENCE_SECONDS, Engine, hung
from ringfence.isolation.docker.failures import explain, lacks_interpreter
from ringfence.isolation.docker.settings import EngineSettings
from ringfence.isolation.linux import observe
from ringfence.isolation.linux.seccomp.container import PROFILE
from ringfence.isolation.stream.boot import BOOT, COMMAND
from ringfence.isolation.stream.line import Line
from ringfence.isolation.stream.parking import Hello, park
from ringfence.outcome import Container, Layers, SandboxType
from ringfence.ports import Worker, WorkerSpec
from ringfence.runtimes.places import BOX_PACKAGES

if TYPE_CHECKING:
    from ringfence.isolation.stream.host import StreamWorker
    from ringfence.workspaces.session import SessionWorkspace

_ANSWERS_PER_START: Final = 4  # an engine takes longer to start a container than to answer a question
_BOOT_WORD: Final = "<the worker's boot>"


DOES_NOT_KEEP: Final[Mapping[str, str]] = MappingProxyType(
    {
        "G1 bare view": "the image's own /etc, /root and /dev are seen, and /proc and /sys as the engine leaves them",
        "G5 own ids": "unless the engine is rootless or remaps ids, the guest's user 1000 is the machine's",
        "G7 socket buffers": "where the engine uses cgroup v1, TCP and UDP buffers are not counted in its memory limit",
        "G7 one disk limit": "each directory that can be written has the limit for itself; memory bounds them together",
    }
)
"""What of the guarantees a container does not keep, by guarantee and promise, and why; docs/limitations has it too."""


class DockerBackend:
    """Implements `ports.Backend` with an engine that speaks the docker command."""

    name = Isolation.DOCKER.value
    fixes_limits = True
    shares_memory = False
    does_not_keep = DOES_NOT_KEEP

    def __init__(
        self,
        settings: EngineSettings,
        *,
        home: Path,
        session: Callable[[str, str], SessionWorkspace],
        limits: Limits,
        shown: Callable[[], tuple[tuple[str, str], ...]] = tuple,
        patience: float = PATIENCE_SECONDS,
    ) -> None:
        """Ask the engine nothing before the first worker is asked for; it has `patience` seconds for each answer."""
        self._settings = settings
        self._engine = Engine(settings, patience=patience)
        self._start_seconds = _ANSWERS_PER_START * patience
        self._home = home
        self._session = session
        self._limits = limits
        self._shown = shown
        self._lock = threading.Lock()
        self._is_remote: bool | None = None
        self._alive: dict[str, Running] = {}
        self._undertaker = Undertaker(self._sweep)
        self._host_namespaces = observe.own_namespaces()

    def start(self, spec: WorkerSpec) -> Worker:
        """Start, seal and observe one container."""
        remote = self._meet_engine()
        plan = self._plan(spec, remote=remote)
        try:
            return self._start(plan, self._session_of(spec))
        except BaseException:
            if plan.inputs is not None:
                shutil.rmtree(plan.inputs.parent, ignore_errors=True)
            raise

    def _meet_engine(self) -> bool:
        """Find out, once, whether the engine can be used, and return whether it is on another machine."""
        with self._lock:
            if self._is_remote is None:
                self._engine.version()
                self._is_remote = self._engine.is_remote()
                self._undertaker.begin()
            return self._is_remote

    def _sweep(self) -> None:
        reaper.Reaper(self._engine, self._home, remote=bool(self._is_remote)).sweep()

    def _plan(self, spec: WorkerSpec, *, remote: bool) -> Plan:
        name = f"rf-{secrets.token_hex(6)}"
        shown = self._shown()
        if spec.packages is not None:
            if not Path(spec.packages).is_dir():
                raise IsolationUnavailable(f"{spec.packages} is not there to be shown in a container")
            shown += ((spec.packages, str(BOX_PACKAGES)),)
        program: tuple[str, ...] = COMMAND
        if self._settings.bring_python:
            brought = carried_python()
            shown += (brought.shown,)
            program = (*brought.words, *COMMAND[1:])
        if shown and remote:
            raise IsolationUnavailable(
                "a container engine on another machine can be shown none of this one's directories",
                reason="engine_elsewhere",
                fix="put packages and toolchains into the image, or use an engine on this machine",
            )
        inputs = None
        if not remote:
            inputs = reaper.own_directory(self._home) / name / "inputs"
            inputs.mkdir(mode=0o700, parents=True)
            inputs.chmod(0o755)  # the guest is another user; that no other finds it, its parents see to
        return Plan(
            name=name,
            spec=spec,
            seccomp=str(self._settings.seccomp or PROFILE),
            memory_bytes=spec.memory_bytes or self._limits.memory_bytes,
            cpus=spec.cpus or self._limits.cpus,
            own_limits=_own_limits(),
            inputs=inputs,
            shown=shown,
            labels=reaper.labels(self._home),
            program=program,
        )

    def _session_of(self, spec: WorkerSpec) -> SessionWorkspace | None:
        return None if spec.session_id is None else self._session(spec.session_id, spec.tenant)

    def _start(self, plan: Plan, session: SessionWorkspace | None) -> StreamWorker:
        try:
            argv = run_argv(self._settings, plan)
            running = launch(self._engine, argv, plan.name, None if plan.inputs is None else plan.inputs.parent)
        except BaseException:
            if session is not None:
                session.close()
            raise
        with self._lock:
            self._alive[plan.name] = running
        line = Line(*running.ends, kill=running.kill, died_of=running.died_of)
        try:
            worker = park(
                line,
                plan.spec,
                sandbox_id=plan.name,
                backend=self.name,
                sandbox_type=SandboxType.GVISOR if self._settings.is_gvisor else SandboxType.DOCKER,
                limits=self._limits,
                inputs=plan.inputs,
                session=session,
                observe=lambda hello: self._observe(hello, running, plan, argv),
                on_discard=lambda: self._give_back(running),
                seconds=self._start_seconds,
                guest_id=UID if self._settings.is_gvisor else None,
            )
            worker.init_pid, worker.worker_pid = running.pids
            running.is_parked = True
            return worker
        except BaseException as error:
            ended = running.ended() if isinstance(error, InternalError) else Ended.OTHERWISE
            said = running.words()
            self._give_back(running)
            match ended:
                case Ended.REFUSED:
                    raise self._refusal(said) from error
                case Ended.NOT_YET:
                    raise hung("run", self._start_seconds) from error
                case Ended.OTHERWISE:
                    raise

    def _refusal(self, said: str) -> IsolationUnavailable | RuntimeMissing:
        if lacks_interpreter(said):
            return RuntimeMissing(
                f"the image {self._settings.image} has no python3, which parks a worker in it",
                fix="use an image with python3 3.8 or newer, or say `bring_python = true` under [docker]",
            )
        with self._lock:
            self._is_remote = None  # the engine is to be met again: it may have been replaced
        return explain(said, self._settings)

    def _observe(self, hello: Hello, running: Running, plan: Plan, argv: tuple[str, ...]) -> Layers:
        container = self._engine.container(plan.name)
        self._require_packages(hello, plan.spec)
        self._require_bounds(container.mounted, hello, plan)
        made_from = Container(
            image=self._settings.image,
            image_digest=container.image_id,
            argv=tuple(_BOOT_WORD if word == BOOT else word for word in argv),
            mounts=mounts_of(plan),
        )
        if self._settings.is_gvisor:
            running.pidfd = observing.open_process(container)
            return replace(observing.of_gvisor(container, hello, self._host_namespaces), container=made_from)
        sight = observing.sight_of(container, hello.worker_pid)
        if sight is None:
            return Layers(notes=(observing.NOT_OBSERVED, *hello.notes), container=made_from)
        running.pids = sight.pids
        running.pidfd = observing.open_process(container)
        return replace(observing.require_layers(sight, hello, self._host_namespaces), container=made_from)

    def _require_packages(self, hello: Hello, spec: WorkerSpec) -> None:
        ours = ".".join(map(str, sys.version_info[:2]))
        if spec.packages is not None and not hello.python.startswith(f"{ours}."):
            raise IsolationUnavailable(
                f"packages are installed for Python {ours}, and the image has {hello.python}",
                fix=f"use an image with Python {ours}, or put the packages into the image",
            )

    def _require_bounds(self, mounted: tuple[str, ...], hello: Hello, plan: Plan) -> None:
        """Refuse a container whose guest could write to the disk of the engine, which has no bound for it."""
        unasked = sorted(set(mounted) - places_of(plan))
        if unasked:
            raise IsolationUnavailable(
                f"the container has directories of the engine's machine unasked for: {', '.join(unasked)[:300]}",
                fix=f"use an image without VOLUME instead of {self._settings.image}, and an engine that adds no mounts",
            )
        if not self._settings.readonly_root and not hello.landlock_abi:
            raise IsolationUnavailable(
                "the image may be written, and without Landlock nothing bounds how much of the engine's disk",
                fix="leave out `readonly_root = false`, or use a kernel with Landlock and no gVisor",
            )

    def _give_back(self, running: Running) -> None:
        running.end()
        with self._lock:
            self._alive.pop(running.name, None)
        self._undertaker.take(running)

    def tidy(self) -> bool:
        """Whether the engine has removed every container whose run is over."""
        return self._undertaker.is_idle()

    def close(self) -> None:
        """End every container of ours, and wait until the engine has removed them."""
        with self._lock:
            left = list(self._alive.values())
        for running in left:
            self._give_back(running)
        self._undertaker.close()


def _own_limits() -> dict[str, int]:
    """Return what this process may use at most, in the names of `--ulimit`."""
    kinds = {
        "nofile": resource.RLIMIT_NOFILE,
        "fsize": resource.RLIMIT_FSIZE,
        "sigpending": resource.RLIMIT_SIGPENDING,
        "nproc": resource.RLIMIT_NPROC,
    }
    limits = {name: resource.getrlimit(kind)[1] for name, kind in kinds.items()}
    return {name: most for name, most in limits.items() if most != resource.RLIM_INFINITY}
