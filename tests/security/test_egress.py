"""Attack: reach a host that was not granted, from a box that was granted one."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import ssl
import stat
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.egress_box import Boxes
from tests.egress_lab import HIDDEN, OTHER, PRIVATE, PUBLIC, PUBLIC6, SECOND, WEB, EgressLab, running_lab
from tests.security.conftest import EPILOGUE, NUMBERS, PRELUDE

from ringfence.capability.capabilities import Capabilities
from ringfence.capability.denials import PRIVATE_NETWORKS, Denials
from ringfence.capability.net import NetHttp
from ringfence.database.address import open_database
from ringfence.egress.proxy.ledger import Ledger
from ringfence.egress.proxy.meter import Patience
from ringfence.egress.proxy.proxy import Gate, Proxy
from ringfence.egress.proxy.rules import Rules
from ringfence.errors import IsolationUnavailable
from ringfence.isolation.linux import observe
from ringfence.journal.reader import reading
from ringfence.operation.target import METHODS
from ringfence.outcome import ExecutionResult, Network

pytestmark = [pytest.mark.guarantee(32), pytest.mark.needs("egress_lab")]

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
    before = len(lab.seen), lab.reached_canaries
    opened = Door(lab, RULES)
    yield opened
    opened.close()
    assert lab.reached_canaries == before[1]


def status_of(answer: bytes) -> int:
    return int(answer.split(b" ")[1]) if answer.startswith(b"HTTP/1.1 ") else 0


def get(target: str, host: str = WEB) -> bytes:
    return f"GET {target} HTTP/1.1\r\nHost: {host}\r\n\r\n".encode("latin-1")


def connect(target: str) -> bytes:
    return f"CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n\r\n".encode("latin-1")


def test_the_granted_host_is_reached_which_is_what_the_attacks_are_measured_by(door: Door) -> None:
    assert b"hello" in door.say(get(f"http://{WEB}/"))
    assert b"hello" in door.say(get("http://six.web.example.com/", "six.web.example.com"))
    assert door.say(connect(f"{WEB}:443")).startswith(b"HTTP/1.1 200")


# --- ways around the proxy, from inside a box ---

AROUND = """
import select
PUBLIC, PUBLIC6, OTHER = given
def tcp(family, *address):
    with socket.socket(family) as peer:
        peer.settimeout(2)
        peer.connect(address)
def udp(family, *address):
    with socket.socket(family, socket.SOCK_DGRAM) as peer:
        peer.sendto(b'x', address)
for port in (22, 53, 80, 443, 3128):
    said[f'tcp {port}'] = attempt(tcp, socket.AF_INET, PUBLIC, port)
    said[f'udp {port}'] = attempt(udp, socket.AF_INET, PUBLIC, port)
    said[f'tcp6 {port}'] = attempt(tcp, socket.AF_INET6, PUBLIC6, port)
    said[f'udp6 {port}'] = attempt(udp, socket.AF_INET6, PUBLIC6, port)
said['resolver'] = attempt(udp, socket.AF_INET, '8.8.8.8', 53)
said['multicast'] = attempt(udp, socket.AF_INET, '224.0.0.251', 5353)
said['metadata'] = attempt(tcp, socket.AF_INET, '169.254.169.254', 80)
said['raw'] = attempt(socket.socket, socket.AF_INET, socket.SOCK_RAW, 6)
said['packet'] = attempt(socket.socket, socket.AF_PACKET, socket.SOCK_RAW)
said['netlink'] = attempt(socket.socket, socket.AF_NETLINK, socket.SOCK_RAW)
said['abstract'] = attempt(socket.socket(socket.AF_UNIX).connect, '\\0ringfence')
said['docker'] = attempt(socket.socket(socket.AF_UNIX).connect, '/var/run/docker.sock')
try:
    socket.getaddrinfo('web.example.com', 80)
    said['names'] = 'done'
except OSError as error:
    said['names'] = type(error).__name__
"""

FETCH = """
import sys, urllib.error, urllib.request as request
for url in sys.argv[1:]:
    try:
        print(request.urlopen(url).status)
    except urllib.error.HTTPError as error:
        print(error.code)
