"""Threads that wait for the service in place of the event loop: its own few would be taken by sixteen slow runs."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Final, TypeVar

MOST_THREADS: Final = 128
_IDLE_SECONDS: Final = 10.0
_T = TypeVar("_T")


class Lane:
    """At most so many threads, each made when it is needed and gone when it is not; none holds up the process's end."""

    def __init__(self, most: int = MOST_THREADS) -> None:
        """Start nothing yet."""
        self._most = most
        self._begin()

    def submit(self, work: Callable[[], _T]) -> Future[_T]:
        """Have a thread do it; when all are busy it waits for the first that is not."""
        if self._owner != os.getpid():
            self._begin()  # after a fork: the threads are the parent's
        future: Future[_T] = Future()
        with self._change:
            self._waiting.append((future, work))
            if self._idle >= len(self._waiting):
                self._change.notify()
            elif self._threads < self._most:
                self._threads += 1
                threading.Thread(target=self._serve, name="ringfence-client", daemon=True).start()
        return future

    def _begin(self) -> None:
        self._owner = os.getpid()
        self._change = threading.Condition()
        self._waiting: deque[tuple[Future[Any], Callable[[], Any]]] = deque()
        self._threads = self._idle = 0

    def _serve(self) -> None:
        while (taken := self._take()) is not None:
            future, work = taken
            if not future.set_running_or_notify_cancel():
                continue
            try:
                future.set_result(work())
            except BaseException as error:  # noqa: BLE001  it is the waiting task's
                future.set_exception(error)

    def _take(self) -> tuple[Future[Any], Callable[[], Any]] | None:
        with self._change:
            self._idle += 1
            found = self._change.wait_for(lambda: bool(self._waiting), _IDLE_SECONDS)
            self._idle -= 1
            if found:
                return self._waiting.popleft()
            self._threads -= 1
            return None
