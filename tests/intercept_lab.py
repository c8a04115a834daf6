"""A door whose TLS is opened, a secret that is put in behind it, and a host that answers what a test tells it to."""

from __future__ import annotations

import asyncio
import contextlib
import re
import socket
import ssl
import subprocess
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.egress_lab import PUBLIC, SECOND, WEB, EgressLab, authority, running_lab

from ringfence.authority.profile import Profile
from ringfence.capability.capabilities import Capabilities
from ringfence.capability.denials import PRIVATE_NETWORKS, Denials
from ringfence.capability.net import NetHttp
from ringfence.clock import SystemClock
from ringfence.egress.proxy.ledger import Ledger
from ringfence.egress.proxy.meter import Patience
from ringfence.egress.proxy.rules import rules_for
from ringfence.operation.secret import SecretAsk
from ringfence.operation.target import METHODS
from ringfence.outcome import Network
from ringfence.secrets.lending import Lent, lend
from ringfence.secrets.registry import Registry

SCRIPTED = "93.184.216.36"
UNPROVEN = "unproven.example.com"
VALUE = "tok-Zq7f+/not=to.be~seen-0192"
NOTHING = Lent()
Script = Callable[[bytes], Iterable[bytes]]


def ok(body: bytes = b"fine", *fields: bytes) -> bytes:
    head = b"".join((b"HTTP/1.1 200 OK\r\n", *(field + b"\r\n" for field in fields)))
    return head + b"Content-Length: %d\r\n\r\n" % len(body) + body


class Scripted:
    """A TLS host: reads a request to its end, and says what it is told to; each connection has one request."""

    def __init__(self, listening: socket.socket, tls: ssl.SSLContext) -> None:
        self.heard: list[bytes] = []
        self.script: Script = lambda _: [ok()]
        self._listening, self._tls = listening, tls
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                end, _ = self._listening.accept()
                threading.Thread(target=self._one, args=(end,), daemon=True).start()

    def _one(self, end: socket.socket) -> None:
        end.settimeout(20)
        with contextlib.suppress(OSError), self._tls.wrap_socket(end, server_side=True) as secured:
            heard = b""
            while not _is_whole(heard) and (piece := secured.recv(65536)):
                heard += piece
            if not _is_whole(heard):
                return  # nobody acts on half a request
            self.heard.append(heard)
            for piece in self.script(heard):
                secured.sendall(piece)
            with contextlib.suppress(OSError):
                secured.unwrap()

    def close(self) -> None:
        self._listening.close()


def _is_whole(heard: bytes) -> bool:
    head, _, body = heard.partition(b"\r\n\r\n")
    if b"chunked" in head:
        return body.endswith(b"0\r\n\r\n")
    length = re.search(rb"Content-Length: (\d+)", head)
    return b"\r\n\r\n" in heard and len(body) >= (int(length[1]) if length else 0)


class InterceptLab:
    """The lab's hosts, of which the first one says what a test wants, and a home with a secret for it."""

    def __init__(self, lab: EgressLab, directory: Path) -> None:
        self.lab = lab
        lab.internet.do(lambda: subprocess.run(["ip", "addr", "add", f"{SCRIPTED}/32", "dev", "lo"], check=True))
        self.host = Scripted(lab.internet.listen(SCRIPTED, 443), authority(directory)[1])
        self.registry = Registry(directory / "home", SystemClock())

    def lend(self, *names: str, hosts: tuple[str, ...] = (WEB,), value: str = VALUE) -> Lent:
        for name in names:
            self.registry.put("local", name, value.encode(), hosts=hosts)
        return lend(self.registry, "local", map(SecretAsk, names))

    def door(
        self, lent: Lent = NOTHING, *granted: NetHttp, patience: Patience | None = None, most: int = 1 << 30
    ) -> Opened:
        granted = granted or tuple(NetHttp(host, None, None, METHODS) for host in (WEB, SECOND, UNPROVEN))
        return Opened(self, lent, Capabilities(granted), patience, most)


class Opened:
    """The proxy in front of a socket, with TLS opened, for attacks that are bytes and need no box."""

    def __init__(
        self, lab: InterceptLab, lent: Lent, granted: Capabilities, patience: Patience | None, most: int
    ) -> None:
        profile = Profile(capabilities=granted, denials=Denials(networks=PRIVATE_NETWORKS), intercept_tls=True)
        hosts = [getattr(item, "host", "") for item in granted]
        self._listening = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.ways_out = lab.lab.ways_out()
        self.inspection = self.ways_out.inspect(profile, hosts, lent.loans)
        self.proxy = lab.lab.proxy(patience)
        ledger = Ledger(most, most)
        self._gate = self.proxy.open(self._listening.fileno(), rules_for(profile, hosts), ledger, self.inspection)
        self.trust = ssl.create_default_context(cadata=self.inspection.authority.certificate.decode())

    def connect(self) -> socket.socket:
        return socket.create_connection(self._listening.getsockname(), timeout=20)

    def plain(self, *pieces: bytes) -> bytes:
        with self.connect() as end:
            for piece in pieces:
                end.sendall(piece)
            return everything(end)

    def tunnel(
        self, host: str = WEB, *, sni: str | None = None, port: int = 443, trust: ssl.SSLContext | None = None
    ) -> ssl.SSLSocket:
        end = self.connect()
        try:
            end.sendall(f"CONNECT {host}:{port} HTTP/1.1\r\nHost: {host}:{port}\r\n\r\n".encode())
            answer = b""
            while not answer.endswith(b"\r\n\r\n"):
                answer += end.recv(1) or b"HTTP/1.1 000 gone\r\n\r\n"
            assert answer.startswith(b"HTTP/1.1 200"), answer + everything(end)
            return (trust or self.trust).wrap_socket(end, server_hostname=host if sni is None else sni or None)
        except BaseException:
            end.close()
            raise

    def say(self, *pieces: bytes, host: str = WEB) -> bytes:
        """Send it inside TLS and return all that comes back."""
        with self.tunnel(host) as end:
            for piece in pieces:
                end.sendall(piece)
            return everything(end)

    def get(self, path: str = "/", *fields: str, host: str = WEB, method: str = "GET") -> bytes:
        lines = (f"{method} {path} HTTP/1.1", f"Host: {host}", *fields, "Connection: close", "", "")
        return self.say("\r\n".join(lines).encode("latin-1"), host=host)

    def close(self) -> Network:
        network = asyncio.run(self._gate.close())
        self.proxy.close()
        self._listening.close()
        return network


def everything(end: socket.socket) -> bytes:
    heard = b""
    with contextlib.suppress(OSError):
        while piece := end.recv(65536):
            heard += piece
    return heard


@contextmanager
def running_intercept_lab(directory: Path) -> Iterator[InterceptLab]:
    """Give a lab whose first host is scripted, and take it down."""
    with running_lab(directory, {WEB: [SCRIPTED], UNPROVEN: [PUBLIC]}) as lab:
        opened = InterceptLab(lab, directory)
        try:
            yield opened
        finally:
            opened.host.close()
