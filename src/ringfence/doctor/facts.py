"""Everything the doctor knows about a machine, as plain values that a judgement can be tested on."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from ringfence.dataclass import dataclass, field
from ringfence.outcome import Layers


@dataclass(frozen=True, slots=True)
class Box:
    """What came of really building the native box in a throwaway child."""

    available: bool
    reason: str = ""
    fix: str | None = None
    layers: Layers = field(default_factory=Layers)


@dataclass(frozen=True, slots=True)
class Tool:
    """A program on the host: where it is, its version, and whether it did what we need when tried."""

    path: str | None = None
    version: str = ""
    usable: bool = False
    problem: str = ""


@dataclass(frozen=True, slots=True)
class Cgroups:
    """How this process could limit a group of processes."""

    kind: str = "none"
    path: str = ""
    controllers: frozenset[str] = frozenset()
    writable: bool = False
    read_only: bool = False
    """Whether it is mounted so, by whoever started the container around this process."""


@dataclass(frozen=True, slots=True)
class Home:
    """The state directory, `$RINGFENCE_HOME`."""

    path: str
    exists: bool = False
    writable: bool = True
    mode: int = 0o700
    owned: bool = True


@dataclass(frozen=True, slots=True)
class Journal:
    """The evidence of this home: whether it can be written, and how far it has come."""

    place: str
    now_ms: int
    exists: bool = False
    problem: str = ""
    """Why nothing can be written, and so nothing runs."""
    fix: str | None = None
    room_bytes: int | None = None
    needed_bytes: int = 0
    key: str = ""
    """The name that the checkpoints are signed with, once anything was."""
    key_problem: str = ""
    """Why nothing can be signed, though it is written."""
    key_fix: str | None = None
    records: int = 0
    last_write_ms: int | None = None
    last_checkpoint_ms: int | None = None
    unsigned: int = 0
    """Records that no checkpoint covers yet."""
    is_written_now: bool = False
    """Whether a process that lives has a log of it."""
    orphans: int = 0
    """Runs whose process is gone, and whose end nobody wrote yet."""
    head: str = ""
    backlog: int = 0
    """Records that the slowest of those who watch has not been sent yet."""
    alerts: tuple[str, ...] = ()
    """Who is told when a call is denied."""


@dataclass(frozen=True, slots=True)
class Image:
    """The newest sandbox image that this user has built."""

    name: str
    sha256: str
    age_days: int
    scanner: str | None = None
    """Who was asked about its packages, if anybody was since it was built."""
    scan_age_days: int = 0
    serious: int = 0
    """How many weaknesses that are high or critical the scanner knew."""


@dataclass(frozen=True, slots=True)
class Facts:
    """One machine, seen from one process; `None` and a missing key mean: could not be told."""

    box: Box
    kernel: str = ""
    arch: str = ""
    os_id: str = ""
    os_version: str = ""
    uid: int = 0
    sysctl: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    landlock_abi: int = 0
    landlock_errata: int = 0
    seccomp_actions: frozenset[str] | None = None
    cgroups: Cgroups = Cgroups()
    systemd: bool = False
    inside: str | None = None
    overlay_in_userns: bool | None = None
    tmpfs_user_xattr: bool | None = None
    vsock: bool = False
    engine_sockets: tuple[str, ...] = ()
    """Sockets of container engines of the host's root that this process may speak to."""
    bwrap: Tool = Tool()
    engine: Tool = Tool()
    """The container engine that this home names, usable where it has the image."""
    gvisor: Tool = Tool()
    """The `runsc` of this machine, usable where there is an image for it."""
    node: Tool = Tool()
    node_strips_types: bool = False
    bash: Tool = Tool()
    interpreter: str = ""
    interpreter_unreadable: tuple[str, ...] = ()
    home: Home = Home(path="")
    journal: Journal | None = None
    image: Image | None = None
    memory_available_bytes: int | None = None
    open_files_limit: int | None = None
    processes_limit: int | None = None

    @property
    def kernel_version(self) -> tuple[int, int] | None:
        """The kernel as (major, minor)."""
        numbers = self.kernel.split("-")[0].split(".")
        try:
            return int(numbers[0]), int(numbers[1])
        except (IndexError, ValueError):
            return None
