"""What of a journal a forked child begins anew: all that was in hand is its parent's to write."""

from __future__ import annotations

import os
import weakref
from typing import Protocol


class BeginsAnew(Protocol):
    """A part of a journal that has locks, threads or records in hand."""

    def begin_anew(self) -> None:
        """Have nothing in hand, and wait for nobody who is not here."""
        ...


_IN_THIS_PROCESS: weakref.WeakSet[BeginsAnew] = weakref.WeakSet()


def begin_anew_in_child(part: BeginsAnew) -> None:
    """Have `part` begin anew in every child that this process forks, for as long as it is in use."""
    _IN_THIS_PROCESS.add(part)


def _begin_anew() -> None:
    for part in tuple(_IN_THIS_PROCESS):
        part.begin_anew()


os.register_at_fork(after_in_child=_begin_anew)
