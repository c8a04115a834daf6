"""An event loop in a thread of its own, through which the synchronous API runs whatever its caller is doing."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Coroutine
from concurrent.futures import CancelledError, Future
from typing import Any, TypeVar

_T = TypeVar("_T")
_lock = threading.Lock()
_portal: Portal | None = None


class Portal:
    """Runs coroutines for threads that have no loop, or whose loop is busy running them."""

    def __init__(self) -> None:
        """Start the thread."""
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, name="ringfence-portal", daemon=True).start()

    def call(self, work: Coroutine[Any, Any, _T]) -> _T:
        """Run `work` and wait for it; an interrupt cancels it and waits until it has cleaned up."""
        outcome: Future[_T] = Future()
        tasks: list[asyncio.Task[_T]] = []

        def start() -> None:
            task = self._loop.create_task(work)
            tasks.append(task)
            task.add_done_callback(lambda done: _copy(done, outcome))

        self._loop.call_soon_threadsafe(start)
        try:
            return outcome.result()
        except KeyboardInterrupt:
            self._loop.call_soon_threadsafe(lambda: tasks[0].cancel())
            outcome.exception()  # returns when the run is gone
            raise


def _copy(done: asyncio.Task[_T], outcome: Future[_T]) -> None:
    if done.cancelled():
        outcome.set_exception(CancelledError())
    elif (error := done.exception()) is not None:
        outcome.set_exception(error)
    else:
        outcome.set_result(done.result())


def portal() -> Portal:
    """Return the one portal of this process."""
    global _portal
    with _lock:
        if _portal is None:
            _portal = Portal()
        return _portal


def _forget_in_child() -> None:
    global _portal, _lock
    _portal = None
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_forget_in_child)