"""

TAKE_THE_DOOR = """
def taken(address, *options):
    with socket.socket() as mine:
        for option in options:
            mine.setsockopt(socket.SOL_SOCKET, option, 1)
        mine.bind(address)
        mine.listen()
said['held'] = []
for number in range(3, 1024):
    try:
        socket.socket(fileno=os.dup(number))
        said['held'].append(number)
    except OSError:
        pass
for name, address in (('same', ('127.0.0.1', 3128)), ('any', ('0.0.0.0', 3128))):
    said[name] = attempt(taken, address, socket.SO_REUSEADDR, socket.SO_REUSEPORT)
"""


@pytest.fixture
def boxes(backend: str, tmp_path: Path, lab: EgressLab, monkeypatch: pytest.MonkeyPatch) -> Boxes:
    return Boxes(tmp_path / "home", lab, monkeypatch, isolation=backend)


def ask(boxes: Boxes, program: str, *given: str, **options: Any) -> tuple[dict[str, Any], ExecutionResult]:
    result = boxes.run(PRELUDE + program + EPILOGUE, args=(NUMBERS, *given), **options)
    assert result.exit_code == 0, result.stderr or result
    answer: dict[str, Any] = json.loads(result.stdout)
    return answer, result


@pytest.mark.guarantee(3)
def test_whoever_ignores_the_proxy_reaches_nothing(boxes: Boxes, lab: EgressLab) -> None:
    before = lab.reached_canaries, len(lab.seen)
    said, result = ask(boxes, AROUND, PUBLIC, PUBLIC6, OTHER)
    assert said.pop("names") == "gaierror"
    unreachable = {"ENETUNREACH", "EADDRNOTAVAIL", "EPERM", "EAFNOSUPPORT", "EACCES", "ECONNREFUSED", "ENOENT"}
    unreachable |= {"EHOSTUNREACH"}  # in the words of gVisor
    assert set(said.values()) <= unreachable
    assert (lab.reached_canaries, len(lab.seen)) == before
    assert result.network is not None
    assert result.network.destinations == ()


def test_the_door_is_in_no_hand_but_the_hosts(boxes: Boxes) -> None:
    said, _ = ask(boxes, TAKE_THE_DOOR)
    assert said == {"held": [], "same": "EADDRINUSE", "any": "EADDRINUSE"}


@pytest.mark.guarantee(12)
def test_a_door_in_another_network_than_the_boxs_own_is_not_opened() -> None:
    own = observe.own_namespaces()["net"]
    with socket.create_server(("127.0.0.1", 0)) as of_the_host:
        observe.require_door(of_the_host.fileno(), own)
        with pytest.raises(IsolationUnavailable, match="another network"):
            observe.require_door(of_the_host.fileno(), "net:[1]")


def test_names_are_resolved_by_the_proxy_and_only_when_they_are_granted(boxes: Boxes, lab: EgressLab) -> None:
    asked = len(lab.names.asked)
    names = [f"http://leak-{n}.{HIDDEN}/" for n in range(5)]
    result = boxes.run(FETCH, args=(*names, f"http://{WEB}/"))
    assert result.stdout.split() == [*["403"] * 5, "200"]
    assert lab.names.asked[asked:] == [WEB]


# --- names and addresses in every disguise ---

SPELLINGS = [
    HIDDEN,
    SECOND,
    f"{WEB}.{HIDDEN}",
    f"x{WEB}",
    "example.com",
    "denied.web.example.com",
    PUBLIC,
    OTHER,
    f"[{PUBLIC6}]",
    "127.0.0.1",
    "localhost",
    "127.1",
    "0x7f.0.0.1",
    "2130706433",
    "0177.0.0.1",
    "[::1]",
    "[::ffff:127.0.0.1]",
    "10.0.0.5",
    "169.254.169.254",
    "metadata.google.internal",
    f"{HIDDEN}\0.{WEB}",
    f"{HIDDEN}%00.{WEB}",
    f"{HIDDEN}%23.{WEB}",
    f"{HIDDEN}#.{WEB}",
    f"{HIDDEN}?.{WEB}",
    f"{HIDDEN}\\.{WEB}",
    f"{HIDDEN}/.{WEB}",
    f"{HIDDEN};.{WEB}",
    f"{WEB}@{HIDDEN}",
    f"{HIDDEN}@{WEB}",
    f"{WEB}:80@{HIDDEN}",
    f"{HIDDEN}\t.{WEB}",
    f"{HIDDEN}\r\nX: .{WEB}",
    f"{WEB}..",
    f".{WEB}",
    f"-{WEB}",
    "w\xe9b.example.com",
    "\uff57eb.example.com".encode().decode("latin-1"),
    "xn--.web.example.com",
    "inside.web.example.com",
    "metadata.web.example.com",
    "mixed.web.example.com",
    "mapped.web.example.com",
    "nat64.web.example.com",
    "sixtofour.web.example.com",
    "loopback.web.example.com",
    "ula.web.example.com",
    "zoned.web.example.com",
    "nowhere.web.example.com",
]


@pytest.mark.parametrize("host", SPELLINGS)
def test_no_spelling_of_another_host_is_let_through(door: Door, lab: EgressLab, host: str) -> None:
    before = len(lab.seen)
    answers = (
        door.say(get(f"http://{host}/", host)),
        door.say(connect(f"{host}:443")),
        door.say(connect(f"{host}:80")),
    )
    assert all(status_of(answer) in (400, 403, 502) for answer in answers), answers
    assert len(lab.seen) == before


@pytest.mark.parametrize("port", [0, 22, 25, 53, 3306, 8080, 8443, 65536, 99999])
def test_other_ports_of_a_granted_host_are_not_granted(door: Door, port: int) -> None:
    assert status_of(door.say(connect(f"{WEB}:{port}"))) in (400, 403)
    assert status_of(door.say(get(f"http://{WEB}:{port}/", f"{WEB}:{port}"))) in (400, 403)


def test_a_name_that_changes_its_mind_is_judged_each_time_it_is_dialled(door: Door) -> None:
    name = "rebinds.web.example.com"
    statuses = [status_of(door.say(get(f"http://{name}/", name))) for _ in range(6)]
    assert statuses == [200, 403] * 3


def test_an_address_is_reached_only_where_it_was_granted_as_one(lab: EgressLab) -> None:
    door = Door(lab, Rules(Capabilities([NetHttp(PUBLIC, None, None, METHODS)]), RULES.denials))
    try:
        assert b"hello" in door.say(get(f"http://{PUBLIC}/", PUBLIC))
        assert status_of(door.say(get(f"http://{OTHER}/", OTHER))) == 403
        assert status_of(door.say(get(f"http://{WEB}/"))) == 403
    finally:
        door.close()


# --- tunnels ---


def hello(name: str | None) -> bytes:
    """Return the first message of a real TLS client that asks for `name`."""
    context = ssl.create_default_context()
    context.check_hostname = False
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = context.wrap_bio(incoming, outgoing, server_hostname=name)
    with pytest.raises(ssl.SSLWantReadError):
        client.do_handshake()
    return outgoing.read()


def with_extension(message: bytes, kind: int) -> bytes:
    """Add an empty extension of a kind to a client's first message, and put its lengths right."""
    record, body = message[:5], bytearray(message[5:])
    at = 4 + 34
    at += 1 + body[at]
    at += 2 + int.from_bytes(body[at : at + 2])
    at += 1 + body[at]
    size = int.from_bytes(body[at : at + 2]) + 4
    body[at : at + 2] = size.to_bytes(2)
    body += kind.to_bytes(2) + b"\0\0"
    body[1:4] = (len(body) - 4).to_bytes(3)
    return record[:3] + len(body).to_bytes(2) + bytes(body)


