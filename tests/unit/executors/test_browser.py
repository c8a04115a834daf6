"""What the browser broker decides before any browser is touched, and what it tells of one; the page is a recording.

What a browser does itself is shown with a real one in `tests/e2e/test_browser.py`.
"""

from __future__ import annotations

import asyncio
import struct
import zlib
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from ringfence import load_policy
from ringfence.authority.policy import PolicySnapshot
from ringfence.browser.port import Extract, Opened
from ringfence.capability.limits import Limits
from ringfence.egress.proxy.ledger import Entry, Ledger
from ringfence.egress.proxy.rules import Rules
from ringfence.errors import CapabilityBlocked, InvalidRequest, RingfenceError, TimedOut, Unavailable
from ringfence.executors.browser import BrowserExecutor
from ringfence.guard.browsing import MOST_PICTURES, WINDOW_MS
from ringfence.operation.brokered import (
    AIO_BROWSER,
    BrowserClick,
    BrowserClose,
    BrowserExtract,
    BrowserNav,
    BrowserScreenshot,
    BrowserType,
    Browsing,
)
from ringfence.operation.target import target
from ringfence.outcome import Artifact, BrokerOutcome, Network
from ringfence.ports import ExecCtx
from ringfence.testing import FrozenClock, MemorySink, orchestrator_over, standard_profile

POLICY_TEXT = b"""
policies:
  tools:
    browser_automation:
      network_access: true
      allowed_domains: ["*.example.com"]
      denied_domains: ["*.internal.example.com"]
      browser_scope: [open, extract, screenshot, click, type]
"""
POLICY = load_policy(POLICY_TEXT)
PAGE = BrowserNav("http://web.example.com/")


def png(width: int, height: int) -> bytes:
    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + struct.pack(">I", 13) + b"IHDR" + head + struct.pack(">I", zlib.crc32(b"IHDR" + head))


