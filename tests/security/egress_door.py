"""A way out into a lab, with one host granted: as a box has it, and as bare bytes on a socket."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.egress_box import Boxes
from tests.egress_lab import PRIVATE, PUBLIC, PUBLIC6, WEB, EgressLab, running_lab

from ringfence.capability.capabilities import Capabilities
from ringfence.capability.denials import PRIVATE_NETWORKS, Denials
from ringfence.capability.net import NetHttp
from ringfence.egress.proxy.ledger import Ledger
from ringfence.egress.proxy.meter import Patience
from ringfence.egress.proxy.proxy import Gate
from ringfence.egress.proxy.rules import Rules
from ringfence.operation.target import METHODS
from ringfence.outcome import Network

BELOW = "*.web.example.com"
RECORDS = {
    "rebinds.web.example.com": lambda asked: [PUBLIC] if asked % 2 else [PRIVATE[0]],
    "mixed.web.example.com": [PUBLIC, PRIVATE[0]],
    "inside.web.example.com": [PRIVATE[0]],
    "metadata.web.example.com": ["169.254.169.254"],
    "mapped.web.example.com": ["::ffff:10.0.0.5"],
    "nat64.web.example.com": ["64:ff9b::a00:5"],
    "sixtofour.web.example.com": ["2002:a00:5::1"],
    "loopback.web.example.com": ["127.0.0.1"],
    "ula.web.example.com": ["fd00:ec2::254"],
    "zoned.web.example.com": ["fe80::1%lo"],
    "six.web.example.com": [PUBLIC6],
}


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EgressLab]:
    """Have the lab, with names that change their mind or lead inwards."""
    with running_lab(tmp_path_factory.mktemp("lab"), RECORDS) as lab:
        yield lab


class Door:
    """The proxy in front of a socket, as a box has it, for attacks that are bytes and need no box."""

    def __init__(self, lab: EgressLab, rules: Rules, patience: Patience | None = None, *, most: int = 1 << 30) -> None:
        self._listening = socket.create_server(("127.0.0.1", 0), backlog=600)
        self.proxy = lab.proxy(patience)
        self.gate: Gate = self.proxy.open(self._listening.fileno(), rules, Ledger(most, most))

    def connect(self) -> socket.socket:
        return socket.create_connection(self._listening.getsockname(), timeout=20)

    def say(self, *pieces: bytes) -> bytes:
        """Send it and return all that comes back."""
        with self.connect() as end:
            with contextlib.suppress(OSError):
                for piece in pieces:
                    end.sendall(piece)
            with contextlib.suppress(OSError):  # it has heard enough
                end.shutdown(socket.SHUT_WR)
            return everything(end)

    def close(self) -> Network:
        network = asyncio.run(self.gate.close())
        self.proxy.close()
        self._listening.close()
        return network


def everything(end: socket.socket) -> bytes:
    """Return all that is said until the other end stops."""
    heard = b""
    try:
        while piece := end.recv(65536):
            heard += piece
    except OSError:
        pass
    return heard


RULES = Rules(
    Capabilities([NetHttp(WEB, None, None, METHODS), NetHttp(BELOW, None, None, METHODS)]),
    Denials(networks=PRIVATE_NETWORKS, ports=frozenset({22}), domains=frozenset({"denied.web.example.com"})),
)


@pytest.fixture
def door(lab: EgressLab) -> Iterator[Door]:
    """Give a test the proxy, and see afterwards that nothing came where nothing may."""
    before = len(lab.seen), lab.reached_canaries
    opened = Door(lab, RULES)
    yield opened
    opened.close()
    assert lab.reached_canaries == before[1]


def status_of(answer: bytes) -> int:
    """Return the number of an answer, or 0 where it is none."""
    return int(answer.split(b" ")[1]) if answer.startswith(b"HTTP/1.1 ") else 0


def get(target: str, host: str = WEB) -> bytes:
    return f"GET {target} HTTP/1.1\r\nHost: {host}\r\n\r\n".encode("latin-1")


def connect(target: str) -> bytes:
    return f"CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n\r\n".encode("latin-1")


@pytest.fixture
def boxes(backend: str, tmp_path: Path, lab: EgressLab, monkeypatch: pytest.MonkeyPatch) -> Boxes:
    """Give boxes of each kind whose way out leads into the lab."""
    return Boxes(tmp_path / "home", lab, monkeypatch, isolation=backend)


def hello(name: str | None) -> bytes:
    """Return the first message of a real TLS client that asks for `name`."""
    context = ssl.create_default_context()
    context.check_hostname = False
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = context.wrap_bio(incoming, outgoing, server_hostname=name)
    with pytest.raises(ssl.SSLWantReadError):
        client.do_handshake()
    return outgoing.read()


POST = f"POST http://{WEB}/echo HTTP/1.1\r\nHost: {WEB}\r\n"
