"""G22: whoever answers instead of the service gains nothing: no key, no time, no memory, no say over a terminal."""

from __future__ import annotations

import os
import re
import socket
import ssl
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from ringfence import InvalidRequest, RingfenceError, SandboxManager, TimedOut, Unavailable
from ringfence.client import events as events_module
from ringfence.client import service as service_module
from ringfence.client.peer import open_service
from ringfence.client.service import Service
from ringfence.wire import transport
from ringfence.wire.address import parse_address
from ringfence.wire.patience import PatientSocket
from ringfence.wire.stop import Stop, Stopped
from ringfence.wire.transport import Transport

pytestmark = [pytest.mark.guarantee(27), pytest.mark.once]
KEY = "rfk_test_" + "k" * 43
MIB = 1024 * 1024
Answer = Callable[[socket.socket], None]


class Hostile:
    """A server that answers every connection in its own way, and remembers what it was told."""

    def __init__(self, answer: Answer, *, family: int = socket.AF_INET, path: str | None = None) -> None:
        self.heard = b""
        self.connections = 0
        self._answer = answer
        self._socket = socket.socket(family, socket.SOCK_STREAM)
        self._socket.bind(path or ("127.0.0.1", 0))
        self._socket.listen(8)
        threading.Thread(target=self._serve, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._socket.getsockname()[1]}"

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            self.connections += 1
            threading.Thread(target=self._talk, args=(connection,), daemon=True).start()

    def _talk(self, connection: socket.socket) -> None:
        with connection:
            try:
                request = _whole_request(connection)
                self.heard += request
                self.answer(connection, request)
            except OSError:
                return  # the client has had enough

    def answer(self, connection: socket.socket, _: bytes) -> None:
        self._answer(connection)

    def close(self) -> None:
        self._socket.close()


def _whole_request(connection: socket.socket) -> bytes:
    """Read all of it: closing a connection with something unread would take the answer back."""
    request = connection.recv(65_536)
    length = re.search(rb"content-length: (\d+)", request, re.IGNORECASE)
    while length and len(request.partition(b"\r\n\r\n")[2]) < int(length[1]):
        request += connection.recv(65_536)
    return request


@contextmanager
def hostile(answer: Answer | bytes) -> Iterator[Hostile]:
    server = Hostile((lambda connection: connection.sendall(answer)) if isinstance(answer, bytes) else answer)
    try:
        yield server
    finally:
        server.close()


def ask(server: Hostile, *, seconds: float = 20.0, longest: int = MIB) -> transport.Reply:
    with closing(Transport(parse_address(server.url), KEY)) as asked:
        return asked.exchange("GET", "/sandbox/health", seconds=seconds, longest=longest, stop=Stop())


def call(url: str) -> object:
    with closing(Service(Transport(parse_address(url), KEY))) as service:
        return service.call("GET", "/sandbox/health")


def forever(head: bytes, piece: bytes) -> Answer:
    def answer(connection: socket.socket) -> None:
        connection.sendall(head)
        while True:
            connection.sendall(piece)

    return answer


OK = b"HTTP/1.1 200 OK\r\n"
ENDLESS = {
    "a body that is closed only at its end": forever(OK + b"\r\n", b"x" * 65_536),
    "chunks": forever(OK + b"Transfer-Encoding: chunked\r\n\r\n", b"10000\r\n" + b"x" * 65_536 + b"\r\n"),
    "one chunk of an exabyte": forever(OK + b"Transfer-Encoding: chunked\r\n\r\nFFFFFFFFFFFFFFF\r\n", b"x" * 65_536),
    "a length that announces it": forever(OK + b"Content-Length: 999999999999\r\n\r\n", b"x" * 65_536),
    "headers": forever(OK, b"A: b\r\n" * 1000),
    "one header": forever(OK + b"A: ", b"x" * 65_536),
    "a status line": forever(b"HTTP/1.1 200 ", b"x" * 65_536),
    "interim answers": forever(b"", b"HTTP/1.1 100 Continue\r\n\r\n" * 1000),
    "trailers": forever(OK + b"Transfer-Encoding: chunked\r\n\r\n0\r\n", b"A: b\r\n" * 1000),
    "a chunk size": forever(OK + b"Transfer-Encoding: chunked\r\n\r\n", b"0" * 65_536),
}


@pytest.mark.parametrize("answer", ENDLESS.values(), ids=ENDLESS.keys())
def test_an_answer_without_end_is_refused_once_it_has_more_than_was_asked_for(answer: Answer) -> None:
    with hostile(answer) as server, pytest.raises(Unavailable) as refused:
        ask(server)
    assert refused.value.reason == "bad_answer"