class RecordingTab:
    """Implements `port.Tab` without showing anything."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger, self.asked, self.alive, self.url = ledger, list[Any](), True, ""
        self.hangs, self.reading = asyncio.Event(), asyncio.Event()
        self.fails: RingfenceError | None = None
        self.moves = 100

    async def open(self, url: str, seconds: float) -> Opened:
        await self._did(("open", url))
        self.url = url
        return Opened(url, 200, "A title")

    async def extract(self, what: Extract, selector: str | None, fields: Mapping[str, str]) -> Any:
        await self._did(("extract", what, selector, dict(fields)))
        if what is Extract.TEXT:
            return {"text": "words", "truncated": False}
        return {"links": [{"url": "http://web.example.com/next", "text": "on"}], "truncated": False}

    async def screenshot(self, selector: str | None, full_page: bool) -> bytes:
        await self._did(("screenshot", selector, full_page))
        return png(640, 480)

    async def resize(self, width: int | None, height: int | None) -> None:
        self.asked.append(("resize", width, height))

    async def click(self, selector: str) -> Opened:
        await self._did(("click", selector))
        self.url += "next/"
        return Opened(self.url, 200, "Another")

    async def type(self, selector: str, text: str) -> None:
        await self._did(("type", selector, text))

    async def close(self) -> Network:
        self.alive = False
        return self.ledger.total()

    async def _did(self, what: tuple[Any, ...]) -> None:
        self.asked.append(what)
        entry = self.ledger.begin(Entry("web.example.com", 80, "GET", "93.184.216.34"))
        self.ledger.received(entry, self.ledger.may_receive(self.moves))
        self.ledger.end(entry)
        if self.fails is not None:
            raise self.fails
        if self.hangs.is_set():
            self.reading.set()
            await asyncio.Event().wait()


class RecordingBrowsers:
    """Implements `port.Browsers`."""

    def __init__(self) -> None:
        self.tabs: list[RecordingTab] = []
        self.rules: list[Rules] = []

    async def tab(self, session: str, tenant: str, rules: Rules, ledger: Ledger) -> RecordingTab:
        for tab in self.tabs:
            if tab.alive and tab.ledger is ledger:
                return tab
        self.tabs.append(RecordingTab(ledger))
        self.rules.append(rules)
        return self.tabs[-1]

    async def close(self) -> None:
        return


class Session:
    """The real pipeline in front of the broker, with a recording behind it."""

    def __init__(self) -> None:
        self.browsers, self.clock, self.sink = RecordingBrowsers(), FrozenClock(), MemorySink()
        self.kept: list[Artifact] = []
        self.executor = BrowserExecutor(lambda: self.browsers, self.clock, self.keep)
        self.orchestrator = orchestrator_over(self.executor, evidence=self.sink)

    async def keep(self, ctx: ExecCtx, picture: Artifact) -> str:
        self.kept.append(picture)
        return f"/workspace/artifacts/{ctx.exec_id}/{picture.path}"

    async def do(
        self,
        operation: Browsing,
        limits: Limits = Limits(),
        session: str | None = "s",
        policy: PolicySnapshot = POLICY,
    ) -> BrokerOutcome:
        profile = standard_profile(operation, limits, policy)
        return await self.orchestrator.run(operation, profile, session_id=session)

    async def refused(self, operation: Browsing, **options: Any) -> RingfenceError:
        with pytest.raises(RingfenceError) as refused:
            await self.do(operation, **options)
        return refused.value


@pytest.fixture
def session() -> Session:
    return Session()


def test_its_domain_is_that_of_the_operations(session: Session) -> None:
    assert session.executor.capability_domain() == PAGE.domain


async def test_without_a_session_there_is_no_page(session: Session) -> None:
    assert (await session.refused(PAGE, session=None)).reason == "invalid_session_id"


@pytest.mark.parametrize(
    "operation", [BrowserExtract(), BrowserScreenshot(), BrowserClick("a"), BrowserType("input", "x")], ids=str
)
async def test_only_opening_makes_a_page(session: Session, operation: Browsing) -> None:
    refused = await session.refused(operation)
    assert isinstance(refused, InvalidRequest)
    assert (refused.reason, session.browsers.tabs) == ("no_page", [])


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("http://elsewhere.org/", "domain"),
        ("http://x.internal.example.com/", "blacklist"),
        ("http://example.com/", "domain"),
        ("http://a.example.com.evil.test/", "domain"),
    ],
)
async def test_what_is_not_granted_is_refused_before_there_is_a_browser(session: Session, url: str, why: str) -> None:
    refused = await session.refused(BrowserNav(url))
    assert (refused.reason, session.browsers.tabs) == (why, [])


async def test_the_page_may_only_read_what_the_profile_grants(session: Session) -> None:
    await session.do(PAGE)
    rules = session.browsers.rules[0]
    assert rules.refuse_request("GET", target("http://web.example.com/")) is None
    assert rules.refuse_tunnel(target("https://web.example.com/")) is None
    for method, url in (
        ("POST", "http://web.example.com/"),
        ("GET", "http://elsewhere.org/"),
        ("GET", "http://x.internal.example.com/"),
    ):
        assert rules.refuse_request(method, target(url)) is not None
    assert rules.refuse_tunnel(target("https://x.internal.example.com/")) is not None


async def test_following_one_link_too_many_is_refused_and_a_new_page_begins_again(session: Session) -> None:
    limits = Limits(max_depth=2)
    for number in range(3):
        outcome = await session.do(BrowserNav(f"http://web.example.com/{number}"), limits)
        assert outcome.out["depth"] == number
    for operation in (BrowserNav("http://web.example.com/3"), BrowserClick("a")):
        assert (await session.refused(operation, limits=limits)).reason == "depth"
    assert len(session.browsers.tabs[0].asked) == 3
    assert (await session.do(BrowserClose(), limits)).out["closed"] is True
    assert (await session.do(BrowserNav("http://web.example.com/3"), limits)).out["depth"] == 0
    assert len(session.browsers.tabs) == 2


async def test_a_click_that_leads_on_counts_as_a_step(session: Session) -> None:
    await session.do(PAGE, Limits(max_depth=1))
    assert (await session.do(BrowserClick("a"), Limits(max_depth=1))).out["depth"] == 1
    assert (await session.refused(BrowserClick("a"), limits=Limits(max_depth=1))).reason == "depth"


async def test_the_eleventh_picture_of_a_minute_is_refused_whatever_page_it_is_of(session: Session) -> None:
    for _ in range(MOST_PICTURES):
        await session.do(PAGE)
        await session.do(BrowserScreenshot())
        await session.do(BrowserClose())
    await session.do(PAGE)
    assert (await session.refused(BrowserScreenshot())).reason == "rate"
    assert len(session.kept) == MOST_PICTURES
    await session.do(PAGE, session="another")
    await session.do(BrowserScreenshot(), session="another")
    session.clock.advance(WINDOW_MS / 1000)
    await session.do(BrowserScreenshot())


async def test_a_viewport_beyond_the_ceiling_never_reaches_the_browser(session: Session) -> None:
    await session.do(PAGE)
    assert (await session.refused(BrowserScreenshot(width=10_000))).reason == "viewport"
    await session.do(BrowserScreenshot(width=800, height=600))
    assert session.browsers.tabs[0].asked[1:] == [("resize", 800, 600), ("screenshot", None, False)]


async def test_a_picture_is_a_handle_with_its_size_and_digest(session: Session) -> None:
    await session.do(PAGE)
    outcome = await session.do(BrowserScreenshot("p"))
    assert outcome.content == session.kept[0].content == png(640, 480)
    assert (outcome.out["width"], outcome.out["height"], outcome.out["media_type"]) == (640, 480, "image/png")
    handle = outcome.out["artifact"]
    assert handle == {
        "path": f"/workspace/artifacts/{outcome.exec_id}/screenshot.png",
        "size": len(png(640, 480)),
        "sha256": session.kept[0].sha256,
    }
    assert session.sink.records[-1]["files_written"]["paths"] == [handle["path"].removeprefix("/workspace/")]


async def test_what_was_read_is_marked_and_kept_out_where_the_policy_says_so(session: Session) -> None:
    await session.do(PAGE)
    outcome = await session.do(BrowserExtract())
    assert (outcome.content, outcome.out["preview"], outcome.out["untrusted"]) == (b"words", "words", True)
    links = await session.do(BrowserExtract(what="links"))
    assert links.content == b'[{"url": "http://web.example.com/next", "text": "on"}]'
    quiet = load_policy(POLICY_TEXT + b"  default: {output_inline: false}\n")
    await session.do(BrowserClose())
    await session.do(PAGE, policy=quiet)
    withheld = await session.do(BrowserExtract(), policy=quiet)
    assert (withheld.content, withheld.out["preview"], withheld.out["bytes"]) == (None, "", 5)


async def test_one_browser_a_session_and_switching_closes_the_former(session: Session) -> None:
    first = await session.do(PAGE)
    second = await session.do(BrowserNav(PAGE.url, AIO_BROWSER))
    assert (first.out["backend"], second.out["backend"]) == ("external_browser", "aio_browser")
    assert [tab.alive for tab in session.browsers.tabs] == [False, True]
    await session.do(PAGE, session="another")
    assert [tab.alive for tab in session.browsers.tabs] == [False, True, True]


async def test_what_a_page_moved_after_its_last_operation_is_told_by_the_next_or_by_closing(session: Session) -> None:
    await session.do(PAGE)
    await session.browsers.tabs[0]._did(("by itself",))
    switched = await session.do(BrowserNav(PAGE.url, AIO_BROWSER))
    assert switched.used.bytes_in == 200
    await session.browsers.tabs[1]._did(("by itself",))
    closed = await session.do(BrowserClose())
    assert (closed.used.bytes_in, [each.meta["host"] for each in closed.effects]) == (100, ["web.example.com"])


async def test_a_profile_with_other_hosts_gets_another_page_and_none_of_the_first(session: Session) -> None:
    await session.do(PAGE)
    narrow = load_policy(POLICY_TEXT.replace(b'"*.example.com"', b'"web.example.com"'))
    assert (await session.refused(BrowserExtract(), policy=narrow)).reason == "no_page"
    await session.do(PAGE, policy=narrow)
    assert [tab.alive for tab in session.browsers.tabs] == [False, True]


async def test_a_session_of_the_same_name_of_another_tenant_has_a_page_of_its_own(session: Session) -> None:
    await session.do(PAGE)
    profile = replace(standard_profile(BrowserExtract(), policy=POLICY), tenant="another")
    with pytest.raises(InvalidRequest) as refused:
        await session.orchestrator.run(BrowserExtract(), profile, session_id="s")
    assert refused.value.reason == "no_page"


async def test_each_operation_tells_its_own_bytes_and_where_they_went(session: Session) -> None:
    outcome = await session.do(PAGE)
    assert (outcome.used.bytes_in, [effect.meta["host"] for effect in outcome.effects]) == (100, ["web.example.com"])
    session.browsers.tabs[0].moves = 7
    assert (await session.do(BrowserExtract())).used.bytes_in == 7
    places = session.sink.records[-1]["network"]["destinations"]
    assert [(place["host"], place["bytes_in"]) for place in places] == [("web.example.com", 7)]


async def test_a_page_gets_no_more_bytes_than_the_operation_may_move(session: Session) -> None:
    outcome = await session.do(PAGE, Limits(max_bytes_in=60))
    assert (outcome.used.bytes_in, outcome.out["cut_off"]) == (60, True)
    session.browsers.tabs[0].fails = Unavailable("net::ERR_EMPTY_RESPONSE")
    refused = await session.refused(PAGE, limits=Limits(max_bytes_in=60))
    assert isinstance(refused, CapabilityBlocked)
    assert refused.reason == "too_large"


async def test_a_call_that_nobody_waits_for_closes_the_page_and_is_recorded_with_where_it_went(
    session: Session,
) -> None:
    await session.do(PAGE)
    tab = session.browsers.tabs[0]
    tab.hangs.set()
    waiting = asyncio.ensure_future(session.do(BrowserExtract()))
    await tab.reading.wait()
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert not tab.alive
    ended = session.sink.records[-1]
    assert ended["outcome"] == "cancelled"
    assert [place["host"] for place in ended["network"]["destinations"]] == ["web.example.com"]


async def test_a_page_that_takes_too_long_is_closed(session: Session) -> None:
    await session.do(PAGE)
    tab = session.browsers.tabs[0]
    tab.hangs.set()
    refused = await session.refused(BrowserExtract(), limits=Limits(wall_seconds=0.05))
    assert isinstance(refused, TimedOut)
    assert not tab.alive
    assert (await session.refused(BrowserExtract())).reason == "no_page"


async def test_where_nothing_can_browse_it_says_so() -> None:
    def missing() -> RecordingBrowsers:
        raise Unavailable("playwright is not installed", reason="browser_backend_missing")

    session = Session()
    session.executor._browsers = missing
    refused = await session.refused(PAGE)
    assert (refused.code, refused.reason) == ("PROVIDER.UNAVAILABLE", "browser_backend_missing")
