"""The part of a manager that looks at web pages: the one page of its session, in a browser in a box of its own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ringfence.errors import CapabilityBlocked

if TYPE_CHECKING:
    from ringfence.outcome import BrokerOutcome


class Browsing:
    """Gives a manager with a `perform` of its own the way to pages that need a browser."""

    perform: Any

    async def browse_page(self, url: str, *, backend: str = "external_browser") -> BrokerOutcome:
        """Open `url` as the session's page; `out` says where that led (`url`, `status`, `title`, `hops`).

        `out["blocked"]` names what the page tried and was refused: downloads, other methods than GET, popups. With
        `backend="aio_browser"` it is a page of the browser that may save files; the session has one of both at a time.

        Raises:
            InvalidRequest: It is no URL that every client reads alike, or there is no session.
            Denied: The policy does not allow it, or it leads to where nothing is allowed.
            Unavailable: Nothing here can browse: `pip install 'ringfence[browser]'` and a Chromium.
        """
        from ringfence.operation.brokered import BrowserNav  # not at the top: most managers run code

        return await self._browse(BrowserNav(url, backend))

    async def extract_page(
        self, what: str = "text", *, selector: str | None = None, fields: Mapping[str, str] | None = None
    ) -> BrokerOutcome:
        """Take the `text`, the `links`, the accessibility `tree` or named `fields` of the open page; in `content`.

        All but text is JSON. What comes is a stranger's word.
        """
        from ringfence.operation.brokered import BrowserExtract

        return await self._browse(BrowserExtract(selector, what, dict(fields or {})))

    async def screenshot_page(
        self,
        *,
        selector: str | None = None,
        full_page: bool = False,
        width: int | None = None,
        height: int | None = None,
        save_as: str | None = None,
    ) -> BrokerOutcome:
        """Take a PNG of the open page: in `content`, and kept in the session's workspace at `out["artifact"]["path"]`.

        With `save_as` it is written there too, as an operation of its own, and `out["saved_as"]` says where.
        """
        from ringfence.operation.brokered import BrowserScreenshot, FsWrite

        outcome = await self._browse(BrowserScreenshot(selector, full_page, width, height))
        if save_as is None:
            return outcome
        if outcome.content is None:
            raise CapabilityBlocked("the policy keeps contents out of results, so there is nothing to save")
        from ringfence.dataclass import replace

        saved = await self.perform(FsWrite(save_as, outcome.content, overwrite=True))
        return replace(outcome, out={**outcome.out, "saved_as": saved.out["path"]})

    async def click_page(self, selector: str) -> BrokerOutcome:
        """Click what `selector` finds first; the policy has to name the verb `click`. Forms are still not sent."""
        from ringfence.operation.brokered import BrowserClick

        return await self._browse(BrowserClick(selector))

    async def type_page(self, selector: str, text: str) -> BrokerOutcome:
        """Replace the text of the field that `selector` finds first; the policy has to name the verb `type`."""
        from ringfence.operation.brokered import BrowserType

        return await self._browse(BrowserType(selector, text))

    async def close_page(self) -> BrokerOutcome:
        """End the session's page, with its cookies and all it kept."""
        from ringfence.operation.brokered import BrowserClose

        return await self._browse(BrowserClose())

    async def _browse(self, operation: Any) -> BrokerOutcome:
        outcome: BrokerOutcome = await self.perform(operation)
        return outcome
