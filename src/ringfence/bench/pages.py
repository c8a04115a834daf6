"""What a boxed browser costs beside a bare one: the same page of a server on loopback, opened and pictured."""

from __future__ import annotations

import asyncio
import http.server
import os
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from importlib.util import find_spec
from typing import Final

from ringfence.bench import promise
from ringfence.bench.bare import WrongOutput
from ringfence.bench.pairs import alternate
from ringfence.bench.promise import judged
from ringfence.bench.series import Series
from ringfence.bench.subject import AsyncTimed, Bench, Measured
from ringfence.capability.capabilities import Capabilities
from ringfence.capability.net import READING, NetHttp
from ringfence.egress.addresses import AddressRules
from ringfence.egress.proxy.ledger import Ledger
from ringfence.egress.proxy.reading import ReadingRules
from ringfence.errors import Unavailable

_HOST: Final = "bench.example.com"
_PAGE: Final = b"<!doctype html><title>bench</title><style>p{color:#333;font:16px sans-serif}</style>" + b"".join(
    b"<p>Line %d of a page that has a few hundred of them.</p>" % number for number in range(300)
)
_WIDTH, _HEIGHT = 1280, 720
_SECONDS: Final = 30.0
_MS: Final = 1000


async def browser_open(bench: Bench) -> Measured:
    """Open a page on loopback and picture it, in a warm box behind the proxy and with bare Playwright in turn."""
    from ringfence.browser.chromium import find_chromium

    if find_spec("playwright") is None:
        return Measured((judged(promise.BROWSER_OPEN, None, "playwright is not installed"),))
    try:
        program = find_chromium()
    except Unavailable as error:
        return Measured((judged(promise.BROWSER_OPEN, None, str(error)),))
    settings = bench.settings
    with _serving() as port:
        try:
            async with _boxed(port) as ours, _bare(program, port) as theirs:
                for warming in (ours, theirs):
                    await warming()
                own, beside = await alternate(
                    ours, theirs, pairs=settings.container_pairs, gap_seconds=settings.gap_seconds
                )
        except Unavailable as error:
            return Measured((judged(promise.BROWSER_OPEN, None, str(error)),))
    boxed, bare = Series("browser: ringfence", tuple(own)), Series("browser: playwright", tuple(beside))
    detail = f"{boxed.p50 * _MS:.0f} ms to {bare.p50 * _MS:.0f} ms, n={len(own)}"
    return Measured((judged(promise.BROWSER_OPEN, boxed.p50 / bare.p50, detail),), (boxed, bare))


@asynccontextmanager
async def _boxed(port: int) -> AsyncIterator[AsyncTimed]:
    from ringfence.browser.browsers import ChromiumBrowsers
    from ringfence.browser.port import Bounds
    from ringfence.egress.proxy.proxy import Proxy

    proxy = Proxy(resolve=lambda _: ["127.0.0.1"])
    browsers = ChromiumBrowsers(proxy, Bounds(width=_WIDTH, height=_HEIGHT))
    # loopback is nobody's public network: the bench opens the private one, as no policy does unasked
    rules = ReadingRules(
        Capabilities([NetHttp(_HOST, port, "http", READING)]),
        addresses=AddressRules(denied=frozenset(), private=True),
    )
    try:
        tab = await browsers.tab("bench", "local", rules, Ledger(1 << 50, 1 << 50))

        async def once() -> bytes:
            await tab.open(f"http://{_HOST}:{port}/", _SECONDS)
            return await tab.screenshot(None, full_page=False)

        yield _timed(once)
    finally:
        await browsers.close()
        await asyncio.to_thread(proxy.close)


@asynccontextmanager
async def _bare(program: str, port: int) -> AsyncIterator[AsyncTimed]:
    from playwright.async_api import async_playwright

    async with async_playwright() as playwright:
        # as root Chromium does not start with its sandbox; without it, it is only faster
        browser = await playwright.chromium.launch(executable_path=program, chromium_sandbox=os.geteuid() != 0)
        try:
            context = await browser.new_context(viewport={"width": _WIDTH, "height": _HEIGHT})
            page = await context.new_page()

            async def once() -> bytes:
                await page.goto(f"http://127.0.0.1:{port}/", wait_until="load")
                return await page.screenshot()

            yield _timed(once)
        finally:
            await browser.close()


def _timed(call: Callable[[], Awaitable[bytes]]) -> AsyncTimed:
    async def timed() -> float:
        began = time.perf_counter()
        picture = await call()
        taken = time.perf_counter() - began
        if not picture.startswith(b"\x89PNG"):
            raise WrongOutput("the browser gave no picture")
        return taken

    return timed


class _Page(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:  # the name that `http.server` calls
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.send_header("Content-Length", str(len(_PAGE)))
        self.end_headers()
        self.wfile.write(_PAGE)

    def log_message(self, *_: object) -> None:
        """Say nothing: a bench prints its own lines."""


@contextmanager
def _serving() -> Iterator[int]:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Page)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
