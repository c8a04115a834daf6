"""G24: a websocket of a server in a box reaches its caller and nobody else, with nothing of ours in it, and is bounded.

Seen red: passed on as bytes, the caller's key was in the protocols that the guest was offered.
"""

from __future__ import annotations

import json
import socket
import sys
import threading
from collections.abc import Iterator
from itertools import repeat
from typing import Any

import pytest
from starlette.websockets import WebSocket
from tests.http_service import Service, serving
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection, connect
from websockets.typing import Subprotocol
from websockets.utils import accept_key

from ringfence.interfaces.http.process_port_sockets import Guest

pytestmark = [pytest.mark.needs("native"), pytest.mark.guarantee(21, 22, 24), pytest.mark.timeout(60)]
POLICY = "policies: {tools: {shell_exec: {open_ports: [8000, 8001]}}}\n"
GUEST = r"""
import base64, hashlib, json, socket, struct, threading
def frame(opcode, data, fin=True):
    size = len(data)
    head = bytes([(0x80 if fin else 0) | opcode])
    if size < 126: head += bytes([size])
    elif size < 65536: head += b'\x7e' + struct.pack('>H', size)
    else: head += b'\x7f' + struct.pack('>Q', size)
    return head + data
def take(wire, size):
    data = b''
    while len(data) < size:
        more = wire.recv(size - len(data))
        if not more: raise SystemExit
        data += more
    return data
def message(wire):
    first, second = take(wire, 2)
    size = second & 127
    if size == 126: size = struct.unpack('>H', take(wire, 2))[0]
    elif size == 127: size = struct.unpack('>Q', take(wire, 8))[0]
    mask = take(wire, 4)
    return first & 15, bytes(byte ^ mask[at % 4] for at, byte in enumerate(take(wire, size)))
def serve(wire):
    head = b''
    while b'\r\n\r\n' not in head: head += wire.recv(4096)
    lines = head.decode().split('\r\n')
    path = lines[0].split()[1]
    headers = {k.strip().lower(): v.strip() for k, _, v in (line.partition(':') for line in lines[1:] if line)}
    if path == '/plain':
        wire.sendall(b'HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi'); return
    if path == '/silent':
        return
    key = headers['sec-websocket-key'] + '258EAFA5-E914-47DA-95CA-C5AB0DC85B11'
    accept = base64.b64encode(hashlib.sha1(key.encode()).digest()).decode()
    if path == '/forged': accept = 'x' * 28
    chosen = 'vite-hmr' if 'vite-hmr' in headers.get('sec-websocket-protocol', '') else ''
    if path == '/invents': chosen = 'ringfence.tty'
    more = f'Sec-WebSocket-Protocol: {chosen}\r\n' if chosen else ''
    wire.sendall((f'HTTP/1.1 101 Go\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: {accept}\r\n'
                  f'Set-Cookie: session=stolen\r\n{more}\r\n').encode())
    if path.startswith('/told'):
        wire.sendall(frame(1, json.dumps({'path': path, 'headers': headers}).encode()))
    elif path == '/big': wire.sendall(frame(2, b'x' * (2 << 20)))
    elif path == '/claims': wire.sendall(b'\x82\x7f' + struct.pack('>Q', 1 << 40))
    elif path == '/pieces':
        for at in range(1 << 12): wire.sendall(frame(0 if at else 2, b'y' * 1024, False))
    elif path == '/nonsense': wire.sendall(b'\xff\xff\xff\xff')
    elif path == '/bye': wire.sendall(frame(8, struct.pack('>H', 4001) + b'bye'))
    elif path == '/pings':
        for _ in range(2000): wire.sendall(frame(9, b'p' * 100))
        wire.sendall(frame(1, b'still here'))
    while True:
        opcode, data = message(wire)
        if opcode == 8:
            print('closed', struct.unpack('>H', data[:2])[0] if data else 0, flush=True); return
        if opcode in (1, 2): wire.sendall(frame(opcode, data))
listening = socket.create_server(('127.0.0.1', 8000))
print('up', flush=True)
def run(wire):
    with wire:
        try: serve(wire)
        except (SystemExit, OSError): pass
while True:
    threading.Thread(target=run, args=(listening.accept()[0],), daemon=True).start()
"""


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    home = tmp_path_factory.mktemp("home")
    (home / "policy.yaml").write_text(POLICY)
    with serving(home, "--policy", str(home / "policy.yaml")) as running:
        yield running


