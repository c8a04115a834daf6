"""The AIO backend: runs that are carried out by an AIO Sandbox service, under our policy, budget and record.

Nobody here builds, seals or observes the box. What is kept is what the host decides and checks itself: who may run
what, for how long, how much comes back, under which names, and that no session meets another.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final

from ringfence.authority.profile import Isolation
from ringfence.errors import IsolationUnavailable
from ringfence.isolation.aio.pool import AIOSandboxPool
from ringfence.isolation.aio.worker import AIOWorker
from ringfence.ports import WorkerSpec
from ringfence.workspaces.session import SessionWorkspace

DOES_NOT_KEEP: Final[Mapping[str, str]] = MappingProxyType(
    {
        "G1": "what a run can read is up to whoever set the service up",
        "G2": "in its instance a run can change whatever its user there may",
        "G3": "an AIO service has a network, unless whoever set it up took it away",
        "G4": "a run sees the processes of its instance, the service's own among them",
        "G5": "AIO images give their user sudo",
        "G6": "which doors of the kernel are shut is up to the service",
        "G7": "only time and output are bounded by us; what the shell there sets, root there can lift",
        "G8": "what a run leaves running in a session's instance lives until that is destroyed",
        "G9": "runs of one session share an instance, and what is left in it",
        "G12": "nobody sees the box sealed",
        "G13": "how a run ended is the service's word, and whoever is root there can change it",
    }
)
"""The guarantees of SECURITY.md that cannot be kept at the other end of a wire, and why."""


class AIOBackend:
    """Implements `ports.Backend` over a pool of AIO instances."""

    name = Isolation.AIO.value
    fixes_limits = False
    shares_memory = False
    does_not_keep = DOES_NOT_KEEP

    def __init__(
        self, pool: AIOSandboxPool, session: Callable[[str, str], SessionWorkspace], *, owns_pool: bool = False
    ) -> None:
        """Take instances from `pool` when a run needs one; a pool of our own is started with the first and stopped."""
        self._pool = pool
        self._session = session
        self._owns_pool = owns_pool

    def start(self, spec: WorkerSpec) -> AIOWorker:
        """Return a worker that will take an instance once it has a job.

        Raises:
            IsolationUnavailable: The run needs something that cannot be brought along.
        """
        if spec.packages is not None:
            raise IsolationUnavailable(
                "packages that were built here cannot be used in an AIO service",
                fix="leave out packages=, and have them in the service's image",
            )
        session = None if spec.session_id is None else self._session(spec.session_id, spec.tenant)
        return AIOWorker(f"aio-{secrets.token_hex(6)}", spec, self._pool, session, starts_pool=self._owns_pool)

    def tidy(self) -> bool:
        """Leave nothing behind: the instances are the pool's."""
        return True

    def close(self) -> None:
        """Let go of the pool, unless it is somebody else's."""
        if self._owns_pool:
            self._pool.let_go()
