"""A hostile web of the tests' own: servers that break every rule of HTTP, and names that change their mind.

They work on loopback, behind an injected resolver and dialer; `net_lab` puts the same servers on real addresses.
"""

from __future__ import annotations

import asyncio
import gzip
import socket
import ssl
import subprocess
import threading
import zlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from functools import cache
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit

SECRET = b"CANARY-CREDENTIALS"
PUBLIC = "93.184.216.34"
OTHER = "93.184.216.35"


# --- a server that does what it is asked to ---------------------------------------------------------------------------

Answer = Callable[[socket.socket, dict[str, str]], None]


def plain(body: bytes, *headers: str, status: str = "200 OK", kind: str = "text/plain") -> bytes:
    lines = [f"HTTP/1.1 {status}", f"Content-Type: {kind}", f"Content-Length: {len(body)}", *headers]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def raw(answer: bytes) -> Answer:
    return lambda connection, _: connection.sendall(answer)


def redirect(connection: socket.socket, asked: dict[str, str]) -> None:
    status = asked.get("status", "302")
    connection.sendall(f"HTTP/1.1 {status} Moved\r\nLocation: {asked['to']}\r\nContent-Length: 0\r\n\r\n".encode())


def dripping(connection: socket.socket, asked: dict[str, str]) -> None:
    """Send one byte now and then, for as long as anybody listens."""
    connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n")
    if asked.get("part") != "head":
        connection.sendall(b"\r\n")
    connection.settimeout(0.05)
    while True:
        with suppress(TimeoutError):
            if connection.recv(1) == b"":
                return
        connection.sendall(b"x")


def endless(connection: socket.socket, asked: dict[str, str]) -> None:
    head = f"HTTP/1.1 200 OK\r\nContent-Type: {asked.get('kind', 'text/plain')}\r\n".encode()
    connection.sendall(head + (b"Transfer-Encoding: chunked\r\n\r\n" if asked.get("chunked") else b"\r\n"))
    piece = b"a" * 65536
    framed = b"10000\r\n" + piece + b"\r\n" if asked.get("chunked") else piece
    while True:
        connection.sendall(framed)


def packed(content: bytes, coding: str) -> bytes:
    if coding == "gzip":
        return gzip.compress(content)
    if coding == "raw-deflate":
        packer = zlib.compressobj(wbits=-15)
        return packer.compress(content) + packer.flush()
    return zlib.compress(content)


@cache
def bomb(size: int = 256 << 20) -> bytes:
    """Zeros, gzipped: a thousandth of what comes out."""
    packer = zlib.compressobj(9, wbits=31)
    piece = bytes(1 << 20)
    return b"".join(packer.compress(piece) for _ in range(size >> 20)) + packer.flush()


@cache
def mixed() -> bytes:
    """Text of 6 MiB that packs to about half: no bomb, and more than came over the wire."""
    import random

    return random.Random(1).randbytes(3 << 20).hex().encode()


