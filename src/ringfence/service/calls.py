"""Calls that are made under a grant: open from their first request until their caller ends them, or forgets them.

A grant narrows what its caller may do, so one that a route does not know what to do with is refused, never left out.
The token is in memory alone: a promise to run under it is not kept over a restart.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import logging
import time
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Final, NamedTuple

from ringfence.dataclass import dataclass, field
from ringfence.errors import Denied, InvalidRequest, QuotaExceeded

if TYPE_CHECKING:
    from collections.abc import Callable

    from ringfence.facade import SandboxManager
    from ringfence.service.callers import Principal

_log = logging.getLogger("ringfence.service")

IDLE_SECONDS: Final = 900.0
"""How long a call that nobody ends and nobody uses stays open; then its grant is used up."""
MOST_OF_A_TENANT: Final = 1000
_LONGEST_TOKEN: Final = 16 * 1024
_LONGEST_NAME: Final = 256


class GrantShown(NamedTuple):
    """A grant as it came with a request, and the call it is for."""

    token: str
    call_id: str

    def digest(self) -> str:
        """Return what tells it from another and gives nothing of it away."""
        return hashlib.sha256(f"{self.call_id}\n{self.token}".encode()).hexdigest()


@dataclass(slots=True)
class _Open:
    token: str
    block: AbstractAsyncContextManager[SandboxManager]
    used: float
    manager: asyncio.Future[SandboxManager] = field(default_factory=lambda: asyncio.get_running_loop().create_future())


class Calls:
    """The open calls of a service; of one event loop."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        """None is open yet."""
        self._now = now
        self._open: dict[tuple[str, str, str], _Open] = {}

    async def manager(self, manager: SandboxManager, who: Principal, shown: GrantShown) -> SandboxManager:
        """Return what acts as `manager` does, which is the caller's and of no project, under the grant.

        Raises:
            Denied: The call is another grant's.
            QuotaExceeded: The tenant has as many calls open as it may.
            Unavailable: Grants cannot be checked here.
        """
        await self._end_idle()
        name = (who.tenant, who.caller.subject_id, shown.call_id)
        held = self._open.get(name)
        if held is None:
            held = await self._begin(name, manager, shown)
        elif not hmac.compare_digest(held.token.encode(), shown.token.encode()):
            raise Denied("the call was begun under another grant", reason="call_mismatch")
        held.used = self._now()
        return await asyncio.shield(held.manager)

    async def end(self, who: Principal, call_id: str) -> None:
        """End a call: its grant is used up, and its temporary space is gone; ending it again changes nothing."""
        held = self._open.pop((who.tenant, who.caller.subject_id, call_id), None)
        if held is not None:
            await _leave(held)

    async def close(self) -> None:
        """End all of them."""
        while self._open:
            await self._forget(next(iter(self._open)))

    async def _begin(self, name: tuple[str, str, str], manager: SandboxManager, shown: GrantShown) -> _Open:
        if sum(tenant == name[0] for tenant, _, _ in self._open) >= MOST_OF_A_TENANT:
            raise QuotaExceeded(
                f"{MOST_OF_A_TENANT} calls are open", reason="calls", fix="end some: DELETE /grants/calls/{call_id}"
            )
        block = manager.under(shown.token, call_id=shown.call_id)
        held = self._open[name] = _Open(shown.token, block, self._now())
        try:
            held.manager.set_result(await block.__aenter__())
        except BaseException as error:
            if self._open.get(name) is held:  # somebody may have ended it meanwhile
                del self._open[name]
            held.manager.set_exception(error)
            held.manager.exception()  # whoever waits beside us hears of it; nobody has to
            raise
        return held

    async def _end_idle(self) -> None:
        latest = self._now() - IDLE_SECONDS
        for name in [name for name, held in self._open.items() if held.used < latest]:
            await self._forget(name)

    async def _forget(self, name: tuple[str, str, str]) -> None:
        """End a call for whoever forgot it; how that went is no trouble of whoever asks now."""
        held = self._open.pop(name, None)
        if held is None:  # another request has ended it meanwhile
            return
        try:
            await _leave(held)
        except Exception as error:  # noqa: BLE001  logged; the others end too
            _log.error("the call %s did not end well", name[2], exc_info=error)


async def _leave(held: _Open) -> None:
    await asyncio.wait([held.manager])  # a block is entered before it is left
    if held.manager.exception() is None:
        await held.block.__aexit__(None, None, None)


def grant_shown(token: str | None, call_id: str | None) -> GrantShown | None:
    """Return the grant that two headers show, if they do.

    Raises:
        InvalidRequest: There is only one of them, or it is no text that could be meant.
    """
    if token is None and call_id is None:
        return None
    if not token or not call_id:
        raise InvalidRequest("X-Ringfence-Grant and X-Ringfence-Call are given together, or not at all")
    if len(token) > _LONGEST_TOKEN or len(call_id) > _LONGEST_NAME or not (token + call_id).isprintable():
        raise InvalidRequest("X-Ringfence-Grant or X-Ringfence-Call is longer than any", reason="too_large")
    return GrantShown(token, call_id)