LIES: dict[str, tuple[Callable[[], bytes], str]] = {
    "another name": (lambda: hello(HIDDEN), "sni"),
    "a name below": (lambda: hello(f"x.{WEB}"), "sni"),
    "no name": (lambda: hello(None), "sni"),
    "a hidden name": (lambda: with_extension(hello(WEB), 0xFE0D), "ech"),
    "the older hidden name": (lambda: with_extension(hello(WEB), 0xFFCE), "ech"),
    "a name said twice": (lambda: with_extension(hello(WEB), 0), "not_tls"),
    "ssh in a tunnel for TLS": (lambda: b"SSH-2.0-OpenSSH_9\r\n\r\n", "not_tls"),
    "ssh": (lambda: b"SSH-2.0-OpenSSH_9\r\n\r\n", "invalid"),
    "another host in the open": (lambda: get("/", HIDDEN), "host_mismatch"),
    "an absolute url in the open": (lambda: get(f"http://{HIDDEN}/", HIDDEN), "invalid"),
    "a tunnel in the tunnel": (lambda: connect(f"{HIDDEN}:443"), "invalid"),
    "a record of another kind": (lambda: b"\x17\x03\x03\x00\x05hello\r\n\r\n", "invalid"),
    "half a message in another version": (lambda: b"\x16\x02\x03\x00\x05hello", "not_tls"),
}