NO_HTTP = {
    "nothing of the sort": b"SSH-2.0-OpenSSH_9.6\r\n",
    "a length that is no number": OK + b"Content-Length: many\r\n\r\n" + b"x" * (2 * MIB),
    "a negative length": OK + b"Content-Length: -1\r\n\r\n" + b"x" * (2 * MIB),
    "a chunk size that is no number": OK + b"Transfer-Encoding: chunked\r\n\r\nzz\r\nab\r\n0\r\n\r\n",
    "a status that is no number": b"HTTP/1.1 two OK\r\n\r\n",
}


@pytest.mark.parametrize("answer", NO_HTTP.values(), ids=NO_HTTP.keys())
def test_what_is_not_http_is_said_to_be_so(answer: bytes) -> None:
    with hostile(answer) as server, pytest.raises(Unavailable):
        ask(server)


@pytest.mark.parametrize("answer", [OK + b"Content-Length: 100\r\n\r\nshort", OK + b"Content-Le", b""])
def test_an_answer_that_breaks_off_is_none(answer: bytes) -> None:
    with hostile(answer) as server, pytest.raises(Unavailable) as refused:
        ask(server)
    assert refused.value.reason in ("connect_failed", "bad_answer")


def test_whoever_answers_byte_by_byte_gains_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every byte comes sooner than any time-out of one read: only a deadline for all of them ends it."""
    monkeypatch.setattr(transport, "BODY_SECONDS", 0.3)
    enough = threading.Event()

    def drip(connection: socket.socket) -> None:
        connection.sendall(OK + b"Content-Length: 1000\r\n\r\n")
        while not enough.wait(0.01):
            connection.sendall(b"x")

    with hostile(drip) as server, pytest.raises(TimedOut) as late:
        ask(server)
    enough.set()
    assert late.value.reason == "read_timeout"


def test_a_head_that_drips_is_cut_off_at_the_deadline() -> None:
    enough = threading.Event()

    def drip(connection: socket.socket) -> None:
        connection.sendall(OK)
        while not enough.wait(0.01):
            connection.sendall(b"A: b\r\n")
            if enough.is_set():
                return

    with hostile(drip) as server, pytest.raises(RingfenceError):
        ask(server, seconds=0.3)
    enough.set()


@pytest.mark.parametrize("status", [300, 301, 302, 303, 307, 308, 304])
def test_a_redirect_is_not_followed_and_nobody_else_hears_the_key(status: int) -> None:
    with hostile(OK + b"Content-Length: 2\r\n\r\n{}") as elsewhere:
        where = f"HTTP/1.1 {status} Go\r\nLocation: {elsewhere.url}/\r\nContent-Length: 0\r\n\r\n".encode()
        with hostile(where) as server, pytest.raises(Unavailable) as refused:
            ask(server)
        assert (refused.value.reason, elsewhere.connections) == ("bad_answer", 0)


def test_the_key_stands_in_no_error_and_no_representation() -> None:
    with hostile(b"HTTP/1.1 403 No\r\nContent-Length: 0\r\n\r\n") as server:
        manager = SandboxManager(url=server.url, api_key=KEY)
        asked = Transport(parse_address(server.url), KEY)
        with pytest.raises(RingfenceError) as refused:
            call(server.url)
        assert KEY.encode() in server.heard
    shown = [str(refused.value), repr(refused.value), str(refused.value.details), repr(asked), repr(manager)]
    assert KEY not in " ".join(shown)


@pytest.mark.parametrize("key", ["", "a b", "a\r\nX-Other: b", "schlüssel", "a\0", 7])
def test_a_key_that_would_write_headers_of_its_own_is_refused_and_not_repeated(key: object) -> None:
    with pytest.raises(InvalidRequest) as refused:
        SandboxManager(url="http://127.0.0.1:1", api_key=key)  # type: ignore[arg-type]
    assert str(refused.value) == "api_key is not a key"


@pytest.mark.parametrize(
    "url",
    [
        "http://example.com",
        "http://10.0.0.1:8321",
        "http://127.0.0.1.example.com",
        "http://localhost@example.com",
        "https://user:secret@example.com",
        "https://example.com/?key=secret",
        "ftp://127.0.0.1",
        "unix:relative/path",
        "unix:/run/",
        "http+unix://%00",
        "http://127.0.0.1:port",
        "http://127.0.0.1\r\nX: y",
        "",
        7,
    ],
)
def test_an_address_over_which_a_key_could_be_read_is_refused_and_not_repeated(url: object) -> None:
    with pytest.raises(InvalidRequest) as refused:
        SandboxManager(url=url, api_key=KEY)  # type: ignore[arg-type]
    assert refused.value.reason == "invalid_url"
    assert "secret" not in str(refused.value)


def test_planted_control_characters_never_reach_whoever_prints_the_error() -> None:
    body = (
        b'{"code": "SANDBOX.PERMISSION_DENY", "reason": "not_granted", "detail": "\\u001b]0;x\\u0007\\nringfence: ok"}'
    )
    answer = b"HTTP/1.1 403 \x1b[2J\r\nContent-Length: %d\r\n\r\n" % len(body) + body
    with hostile(answer) as server, pytest.raises(RingfenceError) as refused:
        call(server.url)
    assert str(refused.value).isprintable()
    assert (refused.value.code, refused.value.reason) == ("SANDBOX.PERMISSION_DENY", "not_granted")


@pytest.mark.parametrize(
    "body", [b"[" * 100_000, b"{" * 10, b"\xff\xfe", b'{"exec_id": "../../x", "status": "queued"}']
)
@pytest.mark.parametrize("status", [200, 202])
async def test_a_result_that_is_none_is_refused_in_our_words(status: int, body: bytes) -> None:
    answer = b"HTTP/1.1 %d OK\r\nContent-Length: %d\r\n\r\n" % (status, len(body)) + body
    with hostile(answer) as server:
        async with SandboxManager(url=server.url, api_key=KEY) as manager:
            with pytest.raises(Unavailable) as refused:
                await manager.execute_code("python", "1")
    assert refused.value.reason == "bad_answer"


def test_a_service_that_asks_to_wait_for_ever_is_not_waited_for() -> None:
    body = b'{"code": "QUOTA.BUDGET_EXCEEDED", "reason": "overloaded", "detail": "later"}'
    answer = b"HTTP/1.1 429 No\r\nRetry-After: 99999999999999999999\r\nContent-Length: %d\r\n\r\n" % len(body) + body
    with hostile(answer) as server, pytest.raises(RingfenceError):
        call(server.url)
    assert server.connections == 1


class Secure:
    """A server with a certificate of its own, that answers once and remembers what it was told."""

    def __init__(self, folder: Path, names: str) -> None:
        self.certificate, both = folder / "certificate.pem", folder / "both.pem"
        key = folder / "key.pem"
        words = f"openssl req -x509 -newkey rsa:2048 -nodes -keyout {key} -out {self.certificate} -days 1 -subj /CN=x"
        subprocess.run([*words.split(), "-addext", f"subjectAltName={names}"], check=True, capture_output=True)
        both.write_bytes(key.read_bytes() + self.certificate.read_bytes())
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(both)
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.url = f"https://127.0.0.1:{self._listening.getsockname()[1]}"
        self.heard = b""
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        connection, _ = self._listening.accept()
        try:
            with self._context.wrap_socket(connection, server_side=True) as secure:
                self.heard = secure.recv(65_536)
                secure.sendall(OK + b"Content-Length: 2\r\n\r\n{}")
        except OSError:
            connection.close()

    def close(self) -> None:
        self._thread.join()
        self._listening.close()


def test_a_certificate_of_nobody_we_trust_ends_it_before_the_key_is_sent(tmp_path: Path) -> None:
    with closing(Secure(tmp_path, "IP:127.0.0.1")) as server, pytest.raises(Unavailable) as refused:
        call(server.url)
    assert (refused.value.reason, server.heard) == ("bad_answer", b"")


def test_a_certificate_for_another_name_ends_it_before_the_key_is_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(Secure(tmp_path, "DNS:example.com")) as server:
        monkeypatch.setenv("SSL_CERT_FILE", str(server.certificate))
        with pytest.raises(Unavailable) as refused:
            call(server.url)
    assert (refused.value.reason, server.heard) == ("bad_answer", b"")


def test_a_certificate_that_is_trusted_gets_the_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with closing(Secure(tmp_path, "IP:127.0.0.1")) as server:
        monkeypatch.setenv("SSL_CERT_FILE", str(server.certificate))
        assert call(server.url) == (200, {})
    assert f"Authorization: Bearer {KEY}".encode() in server.heard


# --- the socket of a home ---


def test_a_socket_file_of_another_user_is_told_nothing(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can make a file somebody else's")
    path = tmp_path / "service.sock"
    server = Hostile(lambda connection: None, family=socket.AF_UNIX, path=str(path))
    os.chown(path, 12345, 12345)
    assert open_service(tmp_path) is None
    assert (server.connections, server.heard) == (0, b"")
    server.close()


def test_a_link_in_the_place_of_the_socket_is_told_nothing(tmp_path: Path) -> None:
    server = Hostile(lambda connection: None, family=socket.AF_UNIX, path=str(tmp_path / "elsewhere.sock"))
    (tmp_path / "service.sock").symlink_to(tmp_path / "elsewhere.sock")
    assert open_service(tmp_path) is None
    assert server.connections == 0
    server.close()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # a fork beside the threads of other tests
def test_a_process_of_another_user_behind_the_socket_is_told_nothing(tmp_path: Path) -> None:
    """The file can be ours and whoever accepts on it somebody else: the kernel says who that is."""
    if os.geteuid() != 0:
        pytest.skip("only root can start a process of somebody else")
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(str(tmp_path / "service.sock"))
    told, heard = os.pipe2(os.O_CLOEXEC)
    child = os.fork()
    if child == 0:  # the credentials are those of whoever listens
        try:
            os.setresuid(12345, 12345, 12345)
            listening.listen(1)
            connection, _ = listening.accept()
            os.write(heard, b"<" + connection.recv(100) + b">")
        finally:
            os._exit(0)
    os.close(heard)
    while _not_listening(tmp_path / "service.sock"):
        pass
    try:
        assert open_service(tmp_path) is None
    finally:
        listening.close()
        os.waitpid(child, 0)
    assert os.read(told, 200) in (b"<>", b"")
    os.close(told)


def _not_listening(path: Path) -> bool:
    listed = Path("/proc/net/unix").read_text().splitlines()
    return not any(line.endswith(str(path)) and line.split()[3] == "00010000" for line in listed)


def test_a_home_without_a_service_has_none(tmp_path: Path) -> None:
    assert open_service(tmp_path) is None
    left = socket.socket(socket.AF_UNIX)
    left.bind(str(tmp_path / "service.sock"))
    left.close()
    assert open_service(tmp_path) is None


def test_a_stop_wakes_whoever_waits_for_an_answer() -> None:
    begun, stop, ended = threading.Event(), Stop(), threading.Event()
    silence = threading.Event()

    def answer(_: socket.socket) -> None:
        begun.set()
        silence.wait()

    def wait() -> None:
        with pytest.raises(Stopped):
            Transport(parse_address(server.url)).exchange("GET", "/", seconds=3600, longest=1, stop=stop)
        ended.set()

    with hostile(answer) as server:
        thread = threading.Thread(target=wait)
        thread.start()
        begun.wait()
        stop.now()
        thread.join()
    silence.set()
    assert ended.is_set()


def test_an_answer_nobody_asked_for_ends_the_connection_instead_of_answering_the_next_question() -> None:
    """What is planted after one answer must not be taken for the next one's."""
    planted = OK + b'Content-Length: 9\r\n\r\n"planted"'
    with hostile(OK + b'Content-Length: 4\r\n\r\n"ok"' + planted) as server:
        service = Service(Transport(parse_address(server.url)))
        assert [service.call("GET", "/") for _ in range(5)] == [(200, "ok")] * 5
        service.close()


