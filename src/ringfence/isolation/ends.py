"""The host's ends of a guest's streams, which no process that the application forks may keep."""

from __future__ import annotations

import contextlib
import os
import weakref

from ringfence.dataclass import dataclass

_open_streams: weakref.WeakSet[Streams] = weakref.WeakSet()


@dataclass(slots=True, weakref_slot=True, eq=False)
class Streams:
    """The host's ends of the guest's standard streams."""

    stdin: int
    stdout: int
    stderr: int

    def __post_init__(self) -> None:
        """Be known to the one who has to close all of them."""
        _open_streams.add(self)

    def close(self) -> None:
        """Close what is still open."""
        for fd in (self.stdin, self.stdout, self.stderr):
            if fd >= 0:
                os.close(fd)
        self.stdin = self.stdout = self.stderr = -1


def _close_in_child() -> None:
    """Close a forked child's copies: while it holds one, no guest of the parent would see its input end."""
    for streams in tuple(_open_streams):
        with contextlib.suppress(OSError):  # another thread of the parent was just closing them
            streams.close()


os.register_at_fork(after_in_child=_close_in_child)
