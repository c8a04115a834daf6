"""What stands in line for the journal's next transaction, and who waits for it in which loop."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import Iterable, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, NamedTuple

from ringfence.evidence.records import END

if TYPE_CHECKING:
    from ringfence.evidence.documents import Document
    from ringfence.evidence.records import Members
    from ringfence.ports import AlsoWrite


class Entry(NamedTuple):
    """One record to write, with what belongs into the same transaction."""

    members: Members
    documents: Sequence[Document] = ()
    also: AlsoWrite | None = None
    is_noted: bool = False
    """Whether it is the beginning of what has happened since: it is no longer to be refused."""

    @property
    def is_owed(self) -> bool:
        """Whether it happened, so that it is written as soon as anything can be."""
        return self.is_noted or self.members["type"] == END


class Waiting(NamedTuple):
    """A record in line, and who is told when it is written, if anybody."""

    entry: Entry
    loop: asyncio.AbstractEventLoop | None
    written: asyncio.Future[None] | None


def unattended(entry: Entry) -> Waiting:
    """Return what is written whoever waits for it; where that fails it is owed."""
    return Waiting(entry, None, None)


def tell(batch: Iterable[Waiting], error: Exception | None) -> None:
    """Let callers go on, in whatever thread their loop is; another thread's is woken up once for all of its own."""
    try:
        here = asyncio.get_running_loop()
    except RuntimeError:
        here = None
    attended = [waiting for waiting in batch if waiting.loop is not None]
    for loop, some in itertools.groupby(attended, attrgetter("loop")):
        told = [waiting.written for waiting in some if waiting.written is not None]
        if loop is here:
            _set(told, error)
        else:
            with contextlib.suppress(RuntimeError):  # it was closed under them
                loop.call_soon_threadsafe(_set, told, error)


def _set(told: Iterable[asyncio.Future[None]], error: Exception | None) -> None:
    for written in told:
        if written.done():  # cancelled
            continue
        if error is None:
            written.set_result(None)
        else:
            written.set_exception(error)
