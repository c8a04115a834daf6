"""Which backend `auto` means: the first that really starts a worker here; if none does, a refusal that says why."""

from __future__ import annotations

import threading
from collections.abc import Callable

from ringfence.errors import InternalError, IsolationUnavailable, RingfenceError
from ringfence.ports import Backend, Worker, WorkerSpec


class FirstAvailable:
    """Implements `ports.Backend` by settling, once, on one of several."""

    name = "auto"

    def __init__(self, tiers: tuple[Callable[[], Backend], ...]) -> None:
        """Try `tiers` in order, strongest first; every one of them isolates for real."""
        self._tiers = tiers
        self._lock = threading.Lock()
        self._chosen: Backend | None = None

    @property
    def fixes_limits(self) -> bool:
        """Whether the chosen one bounds memory and processors when a worker starts; nobody knows before."""
        return self._chosen is not None and self._chosen.fixes_limits

    @property
    def shares_memory(self) -> bool:
        """Whether workers of the chosen one have most of their memory in common."""
        return self._chosen is not None and self._chosen.shares_memory

    def start(self, spec: WorkerSpec) -> Worker:
        """Start a worker in the chosen tier, choosing it first if need be."""
        with self._lock:
            if self._chosen is None:
                return self._choose(spec)
            chosen = self._chosen
        return chosen.start(spec)

    def _choose(self, spec: WorkerSpec) -> Worker:
        refusals: list[RingfenceError] = []
        for make in self._tiers:
            backend = make()
            try:
                worker = backend.start(spec)
            except (IsolationUnavailable, InternalError) as refusal:
                backend.close()
                refusals.append(refusal)
                continue
            except BaseException:
                backend.close()
                raise
            self._chosen = backend
            return worker
        raise IsolationUnavailable(
            "no isolation can be had here: " + "; ".join(map(str, refusals)),
            fix=next((refusal.fix for refusal in refusals if refusal.fix), "run `ringfence doctor`"),
        )

    def tidy(self) -> bool:
        """Remove what is left of runs that are over."""
        chosen = self._chosen
        return chosen is None or chosen.tidy()

    def close(self) -> None:
        """End whatever was started."""
        with self._lock:
            if self._chosen is not None:
                self._chosen.close()
