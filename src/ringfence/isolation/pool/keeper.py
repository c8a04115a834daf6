"""Carries out what `decide` says: starts workers off the request path, hands them out once, buries them."""

from __future__ import annotations

import asyncio
import errno
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import TYPE_CHECKING

from ringfence.dataclass import dataclass, field
from ringfence.errors import InternalError, IsolationUnavailable, RingfenceError
from ringfence.isolation.pool.decide import PoolPolicy, ShelfState, is_low, most_idle, next_step
from ringfence.ports import Backend, Begin, Worker, WorkerSpec

if TYPE_CHECKING:
    from logging import Logger

_TICK_SECONDS = 5.0
_TIDY_SECONDS = 0.01
_MOST_UNBURIED = 16
_FAILURES_BEFORE_GIVING_UP = 3
_BACK_OFF_SECONDS = 1.0


@dataclass(slots=True)
class _Shelf:
    always_ready: bool
    idle: deque[tuple[float, Worker]] = field(default_factory=deque)
    waiters: deque[Future[Worker]] = field(default_factory=deque)
    starting: int = 0
    leased: int = 0
    peak: int = 0
    last_wanted: float = 0.0
    earlier_peak: int = 0
    window_began: float = 0.0
    failures: int = 0
    quiet_until: float = 0.0
    generation: int = 0

    def turn(self, now: float, window: float) -> None:
        """Forget what was wanted at once more than two windows ago, so that one burst is not paid for all day."""
        if now - self.window_began > window:
            # after a longer silence the last window is not the one before this
            self.earlier_peak = self.peak if now - self.window_began <= 2 * window else 0
            self.peak = self.leased + len(self.waiters)
            self.window_began = now

    @property
    def recent_peak(self) -> int:
        return max(self.peak, self.earlier_peak)

    def state(self, *, shares_memory: bool) -> ShelfState:
        return ShelfState(
            parked_at=tuple(since for since, _ in self.idle),
            starting=self.starting,
            leased=self.leased,
            waiting=len(self.waiters),
            recent_peak=self.recent_peak,
            last_wanted=self.last_wanted,
            always_ready=self.always_ready,
            shares_memory=shares_memory,
        )


