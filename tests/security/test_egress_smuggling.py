"""Attack: have the proxy carry to another host, or in another request, what it let through to a granted one."""

from __future__ import annotations

import ssl
from collections.abc import Callable

import pytest
from tests.egress_lab import HIDDEN, WEB, EgressLab
from tests.security.egress_door import POST, RULES, Door, connect, everything, get, hello, status_of
from tests.security.egress_door import door as door
from tests.security.egress_door import lab as lab

pytestmark = [pytest.mark.guarantee(32), pytest.mark.needs("egress_lab")]

# --- tunnels ---


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
