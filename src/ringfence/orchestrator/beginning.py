"""The beginning of one execution, written down once, at the last moment before anything of it happens."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING

from ringfence.errors import InternalError

if TYPE_CHECKING:
    from ringfence.evidence.documents import Document
    from ringfence.evidence.records import Members
    from ringfence.ports import EvidenceSink


class Beginning:
    """Implements `ports.Begin`; whoever carries out an operation asks for it, and the pipeline sees that he did."""

    def __init__(
        self, evidence: EvidenceSink, members: Members, documents: Sequence[Document], *, is_announced: bool = False
    ) -> None:
        """Nothing is written yet; `is_announced` is one whose name somebody may look for from now on."""
        self._evidence = evidence
        self._documents = documents
        self._is_announced = is_announced
        self._is_written = False
        self._is_on_disk = False
        self.has_failed = False
        self.members = members

    async def note(self) -> None:
        """Write it down, for what shows itself to nobody before `write` was awaited; asked again, it has been done.

        Raises:
            Unavailable: It cannot be written, so nothing may happen.
        """
        if not self._is_written:
            await self._written(self._evidence.begin if self._is_announced else self._evidence.note)

    async def write(self) -> None:
        """Put it on the disk; asked again, it has been done.

        Raises:
            Unavailable: It cannot be written, so nothing may happen, and nobody may learn what did.
        """
        if not self._is_written:
            await self._written(self._evidence.begin)
        if not self._is_on_disk:
            await self._tried(self._evidence.on_disk())
            self._is_on_disk = True

    async def _written(self, how: Callable[[Members, Sequence[Document]], Awaitable[None]]) -> None:
        await self._tried(how(self.members, self._documents))
        self._is_written = True

    async def _tried(self, writing: Awaitable[None]) -> None:
        try:
            await writing
        except Exception:
            self.has_failed = True
            raise
        except asyncio.CancelledError:
            self._is_written = self._is_on_disk = True  # nobody waits for it any more, and still it is being written
            raise

    async def require_written(self) -> None:
        """Return once it is on the disk; refuse an outcome that came from an executor which never asked.

        Raises:
            InternalError: It is a fault of ours, and nobody is told an outcome that nobody announced.
            Unavailable: The disk does not keep it.
        """
        if not self._is_written:
            raise InternalError("an executor carried out what was not written down")
        await self.write()
