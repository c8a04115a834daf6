"""Attack: get a secret out of the proxy that puts it into requests, or get past the rules about what is in TLS."""

from __future__ import annotations

import base64
import gzip
import ssl
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from urllib.parse import quote

import pytest
from tests.egress_lab import SECOND, WEB
from tests.intercept_lab import (
    SCRIPTED,
    UNPROVEN,
    VALUE,
    InterceptLab,
    Opened,
    Script,
    everything,
    ok,
    running_intercept_lab,
)

from ringfence.capability.net import NetHttp
from ringfence.egress.proxy.authority import Authority
from ringfence.errors import Unavailable
from ringfence.operation.target import METHODS
from ringfence.outcome import Destination
from ringfence.secrets.lending import Lent

pytestmark = [pytest.mark.guarantee(34), pytest.mark.needs("egress_lab")]


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[InterceptLab]:
    with running_intercept_lab(tmp_path_factory.mktemp("lab")) as lab:
        yield lab


@pytest.fixture
def lent(lab: InterceptLab) -> Lent:
    lab.host.heard.clear()
    lab.lab.seen.clear()
    lab.host.script = lambda _: [ok()]
    return lab.lend("TOKEN")


@pytest.fixture
def door(lab: InterceptLab, lent: Lent) -> Iterator[Opened]:
    opened = lab.door(lent)
    yield opened
    opened.close()


@pytest.fixture
def token(lent: Lent) -> str:
    return lent.env["TOKEN"]


def heard(lab: InterceptLab) -> str:
    """Everything that reached any host."""
    return repr(lab.host.heard) + repr(lab.lab.seen)


def refused(door: Opened, reason: str, secret: str = "") -> bool:
    places = door.close().destinations
    return any((place.reason, place.secret) == (reason, secret) for place in places)


def test_the_bound_host_gets_the_value_and_the_guest_never_does(lab: InterceptLab, door: Opened, token: str) -> None:
    lab.host.script = lambda head: [ok(head)]
    answer = door.get("/", f"Authorization: Bearer {token}")
    assert f"Bearer {VALUE}".encode() in lab.host.heard[0]
    assert VALUE.encode() not in answer
    assert f"Bearer {token}".encode() in answer
    (place,) = door.close().destinations
    assert (place.host, place.method, place.secret, place.decision, place.count) == (WEB, "GET", "TOKEN", "allowed", 1)


def test_basic_authentication_carries_it_too(lab: InterceptLab, door: Opened, token: str) -> None:
    lab.host.script = lambda head: [ok(head)]
    pair = base64.b64encode(f"user:{token}".encode()).decode()
    answer = door.get("/", f"Authorization: Basic {pair}")
    assert base64.b64encode(f"user:{VALUE}".encode()) in lab.host.heard[0]
    assert base64.b64encode(f"user:{VALUE}".encode())[8:] not in answer


# --- a host that says it back ---


def _chunked(*pieces: bytes) -> bytes:
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    return head + b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n\r\n"


def _said(value: bytes) -> dict[str, list[bytes]]:
    """Return every way in which a host says a value back, as the pieces it sends."""
    letters = [value[at : at + 1] for at in range(len(value))]
    until_end = b"HTTP/1.1 200 OK\r\n\r\n"
    return {
        "body": [ok(b"x" + value + b"y")],
        "error": [b"HTTP/1.1 401 No\r\nContent-Length: %d\r\n\r\n%b" % (len(value), value)],
        "chunks": [_chunked(*letters)],
        "pieces": [until_end, *letters],
        "last": [until_end + b"x" * 70_000 + value],
        "phrase": [b"HTTP/1.1 200 " + value + b"\r\nContent-Length: 0\r\n\r\n"],
        "location": [
            b"HTTP/1.1 302 Go\r\nLocation: https://"
            + SECOND.encode()
            + b"/?"
            + value
            + b"\r\nContent-Length: 0\r\n\r\n"
        ],
        "cookie": [ok(b"", b"Set-Cookie: a=" + value + b"; Path=/")],
        "name": [ok(b"", b"X-" + value.replace(b"/", b"").replace(b"=", b"") + b": 1", b"X-Plain: " + value)],
        "early": [b"HTTP/1.1 103 Early\r\nLink: " + value + b"\r\n\r\n" + ok()],
        "base64": [ok(base64.b64encode(b"a" + value))],
        "basic": [ok(b"", b"WWW-Authenticate: Basic " + base64.b64encode(b"user:" + value))],
        "hex": [ok(value.hex().encode())],
        "percent": [ok(quote(value, safe="").encode())],
        "reversed": [ok(value[::-1])],
        "wide": [ok(value.decode().encode("utf-16-le"))],
    }


