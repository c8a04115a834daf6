"""A browser that is ready for a session nobody has asked for yet: in its box, looked at, with one empty page.

It has no gate: until a session takes it, whatever it connects to is closed at once. That also keeps what Chromium asks
for by itself when it starts out of the record of the session.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from typing import TYPE_CHECKING, Final

from ringfence.browser.box import Box, Reception
from ringfence.browser.chromium import arguments, find_chromium
from ringfence.browser.driver import Driver, beside
from ringfence.browser.guard import Guard
from ringfence.browser.port import Bounds
from ringfence.browser.world import World
from ringfence.dataclass import dataclass
from ringfence.errors import IsolationUnavailable
from ringfence.isolation.linux.workshop import Workshop

if TYPE_CHECKING:
    from playwright.async_api import Browser, Page

_START_SECONDS: Final = 30.0
_SANDBOX_PAGE: Final = "chrome://sandbox"
_ADEQUATE: Final = "You are adequately sandboxed."


@dataclass(eq=False)  # no slots: Playwright hangs what it knows of a listener on whose it is
class Room:
    """A box, its browser, and the one page in it; used in the driver's loop only."""

    box: Box
    browser: Browser
    page: Page
    world: World
    guard: Guard
    gone: asyncio.Future[None]
    """Done when the page or the browser is no more, whoever ended it."""
    _listener: socket.socket | None = None

    def turn_away(self) -> None:
        """Close whatever is connected to the door, until `let_out`."""
        listener = socket.socket(fileno=os.dup(self.box.door))
        listener.setblocking(False)
        asyncio.get_running_loop().add_reader(listener, _close_next, listener)
        self._listener = listener

    def let_out(self) -> None:
        """Stop that: somebody else accepts from now on."""
        if self._listener is not None:
            asyncio.get_running_loop().remove_reader(self._listener)
            self._listener.close()
            self._listener = None

    async def end(self) -> None:
        """Kill the browser and everything in its box."""
        self.vanish()
        self.let_out()
        await beside(self.box.end)
        with contextlib.suppress(Exception):  # its driver may have noticed first
            await self.browser.close()

    def vanish(self, *_: object) -> None:
        """Take note that nothing can be done with it any more."""
        if not self.gone.done():
            asyncio.get_running_loop().remove_reader(self.box.pidfd)
            self.gone.set_result(None)


async def start_room(driver: Driver, workshop: Workshop, bounds: Bounds) -> Room:
    """Start a browser in a box of its own; in the driver's loop.

    Raises:
        Unavailable: Playwright or Chromium is missing (`browser_backend_missing`).
        IsolationUnavailable: The box, or Chromium's own sandbox in it, is not as it must be.
    """
    program = find_chromium()
    try:
        browser, box = await _launch(driver, workshop, bounds, program)
    except _DriverDied:
        browser, box = await _launch(driver, workshop, bounds, program)
    try:
        box.require_sealed()
        async with asyncio.timeout(_START_SECONDS):
            await _require_own_sandbox(browser)
            return await _furnish(box, browser, bounds)
    except BaseException as error:
        await asyncio.to_thread(box.end)
        with contextlib.suppress(Exception):
            await browser.close()
        if isinstance(error, TimeoutError):
            raise IsolationUnavailable("Chromium did not get ready in its box in time") from error
        raise


class _DriverDied(IsolationUnavailable):
    """Playwright's Node program is gone; a new one can be had."""


async def _launch(driver: Driver, workshop: Workshop, bounds: Bounds, program: str) -> tuple[Browser, Box]:
    playwright = await driver.playwright()
    reception = await asyncio.to_thread(Reception, workshop, bounds, program)
    command, first = reception.command()
    receiving = asyncio.ensure_future(asyncio.to_thread(reception.receive))
    try:
        browser = await playwright.chromium.launch(
            executable_path=command,
            args=[*first, *arguments(bounds.width, bounds.height)],
            ignore_default_args=True,
            env={},
            chromium_sandbox=True,
            handle_sigint=False,
            handle_sigterm=False,
            handle_sighup=False,
            timeout=_START_SECONDS * 1000,
        )
    except BaseException as error:
        reception.hurry()
        (box,) = await asyncio.gather(receiving, return_exceptions=True)
        if isinstance(box, Box):
            await asyncio.to_thread(box.end)
        if driver.has_died():
            raise _DriverDied(f"the driver of the browsers died: {_first_line(error)}") from error
        if not isinstance(error, Exception):
            raise
        if isinstance(box, IsolationUnavailable) and reception.was_met:
            raise box from error  # has the better reason
        raise IsolationUnavailable(f"Chromium did not start in its box: {_first_line(error)}") from error
    return browser, await receiving


async def _require_own_sandbox(browser: Browser) -> None:
    """Refuse a Chromium whose own sandbox is not on: then a page would be one hole in a renderer away from the box.

    Raises:
        IsolationUnavailable: With what Chromium says of itself.
    """
    context = await browser.new_context()
    page = await context.new_page()
    await page.goto(_SANDBOX_PAGE)
    said = await page.inner_text("body")
    await context.close()
    if _ADEQUATE not in said:
        raise IsolationUnavailable(
            f"Chromium's own sandbox is not on: {' '.join(said.split())[:300]}",
            fix="let unprivileged users make user namespaces (sysctl user.max_user_namespaces)",
        )


async def _furnish(box: Box, browser: Browser, bounds: Bounds) -> Room:
    context = await browser.new_context(
        accept_downloads=False,
        service_workers="block",
        permissions=[],
        viewport={"width": bounds.width, "height": bounds.height},
        device_scale_factor=1,
        locale="en-US",
        timezone_id="UTC",
    )
    page = await context.new_page()
    session = await context.new_cdp_session(page)
    guard = Guard(context, page, await browser.new_browser_cdp_session())
    await guard.begin()
    room = Room(box, browser, page, World(session), guard, asyncio.get_running_loop().create_future())
    page.on("crash", room.vanish)
    page.on("close", room.vanish)
    browser.on("disconnected", room.vanish)
    asyncio.get_running_loop().add_reader(box.pidfd, room.vanish)  # whether or not the driver lives to tell
    room.turn_away()
    return room


def _close_next(listener: socket.socket) -> None:
    with contextlib.suppress(OSError):
        listener.accept()[0].close()


def _first_line(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0][:300]
