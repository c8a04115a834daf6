"""The other side of a webhook may do what it likes: nothing hangs on it, and nobody else is told."""

from __future__ import annotations

import json
import shutil
import socket
import ssl
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from ringfence.errors import InvalidRequest
from ringfence.observe.opening import PairedSpans, open_observers
from ringfence.observe.settings import ObserveSettings, read_settings, with_environment
from ringfence.observe.sinks import SinkFailed, SinkRefused, SinkUnready
from ringfence.observe.webhook import Webhook

JSON = "application/cloudevents+json"
THANKS = b"HTTP/1.1 204 No Content\r\n\r\n"


class Server:
    """A server on this machine that keeps each request and answers by `answer`."""

    def __init__(self, answer: Callable[[socket.socket], None]) -> None:
        self.requests: list[bytes] = []
        self.tls: ssl.SSLContext | None = None
        self._answer = answer
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listening.getsockname()[1]}/hook?key=1"
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listening.accept()
            except OSError:
                return
            try:
                if self.tls is not None:
                    connection = self.tls.wrap_socket(connection, server_side=True)
                self.requests.append(_request(connection))
                self._answer(connection)
            except OSError:
                pass  # the other side went away, which is what some tests make it do
            finally:
                connection.close()

    def close(self) -> None:
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        self._thread.join(20)