IN_THE_OPEN = ("invalid", "host_mismatch")


@pytest.mark.parametrize("lie", LIES)
@pytest.mark.parametrize("piecemeal", [False, True])
def test_what_is_in_a_tunnel_is_for_the_host_of_the_tunnel(lab: EgressLab, lie: str, piecemeal: bool) -> None:
    make, reason = LIES[lie]
    before = len(lab.seen)
    door = Door(lab, RULES)
    try:
        with door.connect() as end:
            end.sendall(connect(f"{WEB}:{80 if reason in IN_THE_OPEN else 443}"))
            assert status_of(end.recv(100)) == 200
            said = make()
            for piece in (said[n : n + 7] for n in range(0, len(said), 7)) if piecemeal else (said,):
                try:
                    end.sendall(piece)
                except ConnectionError:  # it has heard enough
                    break
            with_answer = everything(end)
        assert not with_answer.startswith(b"\x16"), "the host answered"
    finally:
        network = door.close()
    (place,) = network.destinations
    assert (place.host, place.decision, place.reason) == (WEB, "denied", reason)
    assert place.bytes_out == 0
    assert len(lab.seen) == before


def test_the_right_name_in_the_tunnel_is_let_through(lab: EgressLab) -> None:
    door = Door(lab, RULES)
    context = ssl.create_default_context(cafile=str(lab.ca))
    try:
        end = door.connect()
        end.sendall(connect(f"{WEB.upper()}:443"))
        assert status_of(end.recv(100)) == 200
        with context.wrap_socket(end, server_hostname=WEB) as secured:
            secured.sendall(get("/"))
            assert b"200 OK" in secured.recv(65536)
    finally:
        network = door.close()
    assert [place.decision for place in network.destinations] == ["allowed"]


# --- smuggling ---

