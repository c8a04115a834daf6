"""Run limits on cgroup v1, where each controller is a tree of its own and every file written is paid for per run.

Memory gets a fresh directory per run, because charges outlive processes. The other trees get a *lane*: a directory
that is handed on to the next run when nobody is in it and it cannot be throttled any more (ADR 0004 has the figures).
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import threading
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Final

from ringfence.capability.limits import Limits
from ringfence.dataclass import dataclass, field
from ringfence.errors import InternalError
from ringfence.isolation.linux.cgroup_contract import (
    CPU_PERIOD_US,
    CgroupReport,
    KeptOpen,
    Usage,
    counter,
    open_all,
    quota_us,
    read_at,
    write_at,
)
from ringfence.isolation.linux.cgroup_owner import current_owner, directory_name, remove_tree, sweep_below

SPARE_LANES: Final = 128
UNLIMITED: Final = -1
SOCKET_SHARE: Final = 8
"""v1 counts what waits in TCP and UDP sockets apart from all other memory: there a run has this part of its limit."""
FEWEST_TASKS: Final = 2
"""What every box has in it: one process of ours, and the guest's first."""


@dataclass(frozen=True, slots=True)
class Hierarchy:
    """One v1 tree and the cgroup in it below which this machine lets us work."""

    parent: str
    controllers: frozenset[str]


@dataclass(slots=True)
class Tree:
    """A hierarchy with this owner's directory open in it."""

    path: str
    controllers: frozenset[str]
    fd: int
    owner: bytes = field(init=False)
    names: tuple[bytes, ...] = field(init=False)
    """The owner's directory and the controllers, as the kernel writes them where it tells who is in."""

    def __post_init__(self) -> None:
        """Write them down once: every worker is looked at by them."""
        self.owner = os.path.basename(self.path).encode()
        self.names = tuple(name.encode() for name in self.controllers)


@dataclass(slots=True)
class Lane:
    """A reusable directory in every tree but memory's, with the values in force and the counters at hand-over."""

    name: str
    made: bool = False
    pids: int = UNLIMITED
    quota: int = UNLIMITED
    cpu_ns: int = 0
    tasks: int = 0
    """The most tasks any earlier run had in it: the kernel counts on, and nobody can set this back."""


@dataclass(slots=True)
class V1Host:
    """Makes run cgroups below our own cgroup of each v1 tree."""

    hierarchies: tuple[Hierarchy, ...]
    report: CgroupReport
    _trees: tuple[Tree, ...] = ()
    _spare: deque[Lane] = field(default_factory=deque)
    _lane_numbers: Iterator[int] = field(default_factory=itertools.count)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def create(self, name: str, limits: Limits) -> V1Run:
        """Make the directories of one run and put its limits in force."""
        trees = self._trees or self._open()
        memory = next((tree for tree in trees if "memory" in tree.controllers), None)
        others = tuple(tree for tree in trees if tree is not memory)
        run = V1Run(self, name, memory, others, self._take_lane(memory))
        try:
            if not run.lane.made:
                for tree in others:
                    os.mkdir(run.lane.name, 0o755, dir_fd=tree.fd)
                run.lane.made = True
            if memory is not None:
                os.mkdir(name, 0o755, dir_fd=memory.fd)
            run.tighten(limits)
        except OSError as error:
            run.discard()
            raise InternalError(f"cannot make a cgroup for a run: {error}", reason="cgroup") from error
        return run

    def sweep(self) -> tuple[str, ...]:
        """Kill and remove what dead owners left in every tree."""
        return sweep_below(tuple(hierarchy.parent for hierarchy in self.hierarchies))

    def close(self) -> bool:
        """Remove this owner's directories; False while a run is still in one of them."""
        with self._lock:
            self._spare.clear()
            if not all(remove_tree(tree.path) for tree in self._trees):
                return False
            close_trees(self._trees)
            self._trees = ()
            return True

    def keep(self, lane: Lane) -> bool:
        """Take back an empty lane for the next run; False when enough are kept and it is to be removed."""
        if len(self._spare) >= SPARE_LANES:
            return False
        self._spare.append(lane)
        return True

    def _take_lane(self, memory: Tree | None) -> Lane:
        """Return a lane of an earlier run or a new one; a memory tree with other controllers in it allows no reuse."""
        if memory is None or memory.controllers == {"memory"}:
            with contextlib.suppress(IndexError):
                return self._spare.popleft()
        return Lane(f"lane-{next(self._lane_numbers)}")

    def _open(self) -> tuple[Tree, ...]:
        with self._lock:
            if self._trees:
                return self._trees
            owner = directory_name(current_owner())
            opened: list[Tree] = []
            try:
                for hierarchy in self.hierarchies:
                    opened.append(open_tree(hierarchy, owner))  # noqa: PERF401 - those already open are closed below
            except OSError:
                close_trees(opened)
                raise
            self._trees = tuple(opened)
            return self._trees


