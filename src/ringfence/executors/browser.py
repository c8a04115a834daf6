"""The browser broker: the one page of a session, opened, read and pictured under the call's own rules, and recorded.

A page outlives the call that opened it. What it may reach was fixed then, and a call whose profile says anything else
about hosts has no page; what each call may move is fixed anew, and told in its own record.
"""

from __future__ import annotations

import asyncio
import json
import struct
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakKeyDictionary, WeakValueDictionary

from ringfence.authority.profile import Profile
from ringfence.browser.port import Browsers, Extract, Opened, Tab
from ringfence.dataclass import dataclass, field
from ringfence.egress.proxy.reading import reading_rules
from ringfence.errors import (
    CapabilityBlocked,
    ExecutionFailed,
    InvalidRequest,
    RingfenceError,
    TimedOut,
    Unavailable,
)
from ringfence.executors.page_ledger import PageLedger
from ringfence.guard import browsing
from ringfence.guard.browsing import WINDOW_MS, History
from ringfence.operation.brokered import (
    BrowserClick,
    BrowserClose,
    BrowserExtract,
    BrowserNav,
    BrowserScreenshot,
    BrowserType,
    Browsing,
)
from ringfence.operation.target import target
from ringfence.outcome import Artifact, BrokerOutcome, Budget, Destination, Digest, Effect, Network
from ringfence.ports import Clock, ExecCtx

if TYPE_CHECKING:
    from ringfence.egress.proxy.rules import Rules

PICTURE: Final = "screenshot.png"
_MOST_PREVIEW: Final = 2000
_MOST_TITLE: Final = 300
_PNG: Final = b"\x89PNG\r\n\x1a\n"
_MEMBER: Final = {Extract.TEXT: "text", Extract.LINKS: "links", Extract.TREE: "nodes", Extract.FIELDS: "fields"}
_Key = tuple[str, str]
_Turns = WeakValueDictionary[_Key, asyncio.Lock]
KeepPicture = Callable[[ExecCtx, Artifact], Awaitable[str]]
"""Keeps a picture among the artifacts of its execution, and returns its path in the session's workspace."""


@dataclass(slots=True, eq=False)
class _Page:
    """What is known of a session's page beside what it shows."""

    tab: Tab
    backend: str
    basis: tuple[object, ...]
    rules: Rules
    ledger: PageLedger
    url: str = ""
    steps: int | None = None
    """How often it was led on; None before it shows anything."""
    untold: tuple[Destination, ...] = ()
    """What the page before it moved since it was last told."""

    def serves(self, operation: BrowserNav, profile: Profile) -> bool:
        """Whether it is the browser that is asked for, and was let out under the very same rules."""
        return (self.backend, self.basis) == (operation.backend, _basis(profile, operation))

    def moved(self) -> Network:
        """Return what was moved since this was last asked."""
        rest, self.untold = self.untold, ()
        return Network((*rest, *self.ledger.since().destinations))


@dataclass(slots=True)
class _Sessions:
    pages: dict[_Key, _Page] = field(default_factory=dict)
    pictures: dict[_Key, deque[int]] = field(default_factory=dict)
    turns: WeakKeyDictionary[asyncio.AbstractEventLoop, _Turns] = field(default_factory=WeakKeyDictionary)