POST = f"POST http://{WEB}/echo HTTP/1.1\r\nHost: {WEB}\r\n"
NEXT = f"GET http://{HIDDEN}/stolen HTTP/1.1\r\nHost: {HIDDEN}\r\n\r\n"
SMUGGLED = {
    "two lengths": f"{POST}Content-Length: 5\r\nContent-Length: 6\r\n\r\nhello{NEXT}",
    "one length twice": f"{POST}Content-Length: 5\r\nContent-Length: 5\r\n\r\nhello{NEXT}",
    "a list of lengths": f"{POST}Content-Length: 5, 5\r\n\r\nhello{NEXT}",
    "a signed length": f"{POST}Content-Length: +5\r\n\r\nhello{NEXT}",
    "a hexadecimal length": f"{POST}Content-Length: 0x5\r\n\r\nhello{NEXT}",
    "a negative length": f"{POST}Content-Length: -1\r\n\r\nhello{NEXT}",
    "length and chunks": f"{POST}Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n{NEXT}",
    "chunks and length": f"{POST}Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n{NEXT}",
    "another coding": f"{POST}Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n{NEXT}",
    "two codings": f"{POST}Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n{NEXT}",
    "chunked twice": f"{POST}Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n{NEXT}",
    "a space before the colon": f"{POST}Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n{NEXT}",
    "a folded line": f"{POST}X: y\r\n Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n{NEXT}",
    "bare line feeds": f"{POST}X: y\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n{NEXT}",
    "a bare carriage return": f"{POST}X: y\rTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n{NEXT}",
    "a vertical tab": f"{POST}Transfer-Encoding:\x0bchunked\r\n\r\n0\r\n\r\n{NEXT}",
    "NUL in a value": f"{POST}X: a\0b\r\nContent-Length: 0\r\n\r\n{NEXT}",
    "an extension of a chunk": f"{POST}Transfer-Encoding: chunked\r\n\r\n5;x=y\r\nhello\r\n0\r\n\r\n{NEXT}",
    "a trailer": f"{POST}Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\nX: y\r\n\r\n{NEXT}",
    "a chunk that is longer": f"{POST}Transfer-Encoding: chunked\r\n\r\n5\r\nhelloX\r\n0\r\n\r\n{NEXT}",
    "a chunk's line feed": f"{POST}Transfer-Encoding: chunked\r\n\r\n5\nhello\n0\n\n{NEXT}",
    "a negative chunk": f"{POST}Transfer-Encoding: chunked\r\n\r\n-5\r\nhello\r\n0\r\n\r\n{NEXT}",
    "a huge chunk": f"{POST}Transfer-Encoding: chunked\r\n\r\n{'f' * 17}\r\nhello\r\n0\r\n\r\n{NEXT}",
    "two hosts": f"GET http://{WEB}/ HTTP/1.1\r\nHost: {WEB}\r\nHost: {HIDDEN}\r\n\r\n{NEXT}",
    "another host": f"GET http://{WEB}/ HTTP/1.1\r\nHost: {HIDDEN}\r\n\r\n{NEXT}",
    "no host": f"GET http://{WEB}/ HTTP/1.1\r\n\r\n{NEXT}",
    "an older version with chunks": f"{POST.replace('1.1', '1.0')}Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n{NEXT}",
    "a version that does not exist": f"GET http://{WEB}/ HTTP/2.0\r\nHost: {WEB}\r\n\r\n{NEXT}",
    "a path for a target": f"GET / HTTP/1.1\r\nHost: {WEB}\r\n\r\n{NEXT}",
    "https without a tunnel": f"GET https://{WEB}/ HTTP/1.1\r\nHost: {WEB}\r\n\r\n{NEXT}",
    "a unix socket": "GET http+unix://%2fvar%2frun%2fdocker.sock/ HTTP/1.1\r\nHost: x\r\n\r\n",
    "a file": "GET file:///etc/passwd HTTP/1.1\r\nHost: x\r\n\r\n",
}


@pytest.mark.parametrize("attack", SMUGGLED)
def test_what_could_be_read_in_two_ways_is_not_sent_on(door: Door, lab: EgressLab, attack: str) -> None:
    before = len(lab.seen)
    answer = door.say(SMUGGLED[attack].encode("latin-1"))
    assert status_of(answer) == 400, answer
    assert answer.count(b"HTTP/1.1 ") == 1
    assert not any(path.startswith(("/stolen", "/echo")) and method == "GET" for method, path, _ in lab.seen[before:])


@pytest.mark.parametrize(
    "body", ["Content-Length: 5\r\n\r\nhello", "Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n"]
)
def test_one_connection_carries_one_request(door: Door, lab: EgressLab, body: str) -> None:
    before = len(lab.seen)
    again = f"GET http://{WEB}/second HTTP/1.1\r\nHost: {WEB}\r\n\r\n"
    answer = door.say(f"{POST}{body}{again}{NEXT}".encode())
    assert answer.count(b"HTTP/1.1 ") == 1
    assert b"5 bytes" in answer
    assert b"connection: close" in answer.lower()
    assert [(method, path) for method, path, _ in lab.seen[before:]] == [("POST", "/echo")]


