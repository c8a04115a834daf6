"""One pool for each kind of box, made when the first call needs that kind."""

from __future__ import annotations

import threading
from collections.abc import Callable

from ringfence.authority.profile import Isolation
from ringfence.errors import InternalError
from ringfence.isolation.pool.keeper import Keeper
from ringfence.ports import Worker


class Pools:
    """The pools of one engine; safe to use from any thread."""

    def __init__(self, usual: Isolation, make: Callable[[Isolation], Keeper]) -> None:
        """Make the pool of the `usual` kind at once: its workers are parked before anybody asks."""
        self._make = make
        self._lock = threading.Lock()
        self._closed = False
        self._keepers = {usual: make(usual)}

    def of(self, kind: Isolation) -> Keeper:
        """Return the pool of `kind`.

        Raises:
            IsolationUnavailable: Boxes of that kind cannot be had here.
        """
        keeper = self._keepers.get(kind)
        if keeper is not None:
            return keeper
        with self._lock:
            if self._closed:
                raise InternalError("the pool is closed")
            if kind not in self._keepers:
                self._keepers[kind] = self._make(kind)
            return self._keepers[kind]

    def status(self) -> dict[str, int]:
        """Count the workers of all kinds by what they are doing."""
        total: dict[str, int] = {}
        for keeper in self._all():
            for state, number in keeper.status().items():
                total[state] = total.get(state, 0) + number
        return total

    def parked(self) -> list[Worker]:
        """List the workers that are parked now, for those who measure them."""
        return [worker for keeper in self._all() for worker in keeper.parked()]

    def boxes(self) -> list[Worker]:
        """List the workers that are there now, parked or in use, for those who count what they use."""
        return [worker for keeper in self._all() for worker in keeper.boxes()]

    def close(self) -> None:
        """Destroy every parked worker of every kind."""
        with self._lock:
            self._closed = True
        for keeper in self._all():
            keeper.close()

    def _all(self) -> tuple[Keeper, ...]:
        return tuple(self._keepers.values())
