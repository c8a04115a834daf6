"""An internet for boxes: public addresses in a network namespace of the tests' own, and web servers on them.

The namespace belongs to one thread. Sockets that are made in it lead there, whoever uses them afterwards: the servers
listen on some, and the proxy under test dials with others, by the very code that dials the real internet.
"""

from __future__ import annotations

import http.server
import queue
import shutil
import socket
import ssl
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from functools import cache, partial
from pathlib import Path
from typing import Any

from tests.hostile_web import Names

from ringfence.egress.proxy.meter import Patience
from ringfence.egress.proxy.proxy import Proxy
from ringfence.executors.ways_out import WaysOut
from ringfence.isolation.linux import kernel

PUBLIC, OTHER, PUBLIC6 = "93.184.216.34", "93.184.216.35", "2606:2800::34"
WEB, SECOND, HIDDEN = "web.example.com", "second.example.com", "hidden.example.net"
PRIVATE = ("10.0.0.5", "169.254.169.254", "192.168.1.1")
"""Canaries: they listen as well, and nothing may reach them."""


class Internet:
    """A network namespace, entered by one thread, which makes sockets in it for everybody."""

    def __init__(self) -> None:
        self._asked: queue.Queue[tuple[Callable[[], Any], Future[Any]] | None] = queue.Queue()
        self._thread = threading.Thread(target=self._live, daemon=True)
        self._thread.start()
        self.do(self._build)

    def do(self, act: Callable[[], Any]) -> Any:
        answer: Future[Any] = Future()
        self._asked.put((act, answer))
        return answer.result(timeout=20)

    def make_socket(self, family: socket.AddressFamily) -> socket.socket:
        made: socket.socket = self.do(lambda: socket.socket(family, socket.SOCK_STREAM))
        return made

    def listen(self, address: str, port: int) -> socket.socket:
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        made: socket.socket = self.do(lambda: socket.create_server((address, port), family=family, backlog=600))
        return made

    def close(self) -> None:
        self._asked.put(None)
        self._thread.join()

    def _build(self) -> None:
        kernel.unshare(kernel.CLONE_NEWNET)
        for words in (
            "link set lo up",
            *(f"addr add {address}/32 dev lo" for address in (PUBLIC, OTHER, *PRIVATE)),
            f"addr add {PUBLIC6}/128 dev lo nodad",
        ):
            subprocess.run(["ip", *words.split()], check=True, capture_output=True)

    def _live(self) -> None:
        while (asked := self._asked.get()) is not None:
            act, answer = asked
            try:
                answer.set_result(act())
            except BaseException as error:
                answer.set_exception(error)


class Site(http.server.SimpleHTTPRequestHandler):
    """Shows a directory; `/echo` says what it was sent, `/size/N` is so many bytes."""

    protocol_version = "HTTP/1.1"

    def guess_type(self, path: Any) -> str:
        """Take what has no suffix for a registry's JSON."""
        return "application/json" if "." not in str(path).rpartition("/")[2] else super().guess_type(path)

    def log_message(self, *_: Any) -> None:
        return

    def do_GET(self) -> None:
        self.server.seen.append((self.command, self.path, dict(self.headers)))  # type: ignore[attr-defined]
        if self.path.startswith("/size/"):
            size = int(self.path.rpartition("/")[2])
            self._say(200, b"x" * size)
        elif self.path.startswith("/echo"):
            self._say(200, f"{self.command} {self.path} {self.headers}".encode())
        elif self.path.startswith("/to"):
            self.send_response(302)
            self.send_header("Location", self.path.partition("?")[2])
            self.send_header("Content-Length", "0")
            self.end_headers()
        else:
            super().do_GET()

    def do_POST(self) -> None:
        length = self.headers.get("Content-Length")
        body = self.rfile.read(int(length)) if length is not None else self._chunks()
        self.server.seen.append((self.command, self.path, dict(self.headers)))  # type: ignore[attr-defined]
        self._say(200, b"%d bytes" % len(body))

    def do_PUT(self) -> None:
        self.do_POST()

    def do_HEAD(self) -> None:
        self.do_GET()

    def _chunks(self) -> bytes:
        body = b""
        while size := int(self.rfile.readline(), 16):
            body += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return body

    def _say(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "text/plain")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


