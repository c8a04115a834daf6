"""What a page may not do beside being read: refused in the browser's own process, or undone at once, and noted.

Where a page may go is not decided here but by the proxy, outside the box.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from playwright.async_api import BrowserContext, CDPSession, Dialog, Download, Page, Request

READING: Final = frozenset({"GET", "HEAD", "OPTIONS"})
_BY_ADMINISTRATOR: Final = "ERR_BLOCKED_BY_ADMINISTRATOR"
_SCHEMES: Final = ("http://", "https://", "data:", "blob:", "about:")


class Guard:
    """Watches one context, of which one page is the session's."""

    def __init__(self, context: BrowserContext, page: Page, control: CDPSession) -> None:
        """`control` speaks for the whole browser. Nothing is watched before `begin`."""
        self._context, self._page, self._control = context, page, control
        self._noted: dict[str, None] = {}
        self._doing: set[asyncio.Task[None]] = set()

    async def begin(self) -> None:
        """Watch from now on.

        Requests are held by the browser's own session, not by the page's: that one lets go of what is sent when a page
        is left (beacons), and never had what its shared workers send.
        """
        self._control.on("Fetch.requestPaused", self._held)
        await self._control.send("Fetch.enable", {"patterns": [{"urlPattern": "*"}]})
        await self._control.send("Browser.setDownloadBehavior", {"behavior": "deny"})
        self._context.on("page", self._another_page)
        self._context.on("requestfailed", self._failed)
        self._page.on("dialog", self._dialog)
        self._page.on("download", self._download)

    def take(self) -> tuple[str, ...]:
        """Return what was refused since the last time, each kind once."""
        noted, self._noted = tuple(self._noted), {}
        return noted

    def note(self, kind: str) -> None:
        """Note that something was refused."""
        self._noted[kind] = None

    def _held(self, event: dict[str, Any]) -> None:
        request = event["request"]
        refusal = _refusal(request["method"], request["url"])
        answer: dict[str, Any] = {"requestId": event["requestId"]}
        if refusal is None:
            self._do(self._control.send("Fetch.continueRequest", answer))
            return
        self.note(refusal)
        self._do(self._control.send("Fetch.failRequest", answer | {"errorReason": "BlockedByClient"}))

    def _another_page(self, page: Page) -> None:
        self.note("popup")
        self._do(page.close())

    def _dialog(self, dialog: Dialog) -> None:
        self.note("dialog")
        self._do(dialog.dismiss())

    def _download(self, download: Download) -> None:
        self.note("download")
        self._do(download.cancel())

    def _failed(self, request: Request) -> None:
        if _BY_ADMINISTRATOR in (request.failure or ""):
            self.note("scheme")

    def _do(self, work: Coroutine[Any, Any, Any]) -> None:
        async def quietly() -> None:
            with contextlib.suppress(_errors()):  # the page went away meanwhile
                await work

        task = asyncio.ensure_future(quietly())
        self._doing.add(task)
        task.add_done_callback(self._doing.discard)


def _refusal(method: str, url: str) -> str | None:
    if method not in READING:
        return "method"
    return None if url.startswith(_SCHEMES) else "scheme"


def _errors() -> type[Exception]:
    from playwright.async_api import Error

    return Error