def test_what_is_between_client_and_proxy_goes_no_further(door: Door, lab: EgressLab) -> None:
    before = len(lab.seen)
    head = (
        f"GET http://{WEB}/ HTTP/1.1\r\nHost: {WEB}\r\nProxy-Authorization: Basic c2VjcmV0\r\n"
        "Proxy-Connection: keep-alive\r\nConnection: keep-alive, X-Hop\r\nX-Hop: 1\r\nKeep-Alive: 5\r\n"
        "Upgrade: h2c\r\nTE: trailers\r\nX-Kept: 1\r\n\r\n"
    )
    assert status_of(door.say(head.encode())) == 200
    ((_, _, headers),) = lab.seen[before:]
    assert {name.lower() for name in headers} == {"host", "connection", "x-kept"}
    assert headers["Connection"] == "close"


# --- floods, patience, and the end of the proxy ---


def test_a_head_has_an_end_and_a_size(lab: EgressLab) -> None:
    door = Door(lab, RULES, Patience(head=0.2))
    try:
        assert status_of(door.say(b"GET " + b"x" * 100_000)) == 400
        assert status_of(door.say(get(f"http://{WEB}/")[:-2] + b"X: y\r\n" * 200 + b"\r\n")) == 400
        with door.connect() as slow:
            slow.sendall(b"GET ")
            assert status_of(everything(slow)) == 504
        with door.connect() as silent:
            silent.sendall(connect(f"{WEB}:443"))
            assert everything(silent).startswith(b"HTTP/1.1 200")
    finally:
        reasons = {place.reason for place in door.close().destinations}
    assert reasons == {"invalid", "too_large", "timeout"}


def test_what_does_not_move_is_ended(lab: EgressLab) -> None:
    door = Door(lab, RULES, Patience(idle=0.2))
    try:
        with door.connect() as end:
            end.sendall(connect(f"{WEB}:443"))
            end.recv(100)
            end.sendall(hello(WEB))
            assert everything(end).startswith(b"\x16"), "the host's part of the handshake"
    finally:
        (place,) = door.close().destinations
    assert (place.decision, place.reason) == ("failed", "idle")


def test_bytes_beyond_the_budget_do_not_pass_in_either_direction(lab: EgressLab) -> None:
    for attack in (
        get(f"http://{WEB}/size/1000000"),
        f"{POST}Content-Length: 1000000\r\n\r\n".encode() + b"x" * 1_000_000,
    ):
        door = Door(lab, RULES, most=10_000)
        try:
            door.say(attack)
        finally:
            network = door.close()
        assert max(network.bytes_in, network.bytes_out) == 10_000
        assert [place.reason for place in network.destinations] == ["budget"]


def test_a_flood_of_names_fills_no_record(lab: EgressLab) -> None:
    door = Door(lab, RULES)
    try:
        for number in range(300):
            door.say(connect(f"n{number}.{HIDDEN}:443"))
    finally:
        network = door.close()
    assert len(network.destinations) == 257
    assert network.not_shown == 300 - 256
    assert sum(place.count for place in network.destinations) == 300


