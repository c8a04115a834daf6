"""The moment between a guest's end and its record: whoever counts guests is told, and need not wait for the disk."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ringfence.evidence.records import Members
    from ringfence.operation.form import Operation
    from ringfence.outcome import Outcome
    from ringfence.ports import Keep


class Guests:
    """Implements `ports.Keep` around another: what is to be kept comes when the last process of a guest is dead."""

    def __init__(self, keep: Keep) -> None:
        """Nobody counts yet."""
        self._keep = keep
        self._counting: dict[str, Callable[[], None]] = {}

    @contextmanager
    def telling(self, exec_id: str, tell: Callable[[], None]) -> Iterator[None]:
        """Have `tell` called once, within the block, when the guest of this execution is gone; it must not block."""
        self._counting[exec_id] = tell
        try:
            yield
        finally:
            self._counting.pop(exec_id, None)

    async def __call__(self, begun: Members, ended: Members, operation: Operation, outcome: Outcome) -> Outcome:
        """Tell whoever counts, then keep what there is to keep."""
        tell = self._counting.pop(begun["exec_id"], None)
        if tell is not None:
            tell()
        return await self._keep(begun, ended, operation, outcome)
