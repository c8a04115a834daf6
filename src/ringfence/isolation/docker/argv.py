"""The command line of one container, as a function of what is asked for: every flag that holds a guest is here.

No init of the engine's, also where it gives one to every container: that would be the guest's to signal, and would pass
a SIGTERM on to what watches the guest. The first process is the worker's own init, which the kernel keeps every guest
from killing.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from ringfence.dataclass import dataclass, field
from ringfence.isolation.docker.settings import EngineSettings
from ringfence.isolation.stream.channels import MOST_CALLS
from ringfence.outcome import Mount
from ringfence.ports import WorkerSpec

UID: Final = 1000
OWN_TASKS: Final = 1
"""The worker's init is in the guest's cgroup, and counted there."""
_LEAST_FILES: Final = 64
_TO_BECOME_THE_GUEST: Final = ("SETUID", "SETGID", "SETPCAP", "KILL")
_QUEUED_SIGNALS: Final = 1024
_TASKS_OF_A_USER: Final = 1 << 15
"""Of all containers together, and no more than the command can still give; `--pids-limit` is what bounds a guest."""
_SHM_BYTES: Final = 64 << 20
_CPUS: Final = 1.0
_IN_MEMORY: Final = ("/tmp", "/dev/shm", "/home/sandbox")
"""What a guest may write to beside its workspace."""
_NOT_FOR_GUESTS: Final = ("HTTP_PROXY", "HTTPS_PROXY", "FTP_PROXY", "NO_PROXY", "ALL_PROXY")


@dataclass(frozen=True, slots=True)
class Dialect:
    """Where the commands of the engines differ."""

    program: str
    oldest: tuple[int, int]
    version_format: str
    address: str
    """The option that says where the engine listens."""
    is_remote: tuple[str, ...]
    """The question whose answer names another machine, or says `true`."""
    by_volume: bool = False
    """Whether a directory in memory has to be asked for as a volume, because its option knows no bound on files."""
    asks_for_tasks: bool = False
    """Whether it would otherwise set a limit on a user's tasks that not every caller may."""
    run: tuple[str, ...] = ("--no-healthcheck",)

    def base(self, settings: EngineSettings) -> tuple[str, ...]:
        """Return the words every command begins with."""
        return settings.command if settings.url is None else (*settings.command, self.address, settings.url)


_DOCKER: Final = Dialect(
    "docker",
    (20, 10),
    "{{.Server.Version}}",
    "--host",
    ("context", "inspect", "--format", "{{.Endpoints.docker.Host}}"),
    # it would copy the machine's own list of name servers, also where there is no network to ask them through
    run=("--no-healthcheck", "--dns=127.0.0.1", "--dns-search=."),
)
_PODMAN: Final = Dialect(
    "podman",
    (4, 0),
    "{{.Client.Version}}",
    "--url",
    ("info", "--format", "{{.Host.ServiceIsRemote}}"),
    by_volume=True,
    asks_for_tasks=True,
)
_NERDCTL: Final = Dialect("nerdctl", (1, 0), "{{.Client.Version}}", "--address", (), run=())


def dialect_of(settings: EngineSettings) -> Dialect:
    """Return how the engine's command wants to be spoken to; one that nobody knows is taken for docker's."""
    for dialect in (_PODMAN, _NERDCTL):
        if settings.program.startswith(dialect.program):
            return dialect
    return _DOCKER


@dataclass(frozen=True, slots=True)
class Plan:
    """One container that is going to be started."""

    name: str
    spec: WorkerSpec
    seccomp: str
    memory_bytes: int
    cpus: float | None = None
    own_limits: Mapping[str, int] = field(default_factory=dict)
    """What whoever asks may use himself; a guest of his gets no more. A name is as `--ulimit` has it."""
    inputs: Path | None = None
    """The directory that becomes `/workspace/inputs`; without one it is made in the container, and filled through the
    stream."""
    shown: tuple[tuple[str, str], ...] = ()
    """What else of the engine's machine is seen in it, and where, for reading."""
    labels: dict[str, str] = field(default_factory=dict)
    program: tuple[str, ...] = ()
    """What runs as its first process, with its arguments."""


def mounts_of(plan: Plan) -> tuple[Mount, ...]:
    """Return what is mounted in the workspace: inputs, work and artifacts; and what the operator shows beside it."""
    return (
        Mount("tmpfs" if plan.inputs is None else str(plan.inputs), "/workspace/inputs", "ro"),
        Mount("tmpfs", "/workspace/work", "rw"),
        Mount("tmpfs", "/workspace/artifacts", "rw"),
        *(Mount(source, target, "ro") for source, target in plan.shown),
    )


def places_of(plan: Plan) -> frozenset[str]:
    """Return every place of a container at which something is mounted that was asked for."""
    return frozenset((*_IN_MEMORY, *(mount.target for mount in mounts_of(plan))))


