"""What the keeper may ask of cgroups, whichever of the two kernel interfaces answers."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Final, Literal, Protocol

from ringfence.capability.limits import Limits
from ringfence.dataclass import dataclass

Kind = Literal["v2", "v1", "none"]

WANTED: Final = frozenset({"memory", "pids", "cpu"})
"""The controllers a run is held by; every one that is missing is named in the report."""

CPU_PERIOD_US: Final = 100_000
SMALLEST_QUOTA_US: Final = 1_000  # the kernel refuses less with EINVAL


@dataclass(frozen=True, slots=True)
class Usage:
    """What the kernel counted for one run; None where this machine does not count it.

    `oom_kills` is the kernel's figure: v2 counts a victim a second time with its group, so only zero has a meaning.
    """

    cpu_ms: int | None
    memory_peak_bytes: int | None
    oom_kills: int


@dataclass(frozen=True, slots=True)
class CgroupReport:
    """What was found and proved by doing it, in the words `doctor` prints."""

    kind: Kind
    controllers: frozenset[str]
    reason: str
    fix: str | None = None
    notes: tuple[str, ...] = ()

    @property
    def missing(self) -> tuple[str, ...]:
        """Name the wanted controllers that do not hold here."""
        return tuple(sorted(WANTED - self.controllers))


class RunCgroup(Protocol):
    """The cgroup of one run, from refill to removal."""

    @property
    def paths(self) -> tuple[str, ...]:
        """The absolute directories that belong to this run."""

    def entrances(self) -> tuple[int, ...]:
        """Open what a process moves itself in by, writing 0 to each; its later children are born here."""

    def holds(self, membership: bytes) -> bool:
        """Whether a process that shows this as its /proc/<pid>/cgroup is in, in every tree."""

    def tighten(self, limits: Limits) -> None:
        """Write the values of `limits` that differ from what is in force."""

    def usage(self) -> Usage:
        """Read the counters; meaningful until `remove` has returned True."""

    def cpu_ms(self) -> int | None:
        """Read the one counter that is looked at while a run goes on."""

    def memory_peak_bytes(self) -> int | None:
        """Read the most memory the run ever held."""

    def tasks_peak(self) -> int | None:
        """Read the most processes and threads that were ever in at one time; None where that cannot be told."""

    def let_go(self) -> None:
        """Close the counters: nobody reads them any more."""

    def remove(self) -> bool:
        """Give the cgroup back; False while a process still dies in it, and then it may be called again."""


class CgroupHost(Protocol):
    """The place on this machine where run cgroups are made."""

    @property
    def report(self) -> CgroupReport:
        """What holds here and what to do about what does not."""

    def create(self, name: str, limits: Limits) -> RunCgroup:
        """Make the cgroup of one run with its limits already in force."""

    def sweep(self) -> tuple[str, ...]:
        """Kill and remove what dead owners left; return the directories that are gone."""

    def close(self) -> bool:
        """Remove this owner's directories; False while a run is still in them."""


def quota_us(cpus: float) -> int:
    """Return the CPU time allowed in each period, never below what the kernel accepts."""
    return max(SMALLEST_QUOTA_US, round(cpus * CPU_PERIOD_US))


def write_at(directory: int, path: str, value: bytes) -> None:
    """Write one cgroup file named relative to a directory fd."""
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC, dir_fd=directory)
    try:
        os.write(fd, value)
    finally:
        os.close(fd)


def open_all(files: Iterable[tuple[int, str]]) -> tuple[int, ...]:
    """Open files named relative to directory fds for writing: all of them or none."""
    opened: list[int] = []
    try:
        for directory, path in files:
            opened.append(os.open(path, os.O_WRONLY | os.O_CLOEXEC, dir_fd=directory))
    except OSError:
        for fd in opened:
            os.close(fd)
        raise
    return tuple(opened)


def read_at(directory: int, path: str) -> bytes:
    """Read one short cgroup file named relative to a directory fd."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC, dir_fd=directory)
    try:
        return os.read(fd, 4096)
    finally:
        os.close(fd)


class KeptOpen:
    """A counter that is read more than once: opened when it is first asked for, so that later nobody waits for that."""

    __slots__ = ("_fd",)

    def __init__(self) -> None:
        """Nothing is opened yet."""
        self._fd = -1

    def read(self, directory: int, path: str) -> bytes:
        """Return what the kernel says now.

        Raises:
            FileNotFoundError: There is no such counter.
        """
        if self._fd < 0:
            self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC, dir_fd=directory)
        return os.pread(self._fd, 4096, 0)

    def close(self) -> None:
        """Let go of it."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def counter(text: bytes, key: bytes) -> int:
    """Return the number after `key` in a flat keyed file; 0 when the kernel does not print the key."""
    for line in text.splitlines():
        name, _, value = line.partition(b" ")
        if name == key:
            return int(value)
    return 0
