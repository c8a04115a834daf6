"""Counts what a connection moves against what its run may move, and notices when it stands still."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from typing import TypeVar

from ringfence.dataclass import dataclass
from ringfence.egress.proxy.ledger import Entry, Ledger
from ringfence.egress.proxy.refusal import FORBIDDEN, TOO_LATE, Refusal
from ringfence.operation.target import Target

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Patience:
    """How long a connection may take over each of its parts, in seconds."""

    head: float = 30.0
    idle: float = 120.0


class Meter:
    """Keeps the entry of what is under way on one connection: a tunnel, or one request after another."""

    def __init__(self, ledger: Ledger, patience: Patience) -> None:
        """Nothing is under way."""
        self.ledger, self.patience = ledger, patience
        self.entry = Entry("", 0)
        self._is_open = False
        self._deadline: asyncio.Timeout | None = None

    def begin(self) -> None:
        """Take note that something is under way, unless it is known."""
        if not self._is_open:
            self._is_open = True
            self.ledger.begin(self.entry)

    def end(self) -> None:
        """Write down what came of it; what is under way next has an entry of its own."""
        if self._is_open:
            self._is_open = False
            self.ledger.end(self.entry)
            self.entry = Entry("", 0)

    def name(self, where: Target, method: str) -> None:
        """Say what is under way."""
        self.entry.host, self.entry.port, self.entry.method = where.host, where.port, method

    # --- bytes ---

    def count_out(self, size: int, *, whole: bool = False) -> int:
        """Return how many of `size` bytes may go out, counted; if not the `whole`, nothing may."""
        allowed = self.ledger.may_send(size)
        if whole and allowed < size:
            raise spent()
        self.ledger.sent(self.entry, allowed)
        self._stir()
        return allowed

    def count_in(self, size: int, *, whole: bool = False) -> int:
        """Return how many of `size` bytes may come in, counted; if not the `whole`, nothing may."""
        allowed = self.ledger.may_receive(size)
        if whole and allowed < size:
            raise spent()
        self.ledger.received(self.entry, allowed)
        self._stir()
        return allowed

    # --- time ---

    async def in_time(self, step: Awaitable[_T]) -> _T:
        """Wait for a part that has its time.

        Raises:
            Refusal: It did not come.
        """
        try:
            async with asyncio.timeout(self.patience.head):
                return await step
        except TimeoutError:
            raise Refusal(TOO_LATE, "timeout", "what was due did not come in time") from None

    @asynccontextmanager
    async def while_it_moves(self) -> AsyncIterator[None]:
        """End what neither side has moved a byte on for too long."""
        try:
            async with asyncio.timeout(self.patience.idle) as self._deadline:
                yield
        except TimeoutError:
            raise Refusal(TOO_LATE, "idle", "nothing moved for too long") from None
        finally:
            self._deadline = None

    def _stir(self) -> None:
        if self._deadline is not None:
            self._deadline.reschedule(asyncio.get_running_loop().time() + self.patience.idle)


def spent() -> Refusal:
    """Return the refusal of what goes beyond the budget."""
    return Refusal(FORBIDDEN, "budget", "this run has moved all the bytes it may")