OK = b"HTTP/1.1 200 OK\r\n"
PAGE = b"""<html><head><title> A
  page</title><script>var hidden = "<p>not this</p>";</script></head><body><h1>Hello</h1><p>first<p>second &amp; third
<style>p {}</style><div><a href="/x#part">link</a><a href="https://other.example.net/y?z=1"></a>
<a href="javascript:alert(1)"></a><a href="http://["></a></div>"""
TEXT = OK + b"Content-Type: text/plain\r\n"
ANSWERS: dict[str, Answer] = {
    "/": raw(plain(b"hello")),
    "/echo": lambda connection, asked: connection.sendall(plain(asked["request"].encode())),
    "/to": redirect,
    "/404": raw(plain(b"nothing here", status="404 Not Found")),
    "/json": raw(plain(b'{"a": 1}', kind="application/json; charset=utf-8")),
    "/gzip": raw(plain(packed(b"hello " * 100, "gzip"), "Content-Encoding: gzip")),
    "/deflate": raw(plain(packed(b"hello " * 100, "deflate"), "Content-Encoding: deflate")),
    "/raw-deflate": raw(plain(packed(b"hello " * 100, "raw-deflate"), "Content-Encoding: deflate")),
    "/chunked": raw(TEXT + b"Transfer-Encoding: chunked\r\n\r\n3\r\nhel\r\n2;x=y\r\nlo\r\n0\r\nA: b\r\n\r\n"),
    "/until-close": raw(TEXT + b"\r\nhello"),
    "/interim": raw(b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n" + plain(b"hello")),
    "/head-only": raw(TEXT + b"Content-Length: 5000000000\r\n\r\n"),
    "/204": raw(b"HTTP/1.1 204 No Content\r\n\r\n"),
    "/large": lambda connection, asked: connection.sendall(plain(b"x" * int(asked["size"]))),
    "/html": raw(plain(PAGE, kind="text/html; charset=utf-8")),
    "/named": raw(plain(b"x", 'Content-Disposition: attachment; filename="../../etc/cron.d/job$(x)"')),
    # bombs and floods
    "/packed": lambda connection, _: connection.sendall(plain(packed(mixed(), "gzip"), "Content-Encoding: gzip")),
    "/bomb": lambda connection, _: connection.sendall(plain(bomb(), "Content-Encoding: gzip")),
    "/bomb-of-bombs": raw(plain(gzip.compress(gzip.compress(bytes(1 << 20))), "Content-Encoding: gzip, gzip")),
    "/drip": dripping,
    "/endless": endless,
    "/all-frame": lambda connection, _: connection.sendall(
        TEXT + b"Transfer-Encoding: chunked\r\n\r\n" + (b"1;" + b"x" * 200 + b"\r\na\r\n") * 20_000 + b"0\r\n\r\n"
    ),
    "/long-head": raw(OK + b"X: " + b"a" * 100_000 + b"\r\n\r\n"),
    "/longer-head": raw(OK + b"X: " + b"a" * 40_000 + b"\r\n\r\n"),
    "/endless-head": lambda connection, _: connection.sendall(OK + b"X: " + b"a" * (8 << 20)),
    "/many-headers": raw(TEXT + b"".join(b"X-%d: y\r\n" % n for n in range(500)) + b"Content-Length: 0\r\n\r\n"),
    "/claims-much": raw(TEXT + b"Content-Length: 999999999999999\r\n\r\nx"),
    "/endless-interim": raw(b"HTTP/1.1 100 Continue\r\n\r\n" * 50),
    # what two readers understand differently
    "/http09": raw(b"hello, this is no HTTP/1 answer\r\n\r\n"),
    "/http2": raw(b"HTTP/2 200\r\nContent-Type: text/plain\r\n\r\nx"),
    "/switching": raw(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\n\r\nx"),
    "/two-lengths": raw(TEXT + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\nhello!"),
    "/same-lengths": raw(TEXT + b"Content-Length: 5\r\nContent-Length: 5\r\n\r\nhello"),
    "/list-of-lengths": raw(TEXT + b"Content-Length: 5, 5\r\n\r\nhello"),
    "/signed-length": raw(TEXT + b"Content-Length: +5\r\n\r\nhello"),
    "/hex-length": raw(TEXT + b"Content-Length: 0x5\r\n\r\nhello"),
    "/length-and-chunked": raw(
        TEXT + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n"
    ),
    "/odd-coding": raw(TEXT + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n"),
    "/spaced-coding": raw(TEXT + b"Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n"),
    "/folded": raw(TEXT + b"X: a\r\n b\r\nContent-Length: 0\r\n\r\n"),
    "/bare-lf": raw(b"HTTP/1.1 200 OK\nContent-Length: 0\n\n"),
    "/inner-lf": raw(TEXT + b"X: a\nLocation: /x\r\nContent-Length: 0\r\n\r\n"),
    "/nul": raw(TEXT + b"X: a\0b\r\nContent-Length: 0\r\n\r\n"),
    "/two-locations": raw(b"HTTP/1.1 302 Found\r\nLocation: /\r\nLocation: http://127.0.0.1/\r\n\r\n"),
    "/bad-chunk": raw(TEXT + b"Transfer-Encoding: chunked\r\n\r\nzz\r\nhello\r\n0\r\n\r\n"),
    "/long-chunk": raw(TEXT + b"Transfer-Encoding: chunked\r\n\r\n3\r\nhello\r\n0\r\n\r\n"),
    "/lf-chunk": raw(TEXT + b"Transfer-Encoding: chunked\r\n\r\n5\nhello\n0\n\n"),
    "/cut-chunk": raw(TEXT + b"Transfer-Encoding: chunked\r\n\r\n5\r\nhel"),
    "/cut": raw(TEXT + b"Content-Length: 500\r\n\r\nhello"),
    "/cut-head": raw(b"HTTP/1.1 200 OK\r\nContent-Type"),
    "/cut-gzip": raw(plain(packed(b"hello " * 1000, "gzip")[:-20], "Content-Encoding: gzip")),
    "/no-gzip": raw(plain(b"hello", "Content-Encoding: gzip")),
    "/after-gzip": raw(plain(packed(b"hello", "gzip") + b"more", "Content-Encoding: gzip")),
    "/brotli": raw(plain(b"hello", "Content-Encoding: br")),
    "/nothing": lambda connection, _: None,
    "/two-answers": raw(plain(b"hello") + plain(b"smuggled")),
    # content that is not what it says
    "/program": raw(plain(b"\x7fELF\2\1\1\0", kind="application/octet-stream")),
    "/disguised": raw(plain(b"\x7fELF\2\1\1\0", kind="text/html")),
    "/no-picture": raw(plain(b"<script>", kind="image/png")),
    "/untyped": raw(OK + b"Content-Length: 5\r\n\r\nhello"),
    "/untyped-program": raw(OK + b"Content-Length: 8\r\n\r\nMZ\0\0\0\0\0\0"),
    # what is no redirect
    "/refresh": raw(plain(b"<meta http-equiv=refresh content='0;url=http://127.0.0.1/'>", "Refresh: 0; url=http://127.0.0.1/")),
    "/300": raw(plain(b"choose", "Location: http://127.0.0.1/", status="300 Multiple Choices")),
    "/secret": raw(plain(SECRET)),
}  # fmt: skip


class Server:
    """Answers each connection once, as its path says, and remembers who asked what at which address."""

    def __init__(self, *places: tuple[str, int], tls: ssl.SSLContext | None = None) -> None:
        self.requests: list[tuple[str, bytes]] = []
        """The address that was asked and what it was sent, for each connection that sent anything."""
        self.reached: list[str] = []
        """Every address that anybody connected to."""
        self._tls = tls
        self._listening = [self._listen(*place) for place in places or (("127.0.0.1", 0),)]
        self.port: int = self._listening[0].getsockname()[1]
        for each in self._listening:
            threading.Thread(target=self._serve, args=(each,), daemon=True).start()

    def close(self) -> None:
        for each in self._listening:
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()

    def _listen(self, address: str, port: int) -> socket.socket:
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        listening = socket.socket(family, socket.SOCK_STREAM)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        listening.bind((address, port))
        listening.listen(128)
        return listening

    def _serve(self, listening: socket.socket) -> None:
        while True:
            try:
                connection, _ = listening.accept()
            except OSError:
                return
            self.reached.append(connection.getsockname()[0])
            threading.Thread(target=self._answer, args=(connection,), daemon=True).start()

    def _answer(self, connection: socket.socket) -> None:
        with suppress(OSError, ValueError, KeyError), ExitStack() as closing:
            closing.enter_context(connection)
            connection.settimeout(30)
            at = connection.getsockname()[0]
            if self._tls is not None:
                connection = closing.enter_context(self._tls.wrap_socket(connection, server_side=True))
            request = b""
            while b"\r\n\r\n" not in request:
                piece = connection.recv(65536)
                if not piece:
                    return
                request += piece
            self.requests.append((at, request))
            url = urlsplit(request.split(b" ")[1].decode())
            asked = {name: values[0] for name, values in parse_qs(url.query).items()}
            asked["request"] = request.decode("latin-1")
            ANSWERS.get(unquote(url.path), raw(plain(b"no such page", status="404 Not Found")))(connection, asked)
            if isinstance(connection, ssl.SSLSocket):
                with suppress(OSError):
                    connection.unwrap()
            connection.shutdown(socket.SHUT_RDWR)


# --- an internet behind an injected resolver and dialer ---------------------------------------------------------------

Record = Sequence[str] | Callable[[int], Sequence[str]]


class Names:
    """Addresses by name, as `NetExecutor` asks for them; a function of how often it was asked rebinds."""

    def __init__(self, records: Mapping[str, Record] | None = None) -> None:
        self.records: dict[str, Record] = {"web.example.com": [PUBLIC], "other.example.net": [OTHER], **(records or {})}
        self.asked: list[str] = []

    def __call__(self, host: str) -> Sequence[str]:
        from ringfence.errors import Unavailable

        self.asked.append(host)
        record = self.records.get(host)
        if record is None:
            raise Unavailable(f"{host} could not be resolved", reason="name_resolution")
        return record(self.asked.count(host)) if callable(record) else record

    async def lookup(self, host: str) -> Sequence[str]:
        return self(host)


class Wire:
    """Dials one server on loopback whatever the address is, and remembers which addresses were dialled."""

    def __init__(self, server: Server, ca_file: Path | None = None) -> None:
        from ringfence.egress.dialing import Dialer

        self._dial = Dialer(ca_file)
        self._server = server
        self.dialled: list[str] = []

    async def __call__(
        self, address: str, port: int, tls_name: str | None, seconds: float
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        self.dialled.append(address)
        return await self._dial("127.0.0.1", self._server.port, tls_name, seconds)


@cache
def authority(directory: Path) -> tuple[Path, ssl.SSLContext]:
    """Return a certificate authority of the tests' own, and what shows a certificate for `web.example.com` by it."""
    ca, key, request, cert = (directory / name for name in ("ca.pem", "key.pem", "request.pem", "cert.pem"))
    extensions = directory / "extensions"
    if cert.exists():
        return ca, _shown(cert, key)
    extensions.write_text("subjectAltName=DNS:web.example.com,DNS:second.example.com\n")
    subject = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
    for command in (
        ["req", "-x509", *subject, "-keyout", directory / "ca-key.pem", "-out", ca, "-subj", "/CN=lab", "-days", "2"],
        ["req", *subject, "-keyout", key, "-out", request, "-subj", "/CN=web"],
        ["x509", "-req", "-in", request, "-CA", ca, "-CAkey", directory / "ca-key.pem", "-CAcreateserial", "-out", cert,
         "-days", "2", "-extfile", extensions],
    ):  # fmt: skip
        subprocess.run(["openssl", *map(str, command)], check=True, capture_output=True)
    return ca, _shown(cert, key)


def _shown(cert: Path, key: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(cert, key)
    return context
