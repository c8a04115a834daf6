"""How whoever no longer waits for the service tells the thread that does."""

from __future__ import annotations

import http.client
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from ringfence.errors import RingfenceError
from ringfence.wire.patience import PatientSocket


class Stopped(Exception):
    """Whoever asked no longer waits."""


class Stop:
    """Ends a call from another thread: whatever it waits for, it wakes at once."""

    def __init__(self) -> None:
        """Nobody has asked for it yet."""
        self._told = threading.Event()
        self._lock = threading.Lock()
        self._socket: PatientSocket | None = None

    def now(self) -> None:
        """End it."""
        self._told.set()
        with self._lock:
            if self._socket is not None:
                self._socket.abort()

    def wait(self, seconds: float) -> None:
        """Sleep, unless told before it is over."""
        if self._told.wait(seconds):
            raise Stopped

    @property
    def told(self) -> bool:
        """Whether it was asked for."""
        return self._told.is_set()

    @contextmanager
    def watching(self, patient: PatientSocket) -> Iterator[None]:
        """Have this socket aborted, too, for as long as the block lasts."""
        with self._lock:
            self._socket = patient
        try:
            if self._told.is_set():
                raise Stopped
            yield
        except (OSError, http.client.HTTPException, RingfenceError) as error:
            if self._told.is_set():
                raise Stopped from error
            raise
        finally:
            with self._lock:
                self._socket = None