@pytest.mark.parametrize("way", _said(b"x" * 8))
def test_what_a_host_says_back_is_the_placeholder_again(lab: InterceptLab, door: Opened, token: str, way: str) -> None:
    value = VALUE.encode()
    lab.host.script = lambda _: _said(value)[way]
    answer = door.get("/", f"X-Key: {token}")
    assert answer.startswith(b"HTTP/1.1 ")
    forms = (
        value,
        value[::-1],
        value.hex().encode(),
        quote(value, safe="").encode(),
        base64.b64encode(b"a" + value)[4:-4],
    )
    assert [form for form in forms if form in answer] == []
    assert value.decode().encode("utf-16-le") not in answer
    assert base64.b64encode(b"user:" + value)[8:-4] not in answer
    assert way == "early" or token.encode() in answer
    # and so it is for a request that carries nothing: the host may have kept it
    assert VALUE.encode() not in door.get("/")


def test_a_host_says_it_on_no_other_port_either(lab: InterceptLab, door: Opened) -> None:
    """What it heard over TLS it may have kept, and the same host often answers in the clear too."""
    listening = lab.lab.internet.listen(SCRIPTED, 80)

    def serve() -> None:
        end, _ = listening.accept()
        with end:
            end.recv(65536)
            end.sendall(ok(VALUE.encode(), b"X-Key: " + VALUE.encode()))

    serving = threading.Thread(target=serve)
    serving.start()
    try:
        answer = door.plain(f"GET http://{WEB}/last HTTP/1.1\r\nHost: {WEB}\r\n\r\n".encode())
    finally:
        serving.join()
        listening.close()
    assert answer.startswith(b"HTTP/1.1 200 ")
    assert VALUE.encode() not in answer


def test_who_cuts_the_connection_to_a_host_cannot_shorten_its_answer(lab: InterceptLab, door: Opened) -> None:
    """An answer that ends with its connection is whole only if the host itself has said so."""

    def script(_: bytes) -> Iterator[bytes]:
        yield b"HTTP/1.1 200 OK\r\n\r\n" + b"x" * 100
        raise ConnectionResetError  # which the lab's host makes an end without a word

    lab.host.script = script
    answer = door.get("/")
    assert not answer.endswith(b"0\r\n\r\n")
    assert refused(door, "answer")


@pytest.mark.parametrize("whole", [True, False])
def test_an_answer_that_was_cut_does_not_end_as_a_whole_one_does(
    lab: InterceptLab, door: Opened, token: str, whole: bool
) -> None:
    """To a client that is told by the end of the connection alone, it must not end well."""
    lab.host.script = lambda _: [ok(b"x" * 200) if whole else ok(b"x" * 200)[:-50]]
    door.trust.options &= ~ssl.OP_IGNORE_UNEXPECTED_EOF
    with door.tunnel() as end:
        end.suppress_ragged_eofs = False  # type: ignore[attr-defined]
        end.sendall(f"GET / HTTP/1.0\r\nHost: {WEB}\r\nX-Key: {token}\r\n\r\n".encode())
        with nullcontext() if whole else pytest.raises(ssl.SSLError, match=r"(?i)eof"):
            while end.recv(65536):
                pass


