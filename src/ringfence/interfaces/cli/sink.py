"""Where live output of the guest goes: raw to a pipe or file, shown harmlessly on a terminal."""

from __future__ import annotations

import os
import select
from collections.abc import Callable

from ringfence.interfaces.cli.screen import Screen


class Sink:
    """Writes both streams as they come; a reader that went away is reported once."""

    def __init__(self, descriptors: dict[str, int], *, on_closed: Callable[[], None]) -> None:
        """`descriptors` maps `stdout` and `stderr` to file descriptors; `on_closed` hears of a closed pipe."""
        self._descriptors = descriptors
        self._screens = {name: Screen() for name, fd in descriptors.items() if os.isatty(fd)}
        self._on_closed = on_closed
        self._closed: set[str] = set()

    def __call__(self, stream: str, chunk: bytes) -> None:
        """Write `chunk` of `stream`."""
        screen = self._screens.get(stream)
        self._write(stream, screen.show(chunk) if screen else chunk)

    def end(self) -> None:
        """Write what is left of a character that the guest never finished."""
        for stream, screen in self._screens.items():
            self._write(stream, screen.end())

    def _write(self, stream: str, data: bytes) -> None:
        view = memoryview(data)
        fd = self._descriptors[stream]
        while view and stream not in self._closed:
            try:
                view = view[os.write(fd, view) :]
            except BlockingIOError:
                # A terminal that another program set to non-blocking.
                select.select([], [fd], [])
            except BrokenPipeError:
                self._closed.add(stream)
                self._on_closed()
