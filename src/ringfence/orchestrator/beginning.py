"""The beginning of one execution, written down once, at the last moment before anything of it happens."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ringfence.errors import InternalError, RingfenceError

if TYPE_CHECKING:
    from ringfence.evidence.documents import Document
    from ringfence.evidence.records import Members
    from ringfence.ports import EvidenceSink


class Beginning:
    """Implements `ports.Begin`; whoever carries out an operation asks for it, and the pipeline sees that he did."""

    def __init__(self, evidence: EvidenceSink, members: Members, documents: Sequence[Document]) -> None:
        """Nothing is written yet."""
        self._evidence = evidence
        self._documents = documents
        self._is_written = False
        self.has_failed = False
        self.members = members

    async def write(self) -> None:
        """Make it durable; asked again, it has been done.

        Raises:
            Unavailable: It cannot be written, so nothing may happen.
        """
        if self._is_written:
            return
        try:
            await self._evidence.begin(self.members, self._documents)
        except RingfenceError:
            self.has_failed = True
            raise
        except asyncio.CancelledError:
            self._is_written = True  # nobody waits for it any more, and still it is being written
            raise
        self._is_written = True

    def require_written(self) -> None:
        """Refuse an outcome that came from an executor which never asked.

        Raises:
            InternalError: It is a fault of ours, and nobody is told an outcome that nobody announced.
        """
        if not self._is_written:
            raise InternalError("an executor carried out what was not written down")