@pytest.fixture(scope="module")
def key(service: Service) -> str:
    return service.make_key("agent", "acme")


def start(service: Service, key: str) -> str:
    body = {
        "ephemeral": True, "exec": {"kind": "shell", "code": "exec python3 guest.py"}, "ports": [8000],
        "files": [{"path": "guest.py", "content": GUEST}], "wait_ms": 20_000,
    }  # fmt: skip
    made = service.ask("POST", "/sandbox/processes", body, key=key)
    assert (made.status, made.json["stdout"]["text"]) == (201, "up\n"), made.body
    return f"/sandbox/processes/{made.json['process_id']}"


@pytest.fixture(scope="module")
def place(service: Service, key: str) -> str:
    return start(service, key)


def opened(service: Service, path: str, key: str | None, **more: Any) -> ClientConnection:
    headers = {**({"Authorization": f"Bearer {key}"} if key else {}), **more.pop("headers", {})}
    address = f"ws://127.0.0.1:{service.port}{path}"
    wire: ClientConnection = connect(address, additional_headers=headers, max_size=1 << 22, **more)
    return wire


def echoed(wire: ClientConnection, message: str | bytes) -> str | bytes:
    wire.send(message)
    return wire.recv(20)


def refused(service: Service, path: str, key: str | None, **more: Any) -> tuple[int, str]:
    with pytest.raises(InvalidStatus) as found:
        opened(service, path, key, **more)
    return found.value.response.status_code, json.loads(found.value.response.body or b"{}")["reason"]


def test_messages_go_both_ways_whole_and_as_they_are(service: Service, key: str, place: str) -> None:
    with opened(service, f"{place}/ports/8000/echo", key) as wire:
        for message in ("text", "", "ümlaut\u2028", b"\x00\xff", b"z" * 900_000):
            wire.send(message)
            assert wire.recv(20) == message
    said = service.ask("GET", f"{place}?wait_ms=20000&stdout_offset=3", key=key).json["stdout"]["text"]
    assert said == "closed 1000\n"


def test_the_guest_learns_nothing_of_ours_and_its_page_gets_nothing_of_its_handshake(
    service: Service, key: str, place: str
) -> None:
    offered = [Subprotocol(name) for name in ("vite-hmr", f"ringfence.bearer.{key}", "ringfence.tty")]
    asked = {"Cookie": "session=mine", "X-Forwarded-For": "1.2.3.4", "X-Mine": "told", "X-AIO-API-Key": key}
    with opened(service, f"{place}/ports/8000/told/a%2Fb?token=1", None, subprotocols=offered, headers=asked) as wire:
        told = json.loads(wire.recv(20))
        assert wire.subprotocol == "vite-hmr"
        assert wire.response is not None
        assert "set-cookie" not in wire.response.headers
    headers = told["headers"]
    assert (told["path"], headers["x-mine"]) == ("/told/a%2Fb?token=1", "told")
    assert (headers["host"], headers["origin"]) == ("localhost:8000", "http://localhost:8000")
    assert headers["sec-websocket-protocol"] == "vite-hmr"
    assert not {"authorization", "cookie", "x-forwarded-for", "sec-websocket-extensions"} & headers.keys()
    assert key not in json.dumps(told)


def test_who_may_not_reach_the_process_does_not_reach_its_websocket(service: Service, key: str, place: str) -> None:
    path = f"{place}/ports/8000/echo"
    assert refused(service, path, None) == (401, "no_key")
    assert refused(service, path, service.make_key("operator", "acme")) == (403, "access")
    foreign = refused(service, path, service.make_key("agent", "other"))
    assert foreign == refused(service, "/sandbox/processes/pr_none/ports/8000/echo", key) == (404, "not_found")
    assert refused(service, f"{place}/ports/8001/echo", key) == (403, "port")
    for origin in ("https://evil.example", "http://[", f"http://127.0.0.1:{service.port}@evil.example"):
        assert refused(service, path, key, origin=origin) == (403, "foreign_origin")
    for origin in ("null", f"http://127.0.0.1:{service.port}"):
        with opened(service, path, key, origin=origin) as wire:
            wire.send("in")
            assert wire.recv(20) == "in"