class BrowserExecutor:
    """Implements `ports.Executor` for the browser; the operations of one session take turns."""

    def __init__(
        self, browsers: Callable[[], Browsers], clock: Clock, keep: KeepPicture, nat64: Iterable[str] = ()
    ) -> None:
        """`browsers` is asked for when the first page is opened; it says what is missing where there can be none."""
        self._browsers = browsers
        self._clock = clock
        self._keep = keep
        self._nat64 = tuple(nat64)
        self._sessions = _Sessions()

    def capability_domain(self) -> str:
        """Return the domain whose operations are carried out here."""
        return "browser"

    async def execute(self, ctx: ExecCtx, operation: Browsing) -> BrokerOutcome:
        """Carry out `operation` on the session's page, which only `BrowserNav` opens.

        Raises:
            InvalidRequest: The call is of no session, or the session has no page under this profile.
            CapabilityBlocked: The page was led too far, pictured too often, or leads to where nothing is allowed.
            Unavailable: Nothing here can browse, or the page is gone.
            TimedOut: It takes longer than allowed; the page is closed.
        """
        key = ctx.profile.tenant, ctx.session()
        async with self._turn(key):
            page = self._living(key)
            if isinstance(operation, BrowserClose):
                return await self._closed(key)
            former = Network()
            if not isinstance(operation, BrowserNav):
                page = _same(page, ctx.profile)
            elif page is not None and not page.serves(operation, ctx.profile):
                former = await self._drop(key)  # one browser a session, and never a widened way out
                page = None
            self._require(ctx.profile, operation, key, page)
            if page is None:
                page = await self._opened(ctx, key, operation)
                page.untold = former.destinations
            else:
                await self._still(key, page)
            return await self._acted(ctx, key, page, operation)

    def _require(self, profile: Profile, operation: Browsing, key: _Key, page: _Page | None) -> None:
        """Ask the guard what the session's history decides; a picture that is allowed counts from now on."""
        now, taken = self._clock.now_ms(), self._sessions.pictures
        for each in [each for each, times in taken.items() if times[-1] <= now - WINDOW_MS]:
            del taken[each]
        times = taken.get(key, deque())
        recent = sum(time > now - WINDOW_MS for time in times)
        browsing.require(profile, operation, History(None if page is None else page.steps, recent))
        if isinstance(operation, BrowserScreenshot):
            taken.setdefault(key, deque(maxlen=browsing.MOST_PICTURES)).append(now)

    async def _opened(self, ctx: ExecCtx, key: _Key, operation: Browsing) -> _Page:
        if not isinstance(operation, BrowserNav):
            raise _no_page()
        profile, ledger = ctx.profile, PageLedger()
        tenant, session = key
        rules: Rules = reading_rules(profile, _hosts(profile, operation), nat64=self._nat64)
        tab = await self._browsers().tab(session, tenant, rules, ledger)
        page = _Page(tab, operation.backend, _basis(profile, operation), rules, ledger)
        self._sessions.pages[key] = page
        return page

    async def _still(self, key: _Key, page: _Page) -> None:
        """Say that the page is in use; one that is no longer its session's was closed in the meantime.

        Raises:
            Unavailable: It is gone.
        """
        tenant, session = key
        if await self._browsers().tab(session, tenant, page.rules, page.ledger) is not page.tab:
            await self._drop(key)
            raise Unavailable("the page is gone", reason="browser_crashed", fix="open it again")

    async def _acted(self, ctx: ExecCtx, key: _Key, page: _Page, operation: Browsing) -> BrokerOutcome:
        limits = ctx.profile.limits
        page.ledger.allow(limits.max_bytes_in, min(limits.max_bytes_out, ctx.most_output or limits.max_bytes_out))
        effects: list[Effect] = []
        try:
            out, content = await self._do(ctx, page, operation, effects)
        except asyncio.CancelledError:  # also when the time is over: a page that nobody waits for is closed
            ctx.reached.append(await self._drop(key))
            raise
        except RingfenceError as error:
            if isinstance(error, TimedOut) or not page.tab.alive:
                moved = await self._drop(key)
            else:
                moved = page.moved()
            error.done = BrokerOutcome(operation.kind, {}, None, _used(moved), _effects(moved))
            if page.ledger.is_spent and not isinstance(error, CapabilityBlocked):
                raise _too_much(limits.max_bytes_in, error) from error
            raise
        moved = page.moved()
        out |= {"backend": page.backend, "cut_off": page.ledger.is_spent, "untrusted": True}
        inline = content if ctx.profile.output_inline else None
        return BrokerOutcome(operation.kind, out, inline, _used(moved), (*effects, *_effects(moved)))

    async def _do(
        self, ctx: ExecCtx, page: _Page, operation: Browsing, effects: list[Effect]
    ) -> tuple[dict[str, Any], bytes | None]:
        tab, inline = page.tab, ctx.profile.output_inline
        match operation:
            case BrowserNav():
                return _led(page, await tab.open(operation.url, ctx.profile.limits.wall_seconds), inline=inline), None
            case BrowserClick():
                return _led(page, await tab.click(operation.selector), inline=inline), None
            case BrowserType():
                await tab.type(operation.selector, operation.text)
                return {"url": page.tab.url, "characters": len(operation.text)}, None
            case BrowserExtract():
                what = Extract(operation.what)
                found = await tab.extract(what, operation.selector, operation.fields)
                return _extracted(page, what, found, inline=inline)
            case BrowserScreenshot():
                if operation.width is not None or operation.height is not None:
                    await tab.resize(operation.width, operation.height)
                png = await tab.screenshot(operation.selector, operation.full_page)
                picture = _picture(png)
                path = await self._keep(ctx, picture)
                effects.append(Effect("write", {"path": path, "bytes": picture.size}))
                return _pictured(page, picture, path), png
            case _:
                raise InvalidRequest("the browser has no such operation", reason="unknown_operation")

    def _living(self, key: _Key) -> _Page | None:
        """Return the session's page; those that died by themselves are forgotten."""
        pages = self._sessions.pages
        for each in [each for each, page in pages.items() if not page.tab.alive]:
            del pages[each]
        return pages.get(key)

    async def _closed(self, key: _Key) -> BrokerOutcome:
        had = key in self._sessions.pages
        moved = await self._drop(key)
        return BrokerOutcome("browser_close", {"closed": had}, None, _used(moved), _effects(moved))

    async def _drop(self, key: _Key) -> Network:
        """Close the session's page and return where it went since it was last told; nothing, where it has none."""
        page = self._sessions.pages.pop(key, None)
        if page is None:
            return Network()
        closing = asyncio.ensure_future(page.tab.close())
        whole = await asyncio.shield(closing)
        return Network(page.moved().destinations, whole.not_shown, whole.complete)

    def _turn(self, key: _Key) -> asyncio.Lock:
        turns = self._sessions.turns.setdefault(asyncio.get_running_loop(), _Turns())
        return turns.setdefault(key, asyncio.Lock())


