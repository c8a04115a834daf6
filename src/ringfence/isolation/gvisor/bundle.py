"""What `runsc` is told about one box: an OCI bundle and a command line, decided from a worker's spec alone.

All paths that are not the guest's are those of the launcher's root, in which there is nothing else (see `launcher`).
"""

from __future__ import annotations

from typing import Any, Final

from ringfence.capability.limits import MIB
from ringfence.dataclass import dataclass
from ringfence.isolation.gvisor.runsc import Runsc
from ringfence.outcome import Mount
from ringfence.ports import WorkerSpec

RUNSC: Final = "/runsc"
ROOTFS: Final = "/rootfs"
SHOWN: Final = "/shown"
BOX: Final = "/box"
STATE: Final = f"{BOX}/state"
BUNDLE: Final = f"{BOX}/bundle"
INPUTS: Final = f"{BOX}/inputs"
FILES: Final = f"{BOX}/files"
"""The one file system of a run that can be written: of so many bytes and so many files, made by the host's kernel."""

WRITABLE: Final = (
    ("work", "/workspace/work"),
    ("artifacts", "/workspace/artifacts"),
    ("tmp", "/tmp"),
    ("home", "/home/sandbox"),
    ("shm", "/dev/shm"),
)
GUEST_ID: Final = 1000
_OPERATORS: Final = "/mnt"

SENTRY_BYTES: Final = 64 * MIB
"""What gVisor itself takes: its kernel, its file server and their client, measured at 35 MiB when idle."""
SENTRY_TASKS: Final = 128
TASKS_PER_PROCESS: Final = 24
"""A process of a guest is one of the host with threads of its own, and wakes more in the sentry: 7 were measured."""
_QUEUED_SIGNALS: Final = 1024
_INIT_FILES: Final = 4096
_CPU_PERIOD_US: Final = 100_000
_NAMESPACES: Final = ("pid", "ipc", "uts", "mount", "network")
_CAPABILITY_SETS: Final = ("bounding", "effective", "permitted")
# gVisor's, not the host's; gone when the guest is there. Its kernel lets a guest kill the init of its own user.
_TO_BECOME_THE_GUEST: Final = ("CAP_SETUID", "CAP_SETGID", "CAP_SETPCAP", "CAP_KILL")


@dataclass(frozen=True, slots=True)
class Plan:
    """One box that is to be started."""

    name: str
    spec: WorkerSpec
    memory_bytes: int
    cpus: float
    program: tuple[str, ...]
    owns_ids: bool
    """Whether the box has a range of ids, or, as with an ordinary user, the one of its caller."""
    shown: tuple[tuple[str, str], ...] = ()
    """Directories of the host and where the guest sees them, read-only."""

    @property
    def guest_id(self) -> int:
        """Return who the guest is; with a single id everything is that one, which a user namespace calls 0."""
        return GUEST_ID if self.owns_ids else 0


def config_of(plan: Plan) -> dict[str, Any]:
    """Return the `config.json` of a box."""
    spec = plan.spec
    capabilities = list(_TO_BECOME_THE_GUEST) if plan.owns_ids else []
    return {
        "ociVersion": "1.0.2",
        "process": {
            "terminal": False,
            "user": {"uid": 0, "gid": 0},  # the worker's init; see `Plan.guest_id`
            "args": list(plan.program),
            "env": ["PATH=/usr/local/bin:/usr/bin:/bin"],
            "cwd": "/",
            "capabilities": dict.fromkeys(_CAPABILITY_SETS, capabilities),
            "noNewPrivileges": True,
            "rlimits": [{"type": f"RLIMIT_{name}", "soft": most, "hard": most} for name, most in _limits(spec)],
        },
        "root": {"path": ROOTFS, "readonly": True},
        "hostname": plan.name,
        "mounts": _mounts(plan),
        "linux": {
            "namespaces": [{"type": each} for each in _NAMESPACES],
            # only what the guest is told of its machine: the cgroup that holds it is made by us, and not by runsc
            "resources": {
                "memory": {"limit": plan.memory_bytes},
                "cpu": {"quota": round(plan.cpus * _CPU_PERIOD_US), "period": _CPU_PERIOD_US},
            },
        },
    }


def _limits(spec: WorkerSpec) -> tuple[tuple[str, int], ...]:
    return (
        ("NPROC", spec.pids + 1),  # counted by gVisor for the guest's user, threads too; one of them is the init
        ("NOFILE", max(spec.open_files, _INIT_FILES)),  # the init's; the worker has its own
        ("SIGPENDING", _QUEUED_SIGNALS),
        ("MSGQUEUE", 0),
        ("CORE", 1),
    )


def _mounts(plan: Plan) -> list[dict[str, Any]]:
    proc = {"destination": "/proc", "type": "proc", "source": "proc", "options": ["nosuid", "nodev", "noexec"]}
    return [proc] + [
        {
            "destination": each.target,
            "type": "bind",
            "source": each.source,
            "options": [each.mode, "nosuid", "nodev"],
        }
        for each in mounts_of(plan)
    ]


def mounts_of(plan: Plan) -> tuple[Mount, ...]:
    """Return what of the launcher's root a guest can see, besides the image."""
    writable = [Mount(f"{FILES}/{name}", target, "rw") for name, target in WRITABLE]
    shown = [Mount(f"{SHOWN}/{number}", target, "ro") for number, (_, target) in enumerate(plan.shown)]
    return (Mount(INPUTS, "/workspace/inputs", "ro"), *writable, *shown)


def mount_points_of(shown: tuple[tuple[str, str], ...]) -> dict[str, list[str]]:
    """Return what the launcher's copy of the image has to have for what the operator shows: the image has an empty one.

    What is shown elsewhere has a directory in every image that was unpacked.
    """
    names = [target.removeprefix(f"{_OPERATORS}/") for _, target in shown if target.startswith(f"{_OPERATORS}/")]
    return {f"{ROOTFS}{_OPERATORS}": names} if names else {}


def command_of(plan: Plan, runsc: Runsc) -> tuple[str, ...]:
    """Return the command line that runs a box, and stays while it does."""
    return (
        RUNSC,
        "--root",
        STATE,
        f"--platform={runsc.platform}",
        "--network=none",
        # every box has a cgroup of ours already, and one id is all that an ordinary user has
        "--ignore-cgroups",
        *(() if plan.owns_ids else ("--rootless",)),
        *runsc.closing_flags(),
        "run",
        "--bundle",
        BUNDLE,
        plan.name,
    )


def host_memory(guest: int) -> int:
    """Return what the cgroup of a box may hold, for a guest that may hold so much."""
    return guest + SENTRY_BYTES


def host_tasks(guest: int) -> int:
    """Return how many tasks the cgroup of a box may hold, for a guest that may have so many.

    The guest's own number is kept by gVisor; this is what holds when a guest gets it to multiply beyond that.
    """
    return SENTRY_TASKS + TASKS_PER_PROCESS * guest
