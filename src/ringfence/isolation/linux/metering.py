"""Counts what a run uses where no cgroup does it: from /proc, by walking down from the run's worker and its init.

Orphans are reparented to the init of their pid namespace, so whatever the guest starts is below one of the two.
A sample is a look at a moving thing: what starts and ends between two looks is seen only as reaped CPU time.
"""

from __future__ import annotations

import contextlib
import os
from typing import Final

from ringfence.capability.limits import MIB, Limits
from ringfence.dataclass import dataclass
from ringfence.isolation.linux import kernel

TICKS_PER_SECOND: Final = os.sysconf("SC_CLK_TCK")

FASTEST_BYTES_PER_CORE_SECOND: Final = 16 * 1024 * MIB
"""Assumed, not measured on every machine: faster than a core of today zeroes fresh huge pages."""

WALKS: Final = 3

EXACT_TABLES: Final = 64 * MIB
"""So much of page tables is walked in one look to tell shared pages apart: 32 GiB of pages, about a second's work."""

_MOST_SOCKETS_READ: Final = 4 * MIB
_SOCKETS: Final = ("net/tcp", "net/tcp6", "net/udp", "net/udp6")
_VANISHED = (FileNotFoundError, ProcessLookupError)


@dataclass(frozen=True, slots=True)
class Sample:
    """One look at a run; `exact_memory` is False when shared pages had to be counted once per process."""

    cpu_seconds: float
    memory_bytes: int
    pids: int
    exact_memory: bool


@dataclass(frozen=True, slots=True)
class Overshoot:
    """How far a run can pass its memory limit where no cgroup holds it."""

    between_samples_bytes: int
    hard_bytes: int
    sentence: str


@dataclass(frozen=True, slots=True)
class ProcMeter:
    """Samples everything below a run's init and its worker, which need not be one tree."""

    roots: tuple[int, ...]
    anchor: int | None = None
    """A process that shares the last root's memory and is not counted, until that has executed another program."""

    def sample(self) -> Sample:
        """Look once; a run that is already gone has used nothing that can still be seen. Not for an event loop."""
        ticks, memory = 0, self._waiting_in_sockets()
        walkable = EXACT_TABLES
        exact = True
        uncounted = self.anchor if self._anchor_shares() else None
        pids = [pid for pid in descendants(self.roots) if pid != uncounted]
        for pid in pids:
            with contextlib.suppress(*_VANISHED):
                ticks += cpu_ticks(read_proc(pid, "stat"))
                status = read_proc(pid, "status")
                tables = table_bytes(status)
                walkable -= tables
                own = _walked_bytes(pid) if walkable >= 0 else None
                exact = exact and own is not None
                memory += tables + (resident_bytes(status) if own is None else own)
        return Sample(ticks / TICKS_PER_SECOND, memory, len(pids), exact)

    def _waiting_in_sockets(self) -> int:
        """Return what lies in the buffers of the box's network; of its processes any one that lives can be asked."""
        for pid in reversed(self.roots):
            with contextlib.suppress(*_VANISHED):
                return sum(queued_bytes(read_proc(pid, name, _MOST_SOCKETS_READ)) for name in _SOCKETS)
        return 0

    def _anchor_shares(self) -> bool:
        if self.anchor is None:
            return False
        try:
            return kernel.share_memory(self.anchor, self.roots[-1])
        except OSError:
            # a kernel that cannot tell: nobody is killed for memory that may be counted twice
            return True