class Keeper:
    """A pool of single-use workers; safe to use from any thread and any event loop."""

    def __init__(
        self,
        backend: Backend,
        policy: PoolPolicy,
        *,
        default: WorkerSpec,
        starters: int = 2,
        clock: Callable[[], float] = time.monotonic,
        on_failure: Callable[[Exception], None] = lambda _: None,
    ) -> None:
        """Start the threads that start workers; they end with `close`.

        `on_failure` is told why a worker could not be started, in such a thread, when everybody else has been.
        """
        self._clock = clock
        self._on_failure = on_failure
        self._backend = backend
        self._policy = policy
        self._shelves: dict[WorkerSpec, _Shelf] = {default: _Shelf(always_ready=policy.min_idle > 0)}
        self._dead: deque[Worker] = deque()
        self._leased: dict[str, Worker] = {}
        self._changed = threading.Condition()
        self._closed = False
        # a starter lives as long as the keeper: the launcher asks to die with the thread that made it
        self._threads = [
            threading.Thread(target=self._work, name=f"ringfence-{n}", daemon=True) for n in range(starters)
        ]
        for thread in self._threads:
            thread.start()

    @property
    def fixes_limits(self) -> bool:
        """Whether a worker's memory and processors are bounded when it is started."""
        return self._backend.fixes_limits

    async def lease(self, spec: WorkerSpec, *, meanwhile: Begin | None = None) -> Worker:
        """Return a worker of `spec` that has never run anything; the caller gives it back with `release`.

        Where none is parked, `meanwhile` is awaited while one is started; if it fails, nobody gets that worker.

        Raises:
            IsolationUnavailable: No worker of this kind can be had on this machine.
        """
        with self._changed:
            if self._closed:
                raise InternalError("the pool is closed")
            shelf = self._shelf(spec)
            shelf.last_wanted = self._clock()
            if shelf.idle:
                _, worker = shelf.idle.popleft()
                self._count(shelf, worker)
                shares_memory = self._backend.shares_memory
                most = most_idle(self._policy, always_ready=shelf.always_ready, shares_memory=shares_memory)
                if is_low(len(shelf.idle), shelf.recent_peak, most):
                    self._changed.notify()
                return worker
            waiter: Future[Worker] = Future()
            shelf.waiters.append(waiter)
            shelf.peak = max(shelf.peak, shelf.leased + len(shelf.waiters))
            shelf.quiet_until = 0.0
            self._changed.notify()
        try:
            if meanwhile is not None:
                await meanwhile()
            return await asyncio.wrap_future(waiter)
        except BaseException:
            self._abandon(waiter)
            raise

    def is_ready(self, spec: WorkerSpec) -> bool:
        """Whether a worker of `spec` is parked at this moment."""
        with self._changed:
            shelf = self._shelves.get(spec)
            return shelf is not None and bool(shelf.idle)

    def _abandon(self, waiter: Future[Worker]) -> None:
        """Take back a worker that arrived for a caller who no longer waits."""
        if not waiter.cancel() and waiter.exception() is None:
            self.release(waiter.result())

    def release(self, worker: Worker) -> None:
        """Take back a worker that has been used; it is destroyed, never used again."""
        with self._changed:
            shelf = self._shelf(worker.spec)
            shelf.leased -= 1
            self._leased.pop(worker.sandbox_id, None)
            # the threads that bury end with `close`, but a run may outlast it
            ours = self._closed
            if not ours:
                self._dead.append(worker)
                self._changed.notify()
        if ours:
            _discard(worker)

    def invalidate(self, spec: WorkerSpec) -> None:
        """Throw away what is parked for `spec`: what it was built on has changed."""
        with self._changed:
            shelf = self._shelves.get(spec)
            if shelf is None:
                return
            shelf.generation += 1
            self._dead.extend(worker for _, worker in shelf.idle)
            shelf.idle.clear()
            self._changed.notify_all()

    def status(self) -> dict[str, int]:
        """Count the workers by what they are doing."""
        with self._changed:
            shelves = self._shelves.values()
            return {
                "idle": sum(len(shelf.idle) for shelf in shelves),
                "starting": sum(shelf.starting for shelf in shelves),
                "busy": sum(shelf.leased for shelf in shelves),
                "waiting": sum(len(shelf.waiters) for shelf in shelves),
            }

    def parked(self) -> list[Worker]:
        """List the workers that are parked now, for those who measure them."""
        with self._changed:
            return [worker for shelf in self._shelves.values() for _, worker in shelf.idle]

    def boxes(self) -> list[Worker]:
        """List the workers that are there now, parked or in use, for those who count what they use."""
        with self._changed:
            return [*self._leased.values(), *(worker for shelf in self._shelves.values() for _, worker in shelf.idle)]

    def close(self) -> None:
        """Destroy every parked worker and end the threads; waiting callers get an error."""
        with self._changed:
            if self._closed:
                return
            self._closed = True
            for shelf in self._shelves.values():
                self._dead.extend(worker for _, worker in shelf.idle)
                shelf.idle.clear()
                _refuse(shelf, InternalError("the pool was closed while the run waited for a worker"))
            self._changed.notify_all()
        for thread in self._threads:
            thread.join()
        self._backend.close()

    def _shelf(self, spec: WorkerSpec) -> _Shelf:
        shelf = self._shelves.get(spec)
        if shelf is None:
            shelf = self._shelves[spec] = _Shelf(always_ready=False)
        return shelf

    def _count(self, shelf: _Shelf, worker: Worker) -> None:
        self._leased[worker.sandbox_id] = worker
        shelf.leased += 1
        shelf.peak = max(shelf.peak, shelf.leased + len(shelf.waiters))

    def _work(self) -> None:
        while True:
            with self._changed:
                task = self._next_task()
            if task is None:
                seconds = self._tidy()
                with self._changed:
                    # whoever came meanwhile has woken nobody
                    task = self._next_task()
                    if task is None:
                        # not while another still starts one: a zygote dies with the thread that made it
                        if self._closed and not any(shelf.starting for shelf in self._shelves.values()):
                            return
                        self._changed.wait(seconds)
                        continue
            match task:
                case _Shelf() as shelf, WorkerSpec() as spec:
                    self._start(shelf, spec)
                case worker:
                    _discard(worker)

    def _tidy(self) -> float:
        """Have the backend tidy up, with no caller held up by it; return when to do so again, in seconds."""
        try:
            return _TICK_SECONDS if self._backend.tidy() else _TIDY_SECONDS
        except Exception:  # noqa: BLE001  logged; a starter must outlive it
            _logger().exception("what is left of runs that are over could not be tidied up")
            return _TICK_SECONDS

    def _next_task(self) -> tuple[_Shelf, WorkerSpec] | Worker | None:
        """Choose what a starter does next: callers who wait come first, then burials, then the reserve.

        Unless the dead pile up: each holds memory and descriptors, and a crowd never stops waiting.
        """
        if len(self._dead) > _MOST_UNBURIED:
            return self._dead.popleft()
        now = self._clock()
        reserve = None
        for spec, shelf in list(self._shelves.items()):
            shelf.turn(now, self._policy.keep_idle_seconds)
            step = next_step(shelf.state(shares_memory=self._backend.shares_memory), self._policy, now)
            for _ in range(step.retire):
                self._dead.append(shelf.idle.popleft()[1])
            if step.start and not self._closed and now >= shelf.quiet_until:
                if len(shelf.waiters) > shelf.starting:
                    shelf.starting += 1
                    return shelf, spec
                reserve = reserve or (shelf, spec)
            elif _forgettable(shelf):
                del self._shelves[spec]
        if self._dead:
            return self._dead.popleft()
        if reserve is not None:
            reserve[0].starting += 1
        return reserve

    def _start(self, shelf: _Shelf, spec: WorkerSpec) -> None:
        generation = shelf.generation
        try:
            worker = self._backend.start(spec)
        except Exception as error:  # noqa: BLE001  a starter must outlive whatever one worker does to it
            self._failed(shelf, error)
            self._tell(error)
            return
        with self._changed:
            shelf.starting -= 1
            shelf.failures = 0
            if self._closed or generation != shelf.generation:
                self._dead.append(worker)
                self._changed.notify_all()
                return
            while shelf.waiters:
                waiter = shelf.waiters.popleft()
                if waiter.set_running_or_notify_cancel():
                    self._count(shelf, worker)
                    waiter.set_result(worker)
                    return
            shelf.idle.append((self._clock(), worker))

    def _tell(self, error: Exception) -> None:
        try:
            self._on_failure(error)
        except Exception:  # noqa: BLE001  logged; the pool goes on
            _logger().exception("that no worker starts could not be told: %s", error)

    def _failed(self, shelf: _Shelf, error: Exception) -> None:
        """Try again, unless it is hopeless: a caller gets the error, never a worse worker."""
        with self._changed:
            shelf.starting -= 1
            shelf.failures += 1
            final = isinstance(error, RingfenceError) and not isinstance(error, InternalError)
            hopeless = final or shelf.failures >= _FAILURES_BEFORE_GIVING_UP
            if self._closed or not hopeless:
                self._changed.notify_all()
                return
            shelf.quiet_until = self._clock() + _BACK_OFF_SECONDS
            _refuse(shelf, error if isinstance(error, RingfenceError) else _no_worker(error))


def _no_worker(error: Exception) -> IsolationUnavailable:
    is_full = isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE)
    fix = "let this process open more files: ulimit -n 1024, or LimitNOFILE= of its service" if is_full else None
    return IsolationUnavailable(f"no worker starts: {error}", fix=fix)


def _refuse(shelf: _Shelf, error: Exception) -> None:
    """Give everybody who still waits the error."""
    while shelf.waiters:
        waiter = shelf.waiters.popleft()
        if waiter.set_running_or_notify_cancel():
            waiter.set_exception(error)


def _discard(worker: Worker) -> None:
    """Bury a worker; whatever that does, the pool goes on."""
    try:
        worker.discard()
    except Exception:  # noqa: BLE001  logged; nobody waits for it
        _logger().exception("worker %s could not be discarded", worker.sandbox_id)


def _logger() -> Logger:
    import logging  # not at the top: most pools never have anything to say

    return logging.getLogger(__name__)


def _forgettable(shelf: _Shelf) -> bool:
    """Whether nothing would be lost with this shelf; sessions come and go."""
    busy = shelf.idle or shelf.waiters or shelf.starting or shelf.leased
    return not busy and not shelf.always_ready and shelf.last_wanted > 0