def _hosts(profile: Profile, operation: BrowserNav) -> tuple[str, ...]:
    """Return whom the page may ask: whoever is granted, but where a person agreed to a call, whom they were shown."""
    return (target(operation.url).host,) if profile.dangers else ("*",)


def _basis(profile: Profile, operation: BrowserNav | None = None) -> tuple[object, ...]:
    """Return all that decides what a page may reach: one opened under anything else is another's."""
    hosts = () if operation is None else _hosts(profile, operation)
    granted = profile.capabilities.of("net.http")
    return granted, profile.denials, profile.rules, profile.dangers, hosts


def _same(page: _Page | None, profile: Profile) -> _Page:
    """Return the page, where it was opened under the same rules.

    Raises:
        InvalidRequest: There is none, or it was opened under others.
    """
    if page is None or page.steps is None or page.basis[:-1] != _basis(profile)[:-1]:
        raise _no_page()
    return page


def _no_page() -> InvalidRequest:
    return InvalidRequest(
        "the session has no page open under these rules", reason="no_page", fix="open one with browser_nav"
    )


def _too_much(most: int, error: RingfenceError) -> CapabilityBlocked:
    refusal = CapabilityBlocked(f"the page wanted more than the {most} bytes it may", reason="too_large", limit=most)
    refusal.done = error.done
    return refusal


def _led(page: _Page, opened: Opened, *, inline: bool) -> dict[str, Any]:
    """Take note of where the page is now, and tell it."""
    if page.steps is None:
        page.steps = 0
    elif opened.url != page.url:
        page.steps += 1
    page.url = opened.url
    return {
        "url": opened.url,
        "status": opened.status,
        "title": opened.title[:_MOST_TITLE] if inline else "",
        "hops": list(opened.hops),
        "blocked": list(opened.blocked),
        "depth": page.steps,
    }


def _extracted(page: _Page, what: Extract, found: Any, *, inline: bool) -> tuple[dict[str, Any], bytes]:
    is_text, taken = what is Extract.TEXT, found[_MEMBER[what]]
    content = (taken if is_text else json.dumps(taken, ensure_ascii=False)).encode("utf-8", "replace")
    return {
        "url": page.tab.url,
        "what": str(what),
        "media_type": "text/plain; charset=utf-8" if is_text else "application/json",
        "bytes": len(content),
        "truncated": found["truncated"],
        "digest": Digest.of(content).to_dict(),
        "preview": content[: _MOST_PREVIEW * 4].decode("utf-8", "replace")[:_MOST_PREVIEW] if inline else "",
    }, content


def _picture(png: bytes) -> Artifact:
    import hashlib  # not at the top: most pages are read

    if not png.startswith(_PNG) or len(png) < 24:
        raise ExecutionFailed("the browser gave no picture")
    return Artifact(PICTURE, len(png), hashlib.sha256(png).hexdigest(), png)


def _pictured(page: _Page, picture: Artifact, path: str) -> dict[str, Any]:
    width, height = struct.unpack(">II", picture.content[16:24])
    return {
        "url": page.tab.url,
        "media_type": "image/png",
        "width": width,
        "height": height,
        "bytes": picture.size,
        "digest": Digest.of(picture.content).to_dict(),
        "artifact": {"path": path, "size": picture.size, "sha256": picture.sha256},
    }


def _used(moved: Network) -> Budget:
    return Budget(bytes_in=moved.bytes_in, bytes_out=moved.bytes_out)


def _effects(moved: Network) -> tuple[Effect, ...]:
    return tuple(Effect("network", _meta(place)) for place in moved.destinations)


def _meta(place: Destination) -> dict[str, str | int]:
    known: dict[str, str | int] = {
        "host": place.host,
        "port": place.port,
        "method": place.method,
        "address": place.address,
        "decision": place.decision,
        "reason": place.reason,
        "count": place.count,
        "bytes_in": place.bytes_in,
        "bytes_out": place.bytes_out,
    }
    return {name: value for name, value in known.items() if value != ""}
