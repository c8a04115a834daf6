"""A cancellation that knows what had come of the run it ended, for whoever writes that down on its way out.

It stays inside: whoever called gets a plain cancellation, of which this is the cause.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ringfence.outcome import Outcome
    from ringfence.ports import Ending


class Interrupted(asyncio.CancelledError):
    """Raised in the place of the cancellation that ended a guest, once nothing of that is left."""

    def __init__(self, ending: Ending) -> None:
        """Keep how the guest ended, and what it had said by then."""
        super().__init__()
        self.ending = ending
        self.result: Outcome | None = None
        """The same in the words of a result, as soon as somebody has put it into them."""
