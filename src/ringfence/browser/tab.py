"""The one page of one session: every verb bounded in time, bytes and pixels, and never a script of the caller's."""

from __future__ import annotations

import asyncio
import base64
import contextlib
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import TYPE_CHECKING, Any, Final, TypeVar

from ringfence.browser import world
from ringfence.browser.driver import Driver
from ringfence.browser.picture import checked_png, clip
from ringfence.browser.port import HIGHEST, WIDEST, Bounds, Extract, Opened
from ringfence.browser.refused import refused
from ringfence.browser.room import Room
from ringfence.browser.selectors import plain_css
from ringfence.browser.tree import outline
from ringfence.egress.proxy.proxy import Gate
from ringfence.egress.proxy.rules import Rules
from ringfence.egress.urls import url_of
from ringfence.errors import CapabilityBlocked, InvalidRequest, TimedOut, Unavailable
from ringfence.operation.target import target
from ringfence.outcome import Network

if TYPE_CHECKING:
    from playwright.async_api import Frame, Request, Response

T = TypeVar("T")
MOST_FIELDS: Final = 100
MOST_TYPED: Final = 10_000
_MOST_URL: Final = 8192
_GRACE_SECONDS: Final = 3.0
"""For a page that was loading when its time was over to say its title."""
_INTERRUPTED: Final = "is interrupted by another navigation"
_MOST_INTERRUPTIONS: Final = 5
"""By the page that is left: one that was refused is still about to show that it was."""
_SETTLE_SECONDS: Final = 0.5
_STIR_SECONDS: Final = 0.5
"""Within which a click leads somewhere, if it does."""