def test_every_read_goes_through_the_socket_that_counts() -> None:
    ours, theirs = socket.socketpair()
    patient = PatientSocket(ours)
    patient.allow(seconds=5, received=3)
    theirs.sendall(b"abcdef")
    with pytest.raises(OSError, match="does not end"):
        patient.makefile("rb").read(6)
    theirs.close()
    patient.close()


class Telling(Hostile):
    """Takes a run on, and then tells of it in its own way."""

    def answer(self, connection: socket.socket, request: bytes) -> None:
        if request.startswith(b"GET"):
            super().answer(connection, request)
            return
        body = b'{"exec_id": "ex_1", "status": "queued"}'
        connection.sendall(b"HTTP/1.1 202 OK\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % len(body) + body)


EVENTS = OK + b"Content-Type: text/event-stream\r\n\r\n"
TELLING = {
    "a line without end": forever(EVENTS + b"data: ", b"x" * 65_536),
    "an event without end": forever(EVENTS, b"data: " + b"x" * 65_536 + b"\n"),
    "a problem without end": forever(b"HTTP/1.1 500 No\r\n\r\n", b"x" * 65_536),
    "no JSON": EVENTS + b"event: result\ndata: {\n\n",
    "no result": EVENTS + b"event: result\ndata: {}\n\n",
    "no output": EVENTS + b'event: output\ndata: {"stream": 1}\n\n',
    "a depth without end": EVENTS + b"event: result\ndata: " + b"[" * 100_000 + b"\n\n",
}


@pytest.mark.parametrize("events", TELLING.values(), ids=TELLING.keys())
async def test_whatever_is_told_of_a_run_it_is_a_result_or_a_refusal(
    events: bytes | Answer, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (events_module, service_module):
        monkeypatch.setattr(module, "LONGEST_EVENT", 4 * MIB)
    tell = (lambda connection: connection.sendall(events)) if isinstance(events, bytes) else events
    with closing(Telling(tell)) as server:
        async with SandboxManager(url=server.url, api_key=KEY) as manager:
            with pytest.raises(Unavailable) as refused:
                await manager.execute_code("python", "1", on_output=lambda *_: None)
    assert refused.value.reason == "bad_answer"