@pytest.mark.parametrize("path", ["plain", "silent", "forged", "invents"])
def test_what_opens_no_websocket_is_a_problem(service: Service, key: str, place: str, path: str) -> None:
    assert refused(service, f"{place}/ports/8000/{path}", key) == (503, "connect_failed")


@pytest.mark.parametrize(("path", "code"), [("big", 1009), ("claims", 1009), ("pieces", 1009), ("nonsense", 1002)])
def test_what_is_too_long_or_none_ends_it(service: Service, key: str, place: str, path: str, code: int) -> None:
    with opened(service, f"{place}/ports/8000/{path}", key) as wire, pytest.raises(ConnectionClosed) as ended:
        wire.recv(20)
    assert ended.value.rcvd is not None
    assert ended.value.rcvd.code == code
    with opened(service, f"{place}/ports/8000/echo", key) as wire:
        with pytest.raises(ConnectionClosed) as ours:
            echoed(wire, b"x" * (2 << 20))
        assert ours.value.rcvd is not None
        assert ours.value.rcvd.code == 1009
    assert service.ask("GET", "/sandbox/health", key=None).status == 200


def test_a_flood_of_pings_is_answered_and_told_to_nobody(service: Service, key: str, place: str) -> None:
    with opened(service, f"{place}/ports/8000/pings", key) as wire:
        assert wire.recv(20) == "still here"


async def test_pieces_of_nothing_without_end_take_no_room() -> None:
    """Nothing counts a piece without content, and a guest can send a million of them in a breath."""
    ours, its = socket.socketpair()
    pieces = 20_000

    def say(end: socket.socket) -> None:
        asked = b""
        while not asked.endswith(b"\r\n\r\n"):
            asked += end.recv(4096)
        (key,) = (line[19:].strip() for line in asked.split(b"\r\n") if line.lower().startswith(b"sec-websocket-key:"))
        end.sendall(
            b"HTTP/1.1 101 Go\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: "
            + accept_key(key.decode()).encode()
            + b"\r\n\r\n\x01\x00"
            + b"\x00\x00" * pieces
        )

    saying = threading.Thread(target=say, args=(its,))
    saying.start()
    guest = Guest(ours, 8000)
    scope = {"type": "websocket", "path": "/a/b/c/d/e/", "query_string": b"", "headers": []}
    await guest.open(WebSocket(scope, never, never), "/prefix")
    saying.join()
    its.shutdown(socket.SHUT_WR)
    assert await guest.next() is None
    guest.close()
    its.close()
    assert sum(map(sys.getsizeof, vars(guest).values())) < pieces


async def never(*_: Any) -> Any:
    raise AssertionError("nobody talks to the caller here")


def test_it_ends_as_the_guest_ends_it_and_with_the_process(service: Service, key: str) -> None:
    place = start(service, key)
    with opened(service, f"{place}/ports/8000/bye", key) as wire, pytest.raises(ConnectionClosed) as ended:
        wire.recv(20)
    assert ended.value.rcvd is not None
    assert (ended.value.rcvd.code, ended.value.rcvd.reason) == (4001, "bye")
    with opened(service, f"{place}/ports/8000/echo", key) as wire:
        wire.send("a")
        assert wire.recv(20) == "a"
        assert service.ask("POST", f"{place}/kill", {}, key=key).status == 200
        with pytest.raises(ConnectionClosed) as gone:
            wire.recv(20)
    assert gone.value.rcvd is not None
    assert gone.value.rcvd.code == 1001
    assert refused(service, f"{place}/ports/8000/echo", key) == (409, "process_ended")


def test_a_revoked_key_ends_it(service: Service, place: str) -> None:
    made = service.ask("POST", "/keys", {"access": "agent", "tenant": "acme"}).json
    with opened(service, f"{place}/ports/8000/echo", made["key"]) as wire:
        wire.send("a")
        assert wire.recv(20) == "a"
        assert service.ask("DELETE", f"/keys/{made['key_id']}").status in (200, 204)
        with pytest.raises(ConnectionClosed) as ended:
            all(echoed(wire, "b") for _ in repeat(None))  # the key is looked at once a second
    assert ended.value.rcvd is not None
    assert ended.value.rcvd.code == 1008