class ChromiumTab:
    """Implements `port.Tab`; may be used from any event loop."""

    def __init__(
        self,
        driver: Driver,
        room: Room,
        gate: Gate,
        rules: Rules,
        bounds: Bounds,
        on_close: Callable[[], Awaitable[None]],
    ) -> None:
        """Take over `room` and `gate`; in the driver's loop."""
        self._driver, self._room, self._gate = driver, room, gate
        self._rules, self._bounds, self._on_close = rules, bounds, on_close
        self._turn = asyncio.Lock()
        self._closing: asyncio.Task[Network] | None = None
        self._asked = ""
        self._answers: list[Response] = []
        self._failures: list[str] = []
        self._stirred, self._settled = asyncio.Event(), asyncio.Event()
        self.busy = 0
        self.box = room.box
        room.page.on("request", self._on_request)
        room.page.on("requestfailed", self._on_failure)
        room.page.on("response", self._on_response)
        room.page.on("framenavigated", self._on_navigation)

    @property
    def alive(self) -> bool:
        """Whether it can still be used."""
        return self._closing is None and not self._room.gone.done()

    @property
    def url(self) -> str:
        """Where the page is now."""
        return self._room.page.url[:_MOST_URL]

    async def open(self, url: str, seconds: float) -> Opened:
        """Go to `url`.

        Raises:
            CapabilityBlocked: The proxy, or the guard, refused it, or a redirect of it.
        """
        where = url_of(target(url))
        seconds = min(seconds, self._bounds.seconds)
        return await self._do(self._open(where, seconds), seconds + _GRACE_SECONDS)

    async def extract(self, what: Extract, selector: str | None, fields: Mapping[str, str]) -> Any:
        """Return what there is to read."""
        chosen = None if selector is None else plain_css(selector)
        if len(fields) > MOST_FIELDS:
            raise InvalidRequest(f"at most {MOST_FIELDS} fields are read at once", reason="invalid_selector")
        wanted = [(name, plain_css(found)) for name, found in fields.items()]
        return await self._do(self._extract(what, chosen, wanted), self._bounds.seconds)

    async def screenshot(self, selector: str | None, full_page: bool) -> bytes:
        """Return a picture."""
        chosen = None if selector is None else plain_css(selector)
        return await self._do(self._screenshot(chosen, full_page), self._bounds.seconds)

    async def resize(self, width: int | None, height: int | None) -> None:
        """Give the viewport another size.

        Raises:
            CapabilityBlocked: It would be larger than any screen that is shown here.
        """
        size = width or self._bounds.width, height or self._bounds.height
        if size[0] > WIDEST or size[1] > HIGHEST:
            raise CapabilityBlocked(f"a viewport is at most {WIDEST} by {HIGHEST}", reason="viewport")
        await self._do(self._resize(*size), self._bounds.seconds)

    async def click(self, selector: str) -> Opened:
        """Click what `selector` finds first."""
        return await self._do(self._click(plain_css(selector)), self._bounds.seconds + _GRACE_SECONDS)

    async def type(self, selector: str, text: str) -> None:
        """Replace the text of a field."""
        if len(text) > MOST_TYPED:
            raise InvalidRequest(f"at most {MOST_TYPED} characters are typed at once", reason="invalid_text")
        await self._do(self._type(plain_css(selector), text), self._bounds.seconds)

    async def close(self) -> Network:
        """End the page and its box; return where it went."""
        return await self._driver.do(self.closed())

    # --- in the driver's loop ---

    async def closed(self) -> Network:
        """Close it, once for all who ask."""
        if self._closing is None:
            self._closing = asyncio.ensure_future(self._close())
        return await asyncio.shield(self._closing)

    async def _close(self) -> Network:
        went = await self._gate.close()  # first: what dies in the box sends nothing more
        await self._room.end()
        await self._on_close()
        return went

    async def _do(self, work: Coroutine[Any, Any, T], seconds: float) -> T:
        self.busy += 1
        try:
            return await self._driver.do(self._bounded(work, seconds))
        finally:
            self.busy -= 1
            work.close()

    async def _bounded(self, work: Coroutine[Any, Any, T], seconds: float) -> T:
        """Let the verbs take turns, each within its time; a page that does not answer takes its whole box with it."""
        from playwright.async_api import Error

        async with self._turn:
            if not self.alive:
                raise _crashed()
            task = asyncio.ensure_future(work)
            try:
                ends: set[asyncio.Future[Any]] = {task, self._room.gone}
                await asyncio.wait(ends, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
                if task.done():
                    return task.result()
                if self._room.gone.done():
                    raise _crashed()
                raise TimedOut(f"the page did not answer within {seconds:g} s, and was closed", reason="read_timeout")
            except Error as error:
                if self._room.gone.done() or not self._room.browser.is_connected():
                    raise _crashed() from error
                raise refused(error.message, self._asked, self._rules, self._room.guard.take()) from error
            except TimedOut:
                self._room.vanish()
                raise
            finally:
                if not task.done():
                    task.cancel()
                    await asyncio.wait({task})
                if self._room.gone.done() and self._closing is None:
                    self._closing = asyncio.ensure_future(self._close())

    async def _open(self, url: str, seconds: float) -> Opened:
        from playwright.async_api import Error

        until = asyncio.get_running_loop().time() + seconds
        for _ in range(_MOST_INTERRUPTIONS):
            try:
                response = await self._room.page.goto(url, wait_until="commit", timeout=seconds * 1000)
            except Error as error:
                if _INTERRUPTED not in error.message:
                    raise
                await self._settle()
            else:
                return await self._arrived(response, until)
        raise TimedOut("the page before this one does not let go", reason="read_timeout")

    async def _settle(self) -> None:
        """Let the navigation that we began, and an error page overtook, arrive: it would overtake the next one too."""
        from playwright.async_api import TimeoutError as NotInTime

        with contextlib.suppress(NotInTime):
            await self._room.page.wait_for_event("framenavigated", timeout=_SETTLE_SECONDS * 1000)

    async def _arrived(self, response: Response | None, until: float) -> Opened:
        """Wait until the page has loaded, or its time is over, and say what became of it."""
        from playwright.async_api import TimeoutError as NotInTime

        left = until - asyncio.get_running_loop().time()
        try:
            await self._room.page.wait_for_load_state("load", timeout=max(1.0, left * 1000))
        except NotInTime:
            self._room.guard.note("load")
        hops = _hops(response)
        reason = None if response is None else response.headers.get("x-ringfence-reason")
        if reason is not None:
            raise refused(f"x-ringfence-reason: {reason}", self._asked, self._rules, self._room.guard.take())
        title = await self._room.world.call(world.TITLE)
        return Opened(
            url=self._room.page.url[:_MOST_URL],
            status=None if response is None else response.status,
            title=str(title),
            hops=hops,
            blocked=self._room.guard.take(),
        )

    async def _extract(self, what: Extract, selector: str | None, fields: list[tuple[str, str]]) -> Any:
        bounds, call = self._bounds, self._room.world.call
        characters = bounds.text_bytes // 4  # however they are encoded
        match what:
            case Extract.TEXT:
                return await call(world.TEXT, selector=selector, characters=characters)
            case Extract.LINKS:
                return await call(world.LINKS, selector=selector, links=bounds.links)
            case Extract.FIELDS:
                return await call(world.FIELDS, fields=fields, nodes=bounds.nodes, characters=characters)
            case Extract.TREE:
                if await call(world.COUNT) > bounds.nodes * 4:
                    raise CapabilityBlocked("the page has too many elements for an outline", reason="too_large")
                nodes = await self._room.world.accessibility()
                return outline(nodes, bounds.nodes)

    async def _screenshot(self, selector: str | None, full_page: bool) -> bytes:
        where: Mapping[str, Any]
        if selector is not None:
            where = await self._room.world.call(world.RECTANGLE, selector=selector, scroll=False)
        elif full_page:
            where = await self._room.world.size()
        else:
            where = await self._room.world.window()
        wanted = clip(where, self._bounds.picture_pixels)
        return checked_png(base64.b64decode(await self._room.world.picture(wanted)), wanted)

    async def _resize(self, width: int, height: int) -> None:
        await self._room.page.set_viewport_size({"width": width, "height": height})

    async def _click(self, selector: str) -> Opened:
        box = await self._room.world.call(world.RECTANGLE, selector=selector, scroll=True)
        self._stirred.clear()
        self._settled.clear()
        self._answers, self._failures = [], []
        until = asyncio.get_running_loop().time() + self._bounds.seconds
        await self._room.page.mouse.click(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
        try:
            async with asyncio.timeout(_STIR_SECONDS):
                await self._stirred.wait()
        except TimeoutError:
            return await self._arrived(None, until)
        await self._settled.wait()
        if self._failures:
            raise refused(self._failures[-1], self._asked, self._rules, self._room.guard.take())
        return await self._arrived(self._answers[-1] if self._answers else None, until)

    async def _type(self, selector: str, text: str) -> None:
        if not await self._room.world.call(world.FOCUS, selector=selector):
            raise InvalidRequest("the selector finds nothing that takes text", reason="invalid_selector")
        await self._room.world.insert(text)

    def _on_request(self, request: Request) -> None:
        if self._is_navigation(request):
            self._asked = request.url
            self._stirred.set()

    def _on_response(self, response: Response) -> None:
        if self._is_navigation(response.request):
            self._answers.append(response)

    def _on_failure(self, request: Request) -> None:
        if self._is_navigation(request):
            self._failures.append(request.failure or "")
            self._settled.set()

    def _on_navigation(self, frame: Frame) -> None:
        if frame == self._room.page.main_frame:
            self._settled.set()

    def _is_navigation(self, request: Request) -> bool:
        return request.is_navigation_request() and request.frame == self._room.page.main_frame


def _hops(response: Response | None) -> tuple[str, ...]:
    hops: list[str] = []
    request = None if response is None else response.request.redirected_from
    while request is not None:
        hops.append(request.url[:_MOST_URL])
        request = request.redirected_from
    return tuple(reversed(hops))


def _crashed() -> Unavailable:
    return Unavailable(
        "the page or its browser is gone", reason="browser_crashed", fix="open it again: the next is new"
    )
