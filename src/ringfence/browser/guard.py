"""What a page may not do beside being read: refused in the browser's own process, or undone at once, and noted.

Where a page may go is not decided here but by the proxy, outside the box.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from playwright.async_api import BrowserContext, Dialog, Download, Page, Request, Route

READING: Final = frozenset({"GET", "HEAD", "OPTIONS"})
_BY_ADMINISTRATOR: Final = "ERR_BLOCKED_BY_ADMINISTRATOR"
_SCHEMES: Final = ("http://", "https://", "data:", "blob:", "about:")


class Guard:
    """Watches one context, of which one page is the session's."""

    def __init__(self, context: BrowserContext, page: Page) -> None:
        """Nothing is watched before `begin`."""
        self._context, self._page = context, page
        self._noted: dict[str, None] = {}
        self._doing: set[asyncio.Task[None]] = set()

    async def begin(self) -> None:
        """Watch from now on."""
        await self._context.route("**/*", self._decide)
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

    async def _decide(self, route: Route, request: Request) -> None:
        refusal = self._refusal(request)
        with contextlib.suppress(_errors()):  # the page went away meanwhile
            if refusal is None:
                await route.continue_()
            else:
                self.note(refusal)
                await route.abort("blockedbyclient")

    def _refusal(self, request: Request) -> str | None:
        if request.method not in READING:
            return "method"
        if not request.url.startswith(_SCHEMES):
            return "scheme"
        try:
            is_ours = request.frame.page is self._page
        except _errors():  # of a page that is not there yet, as ours is
            is_ours = False
        return None if is_ours else "popup"

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

    def _do(self, work: Coroutine[Any, Any, None]) -> None:
        async def quietly() -> None:
            with contextlib.suppress(_errors()):
                await work

        task = asyncio.ensure_future(quietly())
        self._doing.add(task)
        task.add_done_callback(self._doing.discard)


def _errors() -> type[Exception]:
    from playwright.async_api import Error

    return Error
