"""Run limits on cgroup v2: one directory per run below a cgroup that was delegated to us or is ours alone."""

from __future__ import annotations

import contextlib
import errno
import os
import threading

from ringfence.capability.limits import Limits
from ringfence.dataclass import dataclass, field
from ringfence.errors import InternalError
from ringfence.isolation.linux.cgroup_contract import (
    CPU_PERIOD_US,
    WANTED,
    CgroupReport,
    KeptOpen,
    Usage,
    counter,
    open_all,
    quota_us,
    read_at,
    write_at,
)
from ringfence.isolation.linux.cgroup_owner import (
    current_owner,
    directory_name,
    members,
    opened,
    remove_tree,
    sweep_below,
)
from ringfence.isolation.linux.cgroup_plan import HOST_LEAF, enabling, may_leave


@dataclass(slots=True)
class V2Host:
    """Makes run cgroups below `parent`, whose children have `controllers`."""

    parent: str
    controllers: frozenset[str]
    report: CgroupReport
    _path: str = ""
    _fd: int = -1
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def create(self, name: str, limits: Limits) -> V2Run:
        """Make the directory of one run and put its limits in force."""
        if self._fd < 0:
            self._open()
        run = V2Run(name, f"{self._path}/{name}", self._fd, self.controllers)
        try:
            os.mkdir(name, 0o755, dir_fd=self._fd)
            if "memory" in self.controllers:
                write_at(self._fd, f"{name}/memory.oom.group", b"1")
                with contextlib.suppress(FileNotFoundError):  # absent when the kernel does not account for swap
                    write_at(self._fd, f"{name}/memory.swap.max", b"0")
            run.tighten(limits)
        except OSError as error:
            run.remove()
            raise InternalError(f"cannot make a cgroup for a run: {error}", reason="cgroup") from error
        return run

    def sweep(self) -> tuple[str, ...]:
        """Kill and remove what dead owners left, and leaves for host processes that are empty."""
        with contextlib.suppress(OSError):
            os.rmdir(f"{self.parent}/{HOST_LEAF}")
        return sweep_below((self.parent,))

    def close(self) -> bool:
        """Remove this owner's directory; False while a run is still in it."""
        with self._lock:
            if self._fd < 0:
                return True
            gone = remove_tree(self._path)
            if gone:
                os.close(self._fd)
                self._fd = -1
            return gone

    def _open(self) -> None:
        with self._lock:
            if self._fd >= 0:
                return
            self._path = f"{self.parent}/{directory_name(current_owner())}"
            os.mkdir(self._path, 0o755)
            fd = os.open(self._path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                write_at(fd, "cgroup.subtree_control", switch_on(self.controllers))
            except OSError:
                os.close(fd)
                os.rmdir(self._path)
                raise
            self._fd = fd


@dataclass(slots=True)
class V2Run:
    """One run's cgroup."""

    name: str
    path: str
    _fd: int
    _controllers: frozenset[str]
    _cpu: KeptOpen = field(default_factory=KeptOpen)
    _peak: KeptOpen = field(default_factory=KeptOpen)
    _tasks: KeptOpen = field(default_factory=KeptOpen)
    _memory_bytes: int = -1
    _pids: int = -1
    _quota: int = -1

    @property
    def paths(self) -> tuple[str, ...]:
        """The absolute directory that belongs to this run."""
        return (self.path,)

    def entrances(self) -> tuple[int, ...]:
        """Open what a process moves itself in by."""
        return open_all([(self._fd, f"{self.name}/cgroup.procs")])

    def holds(self, membership: bytes) -> bool:
        """Whether a process that shows this as its /proc/<pid>/cgroup is in."""
        own = f"/{os.path.basename(os.path.dirname(self.path))}/{self.name}".encode()
        return any(line.startswith(b"0::") and line.endswith(own) for line in membership.splitlines())

    def tighten(self, limits: Limits) -> None:
        """Write the values of `limits` that differ from what is in force."""
        if "memory" in self._controllers and limits.memory_bytes != self._memory_bytes:
            write_at(self._fd, f"{self.name}/memory.max", b"%d" % limits.memory_bytes)
            self._memory_bytes = limits.memory_bytes
        if "pids" in self._controllers and limits.pids != self._pids:
            write_at(self._fd, f"{self.name}/pids.max", b"%d" % limits.pids)
            self._pids = limits.pids
        if "cpu" in self._controllers and (quota := quota_us(limits.cpus)) != self._quota:
            write_at(self._fd, f"{self.name}/cpu.max", b"%d %d" % (quota, CPU_PERIOD_US))
            self._quota = quota

    def cpu_ms(self) -> int | None:
        """Return the CPU time of everything that was ever in this run; every v2 cgroup counts it."""
        return round(counter(self._cpu.read(self._fd, f"{self.name}/cpu.stat"), b"usage_usec") / 1000)

    def memory_peak_bytes(self) -> int | None:
        """Return the most memory that was ever charged to this run; counted from Linux 5.19."""
        if "memory" in self._controllers:
            with contextlib.suppress(FileNotFoundError):
                return int(self._peak.read(self._fd, f"{self.name}/memory.peak"))
        return None

    def tasks_peak(self) -> int | None:
        """Return the most processes and threads that were ever in at one time; counted from Linux 6.1."""
        if "pids" in self._controllers:
            with contextlib.suppress(FileNotFoundError):
                return int(self._tasks.read(self._fd, f"{self.name}/pids.peak"))
        return None

    def usage(self) -> Usage:
        """Read the kernel's counters of this run."""
        oom_kills = 0
        if "memory" in self._controllers:
            oom_kills = counter(read_at(self._fd, f"{self.name}/memory.events"), b"oom_kill")
        return Usage(self.cpu_ms(), self.memory_peak_bytes(), oom_kills)

    def let_go(self) -> None:
        """Close the counters: nobody reads them any more."""
        self._cpu.close()
        self._peak.close()
        self._tasks.close()

    def remove(self) -> bool:
        """Remove the directory; False while a process still dies in it."""
        self.let_go()
        try:
            os.rmdir(self.name, dir_fd=self._fd)
        except FileNotFoundError:
            return True
        except OSError as error:
            if error.errno != errno.EBUSY:
                raise
            return False
        return True


def prepare(parent: str, *, own: bool) -> frozenset[str]:
    """Return the wanted controllers that children of `parent` get, switched on first where that is ours to do."""
    with opened(parent) as fd:
        present = frozenset(read_at(fd, "cgroup.controllers").decode("ascii").split())
        enabled = frozenset(read_at(fd, "cgroup.subtree_control").decode("ascii").split())
        missing = enabling(present, enabled, own=own)
        if missing:
            try:
                write_at(fd, "cgroup.subtree_control", switch_on(missing))
            except OSError as error:
                # The rule against inner processes: a cgroup with members gives no controllers to its children.
                if error.errno != errno.EBUSY or not leave_for_leaf(fd):
                    return enabled & WANTED
                try:
                    write_at(fd, "cgroup.subtree_control", switch_on(missing))
                except OSError:
                    return_from_leaf(fd)
                    return enabled & WANTED
    return (enabled | missing) & WANTED


def leave_for_leaf(fd: int) -> bool:
    """Move our process, and only it, from its cgroup to a leaf below; False when strangers live there too."""
    if not may_leave(members(fd), os.getpid()):
        return False
    try:
        with contextlib.suppress(FileExistsError):
            os.mkdir(HOST_LEAF, 0o755, dir_fd=fd)
        write_at(fd, f"{HOST_LEAF}/cgroup.procs", b"%d" % os.getpid())
    except OSError:
        return False
    return True


def return_from_leaf(fd: int) -> None:
    """Undo `leave_for_leaf` when it did not help."""
    write_at(fd, "cgroup.procs", b"%d" % os.getpid())
    with contextlib.suppress(OSError):
        os.rmdir(HOST_LEAF, dir_fd=fd)


def switch_on(controllers: frozenset[str]) -> bytes:
    """Return the line that gives controllers to a cgroup's children."""
    return " ".join(f"+{name}" for name in sorted(controllers)).encode("ascii")
