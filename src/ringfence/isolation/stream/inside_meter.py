"""What a container's init can see of a run's use: the counters of its own cgroup, else what is said of its children."""

from __future__ import annotations

import os
import resource

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

_ROOT = "/sys/fs/cgroup"
_UNLIMITED = 1 << 60  # what an old-style group without a limit says is a little less than 2**63


class Meter:
    """Counts from the moment the worker was parked."""

    def __init__(self, root: str = _ROOT) -> None:
        """Find out which counters there are; those of a group without a memory limit are not this container's own."""
        self._root = root
        self._read_cpu: Callable[[], int | None] = _nothing
        self._peak = self._tasks = self._killed = ""
        if _number(f"{root}/memory.max") is not None:
            self._read_cpu = lambda: _field(f"{root}/cpu.stat", "usage_usec")
            self._peak, self._tasks = f"{root}/memory.peak", f"{root}/pids.peak"
            self._killed = f"{root}/memory.events"
        elif (_number(f"{root}/memory/memory.limit_in_bytes") or _UNLIMITED) < _UNLIMITED:
            self._read_cpu = self._old_cpu
            self._peak, self._tasks = f"{root}/memory/memory.max_usage_in_bytes", f"{root}/pids/pids.peak"
            self._killed = f"{root}/memory/memory.oom_control"
        self._parked_us = 0
        self._parked_us = self.cpu_us()
        self._parked_tasks = _number(self._tasks) or 0

    def _old_cpu(self) -> int | None:
        nanoseconds = _number(f"{self._root}/cpuacct/cpuacct.usage")
        return None if nanoseconds is None else nanoseconds // 1000

    def cpu_us(self) -> int:
        """Return the cpu time of everything since the worker was parked."""
        counted = self._read_cpu()
        return max(0, (_seen_cpu_us() if counted is None else counted) - self._parked_us)

    def peak_kib(self) -> int:
        """Return the most memory there was in use; of one process alone where nobody counts for all."""
        peak = _number(self._peak)
        return resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss if peak is None else peak // 1024

    def tasks_peak(self) -> int:
        """Return the most tasks there were besides this one; -1 where nobody counts.

        Those that the engine built the container with were counted too: unless the guest had more, nobody knows.
        """
        peak = _number(self._tasks)
        return -1 if peak is None or peak <= self._parked_tasks else peak - 1

    def of_the_dead(self) -> tuple[int, int, int, int]:
        """Return the cpu time, peak, tasks and kills of a run of which nobody is left."""
        if self._read_cpu is not _nothing:
            return self.cpu_us(), self.peak_kib(), self.tasks_peak(), self.memory_kills()
        dead = resource.getrusage(resource.RUSAGE_CHILDREN)
        return max(0, _cpu_us(dead) - self._parked_us), dead.ru_maxrss, -1, -1

    def memory_kills(self) -> int:
        """Return how many processes the kernel killed for want of memory; -1 where it does not say."""
        killed = _field(self._killed, "oom_kill")
        return -1 if killed is None else killed


def _nothing() -> None:
    return None


def _seen_cpu_us() -> int:
    """Add up the living and the dead: what is in /proc, and what was waited for."""
    dead = resource.getrusage(resource.RUSAGE_CHILDREN)
    ticks = 0
    me = str(os.getpid())
    for name in os.listdir("/proc"):
        if name.isdigit() and name != me:
            try:
                with open(f"/proc/{name}/stat", "rb") as file:
                    fields = file.read().rpartition(b")")[2].split()
            except OSError:
                continue  # it has just ended
            ticks += sum(map(int, fields[11:15]))  # its own, and those of the children it waited for
    return _cpu_us(dead) + ticks * 1_000_000 // os.sysconf("SC_CLK_TCK")


def _cpu_us(dead: resource.struct_rusage) -> int:
    return int((dead.ru_utime + dead.ru_stime) * 1e6)


def _number(path: str) -> int | None:
    text = _text(path)
    return int(text) if text.isdigit() else None


def _field(path: str, name: str) -> int | None:
    for line in _text(path).splitlines():
        key, _, value = line.partition(" ")
        if key == name and value.isdigit():
            return int(value)
    return None


def _text(path: str) -> str:
    try:
        with open(path) as file:
            return file.read().strip()
    except OSError:
        return ""
