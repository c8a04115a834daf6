"""An event loop in a thread of its own, through which the synchronous API runs whatever its caller is doing."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Coroutine
from concurrent.futures import CancelledError
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
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except KeyboardInterrupt:
            future.cancel()
            try:
                future.result()
            except CancelledError:
                pass
            raise


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
