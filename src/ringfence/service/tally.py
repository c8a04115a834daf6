"""What the journal amounts to for one tenant: its numbers are counted from its own records and from no others."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

from ringfence.dataclass import dataclass, field
from ringfence.isolation.linux.metering import ProcMeter, Sample
from ringfence.metrics import families
from ringfence.metrics.recorder import Recorder

if TYPE_CHECKING:
    from ringfence.facade import SandboxManager

Records = Callable[[Mapping[str, int]], Iterable[tuple[str, int, Mapping[str, Any]]]]
"""Yields the log, the place and the members of every record after a position; what was tampered with has none."""
MOST_TENANTS: Final = 64
"""Whose numbers are remembered; who comes back later is counted from the start."""


@dataclass(slots=True)
class Tally:
    """The numbers of one tenant, and how far each log was read for them."""

    recorder: Recorder = field(default_factory=Recorder)
    position: dict[str, int] = field(default_factory=dict)


class Tallies:
    """Counts for one tenant at a time."""

    def __init__(self) -> None:
        """Nothing was counted yet."""
        # protects all of it: counting is reading the journal, and one does that at a time
        self._lock = threading.Lock()
        self._tenants: OrderedDict[str, Tally] = OrderedDict()

    def of(self, tenant: str, records: Records) -> Recorder:
        """Return what the records of a tenant amount to; `records` yields those of a log after a position."""
        with self._lock:
            tally = self._tenants.pop(tenant, None) or Tally()
            self._tenants[tenant] = tally
            while len(self._tenants) > MOST_TENANTS:
                self._tenants.popitem(last=False)
            for log_id, seq, members in records(tally.position):
                tally.position[log_id] = seq
                if members.get("tenant") == tenant:
                    tally.recorder.record(members)
            return tally.recorder


def watch_pool(recorder: Recorder, manager: SandboxManager) -> None:
    """Have the pool's size among the numbers, and what each box uses now; one that is gone has no series."""
    recorder.watch(families.POOL, manager.pool_status)
    boxes = manager.engine.pools.boxes()
    used = {box.sandbox_id: ProcMeter((box.init_pid, box.worker_pid), box.anchor_pid).sample() for box in boxes}
    there = {name: sample for name, sample in used.items() if sample.memory_bytes}
    recorder.watch(families.MEMORY, lambda: {name: sample.memory_bytes for name, sample in there.items()})
    recorder.watch(families.CPU_OF_SANDBOX, lambda: _microseconds(there))


def _microseconds(samples: Mapping[str, Sample]) -> dict[str, int]:
    return {name: round(sample.cpu_seconds * families.SECOND) for name, sample in samples.items()}
