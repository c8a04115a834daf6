"""How many browsers there are and whose each is: one box for a session, one warm, the rest waits in a short queue."""

from __future__ import annotations

import asyncio
from typing import Final
from weakref import WeakValueDictionary

from ringfence.browser.driver import Driver, beside
from ringfence.browser.port import Bounds
from ringfence.browser.room import Room, start_room
from ringfence.browser.tab import ChromiumTab
from ringfence.capability.limits import Limits
from ringfence.dataclass import dataclass
from ringfence.egress.proxy.ledger import Ledger
from ringfence.egress.proxy.proxy import Proxy
from ringfence.egress.proxy.rules import Rules
from ringfence.errors import Overloaded, Unavailable
from ringfence.isolation.linux.workshop import Workshop

MOST: Final = 4
MOST_WAITING: Final = 16
IDLE_SECONDS: Final = 120.0
WAIT_SECONDS: Final = 30.0


@dataclass(slots=True)
class _Held:
    """A session's page, and until when it may stay unused."""

    tab: ChromiumTab
    rules: Rules
    used: float


class ChromiumBrowsers:
    """Implements `port.Browsers`; may be used from any event loop."""

    def __init__(
        self,
        proxy: Proxy,
        bounds: Bounds = Bounds(),  # noqa: B008  frozen
        *,
        most: int = MOST,
        most_waiting: int = MOST_WAITING,
        idle_seconds: float = IDLE_SECONDS,
    ) -> None:
        """Nothing starts before the first tab is asked for; what leaves a box goes through `proxy`."""
        self._proxy, self._bounds = proxy, bounds
        self._most, self._most_waiting, self._idle_seconds = most, most_waiting, idle_seconds
        self._driver = Driver()
        self._workshop: Workshop | None = None
        self._held: dict[tuple[str, str], _Held] = {}
        self._warm: asyncio.Task[Room] | None = None
        self._boxes = 0
        self._waiting: list[asyncio.Future[None]] = []
        self._locks: WeakValueDictionary[tuple[str, str], asyncio.Lock] = WeakValueDictionary()
        self._ending: set[asyncio.Task[None]] = set()
        self._sweeper: asyncio.Task[None] | None = None
        self._last_used = 0.0
        self._is_closed = False

    async def tab(self, session: str, tenant: str, rules: Rules, ledger: Ledger) -> ChromiumTab:
        """Return the session's page, made if it has none under these rules."""
        return await self._driver.do(self._tab((tenant, session), rules, ledger))

    async def warm(self) -> None:
        """Have a browser ready, ahead of the first session."""
        await self._driver.do(self._warmed())

    async def close(self) -> None:
        """End every page, every box and the driver."""
        if self._is_closed:
            return
        self._is_closed = True
        if self._workshop is not None:
            await self._driver.do(self._close())
            await beside(self._workshop.close)
        await beside(self._driver.close)

    # --- in the driver's loop ---

    async def _tab(self, key: tuple[str, str], rules: Rules, ledger: Ledger) -> ChromiumTab:
        if self._is_closed:
            raise Unavailable("the browsers are closed", reason="closed")
        lock = self._locks.setdefault(key, asyncio.Lock())
        async with lock:
            self._last_used = _now()
            held = self._held.get(key)
            if held is not None and held.tab.alive and held.rules == rules:
                held.used = _now()
                return held.tab
            if held is not None:
                await held.tab.closed()  # never a widened gate
            room = await self._room()
            room.let_out()
            try:
                gate = self._proxy.open(room.box.door, rules, ledger, tenant=key[0])
            except BaseException:
                await self._end(room)
                raise
            tab = ChromiumTab(self._driver, room, gate, rules, self._bounds, lambda: self._left(key, tab))
            self._held[key] = _Held(tab, rules, _now())
            self._refill()
            return tab

    async def _left(self, key: tuple[str, str], tab: ChromiumTab) -> None:
        held = self._held.get(key)
        if held is not None and held.tab is tab:
            del self._held[key]
        self._give_back()

    async def _room(self) -> Room:
        """Return a browser that is nobody's: the warm one, a new one, or the next place that gets free."""
        while True:
            if self._warm is not None:
                warm, self._warm = self._warm, None
                room = await self._finished(warm)
                if room.gone.done():  # died while it waited
                    await self._end(room)
                    continue
                return room
            if self._boxes < self._most:
                return await self._finished(self._begin())
            await self._wait()

    async def _finished(self, starting: asyncio.Task[Room]) -> Room:
        try:
            return await asyncio.shield(starting)
        except asyncio.CancelledError:
            starting.add_done_callback(self._unwanted)
            raise
        except BaseException:
            self._give_back()
            raise

    def _unwanted(self, starting: asyncio.Task[Room]) -> None:
        """Let the next one have what whoever asked for it did not wait for."""
        if starting.cancelled() or starting.exception() is not None:
            self._give_back()
        elif self._warm is None and not self._is_closed:
            self._warm = starting
            self._wake()
        else:
            self._ending.add(ending := asyncio.ensure_future(self._end(starting.result())))
            ending.add_done_callback(self._ending.discard)

    async def _end(self, room: Room) -> None:
        await room.end()
        self._give_back()

    def _begin(self) -> asyncio.Task[Room]:
        if self._workshop is None:
            self._workshop = Workshop(Limits())
        if self._sweeper is None:
            self._sweeper = asyncio.ensure_future(self._sweep())
        self._boxes += 1
        return asyncio.ensure_future(start_room(self._driver, self._workshop, self._bounds))

    def _refill(self) -> None:
        if self._warm is None and self._boxes < self._most and not self._waiting and not self._is_closed:
            self._warm = self._begin()
            self._warm.add_done_callback(self._warmed_up)

    def _warmed_up(self, starting: asyncio.Task[Room]) -> None:
        """Forget a warm one that could not be made: whoever asks next is told why, by one made for him."""
        if self._warm is starting and (starting.cancelled() or starting.exception() is not None):
            self._warm = None
            self._give_back()

    async def _warmed(self) -> None:
        self._refill()
        if self._warm is not None:
            await asyncio.shield(self._warm)

    async def _wait(self) -> None:
        if len(self._waiting) >= self._most_waiting:
            raise Overloaded(f"all {self._most} browsers are taken, and {self._most_waiting} sessions wait for one")
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        try:
            async with asyncio.timeout(WAIT_SECONDS):
                await turn
        except TimeoutError:
            raise Overloaded(f"all {self._most} browsers stayed taken for {WAIT_SECONDS:g} s") from None
        finally:
            if turn in self._waiting:
                self._waiting.remove(turn)

    def _give_back(self) -> None:
        self._boxes -= 1
        self._wake()

    def _wake(self) -> None:
        while self._waiting:
            turn = self._waiting.pop(0)
            if not turn.done():
                turn.set_result(None)
                return

    async def _sweep(self) -> None:
        """Close what nobody used for a while, and what died."""
        while True:
            await asyncio.sleep(self._idle_seconds / 4)
            old = _now() - self._idle_seconds
            for held in tuple(self._held.values()):
                if not held.tab.alive or (held.used < old and not held.tab.busy):
                    await held.tab.closed()
                elif held.tab.busy:
                    held.used = _now()
            if self._warm is not None and self._warm.done() and not self._held and self._last_used < old:
                warm, self._warm = self._warm, None
                await self._end(warm.result())  # nobody browses any more; the next one waits a little
            if self._workshop is not None:
                await asyncio.to_thread(self._workshop.tidy)

    async def _close(self) -> None:
        if self._sweeper is not None:
            self._sweeper.cancel()
        for turn in self._waiting:
            turn.cancel()
        warm, self._warm = self._warm, None
        if warm is not None:
            (room,) = await asyncio.gather(warm, return_exceptions=True)
            if isinstance(room, Room):
                await room.end()
        await asyncio.gather(*(held.tab.closed() for held in tuple(self._held.values())), *self._ending)


def _now() -> float:
    return asyncio.get_running_loop().time()