@dataclass(slots=True)
class V1Run:
    """One run's directories: its own in the memory tree, a lane in the others."""

    host: V1Host
    name: str
    memory: Tree | None
    others: tuple[Tree, ...]
    lane: Lane
    _cpu: KeptOpen = field(default_factory=KeptOpen)
    _peak: KeptOpen = field(default_factory=KeptOpen)
    _tasks: KeptOpen = field(default_factory=KeptOpen)
    _memory_bytes: int = UNLIMITED
    _memory_gone: bool = False
    _lane_gone: bool = False

    @property
    def paths(self) -> tuple[str, ...]:
        """The absolute directories that belong to this run."""
        own = (f"{self.memory.path}/{self.name}",) if self.memory else ()
        return own + tuple(f"{tree.path}/{self.lane.name}" for tree in self.others)

    def entrances(self) -> tuple[int, ...]:
        """Open what a process of one thread moves itself in by, in every tree.

        `tasks` and not `cgroup.procs`: a thread that moves itself alone does not wait for a grace period.
        """
        return open_all((tree.fd, f"{directory}/tasks") for tree, directory in self._directories())

    def holds(self, membership: bytes) -> bool:
        """Whether a process that shows this as its /proc/<pid>/cgroup is in, in every tree."""
        where: dict[bytes, bytes] = {}
        for line in membership.split(b"\n")[:-1]:  # a path may hold any other byte
            _, controllers, path = line.split(b":", 2)
            for name in controllers.split(b","):
                where[name] = path
        for tree, directory in self._directories():
            inside = b"/%s/%s" % (tree.owner, directory.encode())
            if not all(where.get(name, b"").endswith(inside) for name in tree.names):
                return False
        return True

    def tighten(self, limits: Limits) -> None:
        """Write the values of `limits` that differ from what is in force."""
        for tree, directory in self._directories():
            if "memory" in tree.controllers and limits.memory_bytes != self._memory_bytes:
                self._limit_memory(tree.fd, directory, limits.memory_bytes)
            if "pids" in tree.controllers and limits.pids != self.lane.pids:
                write_at(tree.fd, f"{directory}/pids.max", b"%d" % limits.pids)
                self.lane.pids = limits.pids
            if "cpu" in tree.controllers and (quota := quota_us(limits.cpus)) != self.lane.quota:
                limit_cpu(tree.fd, directory, quota)
                self.lane.quota = quota

    def cpu_ms(self) -> int | None:
        """Return the CPU time of everything that was ever in this run."""
        for tree in self.others:
            if "cpuacct" in tree.controllers:
                used = int(self._cpu.read(tree.fd, f"{self.lane.name}/cpuacct.usage")) - self.lane.cpu_ns
                return round(used / 1e6)
        return None

    def memory_peak_bytes(self) -> int | None:
        """Return the most memory that was ever charged to this run."""
        if self.memory is None:
            return None
        return int(self._peak.read(self.memory.fd, f"{self.name}/memory.max_usage_in_bytes"))

    def tasks_peak(self) -> int | None:
        """Return the most processes and threads that were ever in at one time.

        A lane remembers the most of all its runs. So the number is this run's own where it is more than that of those
        before; where it is not, it is known only if it is the least that any run has: ours and the guest's one.
        """
        for tree in self.others:
            if "pids" in tree.controllers:
                with contextlib.suppress(FileNotFoundError):  # before Linux 6.1
                    peak = int(self._tasks.read(tree.fd, f"{self.lane.name}/pids.peak"))
                    return peak if peak > self.lane.tasks or peak <= FEWEST_TASKS else None
        return None

    def usage(self) -> Usage:
        """Read the kernel's counters of this run."""
        oom_kills = 0
        for tree, directory in self._directories():
            if "memory" in tree.controllers:
                oom_kills = counter(read_at(tree.fd, f"{directory}/memory.oom_control"), b"oom_kill")
        return Usage(self.cpu_ms(), self.memory_peak_bytes(), oom_kills)

    def let_go(self) -> None:
        """Close the counters: nobody reads them any more."""
        self._cpu.close()
        self._peak.close()
        self._tasks.close()

    def remove(self) -> bool:
        """Remove the memory directory and hand the lane on; False while a process still dies in one of them."""
        self.let_go()
        if self.memory is not None and not self._memory_gone:
            self._memory_gone = removed(self.memory.fd, self.name)
            if not self._memory_gone:
                return False
        if not self._lane_gone:
            self._lane_gone = self._hand_on() or self._remove_lane()
        return self._lane_gone

    def discard(self) -> None:
        """Take back what a failed `create` had made; nobody was ever in it."""
        self.let_go()
        if self.memory is not None:
            removed(self.memory.fd, self.name)
        self._remove_lane()

    def _remove_lane(self) -> bool:
        """Remove the lane from every tree, also from those after one that is busy."""
        return not [tree for tree in self.others if not removed(tree.fd, self.lane.name)]

    def _hand_on(self) -> bool:
        """Give the lane to the next run, if that could tell nothing of this one.

        The lane must be empty by the kernel's own count, zombies included, and have used less CPU than a quarter of one
        period's quota: it has not eaten what its successor may use in the same period.
        """
        total = -1
        empty = False
        try:
            for tree in self.others:
                if "pids" in tree.controllers:
                    empty = read_at(tree.fd, f"{self.lane.name}/pids.current") == b"0\n"
                    with contextlib.suppress(FileNotFoundError):
                        self.lane.tasks = int(read_at(tree.fd, f"{self.lane.name}/pids.peak"))
                if "cpuacct" in tree.controllers:
                    total = int(read_at(tree.fd, f"{self.lane.name}/cpuacct.usage"))
        except FileNotFoundError:  # an earlier call has removed part of it
            return False
        if not empty or total < 0 or (total - self.lane.cpu_ns) // 1000 >= self.lane.quota // 4:
            return False
        self.lane.cpu_ns = total
        return self.host.keep(self.lane)

    def _directories(self) -> tuple[tuple[Tree, str], ...]:
        others = tuple((tree, self.lane.name) for tree in self.others)
        return ((self.memory, self.name), *others) if self.memory is not None else others

    def _limit_memory(self, fd: int, directory: str, limit: int) -> None:
        """Set memory and memory-plus-swap to the same value; the kernel demands the smaller first when lowering."""
        value = b"%d" % limit
        names = ["memory.limit_in_bytes", "memory.memsw.limit_in_bytes"]
        if UNLIMITED != self._memory_bytes < limit:
            names.reverse()
        for name in names:
            try:
                write_at(fd, f"{directory}/{name}", value)
            except FileNotFoundError:
                if "memsw" not in name:  # absent when the kernel does not account for swap; swappiness 0 remains
                    raise
        with contextlib.suppress(FileNotFoundError):  # a kernel without TCP
            write_at(fd, f"{directory}/memory.kmem.tcp.limit_in_bytes", b"%d" % (limit // SOCKET_SHARE))
        self._memory_bytes = limit


def open_tree(hierarchy: Hierarchy, owner: str) -> Tree:
    """Make this owner's directory in one tree; swappiness is inherited, so it is written once and not per run."""
    path = f"{hierarchy.parent}/{owner}"
    os.mkdir(path, 0o755)
    tree = Tree(path, hierarchy.controllers, os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))
    try:
        if "memory" in hierarchy.controllers:
            write_at(tree.fd, "memory.swappiness", b"0")
    except OSError:
        close_trees((tree,))
        raise
    return tree


def close_trees(trees: Iterable[Tree]) -> None:
    """Let go of this owner's directories and remove those that are empty."""
    for tree in trees:
        os.close(tree.fd)
        with contextlib.suppress(OSError):
            os.rmdir(tree.path)


def limit_cpu(fd: int, directory: str, quota: int) -> None:
    """Set the CPU quota; where an outer cgroup allows less still, v1 refuses and the outer quota is the limit."""
    try:
        write_at(fd, f"{directory}/cpu.cfs_quota_us", b"%d" % quota)
    except OSError as error:
        if error.errno != errno.EINVAL or not outer_quota_below(fd, quota):
            raise


def outer_quota_below(fd: int, quota: int) -> bool:
    """Whether a cgroup above this owner's directory holds everything in it to less than `quota`."""
    directory = os.path.realpath(f"/proc/self/fd/{fd}")
    while os.path.exists(f"{directory}/cpu.cfs_quota_us"):
        with open(f"{directory}/cpu.cfs_quota_us", "rb") as file:
            allowed = int(file.read())
        with open(f"{directory}/cpu.cfs_period_us", "rb") as file:
            period = int(file.read())
        if 0 <= allowed * CPU_PERIOD_US < quota * period:
            return True
        directory = os.path.dirname(directory)
    return False


def removed(fd: int, directory: str) -> bool:
    """Remove one directory; False while the kernel says it is busy."""
    try:
        os.rmdir(directory, dir_fd=fd)
    except FileNotFoundError:
        return True
    except OSError as error:
        if error.errno != errno.EBUSY:
            raise
        return False
    return True