@pytest.mark.parametrize(
    "script",
    [
        lambda _: [ok(gzip.compress(VALUE.encode()), b"Content-Encoding: gzip")],
        lambda _: [ok(b"x", b"Content-Encoding: deflate")],
        lambda _: [ok(b"x", b"Content-Encoding: identity", b"content-encoding: br")],
        lambda _: [b"HTTP/1.1 206 A\r\nContent-Range: bytes 0-3/*\r\nContent-Length: 4\r\n\r\n" + VALUE[:4].encode()],
        lambda _: [b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n" + gzip.compress(VALUE.encode())],
        lambda _: [b"HTTP/1.1 101 Switching\r\nUpgrade: x\r\n\r\n" + VALUE.encode()],
        lambda _: [b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\nContent-Length: 60\r\n\r\n" + VALUE.encode()],
        lambda _: [b"HTTP/1.1 200 OK\r\nX: a\r\n " + VALUE.encode() + b"\r\n\r\n"],
        lambda _: [VALUE.encode() + b"\r\n\r\n"],
    ],
    ids=["gzip", "deflate", "second", "part", "transfer", "switch", "lengths", "folded", "none"],
)  # fmt: skip
def test_an_answer_that_cannot_be_looked_through_is_not_passed_on(
    lab: InterceptLab, door: Opened, token: str, script: Script
) -> None:
    lab.host.script = script
    answer = door.get("/", f"X-Key: {token}")
    assert answer.startswith(b"HTTP/1.1 502 ")
    assert VALUE[:4].encode() not in answer


def test_a_host_that_knows_it_is_asked_for_all_of_an_answer_and_uncompressed(
    lab: InterceptLab, door: Opened, token: str
) -> None:
    for fields in ((f"X-Key: {token}",), ()):
        door.get("/", *fields, "Range: bytes=0-3", "If-Range: x", "Accept-Encoding: gzip, br", "TE: gzip")
    for head in lab.host.heard:
        assert b"range" not in head.lower()
        assert b"gzip" not in head
        assert head.count(b"Accept-Encoding: identity") == 1


# --- a guest that leads the placeholder astray ---

Astray = Callable[[Opened, str], bytes]
PLACES: dict[str, Astray] = {
    "path": lambda door, token: door.get(f"/{token}"),
    "query": lambda door, token: door.get(f"/?a={token}"),
    "method": lambda door, token: door.get("/", method=token),
    "name": lambda door, token: door.get("/", f"{token}: 1"),
    "body": lambda door, token: door.say(
        f"POST / HTTP/1.1\r\nHost: {WEB}\r\nContent-Length: {len(token)}\r\n\r\n{token}".encode()
    ),
    "pieces": lambda door, token: door.say(
        f"POST / HTTP/1.1\r\nHost: {WEB}\r\nContent-Length: {len(token)}\r\n\r\n".encode(),
        *(letter.encode() for letter in token),
    ),
    "chunks": lambda door, token: door.say(
        f"POST / HTTP/1.1\r\nHost: {WEB}\r\nTransfer-Encoding: chunked\r\n\r\n".encode(),
        *(f"1\r\n{letter}\r\n".encode() for letter in token),
        b"0\r\n\r\n",
    ),
    "unbound": lambda door, token: door.get("/echo", f"Authorization: Bearer {token}", host=SECOND),
    "unproven": lambda door, token: door.get("/echo", f"Authorization: Bearer {token}", host=UNPROVEN),
    "cleartext": lambda door, token: door.plain(
        f"GET http://{WEB}/ HTTP/1.1\r\nHost: {WEB}\r\nX-Key: {token}\r\n\r\n".encode()
    ),
    "tunnelled": lambda door, token: door.plain(
        f"CONNECT {WEB}:80 HTTP/1.1\r\nHost: {WEB}:80\r\n\r\n".encode(),
        f"GET / HTTP/1.1\r\nHost: {WEB}\r\nX-Key: {token}\r\n\r\n".encode(),
    ),
}


@pytest.mark.parametrize("place", PLACES)
def test_a_placeholder_anywhere_else_is_refused_and_the_record_names_the_secret(
    lab: InterceptLab, door: Opened, token: str, place: str
) -> None:
    answer = PLACES[place](door, token)
    reason = "method" if place == "method" else "secret"
    assert b"403" in answer
    assert f"X-Ringfence-Reason: {reason}".encode() in answer
    assert VALUE not in heard(lab)
    assert VALUE.encode() not in answer
    assert refused(door, reason, "" if place == "method" else "TOKEN")


def test_two_secrets_in_one_request_are_refused(lab: InterceptLab) -> None:
    lent = lab.lend("TOKEN", "OTHER")
    door = lab.door(lent)
    lab.host.heard.clear()
    answer = door.get("/", f"A: {lent.env['TOKEN']}", f"B: {lent.env['OTHER']}")
    assert answer.startswith(b"HTTP/1.1 403 ")
    assert lab.host.heard == []
    door.close()


@pytest.mark.parametrize("hosts", [(), (SECOND,), (f"{WEB}:8443",), ("*.example.com", WEB), ("*.example.com", "*.com")])
def test_exactly_one_binding_has_to_match(lab: InterceptLab, hosts: tuple[str, ...]) -> None:
    lent = lab.lend("BOUND", hosts=hosts)
    door = lab.door(lent)
    lab.host.heard.clear()
    assert b"403 Forbidden" in door.get("/", f"X-Key: {lent.env['BOUND']}")
    assert lab.host.heard == []
    assert refused(door, "secret", "BOUND")


def test_nothing_that_can_be_read_on_its_way_carries_it_even_if_it_is_bound_there(lab: InterceptLab) -> None:
    lent = lab.lend("PLAIN", hosts=(f"{SECOND}:80",))
    door = lab.door(lent)
    request = f"GET http://{SECOND}/echo HTTP/1.1\r\nHost: {SECOND}\r\nX-Key: {lent.env['PLAIN']}\r\n\r\n"
    assert b"use https" in door.plain(request.encode())
    assert VALUE not in heard(lab)
    assert refused(door, "secret", "PLAIN")


def test_not_even_its_length_is_told(lab: InterceptLab, door: Opened, token: str) -> None:
    lab.host.script = lambda head: [b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(head)]
    answer = door.get("/", f"X-Key: {token}", method="HEAD")
    assert answer.startswith(b"HTTP/1.1 200 ")
    assert b"content-length" not in answer.lower()


def test_a_guess_comes_back_no_later_than_anything_else(lab: InterceptLab, door: Opened) -> None:
    """A host that says back what it is sent, and then waits, must not tell by our waiting how a value begins."""
    goes_on = threading.Event()
    got: dict[str, int] = {}
    for guess in ("tok-Zq7f", "xyz-1234"):

        def script(_: bytes, guess: str = guess) -> Iterator[bytes]:
            yield b"HTTP/1.1 200 OK\r\n\r\n" + b"." * 1000 + guess.encode()
            goes_on.wait(20)

        lab.host.script = script
        with door.tunnel() as end:
            end.sendall(f"GET / HTTP/1.1\r\nHost: {WEB}\r\n\r\n".encode())
            heard_so_far = b""
            while b"." not in heard_so_far:
                heard_so_far += end.recv(65536)
            got[guess] = heard_so_far.count(b".")
            goes_on.set()
            assert everything(end).rstrip(b"\r\n0").endswith(guess.encode())
            goes_on.clear()
    assert len(set(got.values())) == 1


def test_a_long_value_is_not_confirmed_letter_by_letter(lab: InterceptLab) -> None:
    """How a token begins is often known; a host that says back what it is asked must not tell how far a guess goes."""
    value = "eyJhbGciOiJSUzI1NiIsInR5cCI6IkpXVCJ9.eyJpc3MiOiJodHRwczovL2lzc3Vlci5leGFtcGxlLmNvbSJ9.c2lnbmF0dXJl"
    known = value[:-11]
    door = lab.door(lab.lend("LONG", value=value))
    lab.host.script = lambda head: [ok(head.split(b" ")[1], b"Location: " + head.split(b" ")[1])]
    answers = {door.get(f"/no/such/{known}{guess}/page") for guess in ("c2", "cX", "XX")}
    assert len(answers) == 1
    assert known.encode() not in answers.pop()
    door.close()


def test_the_rules_are_asked_before_the_secret_is(lab: InterceptLab, lent: Lent, token: str) -> None:
    door = lab.door(lent, NetHttp(WEB, None, "https", frozenset({"GET"}), frozenset({"/v1/**"})))
    for path, method in (
        ("/v2", "GET"),
        ("/v1/../v2", "GET"),
        ("/v1/%2e%2e/v2", "GET"),
        ("/v1", "DELETE"),
        ("/v1", "TRACE"),
    ):
        assert door.get(path, f"X-Key: {token}", method=method).startswith(b"HTTP/1.1 403 ")
    for name in ("X-HTTP-Method-Override: DELETE", "X-Original-URL: /v2"):
        assert door.get("/v1", f"X-Key: {token}", name).startswith(b"HTTP/1.1 403 ")
    assert lab.host.heard == []
    assert door.get("/v1/x?y=..", f"X-Key: {token}").startswith(b"HTTP/1.1 200 ")
    places = door.close().destinations
    assert {place.reason for place in places if place.decision == "denied"} == {"path", "method"}
    assert all(place.secret == "" for place in places if place.decision == "denied")


def test_a_redirect_to_another_host_carries_nothing(lab: InterceptLab, door: Opened, token: str) -> None:
    lab.host.script = lambda _: [
        b"HTTP/1.1 307 Go\r\nLocation: https://" + SECOND.encode() + b"/echo\r\nContent-Length: 0\r\n\r\n"
    ]
    assert SECOND.encode() in door.get("/", f"Authorization: Bearer {token}")
    assert b"403" in door.get("/echo", f"Authorization: Bearer {token}", host=SECOND)  # as curl -L --location-trusted
    assert VALUE not in repr(lab.lab.seen)


# --- names that do not agree, and requests inside requests ---


def test_another_name_inside_than_outside_is_refused(lab: InterceptLab, door: Opened, token: str) -> None:
    with pytest.raises((ssl.SSLError, OSError)):
        door.tunnel(WEB, sni=SECOND)
    nameless = ssl.create_default_context(cadata=door.inspection.authority.certificate.decode())
    nameless.check_hostname = False
    with pytest.raises((ssl.SSLError, OSError)):
        door.tunnel(WEB, sni="", trust=nameless)
    key = f"X-Key: {token}\r\n\r\n".encode()
    for head in (
        f"GET / HTTP/1.1\r\nHost: {SECOND}\r\n",
        f"GET / HTTP/1.1\r\nHost: {WEB}\r\nHost: {SECOND}\r\n",
        f"GET / HTTP/1.1\r\nHost: {WEB}:80\r\n",
        "GET / HTTP/1.1\r\n",
        f"GET https://{SECOND}/ HTTP/1.1\r\nHost: {SECOND}\r\n",
        f"GET https://{WEB}/ HTTP/1.1\r\nHost: {WEB}\r\n",
        f"CONNECT {SECOND}:443 HTTP/1.1\r\nHost: {SECOND}:443\r\n",
        f"GET / HTTP/1.1\r\nHost: {WEB}\r\nX: a\r\n folded\r\n",
        f"GET / HTTP/1.1\r\nHost: {WEB}\r\nX : a\r\n",
        f"GET / HTTP/1.1\r\nHost: {WEB}\nX: a\r\n",
        f"GET /\x00 HTTP/1.1\r\nHost: {WEB}\r\n",
        "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    ):
        assert door.say(head.encode() + key).startswith(b"HTTP/1.1 400 "), head
    assert lab.host.heard == []
    assert lab.lab.seen == []
    assert SECOND not in door.inspection.authority.minted


SMUGGLED = f"GET /inner HTTP/1.1\r\nHost: {SECOND}\r\nX-Key: %s\r\n\r\n"


@pytest.mark.parametrize(
    "framing",
    [
        "Content-Length: 4\r\nTransfer-Encoding: chunked",
        "Content-Length: 4\r\nContent-Length: 90",
        "Transfer-Encoding: chunked, identity",
        "Transfer-Encoding: xchunked",
        "Transfer-Encoding:\x0bchunked",
        "Content-Length: +4",
        "Content-Length: 0x4",
    ],
)
def test_a_request_that_could_end_in_two_places_is_refused(
    lab: InterceptLab, door: Opened, token: str, framing: str
) -> None:
    head = f"POST / HTTP/1.1\r\nHost: {WEB}\r\n{framing}\r\n\r\n"
    assert door.say((head + "0\r\n\r\n" + SMUGGLED % token).encode()).startswith(b"HTTP/1.1 400 ")
    assert lab.host.heard == []


def test_each_request_of_a_connection_is_judged_on_its_own_and_sent_on_one_of_its_own(
    lab: InterceptLab, door: Opened, token: str
) -> None:
    first = f"POST /a HTTP/1.1\r\nHost: {WEB}\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\n\r\n"
    second = f"GET /b HTTP/1.1\r\nHost: {WEB}\r\nX-Key: {token}\r\n\r\n"
    third = SMUGGLED % token
    answer = door.say((first + second + third + second).encode())
    assert [answer.count(word) for word in (b"HTTP/1.1 200 ", b"HTTP/1.1 400 ")] == [2, 1]
    assert [head.split(b" ")[1] for head in lab.host.heard] == [b"/a", b"/b"]
    assert all(head.count(b"HTTP/1.1") == 1 for head in lab.host.heard)
    assert VALUE.encode() not in lab.host.heard[0]
    told = [(place.method, place.decision, place.secret) for place in door.close().destinations]
    assert sorted(told) == [("", "denied", ""), ("GET", "allowed", "TOKEN"), ("POST", "allowed", "")]


def test_a_connection_that_stays_makes_no_more_connections_than_a_run_may(
    lab: InterceptLab, door: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of its requests has one of its own: a program must not make this host knock at a granted one without end."""
    monkeypatch.setattr("ringfence.egress.proxy.connection.MOST_IN_ALL", 3)
    answer = door.say(f"GET / HTTP/1.1\r\nHost: {WEB}\r\n\r\n".encode() * 6)
    assert [answer.count(word) for word in (b"HTTP/1.1 200 ", b"HTTP/1.1 503 ")] == [3, 1]
    assert len(lab.host.heard) == 3
    assert refused(door, "too_many")


def test_neither_http_2_nor_a_websocket_goes_through(lab: InterceptLab, door: Opened) -> None:
    door.trust.set_alpn_protocols(["h2"])
    with door.tunnel() as end:
        assert end.selected_alpn_protocol() is None
        end.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(9))
        assert everything(end).startswith(b"HTTP/1.1 400 ")
    door.trust.set_alpn_protocols(["h2", "http/1.1"])
    with door.tunnel() as end:
        assert end.selected_alpn_protocol() == "http/1.1"
    assert b"upgrade" in door.get("/", "Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Key: x")
    assert lab.host.heard == []


# --- the host, the authority, the registry ---


def test_a_host_that_cannot_show_its_name_hears_nothing(lab: InterceptLab, token: str, lent: Lent) -> None:
    lab.registry.put("local", "WIDE", VALUE.encode(), hosts=(UNPROVEN,))
    wide = lab.lend("WIDE", hosts=(UNPROVEN,))
    door = lab.door(wide)
    answer = door.get("/echo", f"X-Key: {wide.env['WIDE']}", host=UNPROVEN)
    assert answer.startswith(b"HTTP/1.1 502 ")
    assert b"X-Ringfence-Reason: tls" in answer
    assert lab.lab.seen == []
    assert refused(door, "tls")


def test_a_revoked_secret_is_put_into_no_further_request_of_a_running_box(
    lab: InterceptLab, door: Opened, token: str
) -> None:
    asked = f"GET / HTTP/1.1\r\nHost: {WEB}\r\nX-Key: {token}\r\n\r\n".encode()
    with door.tunnel() as end:
        end.sendall(asked)
        assert end.recv(65536).startswith(b"HTTP/1.1 200 ")
        lab.registry.remove("local", "TOKEN")
        end.sendall(asked)
        assert b"X-Ringfence-Reason: revoked" in everything(end)
    lab.registry.put("local", "TOKEN", b"another value", hosts=(WEB,))  # which nobody lent to this run
    assert b"X-Ringfence-Reason: revoked" in door.say(asked)
    assert len(lab.host.heard) == 1
    assert refused(door, "revoked", "TOKEN")


def test_the_authority_of_a_run_vouches_for_its_own_hosts_to_its_own_box_alone(lab: InterceptLab, door: Opened) -> None:
    other = lab.door(Lent(), NetHttp(WEB, None, None, METHODS))
    with pytest.raises(ssl.SSLCertVerificationError):
        door.tunnel(trust=other.trust)
    other.close()
    assert b"PRIVATE" not in door.inspection.authority.certificate
    # even in the hands of somebody else: the certificate says for whom it may speak
    with pytest.raises(ssl.SSLCertVerificationError, match="permitted subtree"):
        _shake(door.inspection.authority.context_for("elsewhere.example.org"), door.trust, "elsewhere.example.org")
    with pytest.raises(ssl.SSLCertVerificationError, match="permitted subtree"):
        _shake(door.inspection.authority.context_for("192.0.2.1"), door.trust, "192.0.2.1")


def _shake(shown: ssl.SSLContext, trust: ssl.SSLContext, host: str) -> None:
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    server = shown.wrap_bio(to_server, to_client, server_side=True)
    client = trust.wrap_bio(to_client, to_server, server_hostname=host)
    for end in (client, server, client):
        try:
            end.do_handshake()
        except ssl.SSLWantReadError:
            continue


def test_no_certificate_is_made_for_a_host_that_was_not_granted(lab: InterceptLab, door: Opened) -> None:
    for host in ("hidden.example.net", "sub.web.example.com", "93.184.216.34"):
        with pytest.raises(AssertionError, match="403 Forbidden"):
            door.tunnel(host)
    before = door.inspection.authority.minted
    door.get()
    assert (before, door.inspection.authority.minted) == ((), (WEB,))


def test_without_the_library_nothing_is_opened_and_nothing_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cryptography", None)
    with pytest.raises(Unavailable) as caught:
        Authority([WEB])
    assert (caught.value.reason, "ringfence[intercept]" in str(caught.value.fix)) == ("extra_missing", True)


def test_bytes_in_opened_tls_count_against_the_run(lab: InterceptLab, lent: Lent) -> None:
    lab.host.script = lambda _: [ok(b"x" * 100_000)]
    door = lab.door(lent, most=50_000)
    with door.tunnel() as end:
        end.sendall(f"GET / HTTP/1.1\r\nHost: {WEB}\r\n\r\n".encode())
        assert len(everything(end)) < 52_000
    (place,) = door.close().destinations
    assert isinstance(place, Destination)
    assert (place.decision, place.reason, place.bytes_in) == ("denied", "budget", 50_000)
