"""`AIOSandboxPool`: instances of AIO services, each bound to one session from its first use to its end.

Everything is decided and noted in one step, under one lock (`roster.py`): whoever comes next finds the instance
ACQUIRING, and waits for it instead of making a second one. What takes time, to start, destroy or look at one, happens
outside the lock, in threads.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from functools import partial
from types import TracebackType
from typing import Any, Final, Self

from ringfence.errors import InvalidRequest, Overloaded, RingfenceError, Unavailable
from ringfence.isolation.aio.binding import PoolConfig
from ringfence.isolation.aio.client import AIOSandboxClient
from ringfence.isolation.aio.roster import Box, BringUp, Roster, Steps, Waiter
from ringfence.isolation.aio.starting import Instance, Starter
from ringfence.wire.lane import Lane

INSTANCES_VARIABLE: Final = "RINGFENCE_AIO_INSTANCES"
KEY_VARIABLE: Final = "RINGFENCE_AIO_API_KEY"
_USUAL: Final = PoolConfig()
_LONGEST_SESSION: Final = 256
_LOOK_SECONDS: Final = 5.0
_PAUSES: Final = (0.05, 1.0)
_MOST_WORDS: Final = 300


class AIOSandboxPool:
    """Hands out instances; safe to use from any thread and any event loop."""

    def __init__(
        self,
        config: PoolConfig = _USUAL,
        *,
        instances: Iterable[str] | None = None,
        starter: Starter | None = None,
        api_key: str | None = None,
        timeout: float = 60.0,
        submit: Callable[[Callable[[], None]], object] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Take instances from the addresses `instances`, or have them made by `starter`.

        With neither, the addresses are those of RINGFENCE_AIO_INSTANCES, separated by commas, and the key is that of
        RINGFENCE_AIO_API_KEY. `timeout` is how long an answer may take; `submit` has something done in another thread.

        Raises:
            InvalidRequest: An address or the key is none, or both ways to an instance were given.
        """
        if starter is not None and instances is not None:
            raise InvalidRequest("an AIO pool has either instances or a starter", reason="invalid_value")
        if starter is None and instances is None:
            instances = [url.strip() for url in os.environ.get(INSTANCES_VARIABLE, "").split(",") if url.strip()]
            api_key = api_key or os.environ.get(KEY_VARIABLE) or None
        self._config = config
        self._starter = starter
        self._client = partial(AIOSandboxClient, api_key=api_key, timeout=timeout)
        self._named = tuple(self._client(url) for url in dict.fromkeys(instances or ()))
        self._submit = submit or Lane().submit
        # protects everything below: what is decided and what is noted of it is one step
        self._lock = threading.Lock()
        self._roster = Roster(config, clock, can_make=starter is not None)
        self._under_way: set[Future[None]] = set()
        self._open = False
        self._ending = threading.Event()
        self._watch: threading.Thread | None = None

    # --- for programs ---

    async def start(self) -> None:
        """Bring the first instances up, and return when they answer.

        Raises:
            Unavailable: There are none, or one does not answer.
        """
        if self._starter is None and not self._named:
            raise Unavailable(
                "no AIO instances are configured",
                reason="isolation_unavailable",
                fix=f"give instances=[URL] or starter=, or set {INSTANCES_VARIABLE}",
            )
        with self._lock:
            if self._open:
                return
            self._open = True
            self._ending.clear()
            named = self._named[: self._config.max_instances]
            steps: Steps = [self._roster.add(client=client, made_here=False) for client in named]
            started = self._act([*steps, *self._roster.refill()])
            self._watch = threading.Thread(target=self._look_around, name="ringfence-aio", daemon=True)
            self._watch.start()
        done = await asyncio.gather(*map(asyncio.wrap_future, started), return_exceptions=True)
        failed = [error for error in done if isinstance(error, BaseException)]
        # of those that were only named, some may come later; of those we make, one that fails says what all would
        if failed and (self._starter is not None or len(failed) == len(done)):
            await self.stop()
            raise failed[0]

    async def stop(self) -> None:
        """Destroy every instance that was made here, and return when none is left; whoever waits for one is told."""
        with self._lock:
            self._open = False
            self._ending.set()
            boxes, waiters = self._roster.clear()
            watch, self._watch = self._watch, None
            for box in boxes:
                self._do(partial(_destroy, box))
            under_way = tuple(self._under_way)
        for waiter in waiters:
            waiter.refuse(_closed())
        await asyncio.gather(*map(asyncio.wrap_future, under_way), return_exceptions=True)
        if watch is not None:
            await asyncio.to_thread(watch.join)

    def let_go(self) -> None:
        """Close the connections to instances that were only named; also where no thread can be started any more."""
        with self._lock:
            self._open = False
            self._ending.set()
            boxes, waiters = self._roster.clear()
        for waiter in waiters:
            waiter.refuse(_closed())
        for box in boxes:
            if box.client is not None:
                box.client.close()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        await self.stop()

    async def acquire(self, session_id: str) -> AIOSandboxClient:
        """Return the instance of this session, the same however often and by whomever it is asked for.

        Each call is answered by one `release`.

        Raises:
            Overloaded: Every instance is another session's, and none became free in time.
            Unavailable: The pool is closed, or the instance could not be made.
        """
        if not 0 < len(session_id) <= _LONGEST_SESSION:
            raise InvalidRequest("session_id must be a text of 1 to 256 characters", reason="invalid_session_id")
        waiter = Waiter(session_id)
        with self._lock:
            if not self._open:
                raise _closed()
            self._roster.waiters.append(waiter)
            self._act(self._roster.settle())
        try:
            async with asyncio.timeout(self._config.acquire_seconds):
                return await asyncio.wrap_future(waiter.told)
        except BaseException as error:
            with self._lock:
                why, steps = self._roster.give_up(waiter)
                self._act(steps)
            if not isinstance(error, TimeoutError):
                raise
            raise Overloaded(
                f"no AIO instance for the session within {self._config.acquire_seconds:g} s: {why}",
                fix="release one, or raise max_instances",
            ) from None

    async def release(self, session_id: str, *, forget: bool = False) -> None:
        """Give one `acquire` back; with the last one the instance is idle, and waits for its session to come again.

        `forget` says that the session does not come again: its instance is destroyed, where it was made here.
        """
        with self._lock:
            self._act(self._roster.release(session_id, forget=forget))

    def report(self, session_id: str) -> Future[None]:
        """Say that the instance of a session failed: it is looked at now, and given up if it does not answer."""
        with self._lock:
            box = self._roster.of(session_id)
            return self._do(partial(self._look_at, box, final=True) if box is not None else _nothing)

    def status(self) -> dict[str, Any]:
        """Return what each instance does, for whom, and how many wait."""
        with self._lock:
            return self._roster.status()

    @property
    def makes_instances(self) -> bool:
        """Whether an instance can be destroyed and made anew."""
        return self._starter is not None

    def check_health(self) -> None:
        """Look at each instance that was not looked at for a while, and replace those that no longer answer."""
        with self._lock:
            due = self._roster.due()
        for box in due:
            self._look_at(box)
        with self._lock:
            if self._open:
                self._act(self._roster.refill())

    # --- acting: begun under the lock, done outside it ---

    def _act(self, steps: Steps) -> list[Future[None]]:
        return [
            self._do(partial(self._bring_up if isinstance(step, BringUp) else self._end, step.box)) for step in steps
        ]

    def _do(self, work: Callable[[], None]) -> Future[None]:
        """Have another thread do something, and know until it is done."""
        done: Future[None] = Future()
        done.set_running_or_notify_cancel()
        self._under_way.add(done)

        def act() -> None:
            failure: Exception | None = None
            try:
                work()
            except Exception as error:  # noqa: BLE001  told to whoever waits for it
                failure = error
            with self._lock:
                self._under_way.discard(done)
            if failure is None:
                done.set_result(None)
            else:
                done.set_exception(failure)

        self._submit(act)
        return done

    def _bring_up(self, box: Box) -> None:
        instance = None
        try:
            client = box.client
            if client is None and self._starter is not None:
                instance = self._starter()
                client = self._client(instance.base_url)
            if client is None:
                raise _closed()
            self._await_answer(client, instance)
        except Exception as error:
            if instance is not None:
                instance.destroy()
            with self._lock:
                self._act(self._roster.failed(box, error))
            raise
        with self._lock:
            steps = self._roster.came_up(box, client, instance)
            if steps is not None:
                self._act(steps)
                return
        # the pool was stopped meanwhile
        client.close()
        if instance is not None:
            instance.destroy()

    def _await_answer(self, client: AIOSandboxClient, instance: Instance | None) -> None:
        end = time.monotonic() + (self._config.start_seconds if instance is not None else 0.0)
        pause = _PAUSES[0]
        while True:
            try:
                client.look(_LOOK_SECONDS)
                return
            except RingfenceError as error:
                if instance is None or time.monotonic() >= end:
                    raise
                if not instance.is_running():
                    words = " ".join(instance.last_words().split())[-_MOST_WORDS:]
                    raise Unavailable(
                        f"an AIO instance ended before it answered{': ' + words if words else ''}",
                        reason="isolation_unavailable",
                    ) from error
            if self._ending.wait(pause):
                raise _closed()
            pause = min(2 * pause, _PAUSES[1])

    def _end(self, box: Box) -> None:
        try:
            _destroy(box)
        finally:
            with self._lock:
                self._roster.destroyed()
                if self._open:
                    self._act([*self._roster.settle(), *self._roster.refill()])

    def _look_around(self) -> None:
        while not self._ending.wait(min(1.0, self._config.health_seconds)):
            self.check_health()

    def _look_at(self, box: Box, *, final: bool = False) -> None:
        if box.client is None:
            return
        try:
            box.client.look(_LOOK_SECONDS)
            well = box.instance is None or box.instance.is_running()
        except RingfenceError:
            well = False
        with self._lock:
            self._act(self._roster.looked_at(box, well=well, final=final))


def _nothing() -> None:
    """Be done at once."""


def _destroy(box: Box) -> None:
    if box.client is not None:
        box.client.close()
    if box.instance is not None:
        box.instance.destroy()


def _closed() -> Unavailable:
    return Unavailable("the AIO pool is closed", reason="unavailable", fix="await pool.start() first")