def worst_overshoot(limits: Limits, interval: float, cores: int | None = None) -> Overshoot:
    """State how far past `limits.memory_bytes` a run can get when memory is only sampled every `interval` seconds."""
    busy = cores or os.cpu_count() or 1
    hard = limits.memory_bytes * (limits.pids - 1)
    between = min(hard, round(interval * FASTEST_BYTES_PER_CORE_SECOND * busy))
    sentence = (
        f"no memory cgroup: memory is sampled every {interval * 1000:.0f} ms, so a run can pass its limit of "
        f"{limits.memory_bytes // MIB} MiB by up to {between // MIB} MiB before it is seen "
        f"({busy} cores at an assumed {FASTEST_BYTES_PER_CORE_SECOND // MIB} MiB/s each); the hard bound underneath is "
        f"RLIMIT_DATA per process times {limits.pids} processes, {(limits.memory_bytes + hard) // MIB} MiB in all; "
        "RLIMIT_DATA does not count shared memory, so memfd, System V objects and anonymous shared maps are refused; "
        "what the kernel itself holds for a run (buffers of pipes and Unix sockets, locks) is not counted by anybody"
    )
    return Overshoot(between, hard, sentence)


def _walked_bytes(pid: int) -> int | None:
    """Return the PSS; None where it may not be read."""
    try:
        return proportional_bytes(read_proc(pid, "smaps_rollup"))
    except PermissionError:
        return None


def cpu_ticks(stat: bytes) -> int:
    """Return utime + stime + cutime + cstime; the command name may hold blanks and parentheses."""
    fields = stat[stat.rindex(b")") + 2 :].split()
    return sum(int(value) for value in fields[11:15])


def proportional_bytes(smaps_rollup: bytes) -> int:
    """Return the PSS: each shared page counted by its share, so that a sum over processes is right.

    What was swapped out counts too: a guest has not given it back.
    """
    return keyed_kib(smaps_rollup, (b"Pss:", b"SwapPss:")) * 1024


def resident_bytes(status: bytes) -> int:
    """Return anonymous, shared-memory and swapped pages: too much where processes share, never too little.

    Pages of mapped files are left out: they are the read-only system trees, which the page cache may drop.
    """
    return keyed_kib(status, (b"RssAnon:", b"RssShmem:", b"VmSwap:")) * 1024


def table_bytes(status: bytes) -> int:
    """Return the page tables: a map that is only read has no pages of its own, and tables without end."""
    return keyed_kib(status, (b"VmPTE:",)) * 1024


def queued_bytes(sockets: bytes) -> int:
    """Return what is sent and not taken, or come and not read, by the kernel's table of one kind of socket."""
    lines = sockets.split(b"\n")[1:-1]  # the first is a heading; the last is empty, or cut
    return sum(int(size, 16) for line in lines for size in line.split()[4].split(b":"))


def keyed_kib(text: bytes, keys: tuple[bytes, ...]) -> int:
    """Add up the kB values of the given keys."""
    return sum(int(line.split()[1]) for line in text.splitlines() if line.startswith(keys))


def descendants(roots: tuple[int, ...]) -> tuple[int, ...]:
    """Return the roots and every process below them.

    A process whose parent dies during the walk turns up as a child of the init, so the walk is repeated while it finds
    more. A guest that forks and exits faster than that can hide a process from one sample, not from its own limits.
    """
    seen = set(roots)
    for _ in range(WALKS):
        before = len(seen)
        waiting = list(roots)
        walked: set[int] = set()
        while waiting:
            pid = waiting.pop()
            walked.add(pid)
            waiting += [child for child in children(pid) if child not in walked]
        seen |= walked
        if len(seen) == before:
            break
    return tuple(sorted(pid for pid in seen if os.path.exists(f"/proc/{pid}")))


def children(pid: int) -> tuple[int, ...]:
    """Return the children of every thread of a process."""
    found: list[int] = []
    with contextlib.suppress(*_VANISHED):
        for thread in os.listdir(f"/proc/{pid}/task"):
            with contextlib.suppress(*_VANISHED):
                found += parse_children(read_proc(pid, f"task/{thread}/children"))
    return tuple(found)


def parse_children(text: bytes) -> list[int]:
    """Return the pids in the blank-separated list the kernel prints for one thread."""
    return [int(word) for word in text.split()]


def read_proc(pid: int, name: str, most: int = -1) -> bytes:
    """Read one file of a process."""
    with open(f"/proc/{pid}/{name}", "rb") as file:
        return file.read(most)
