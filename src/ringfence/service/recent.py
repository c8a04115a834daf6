"""What ended a moment ago and is kept nowhere else: events for who comes again, results of runs that leave no files."""

from __future__ import annotations

import threading
from collections import deque
from typing import TYPE_CHECKING, Final

from ringfence.dataclass import dataclass, field
from ringfence.evidence.projections.exec_row import COLUMNS
from ringfence.outcome import Status
from ringfence.service import exec_views

if TYPE_CHECKING:
    from ringfence.errors import RingfenceError
    from ringfence.outcome import ExecutionResult
    from ringfence.service.events import Ring

MOST_BYTES: Final = 32 * 1024 * 1024
MOST_KEPT: Final = 1024
_EACH: Final = 2048  # about what an entry costs beside what it holds


@dataclass(frozen=True, slots=True)
class Kept:
    """One execution that is over, or was left waiting by a service that ends."""

    tenant: str
    ring: Ring
    result: ExecutionResult | None
    """Of a run that left no files, and so can be read nowhere else."""
    error: RingfenceError | None
    size: int
    waits: bool = False
    """Whether it is still promised, and begins when the service starts again."""

    def view(self, exec_id: str) -> exec_views.View:
        """Return what there is to say of it; asked for what its records do not hold."""
        if self.waits:
            return {**dict.fromkeys(COLUMNS), **exec_views.unfinished(self.tenant, None, exec_id, Status.QUEUED)}
        if self.result is not None:
            return exec_views.finished(self.tenant, None, self.result)
        status = exec_views.status_of(self.error)
        told = exec_views.never_began(exec_id, status, self.error)
        return exec_views.finished(self.tenant, None, told)


@dataclass(slots=True, eq=False)
class _Share:
    """What is kept of one tenant: how much, and which, the oldest first."""

    size: int = 0
    exec_ids: deque[str] = field(default_factory=deque)


class Recent:
    """The last of them, within bounds; may be read from any thread.

    Where there is no room, the oldest of the tenant goes that has the most: what others run takes nothing from anybody
    who has less.
    """

    def __init__(self, most_bytes: int = MOST_BYTES, most_kept: int = MOST_KEPT) -> None:
        """Nothing ended yet."""
        self._most_bytes = most_bytes
        self._most_kept = most_kept
        self._kept: dict[str, Kept] = {}
        self._tenants: dict[str, _Share] = {}
        # protects the two above: who looks something up does so in a thread
        self._turn = threading.Lock()

    def keep(
        self,
        exec_id: str,
        tenant: str,
        ring: Ring,
        result: ExecutionResult | None,
        error: RingfenceError | None,
        project_id: str | None,
        *,
        waits: bool = False,
    ) -> None:
        """Keep what ended, and let go of the oldest for it; what its project has need not be here too."""
        own = result if result is not None and (project_id is None or not result.sandbox_id) else None
        size = _EACH + ring.size + (0 if own is None else _size_of(own))
        with self._turn:
            if size > self._most_bytes:
                return
            self._kept[exec_id] = Kept(tenant, ring, own, error, size, waits)
            share = self._tenants.setdefault(tenant, _Share())
            share.size += size
            share.exec_ids.append(exec_id)
            while sum(each.size for each in self._tenants.values()) > self._most_bytes:
                self._let_go(max(self._tenants, key=lambda name: self._tenants[name].size))
            while len(self._kept) > self._most_kept:
                self._let_go(max(self._tenants, key=lambda name: len(self._tenants[name].exec_ids)))

    def _let_go(self, tenant: str) -> None:
        share = self._tenants[tenant]
        share.size -= self._kept.pop(share.exec_ids.popleft()).size
        if not share.exec_ids:
            del self._tenants[tenant]

    def find(self, exec_id: str) -> Kept | None:
        """Return what is still here of an execution."""
        with self._turn:
            return self._kept.get(exec_id)


def _size_of(result: ExecutionResult) -> int:
    artifacts = sum(len(artifact.content) for artifact in result.artifacts)
    return len(result.stdout_raw) + len(result.stderr_raw) + artifacts
