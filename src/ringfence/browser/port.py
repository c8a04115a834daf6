"""What the law asks of a browser, whoever drives it: one page per session, read-only but for two verbs, all bounded."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, Final, Protocol

from ringfence.dataclass import dataclass
from ringfence.egress.proxy.ledger import Ledger
from ringfence.egress.proxy.rules import Rules
from ringfence.errors import InvalidRequest
from ringfence.outcome import Network

MIB: Final = 1024 * 1024
WIDEST, HIGHEST = 1920, 1080


@dataclass(frozen=True, slots=True)
class Bounds:
    """What one page may cost; `width` and `height` are the viewport's, at most 1920 by 1080."""

    width: int = 1280
    height: int = 720
    picture_pixels: int = 16_000_000
    """Of one picture: known and refused before it is taken, so that a page cannot make it exhaust memory."""
    text_bytes: int = 1 * MIB
    links: int = 1000
    nodes: int = 5000
    """Of the accessibility tree, and of what all fields together find."""
    seconds: float = 20.0
    """Until a verb is given up, whatever the page does."""
    memory_bytes: int = 1024 * MIB
    pids: int = 512
    """Processes and threads: an idle Chromium with one page has about 150."""
    cpus: float = 2.0
    disk_bytes: int = 256 * MIB
    """Of everything the browser writes, which is memory."""

    def __post_init__(self) -> None:
        if not (0 < self.width <= WIDEST and 0 < self.height <= HIGHEST):
            raise InvalidRequest(f"a viewport has at most {WIDEST} by {HIGHEST} pixels")


@dataclass(frozen=True, slots=True)
class Opened:
    """Where a page ended up, and what it tried on the way."""

    url: str
    status: int | None
    """None when the page came from no answer at all, as after a click that led nowhere."""
    title: str
    hops: tuple[str, ...] = ()
    """The addresses of the redirects before `url`, in order."""
    blocked: tuple[str, ...] = ()
    """What was refused since the last time, each kind once: `download`, `method`, `popup`, `dialog`, `scheme`; and
    `load` when something of the page was still on its way when its time was over."""


class Extract(StrEnum):
    """What can be taken from a page."""

    TEXT = "text"
    LINKS = "links"
    TREE = "tree"
    """The accessibility tree."""
    FIELDS = "fields"
    """Structured: the text of what each selector finds, under the name given to it."""


class Tab(Protocol):
    """The one page of one session, in a clean context of its own.

    A verb raises `Unavailable` (`browser_crashed`) when the page or its browser is gone, and `TimedOut` when it does
    not answer in time; the session's next tab is then in a new box. What the rules refuse is `CapabilityBlocked`.
    """

    @property
    def alive(self) -> bool:
        """Whether it can still be used."""

    @property
    def url(self) -> str:
        """Where the page is now: a page can lead itself on."""

    async def open(self, url: str, seconds: float) -> Opened:
        """Go to `url`; `http` and `https` only."""

    async def extract(self, what: Extract, selector: str | None, fields: Mapping[str, str]) -> Any:
        """Return what there is to read, JSON-ready and within the bounds; selectors are plain CSS."""

    async def screenshot(self, selector: str | None, full_page: bool) -> bytes:
        """Return a PNG of the viewport, the whole page, or what `selector` finds first."""

    async def resize(self, width: int | None, height: int | None) -> None:
        """Give the viewport another size from now on, within the bounds; what is None stays."""

    async def click(self, selector: str) -> Opened:
        """Click what `selector` finds first, and wait for where that leads."""

    async def type(self, selector: str, text: str) -> None:
        """Replace the text of the field that `selector` finds first."""

    async def close(self) -> Network:
        """End the page and its box; return where it went. Closing again returns the same."""


class Browsers(Protocol):
    """One box per session; a warm one waits; so many at most, then a queue, then a refusal."""

    async def tab(self, session: str, tenant: str, rules: Rules, ledger: Ledger) -> Tab:
        """Return the session's page, made if it has none under these rules.

        What a session may reach is fixed with its box: other rules mean a new one, never a widened gate. A page that
        is there already keeps its own ledger, and `ledger` is not used.

        Raises:
            Unavailable: `browser_backend_missing`: nothing here can browse.
            Overloaded: Every box is taken, and as many wait as may.
        """

    async def close(self) -> None:
        """End every page and every box."""
