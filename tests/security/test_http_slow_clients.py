"""The HTTP door against clients that are slow, silent, half gone, or never read what they are told."""

from __future__ import annotations

import json
import re
import select
import socket
import time
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest
from tests.http_service import Service, read_answer, serving
from tests.security.narrow_service import JSON, READ_SECONDS, head
from tests.security.narrow_service import service as service

pytestmark = [pytest.mark.guarantee(22), pytest.mark.once]


@pytest.mark.parametrize(
    "sent",
    [b"G", b"GET /keys HTTP/1.1\r\nHost: localhost\r\nX-", b"POST /keys HTTP/1.1\r\nHost: localhost\r\n"],
)
def test_a_head_that_never_ends_is_answered_and_closed(service: Service, sent: bytes) -> None:
    answer = service.say(sent)
    assert (answer.status, answer.reason) == (408, "slow_request")


def test_a_body_that_never_comes_is_answered_and_closed(service: Service) -> None:
    answer = service.say(head(service, "POST", "/keys", JSON, "Content-Length: 100") + b'{"access"')
    assert (answer.status, answer.reason) == (408, "slow_request")


def test_a_head_that_comes_letter_by_letter_gets_no_longer_than_the_others(service: Service) -> None:
    began = time.monotonic()
    with service.connect() as wire:
        wire.settimeout(0.05)
        while True:
            try:
                wire.sendall(b"G" if time.monotonic() - began < 0.04 else b"a")
                if wire.recv(1):
                    break
            except TimeoutError:
                assert time.monotonic() - began < 30 * READ_SECONDS
            except ConnectionError:
                break


def test_whoever_connects_and_says_nothing_is_let_go(service: Service) -> None:
    with service.connect() as wire:
        assert wire.recv(1) == b""


def test_a_second_request_on_a_connection_has_its_own_time(service: Service) -> None:
    with service.connect() as wire:
        wire.sendall(head(service, "GET", "/sandbox/health"))
        first = b""
        while not first.endswith(b"}"):
            first += wire.recv(65536)
        wire.sendall(b"GET /sandbox/health HT")
        answer = read_answer(wire)
    assert answer.status == 408


def test_whoever_asks_and_never_reads_the_answers_is_cut_off(service: Service) -> None:
    with socket.socket() as wire:
        wire.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        wire.connect(("127.0.0.1", service.port))
        for _ in range(200):  # whose answers are more than any buffer of the kernel takes
            wire.sendall(head(service, "GET", "/openapi.json"))
        cut = select.poll()
        cut.register(wire, 0)
        assert [what & select.POLLHUP for _, what in cut.poll(30_000 * READ_SECONDS)] == [select.POLLHUP]


def test_what_is_left_of_an_answer_that_nobody_reads_keeps_no_connection(tmp_path: Path) -> None:
    """What little the kernel did not take is not enough to wait for, and once we close it was waited for for ever."""
    with (
        serving(tmp_path, RINGFENCE_SERVER_WRITE_SECONDS="1", RINGFENCE_SERVER_KEEP_ALIVE_SECONDS="1") as busy,
        ExitStack() as unread,
    ):
        assert busy.ask("PUT", "/sandbox/workspaces/p/files?path=work/a", b"x" * 6_000_000).status == 200
        for size in range(100_000, 6_000_000, 50_000):  # one of them fills what the kernel has, and a little more
            wire = unread.enter_context(socket.socket())
            wire.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            wire.connect(("127.0.0.1", busy.port))
            wire.sendall(head(busy, "GET", f"/sandbox/workspaces/p/files?path=work/a&length={size}"))
        deadline = time.monotonic() + 40
        while (left := open_connections(busy)) and time.monotonic() < deadline:
            time.sleep(0.2)
        assert left == 0


def open_connections(service: Service) -> int:
    """Return how many connections the process of a service holds, as the kernel has them."""
    descriptors = Path(f"/proc/{service.process.pid}/fd")
    held = set()
    for link in descriptors.iterdir():
        with suppress(OSError):  # closed meanwhile
            held.add(str(link.readlink()))
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    ours = [row for row in rows if row[1].endswith(f":{service.port:04X}") and row[3] != LISTENING]
    return sum(f"socket:[{row[9]}]" in held for row in ours)


LISTENING = "0A"


def test_a_whole_request_is_answered_though_the_client_closed_its_half(service: Service) -> None:
    answer = service.say(head(service, "GET", "/keys"), half_close=True)
    assert answer.status == 200
    body = json.dumps({"access": "agent", "name": "half"}).encode()
    sent = head(service, "POST", "/keys", JSON, f"Content-Length: {len(body)}") + body
    assert service.say(sent, half_close=True).status == 201


@pytest.mark.parametrize("cut", [10, -5])
def test_half_a_request_is_a_problem_and_changes_nothing(service: Service, cut: int) -> None:
    before = len(service.ask("GET", "/keys").json["keys"])
    body = json.dumps({"access": "agent", "name": "cut"}).encode()
    sent = head(service, "POST", "/keys", JSON, f"Content-Length: {len(body)}") + body
    answer = service.say(sent[:cut], half_close=True)
    assert (answer.status, answer.reason) == (400, "malformed")
    assert len(service.ask("GET", "/keys").json["keys"]) == before


def test_a_request_smuggled_behind_another_is_not_one(service: Service) -> None:
    sent = head(service, "POST", "/keys", JSON, "Content-Length: 5", "Transfer-Encoding: chunked")
    said = b""
    with service.connect() as wire, suppress(ConnectionResetError):
        wire.sendall(sent + b"0\r\n\r\n" + head(service, "GET", "/keys", "Connection: close"))
        while piece := wire.recv(65536):
            said += piece
    assert re.findall(rb"HTTP/1\.1 (\d+)", said) == [b"400"]  # one answer, and nobody is there for the other


def test_the_service_is_well_after_all_of_this(service: Service) -> None:
    assert service.ask("GET", "/sandbox/health", key=None).json == {"status": "ok"}