def _request(connection: socket.socket) -> bytes:
    got = b""
    while b"\r\n\r\n" not in got:
        got += _more(connection)
    head, _, body = got.partition(b"\r\n\r\n")
    length = next(
        int(line.split(b":")[1]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length")
    )
    while len(body) < length:
        body += _more(connection)
    return head + b"\r\n\r\n" + body


def _more(connection: socket.socket) -> bytes:
    chunk = connection.recv(65_536)
    if not chunk:
        raise ConnectionError("it was closed in the middle")
    return chunk


@pytest.fixture
def serving() -> Iterator[Callable[[Any], Server]]:
    with ExitStack() as stack:

        def serve(answer: bytes | Callable[[socket.socket], None]) -> Server:
            does = answer if callable(answer) else lambda connection: connection.sendall(answer)
            server = Server(does)
            stack.callback(server.close)
            return server

        yield serve


def event(record: Any, record_hash: str) -> dict[str, Any]:
    return {"specversion": "1.0", "type": record["type"], "id": f"{record['log_id']}/{record['seq']}"}


def record(seq: int, kind: str = "exec.end", **members: Any) -> dict[str, Any]:
    return {"type": kind, "log_id": "lg-1", "seq": seq, "status": "ok", "exec_id": f"ex-{seq // 2}", **members}


def test_one_denial_sets_off_the_alert_and_a_run_that_went_well_does_not(serving: Callable[[Any], Server]) -> None:
    server = serving(THANKS)
    settings = with_environment(ObserveSettings(), {"RINGFENCE_WEBHOOK": server.url})
    observers = open_observers(settings, event=event)
    observers.offer(record(0, "exec.begin"), b"")
    observers.offer(record(1), b"")
    observers.offer(record(2, "decision.denied", status="denied"), b"")
    observers.offer(record(3, status="denied"), b"")
    assert observers.close(20)
    assert [json.loads(sent.partition(b"\r\n\r\n")[2])["id"] for sent in server.requests] == ["lg-1/2", "lg-1/3"]
    head = server.requests[0].partition(b"\r\n\r\n")[0].decode()
    assert head.startswith("POST /hook?key=1 HTTP/1.1\r\n")
    assert "Content-Type: application/cloudevents+json" in head
    assert next(iter(observers.positions().values())) == {"lg-1": 3}


def test_with_observe_off_nobody_is_connected_to(serving: Callable[[Any], Server]) -> None:
    server = serving(THANKS)
    environment = {"RINGFENCE_WEBHOOK": server.url, "RINGFENCE_CHECKPOINT_COPIES": server.url}
    settings = with_environment(ObserveSettings(), {**environment, "RINGFENCE_OBSERVE": "off"})
    observers = open_observers(settings, event=event)
    observers.offer(record(0, "decision.denied"), b"")
    observers.offer_checkpoint("note\n")
    assert observers.close(20)
    assert server.requests == []


def test_a_checkpoint_is_copied_as_text(serving: Callable[[Any], Server]) -> None:
    server = serving(THANKS)
    observers = open_observers(
        with_environment(ObserveSettings(), {"RINGFENCE_CHECKPOINT_COPIES": server.url}), event=event
    )
    observers.offer_checkpoint("log\n1\nroot\n\n— key sig\n")
    assert observers.close(20)
    head, _, body = server.requests[0].partition(b"\r\n\r\n")
    assert body.decode() == "log\n1\nroot\n\n— key sig\n"
    assert b"Content-Type: text/plain; charset=utf-8" in head


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_a_redirect_is_not_followed(serving: Callable[[Any], Server], status: int) -> None:
    elsewhere = serving(THANKS)
    server = serving(f"HTTP/1.1 {status} Elsewhere\r\nLocation: {elsewhere.url}\r\n\r\n".encode())
    with pytest.raises(SinkRefused, match=str(status)):
        Webhook(server.url).send(b"{}", JSON)
    assert elsewhere.requests == []


@pytest.mark.parametrize("variable", ["http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"])
def test_no_proxy_of_the_environment_is_asked(
    serving: Callable[[Any], Server], monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    proxy, server = serving(THANKS), serving(THANKS)
    monkeypatch.setenv(variable, proxy.url)
    Webhook(server.url).send(b"{}", JSON)
    assert (len(server.requests), proxy.requests) == (1, [])


@pytest.mark.parametrize(
    ("status", "raised"),
    [(400, SinkRefused), (404, SinkRefused), (500, SinkFailed), (429, SinkUnready), (502, SinkUnready)],
)
def test_what_a_status_means_for_the_event(
    serving: Callable[[Any], Server], status: int, raised: type[Exception]
) -> None:
    server = serving(f"HTTP/1.1 {status} X\r\nContent-Length: 0\r\n\r\n".encode())
    with pytest.raises(raised) as caught:
        Webhook(server.url).send(b"{}", JSON)
    assert type(caught.value) is raised
    assert "key=1" not in str(caught.value), "the URL's path may be the secret of the hook"


def test_an_interim_answer_is_not_taken_for_the_answer(serving: Callable[[Any], Server]) -> None:
    server = serving(b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\nHTTP/1.1 400 No\r\n\r\n")
    with pytest.raises(SinkRefused, match="400"):
        Webhook(server.url).send(b"{}", JSON)


def test_a_side_that_never_answers_is_given_up(serving: Callable[[Any], Server]) -> None:
    release = threading.Event()
    server = serving(lambda connection: release.wait(20) and None)
    with pytest.raises(SinkUnready, match="cannot be reached"):
        Webhook(server.url, timeout_ms=50).send(b"{}", JSON)
    release.set()


def test_a_side_that_answers_byte_by_byte_gains_no_time(serving: Callable[[Any], Server]) -> None:
    given_up = threading.Event()

    def drip(connection: socket.socket) -> None:
        while not given_up.wait(0.01):  # each byte would begin the time-out of one read anew
            connection.sendall(b"H")

    server = serving(drip)
    with pytest.raises(SinkUnready, match=r"no answer in time|timed out"):
        Webhook(server.url, timeout_ms=200).send(b"{}", JSON)
    given_up.set()


@pytest.mark.parametrize(
    "answer", [b"", b"SSH-2.0-OpenSSH_9.6\r\n", b"HTTP/1.1 abc\r\n\r\n", b"HTTP/1.1 2000 OK\r\n\r\n", b"x" * 200_000]
)
def test_a_side_that_closes_or_does_not_speak_http_is_unready(serving: Callable[[Any], Server], answer: bytes) -> None:
    server = serving(answer)
    with pytest.raises(SinkUnready, match="cannot be reached"):
        Webhook(server.url).send(b"{}", JSON)


def test_a_head_without_end_is_not_kept(serving: Callable[[Any], Server]) -> None:
    def pour(connection: socket.socket) -> None:
        while True:
            connection.sendall(b"x" * 65_536)

    server = serving(pour)
    with pytest.raises(SinkUnready, match="does not answer in HTTP"):
        Webhook(server.url, timeout_ms=60_000).send(b"{}", JSON)


def test_an_answer_without_end_is_not_read(serving: Callable[[Any], Server]) -> None:
    def pour(connection: socket.socket) -> None:
        connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
        while True:
            connection.sendall(b"x" * 65_536)

    server = serving(pour)
    Webhook(server.url).send(b"{}", JSON)


def test_nobody_at_the_address_is_unready() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    with pytest.raises(SinkUnready, match="cannot be reached"):
        Webhook(f"http://127.0.0.1:{port}/").send(b"{}", JSON)


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A certificate of 127.0.0.1 that only itself vouches for, and its key."""
    if shutil.which("openssl") is None:
        pytest.skip("needs the openssl command to make a certificate")
    place = tmp_path_factory.mktemp("tls")
    made, key = place / "cert.pem", place / "key.pem"
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"),
            *("-days", "2", "-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"),
            *("-keyout", key, "-out", made),
        ],
        check=True,
        capture_output=True,
    )
    return made, key


@pytest.fixture
def tls_server(serving: Callable[[Any], Server], certificate: tuple[Path, Path]) -> Server:
    server = serving(THANKS)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(*certificate)
    server.tls = context
    server.url = server.url.replace("http://", "https://")
    return server


def test_a_certificate_that_nobody_vouches_for_is_told_nothing(tls_server: Server) -> None:
    with pytest.raises(SinkUnready, match="certificate"):
        Webhook(tls_server.url).send(b"{}", JSON)
    assert tls_server.requests == []


def test_a_certificate_of_another_name_is_told_nothing(tls_server: Server, certificate: tuple[Path, Path]) -> None:
    context = ssl.create_default_context(cafile=certificate[0])
    with pytest.raises(SinkUnready, match="certificate"):
        Webhook(tls_server.url.replace("127.0.0.1", "localhost"), tls=context).send(b"{}", JSON)
    assert tls_server.requests == []


def test_an_event_goes_over_tls_to_whom_is_trusted(tls_server: Server, certificate: tuple[Path, Path]) -> None:
    Webhook(tls_server.url, tls=ssl.create_default_context(cafile=certificate[0])).send(b"{}", JSON)
    assert len(tls_server.requests) == 1


@pytest.mark.parametrize("url", ["http://example.com/", "file:///etc/passwd", "https://u:p@example.com/"])
def test_only_https_or_this_machine_is_told(url: str) -> None:
    with pytest.raises(InvalidRequest):
        Webhook(url)


def test_500s_then_thanks_delivers_each_event_once_and_in_order(serving: Callable[[Any], Server]) -> None:
    answers = [b"HTTP/1.1 500 Broken\r\n\r\n", b"HTTP/1.1 503 Down\r\n\r\n"]
    thanked: list[bytes] = []

    def answer(connection: socket.socket) -> None:
        if answers:
            connection.sendall(answers.pop())
        else:
            thanked.append(server.requests[-1].partition(b"\r\n\r\n")[2])
            connection.sendall(THANKS)

    server = serving(answer)
    observers = open_observers(read_settings({"sinks": [{"kind": "webhook", "url": server.url}]}), event=event)
    observers.offer(record(0), b"")
    observers.offer(record(1), b"")
    assert observers.close(20)
    assert [json.loads(body)["id"] for body in thanked] == ["lg-1/0", "lg-1/1"]
    assert len(server.requests) == 4


def test_a_collector_that_was_down_is_told_of_the_whole_span_again(serving: Callable[[Any], Server]) -> None:
    answers = [b"HTTP/1.1 503 Down\r\n\r\n"]
    server = serving(lambda connection: connection.sendall(answers.pop() if answers else THANKS))

    def span(begin: Any, end: Any) -> dict[str, Any]:
        return {"begin": begin and begin["seq"], "end": end and end["seq"]}

    settings = read_settings({"sinks": [{"kind": "otlp", "url": server.url}]})
    observers = open_observers(settings, event=event, span=span)
    observers.offer(record(0, "exec.begin"), b"")
    observers.offer(record(1), b"")
    observers.offer(record(2, "decision.denied"), b"")
    observers.offer(record(5), b"")
    assert observers.close(20)
    told = [json.loads(sent.partition(b"\r\n\r\n")[2]) for sent in server.requests]
    assert told == [
        {"begin": 0, "end": 1},
        {"begin": 0, "end": 1},
        {"begin": 2, "end": None},
        {"begin": None, "end": 5},
    ]
    assert b"Content-Type: application/json\r\n" in server.requests[0]


def test_spans_that_never_end_are_given_up_oldest_first() -> None:
    pairs = PairedSpans(lambda begin, end: {"begin": begin is not None})
    for number in range(20_000):
        pairs({"type": "exec.begin", "exec_id": f"ex-{number}"}, "")
    assert len(pairs._open) == 16_384
    assert pairs({"type": "exec.end", "exec_id": "ex-0"}, "") == {"begin": False}
    assert pairs({"type": "exec.end", "exec_id": "ex-19999"}, "") == {"begin": True}
    pairs({"type": "policy.loaded"}, "")
    assert "ex-19999" not in pairs._open


def test_spans_without_a_way_to_make_them_are_refused_at_once() -> None:
    settings = read_settings({"sinks": [{"kind": "otlp", "url": "http://127.0.0.1:4318/v1/traces"}]})
    with pytest.raises(ValueError, match="otlp"):
        open_observers(settings, event=event)
