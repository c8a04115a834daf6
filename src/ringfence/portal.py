"""An event loop in a thread of its own, through which the synchronous API runs whatever its caller is doing."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
from collections.abc import Coroutine
from concurrent.futures import CancelledError, Future
from typing import Any, TypeVar

from ringfence.errors import InvalidRequest, Unavailable

_T = TypeVar("_T")
_lock = threading.Lock()
_portal: Portal | None = None


class Portal:
    """Runs coroutines for threads that have no loop, or whose loop is busy running them."""

    def __init__(self) -> None:
        """Start the thread."""
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._serve, name="ringfence-portal", daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        # an application may let SIGPIPE end it, as `head` expects of a filter; a guest that closes its input must not
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGPIPE})
        self._loop.run_forever()

    def call(self, work: Coroutine[Any, Any, _T]) -> _T:
        """Run `work` and wait for it; an interrupt cancels it and waits until it has cleaned up.

        Raises:
            InvalidRequest: The caller is called from here itself, and would wait for itself.
        """
        if threading.current_thread() is self._thread:
            work.close()
            raise InvalidRequest(
                "what listens to a run is called from the thread that would have to run this",
                fix="hand it to a thread of your own, or call it after the run",
            )
        outcome: Future[_T] = Future()
        tasks: list[asyncio.Task[_T]] = []

        def start() -> None:
            task = self._loop.create_task(work)
            tasks.append(task)
            task.add_done_callback(lambda done: _copy(done, outcome))

        self._loop.call_soon_threadsafe(start)
        try:
            return outcome.result()
        except BaseException:  # an interrupt, or what else a signal's handler raises
            if outcome.done():
                raise
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
    """Return the one portal of this process.

    Raises:
        Unavailable: The interpreter has stopped its threads, and nobody would ever answer.
    """
    global _portal
    if sys.is_finalizing():
        raise Unavailable("the interpreter is ending: nothing is started any more", reason="closed")
    with _lock:
        if _portal is None:
            _portal = Portal()
        return _portal


def _forget_in_child() -> None:
    global _portal, _lock
    _portal = None
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_forget_in_child)