def test_connections_beyond_the_most_are_turned_away_and_those_within_go_on(
    lab: EgressLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ringfence.egress.proxy.proxy.MOST_CONNECTIONS", 3)
    door = Door(lab, RULES)
    held = []
    try:
        for _ in range(3):
            end = door.connect()
            end.sendall(connect(f"{WEB}:443"))
            assert status_of(end.recv(100)) == 200
            held.append(end)
        assert status_of(door.say(get(f"http://{WEB}/"))) == 503
        held.pop().close()
        held[0].sendall(hello(WEB))
        assert held[0].recv(1) == b"\x16"
    finally:
        for end in held:
            end.close()
        door.close()


def test_a_run_cannot_knock_without_end(lab: EgressLab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ringfence.egress.proxy.proxy.MOST_IN_ALL", 5)
    door = Door(lab, RULES)
    try:
        assert [status_of(door.say(get(f"http://{WEB}/"))) for _ in range(8)] == [200] * 5 + [503] * 3
    finally:
        door.close()


def test_when_the_proxy_ends_there_is_no_network(lab: EgressLab) -> None:
    door = Door(lab, RULES)
    with door.connect() as open_tunnel:
        open_tunnel.sendall(connect(f"{WEB}:443"))
        assert status_of(open_tunnel.recv(100)) == 200
        door.proxy.close()
        assert everything(open_tunnel) == b""
        with pytest.raises(ConnectionError):
            door.connect()
    assert not door.close().complete


def test_a_proxy_that_crashes_in_the_middle_of_a_run_leaves_the_box_without_network(
    boxes: Boxes, lab: EgressLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Proxy] = []
    usual = lab.proxy

    def proxy(*given: Any) -> Proxy:
        made.append(usual(*given))
        return made[-1]

    monkeypatch.setattr(lab, "proxy", proxy)

    def crash() -> None:
        thread = made[0]._thread
        assert thread is not None
        thread.loop.call_soon_threadsafe(thread.loop.stop)
        thread._thread.join()

    def listen(_: str, data: bytes) -> None:
        if b"200" in data:
            threading.Thread(target=crash).start()

    program = f"""
import socket, urllib.request
print(urllib.request.urlopen('http://{WEB}/').status, flush=True)
while True:
    try:
        socket.create_connection(('127.0.0.1', 3128), timeout=5).close()
    except ConnectionRefusedError:
        print('refused', flush=True)
        break
    except OSError:
        pass
"""
    result = boxes.run(program, on_output=listen)
    assert result.stdout.split() == ["200", "refused"]
    assert result.network is not None
    assert not result.network.complete


def _is_connection(fd: str) -> bool:
    """Whether it is one end of a connection: pools of other tests open and close descriptors meanwhile."""
    try:
        if not stat.S_ISSOCK(os.fstat(int(fd)).st_mode):
            return False
        with socket.socket(fileno=os.dup(int(fd))) as end:
            is_inet = end.family in (socket.AF_INET, socket.AF_INET6)
            return is_inet and not end.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
    except OSError:
        return False


def test_nothing_is_left_when_a_gate_is_closed(lab: EgressLab) -> None:
    def held() -> int:
        return sum(map(_is_connection, os.listdir("/proc/self/fd")))

    warm = Door(lab, RULES)
    warm.say(get(f"http://{WEB}/"))
    warm.close()
    before = held()
    door = Door(lab, RULES)
    ends = [door.connect() for _ in range(20)]
    for end in ends:
        end.sendall(connect(f"{WEB}:443"))
        end.recv(100)
    door.close()
    for end in ends:
        end.close()
    while held() > before:  # the lab's servers are threads of this process, and hear of the end a little later
        threading.Event().wait(0.01)


# --- the record ---


def test_every_decision_is_in_the_evidence_and_nothing_of_what_was_said(boxes: Boxes) -> None:
    program = f"""
import http.client, urllib.request as request
def proxied():
    return http.client.HTTPConnection('127.0.0.1', 3128, timeout=20)
plain = proxied()
plain.request('GET', 'http://{WEB}/path-of-the-run?token=query-of-the-run', headers={{'X-Secret': 'header-of-the-run'}})
print(plain.getresponse().status)
other = proxied()
other.request('GET', 'http://{HIDDEN}/path-of-the-run')
print(other.getresponse().status)
tunnel = http.client.HTTPSConnection('127.0.0.1', 3128, context=__import__('ssl')._create_unverified_context())
tunnel.set_tunnel('{WEB}', 443)
tunnel.request('POST', '/echo', b'body-of-the-run')
print(tunnel.getresponse().status)
"""
    result = boxes.run(program)
    assert result.stdout.split() == ["404", "403", "200"], result.stderr
    database = open_database(boxes.home)
    try:
        with reading(database) as reader:
            execution = reader.execution(result.exec_id)
    finally:
        database.close()
    assert execution is not None
    assert execution.end is not None
    places = json.loads(execution.end.text or "")["network"]["destinations"]
    assert {(place["host"], place["port"], place["decision"]) for place in places} == {
        (WEB, 80, "allowed"),
        (HIDDEN, 80, "denied"),
        (WEB, 443, "allowed"),
    }
    assert all(
        place["address"] == PUBLIC and place["bytes_out"] > 0 for place in places if place["decision"] == "allowed"
    )
    for word in ("path-of-the-run", "query-of-the-run", "header-of-the-run", "body-of-the-run"):
        assert word not in json.dumps(places)
