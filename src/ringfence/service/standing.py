"""Whether whoever asked for an execution may still have it: a void key starts nothing, and ends what it started."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final

from ringfence.errors import Denied, RingfenceError
from ringfence.outcome import Status
from ringfence.service.callers import OWNER

if TYPE_CHECKING:
    from ringfence.service.callers import Principal
    from ringfence.service.house import House
    from ringfence.service.live import Live

_LOOK_EVERY: Final = 1.0
_log = logging.getLogger("ringfence.service")


class Standing:
    """Looks at the keys of those whose executions wait and run here."""

    def __init__(self, house: House) -> None:
        """Keys are asked for, and what is ended is written down, in `house`."""
        self._house = house

    async def require(self, who: Principal, exec_id: str) -> None:
        """Pass if the caller's key is as good as when he asked.

        Raises:
            Denied: It was revoked or has expired since; that is on record.
            Unavailable: Nobody can tell, which starts nothing.
        """
        if await self._holds(who):
            return
        await self._note(who, exec_id, Status.QUEUED)
        raise Denied("the key that asked for it is void by now", reason="key_void")

    async def watch(self, lives: Callable[[], Iterable[Live]]) -> None:
        """End what runs for keys that have become void, for ever."""
        while True:
            await asyncio.sleep(_LOOK_EVERY)
            try:
                await self._look(list(lives()))
            except RingfenceError as error:  # what cannot be told now is looked at again
                _log.warning("keys could not be looked at: %s", error.reason)

    async def _look(self, lives: list[Live]) -> None:
        callers = {live.who.key_id: live.who for live in lives}
        void = {key_id for key_id, who in callers.items() if not await self._holds(who)}
        for live in lives:
            # what still waits is refused when its turn comes
            if live.who.key_id in void and live.status is Status.RUNNING and not live.is_ending:
                await self._note(live.who, live.exec_id, live.status)
                live.end()

    async def _holds(self, who: Principal) -> bool:
        return who.key_id == OWNER.key_id or await self._house.keys.is_active(who.key_id)

    async def _note(self, who: Principal, exec_id: str, status: Status) -> None:
        """Write down why an execution is refused or ended; its own records say how it ended."""
        members = {"exec_id": exec_id, "key_id": who.key_id, "status": str(status), "tenant": who.tenant}
        await self._house.note("exec.key_void", {**members, "subject_id": who.caller.subject_id})
