"""A web for a real Chromium: pages by path, on names of the tests' own, and a canary at every other address there is.

The proxy under test resolves and dials as it always does; only the last step, the connect, leads to a server of this
process: what was dialled for a granted public address gets the pages, whatever else was dialled gets the canary.
"""

from __future__ import annotations

import asyncio
import http.server
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

from ringfence.browser.browsers import ChromiumBrowsers
from ringfence.browser.port import Bounds
from ringfence.capability.capabilities import Capabilities
from ringfence.capability.net import NetHttp
from ringfence.egress.proxy.ledger import Ledger
from ringfence.egress.proxy.proxy import Proxy
from ringfence.egress.proxy.reading import ReadingRules

WEB, OTHER, HIDDEN, INSIDE = "web.example.com", "other.example.com", "hidden.example.net", "inside.example.com"
ADDRESSES = {WEB: "93.184.216.34", OTHER: "93.184.216.35", HIDDEN: "93.184.216.36", INSIDE: "10.0.0.5"}
GRANTED = (WEB, OTHER, INSIDE)


_ACTING = """<!doctype html><title>acting</title><pre id=said></pre>BODY<img src=/hold><script>
const say = (...words) => { said.textContent += words.join(' ') + '\\n'; };
const attempt = async (what, act) => {
  try { say(what, await act()); } catch (error) { say(what, error.name || error); } };
(async () => { try { SCRIPT } finally { fetch('/done'); } })();
</script>"""


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: Any) -> None:
        return

    def do_GET(self) -> None:
        length = int(self.headers.get("Content-Length", "0"))
        self.rfile.read(length)
        self._web.seen.append((self.command, self.headers.get("Host", ""), self.path))
        if self.path == "/done":
            self._web.done.set()
        if self.path == "/hold":
            self._web.done.wait(10)
        body, headers, status = self._web.pages.get(self.path.partition("?")[0], (b"no such page", {}, 404))
        self.send_response(status)
        for name, value in ({"Content-Type": "text/html; charset=utf-8"} | headers).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def __getattr__(self, name: str) -> Any:
        """Take every other method as well: whether it comes is what the tests ask."""
        if name.startswith("do_"):
            return self.do_GET
        raise AttributeError(name)

    @property
    def _web(self) -> Web:
        return cast("Any", self.server).web  # type: ignore[no-any-return]


class Web:
    """What the servers show, and what came to them."""

    def __init__(self) -> None:
        self.pages: dict[str, tuple[bytes, dict[str, str], int]] = {}
        self.seen: list[tuple[str, str, str]] = []
        self.done = threading.Event()
        self.canary: list[tuple[str, int]] = []
        self.dialled: list[tuple[str, int]] = []
        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
        self._server.daemon_threads = True
        cast("Any", self._server).web = self
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        self._thread.start()

    def show(self, path: str, body: str, *, status: int = 200, **headers: str) -> str:
        """Have a page there; return its address on the granted host."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        self.pages[path] = (body.encode(), named, status)
        return f"http://{WEB}{path}"

    def act(self, path: str, script: str, body: str = "") -> str:
        """Have a page there that is not loaded before its script is done; what that says is in `#said`."""
        self.done.clear()
        return self.show(path, _ACTING.replace("BODY", body).replace("SCRIPT", script))

    def forget(self) -> None:
        self.pages.clear()
        self.seen.clear()
        self.canary.clear()
        self.dialled.clear()

    def came(self, method: str) -> list[str]:
        return [path for how, _, path in self.seen if how == method]

    def resolve(self, host: str) -> list[str]:
        if host not in ADDRESSES:
            raise socket.gaierror(socket.EAI_NONAME, "no such name")
        return [ADDRESSES[host]]

    def make_socket(self, family: socket.AddressFamily) -> socket.socket:
        web = self

        class Led(socket.socket):
            def connect(self, where: Any) -> None:
                web.dialled.append(where[:2])
                if where[0] not in (ADDRESSES[WEB], ADDRESSES[OTHER]):
                    web.canary.append(where[:2])
                    raise ConnectionRefusedError("the canary")
                self.judged = where[:2]
                super().connect(web._server.server_address)

            def getpeername(self) -> Any:
                super().getpeername()  # raises where it is not connected
                return self.judged

        made = Led(socket.AF_INET, socket.SOCK_STREAM)
        made.setblocking(False)
        return made

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


class BrowserLab:
    """The web, a proxy that leads to it, and browsers behind that."""

    def __init__(self, **options: Any) -> None:
        self.web = Web()
        self.proxy = Proxy(resolve=self.web.resolve, make_socket=self.web.make_socket)
        bounds = options.pop("bounds", Bounds(seconds=25))
        self.browsers = ChromiumBrowsers(self.proxy, bounds, **options)


def rules(
    *hosts: str, methods: tuple[str, ...] = ("DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT")
) -> ReadingRules:
    """Let these hosts be reached, by every method: what is refused then is refused by the browser."""
    return ReadingRules(Capabilities(NetHttp(host, methods=frozenset(methods)) for host in hosts))


def ledger() -> Ledger:
    return Ledger(64 << 20, 64 << 20)


@contextmanager
def running_lab(**options: Any) -> Iterator[BrowserLab]:
    lab = BrowserLab(**options)
    try:
        yield lab
    finally:
        asyncio.run(lab.browsers.close())
        lab.proxy.close()
        lab.web.close()