def run_argv(settings: EngineSettings, plan: Plan) -> tuple[str, ...]:
    """Return the command that starts the container in the foreground, attached to our pipes."""
    dialect = dialect_of(settings)
    spec = plan.spec
    words = [
        *dialect.base(settings),
        "run",
        "--interactive",
        "--rm",
        "--pull=never",
        "--init=false",
        *dialect.run,
        f"--name={plan.name}",
        f"--hostname={plan.name}",
        *(f"--label={name}={value}" for name, value in sorted(plan.labels.items())),
        "--network=none",
        "--ipc=private",
        "--cgroupns=private",
        "--cap-drop=ALL",
        "--security-opt=no-new-privileges",
        f"--security-opt=seccomp={plan.seccomp}",
        f"--pids-limit={min(spec.pids, plan.own_limits.get('nproc', spec.pids)) + OWN_TASKS}",
        f"--memory={plan.memory_bytes}",
        f"--memory-swap={plan.memory_bytes}",  # as much as the memory alone: no swap
        f"--cpus={plan.cpus or _CPUS:g}",
        *(f"--ulimit={name}={most}:{most}" for name, most in _limits(dialect, plan).items()),
        *_who(settings),
        "--workdir=/workspace/work",
        "--log-driver=none",
        "--stop-timeout=1",
        # the client's own configuration may name proxies, with passwords, for every container it starts
        *(f"--env={name}=" for each in _NOT_FOR_GUESTS for name in (each, each.lower())),
    ]
    if settings.runtime is not None:
        words.append(f"--runtime={settings.runtime}")
    if settings.readonly_root:
        words.append("--read-only")
    words += [
        _tmpfs(dialect, _IN_MEMORY[0], spec.disk_bytes, spec.inodes, "noexec", mode="1777"),
        _tmpfs(dialect, _IN_MEMORY[1], min(_SHM_BYTES, spec.disk_bytes), spec.inodes, "noexec", mode="1777"),
        _tmpfs(dialect, _IN_MEMORY[2], spec.disk_bytes, spec.inodes, "exec"),
        _inputs(dialect, plan),
        _tmpfs(dialect, "/workspace/work", spec.disk_bytes, spec.inodes, "exec"),
        _tmpfs(dialect, "/workspace/artifacts", spec.disk_bytes, spec.inodes, "noexec"),
        *(_bind(source, target) for source, target in plan.shown),
    ]
    program, *arguments = plan.program
    return (*words, f"--entrypoint={program}", settings.image, *arguments)


def _who(settings: EngineSettings) -> tuple[str, ...]:
    if not settings.is_gvisor:
        return (f"--user={UID}:{UID}",)
    # gVisor's kernel lets a guest look into an init of its own user, so there the init is another: root of that kernel,
    # with what it takes to become the guest. None of it is the host's.
    return ("--user=0:0", *(f"--cap-add={name}" for name in _TO_BECOME_THE_GUEST))


def _limits(dialect: Dialect, plan: Plan) -> dict[str, int]:
    limits = {
        "fsize": plan.spec.file_bytes,
        "nofile": plan.spec.open_files,
        "sigpending": _QUEUED_SIGNALS,
        "msgqueue": 0,
        "core": 1,  # and not 0: where it is 0 the kernel still starts the host's handler of core dumps
    }
    if dialect.asks_for_tasks:
        limits["nproc"] = _TASKS_OF_A_USER
    bound = {name: min(most, plan.own_limits.get(name, most)) for name, most in limits.items()}
    # the init needs some too, one for each connection on its way out, and lowers the guest's to what was asked for
    least = _LEAST_FILES
    if plan.spec.egress:
        least = max(least, min(least + MOST_CALLS, plan.own_limits.get("nofile", least + MOST_CALLS)))
    return {**bound, "nofile": max(bound["nofile"], least)}


def _inputs(dialect: Dialect, plan: Plan) -> str:
    if plan.inputs is None:
        return _tmpfs(dialect, "/workspace/inputs", plan.spec.disk_bytes, plan.spec.inodes, "noexec")
    return _bind(str(plan.inputs), "/workspace/inputs")


def _bind(source: str, target: str) -> str:
    parts = ("type=bind", f"source={source}", f"target={target}", "readonly")
    return f"--mount={','.join(map(_quoted, parts))}"


def _tmpfs(dialect: Dialect, where: str, size: int, inodes: int, execute: str, *, mode: str = "0700") -> str:
    # owned by the guest: where the image has such a directory, old runtimes put its mode above the one given here
    owner = (f"mode={mode}", f"uid={UID}", f"gid={UID}")
    options = (execute, "nosuid", "nodev", f"size={size}", f"nr_inodes={inodes}", *owner)
    if not dialect.by_volume:
        return f"--tmpfs={where}:{','.join(('rw', *options))}"
    made = ("volume-opt=type=tmpfs", "volume-opt=device=tmpfs", f"volume-opt=o={','.join(options)}")
    return f"--mount={','.join(map(_quoted, ('type=volume', f'target={where}', *made)))}"


def _quoted(part: str) -> str:
    """Write one part of a list with commas, which a path may have too, as the engines read it."""
    return '"' + part.replace('"', '""') + '"' if set(part) & set(',"\r\n') else part