class Server(http.server.ThreadingHTTPServer):
    """One listening socket of the lab, and what came to it."""

    daemon_threads = True

    def __init__(self, lab: EgressLab, listening: socket.socket, tls: ssl.SSLContext | None = None) -> None:
        self.seen = lab.seen
        self.accepted = 0
        self._tls = tls
        super().__init__(("", 0), partial(Site, directory=str(lab.directory)), bind_and_activate=False)
        self.socket.close()
        self.socket = listening
        threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()

    def get_request(self) -> tuple[socket.socket, Any]:
        connection, address = super().get_request()
        self.accepted += 1
        return connection, address

    def finish_request(self, request: Any, client_address: Any) -> None:
        if self._tls is None:
            super().finish_request(request, client_address)
            return
        request.settimeout(20)
        with self._tls.wrap_socket(request, server_side=True) as secured:
            super().finish_request(secured, client_address)
            with suppress(OSError):
                secured.unwrap()

    def handle_error(self, *_: Any) -> None:
        return


class EgressLab:
    """The servers, the names, and the proxy that knows both."""

    def __init__(self, directory: Path, records: Mapping[str, Any] | None = None) -> None:
        self.seen: list[tuple[str, str, dict[str, str]]] = []
        """Method, path and headers of all that reached a server, in order."""
        self.internet = Internet()
        self.directory = directory / "site"
        self.directory.mkdir(exist_ok=True)
        (self.directory / "index.html").write_text("hello")
        self.names = Names({WEB: [PUBLIC], SECOND: [OTHER], HIDDEN: [OTHER], **(records or {})})
        self.ca, tls = authority(directory)
        self.servers = [
            Server(self, self.internet.listen(address, port), tls if port == 443 else None)
            for address in (PUBLIC, OTHER, PUBLIC6)
            for port in (80, 443, 8080)
        ]
        self.canaries = [Server(self, self.internet.listen(address, port)) for address in PRIVATE for port in (80, 443)]

    @property
    def reached_canaries(self) -> int:
        return sum(server.accepted for server in self.canaries)

    def proxy(self, patience: Patience | None = None) -> Proxy:
        return Proxy(resolve=self.names, make_socket=self.internet.make_socket, patience=patience or Patience())

    def ways_out(self) -> WaysOut:
        return WaysOut(self.proxy(), ca_file=self.ca)

    def close(self) -> None:
        for server in (*self.servers, *self.canaries):
            server.shutdown()
            server.server_close()
        self.internet.close()


@cache
def authority(directory: Path) -> tuple[Path, ssl.SSLContext]:
    """Return an authority of the tests' own, and what shows a certificate for every name of the lab by it."""
    ca, key, request, cert = (directory / name for name in ("ca.pem", "key.pem", "request.pem", "cert.pem"))
    extensions = directory / "extensions"
    names = ",".join(f"DNS:{name}" for name in (WEB, SECOND, HIDDEN))
    extensions.write_text(f"subjectAltName={names},IP:{PUBLIC}\n")
    subject = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
    for command in (
        ["req", "-x509", *subject, "-keyout", directory / "ca-key.pem", "-out", ca, "-subj", "/CN=lab", "-days", "2"],
        ["req", *subject, "-keyout", key, "-out", request, "-subj", "/CN=web"],
        ["x509", "-req", "-in", request, "-CA", ca, "-CAkey", directory / "ca-key.pem", "-CAcreateserial", "-out", cert,
         "-days", "2", "-extfile", extensions],
    ):  # fmt: skip
        subprocess.run(["openssl", *map(str, command)], check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(cert, key)
    return ca, context


@contextmanager
def running_lab(directory: Path, records: Mapping[str, Any] | None = None) -> Iterator[EgressLab]:
    """Give a lab, and take it down."""
    lab = EgressLab(directory, records)
    try:
        yield lab
    finally:
        lab.close()


def missing() -> str | None:
    """Say why there can be no lab here."""
    import os

    if os.geteuid() != 0:
        return "only root may make a network namespace in a thread"
    absent = [program for program in ("ip", "openssl") if shutil.which(program) is None]
    return f"{', '.join(absent)} is not installed" if absent else None
