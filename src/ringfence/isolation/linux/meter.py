"""Holds one run to its numbers and counts what it used: by cgroup where there is one, by looking where there is not."""

from __future__ import annotations

import errno
from functools import lru_cache

from ringfence.capability.limits import Limits
from ringfence.dataclass import dataclass, field, replace
from ringfence.errors import InvalidRequest
from ringfence.isolation.linux.cgroup_contract import RunCgroup
from ringfence.isolation.linux.metering import ProcMeter, worst_overshoot

SAMPLE_SECONDS = 0.25


@dataclass(frozen=True, slots=True)
class RunUsage:
    """What a finished run used; None where nobody counted."""

    cpu_ms: int | None
    memory_peak_bytes: int | None
    tasks_peak: int | None
    seen_cpu_ms: int = 0
    """The most that a look found where `cpu_ms` is counted by nobody: so much was used, and perhaps more."""


@dataclass(slots=True)
class Meter:
    """The limits and counters of one worker, from parking to burial."""

    roots: tuple[int, ...]
    """The processes that everything of the run descends from."""
    cgroup: RunCgroup | None
    controllers: frozenset[str]
    parked_under: Limits | None = None
    """What the cgroup was made with: most runs are under the very same."""
    anchor_pid: int | None = None
    """The process that only shares the worker's memory; counted once is enough."""
    _parked_cpu_ms: int = field(default=0, init=False)
    _sampled_peak: int = field(default=0, init=False)
    _sampled_cpu_ms: int = field(default=0, init=False)

    def park(self) -> None:
        """Remember what building the box cost, so that it is not put on the guest's bill."""
        if self.cgroup is not None:
            self._parked_cpu_ms = self.cgroup.cpu_ms() or 0
            self.cgroup.memory_peak_bytes()  # opened now, while nobody waits
            self.cgroup.tasks_peak()

    def begin(self, limits: Limits) -> None:
        """Put the run's own numbers in force.

        Raises:
            InvalidRequest: The memory limit is below what the waiting worker holds already.
        """
        if self.cgroup is None or limits == self.parked_under:
            return
        try:
            self.cgroup.tighten(own_process_on_top(limits))
        except OSError as error:
            if error.errno != errno.EBUSY:
                raise
            raise InvalidRequest(
                f"memory_bytes of {limits.memory_bytes} is less than an idle worker needs", reason="invalid_limit"
            ) from None

    def data_limit(self, limits: Limits) -> int | None:
        """Return the per-process bound that stands in for a missing memory cgroup."""
        return None if "memory" in self.controllers else limits.memory_bytes

    @property
    def walks(self) -> bool:
        """Whether a look walks through `/proc`, whose length and pace the guest decides: not for an event loop."""
        return "memory" not in self.controllers or self._cpu_ms() is None

    def exceeded(self, limits: Limits) -> str | None:
        """Look once; name the limit that the box as a whole has passed."""
        cpu_ms = self._cpu_ms() if self.cgroup is not None else None
        if cpu_ms is None or "memory" not in self.controllers:
            sample = ProcMeter(self.roots, self.anchor_pid).sample()
            if "memory" not in self.controllers:
                self._sampled_peak = max(self._sampled_peak, sample.memory_bytes)
                if sample.memory_bytes > limits.memory_bytes:
                    return "memory"
            if cpu_ms is None:
                cpu_ms = round(sample.cpu_seconds * 1000)
                # those who end unwaited for take theirs along: a later look may find less
                self._sampled_cpu_ms = max(self._sampled_cpu_ms, cpu_ms)
        return "cpu_timeout" if cpu_ms > limits.cpu_seconds * 1000 else None

    def _cpu_ms(self) -> int | None:
        total = self.cgroup.cpu_ms() if self.cgroup is not None else None
        return None if total is None else max(0, total - self._parked_cpu_ms)

    def finish(self) -> RunUsage:
        """Read the last numbers of a dead run."""
        peak = self._sampled_peak or None
        if self.cgroup is None:
            return RunUsage(None, peak, None, self._sampled_cpu_ms)
        tasks = self.cgroup.tasks_peak()
        # one of them is ours: see `own_process_on_top`
        guests = None if tasks is None else max(0, tasks - 1)
        return RunUsage(self._cpu_ms(), self.cgroup.memory_peak_bytes() or peak, guests, self._sampled_cpu_ms)

    def ran_out_of_memory(self) -> bool:
        """Whether the kernel killed for want of memory; asked only when somebody was killed."""
        return self.cgroup is not None and self.cgroup.usage().oom_kills > 0

    def let_go(self) -> None:
        """Close what the counters were read by."""
        if self.cgroup is not None:
            self.cgroup.let_go()

    def bury(self) -> bool:
        """Remove the cgroup; False while the kernel still finds somebody in it."""
        return self.cgroup is None or self.cgroup.remove()


@lru_cache(maxsize=64)
def own_process_on_top(limits: Limits) -> Limits:
    """Return the limits of a box's cgroup: the guest's, and room for the one process in it that is ours."""
    return replace(limits, pids=limits.pids + 1)


def memory_note(controllers: frozenset[str], limits: Limits) -> tuple[str, ...]:
    """Say what the memory limit is worth where no cgroup enforces it."""
    if "memory" in controllers:
        return ()
    return (worst_overshoot(limits, SAMPLE_SECONDS).sentence,)
