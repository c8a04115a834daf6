"""The HTTP door against pages in a browser, and against what would be a websocket."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tests.http_service import Answer, Service, read_answer, serving
from tests.security.narrow_service import service as service

pytestmark = [pytest.mark.guarantee(22), pytest.mark.once]


def test_every_answer_keeps_browsers_harmless(service: Service) -> None:
    answers = [
        service.ask("GET", "/sandbox/health", key=None),
        service.ask("GET", "/keys", key=None),
        service.ask("GET", "/nothing"),
        service.ask("POST", "/keys", b"{"),
        service.ask("GET", "/keys"),
        service.say(b"nonsense\r\n\r\n"),
    ]
    for answer in answers:
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["cache-control"] == "no-store"
        assert "default-src 'none'" in answer.headers["content-security-policy"]
        assert "frame-ancestors 'none'" in answer.headers["content-security-policy"]
        assert answer.headers["referrer-policy"] == "no-referrer"
        assert "server" not in answer.headers


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "evil.example:8321",
        "127.0.0.1.evil.example",
        "[::2]",
        "0.0.0.0",
        ".",
        "a@localhost",
        "[::1]a.example",
    ],
)
def test_a_page_whose_name_was_made_to_point_here_gets_nothing(service: Service, host: str) -> None:
    for path in ("/keys", "/sandbox/health"):
        answer = service.ask("GET", path, headers={"Host": host})
        assert (answer.status, answer.reason) == (421, "foreign_host")


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:1", "127.0.0.1:99", "[::1]:5", "localhost."])
def test_the_names_of_this_machine_are_its_own(service: Service, host: str) -> None:
    assert service.ask("GET", "/sandbox/health", headers={"Host": host}).status == 200


def test_no_page_of_another_origin_may_call_unless_the_settings_name_it(service: Service, tmp_path: Path) -> None:
    asking = {"Origin": "https://a.example", "Access-Control-Request-Method": "POST"}
    answer = service.ask("OPTIONS", "/keys", key=None, headers=asking)
    assert answer.status == 401
    assert not any(name.startswith("access-control") for name in answer.headers)
    with serving(tmp_path, RINGFENCE_SERVER_CORS_ORIGINS="https://a.example") as open_to_one:
        named = open_to_one.ask("OPTIONS", "/keys", key=None, headers=asking)
        assert (named.status, named.headers["access-control-allow-origin"]) == (200, "https://a.example")
        assert "access-control-allow-credentials" not in named.headers
        other = open_to_one.ask("OPTIONS", "/keys", key=None, headers=asking | {"Origin": "https://b.example"})
        assert "access-control-allow-origin" not in other.headers
        assert open_to_one.ask("GET", "/keys", key=None, headers={"Origin": "https://a.example"}).status == 401


def test_a_request_id_that_is_one_comes_back_and_another_does_not(service: Service) -> None:
    assert service.ask("GET", "/keys", headers={"X-Request-Id": "abc-1"}).headers["x-request-id"] == "abc-1"
    for given in ("a b", "x" * 65, "<script>"):
        got = service.ask("GET", "/keys", headers={"X-Request-Id": given}).headers["x-request-id"]
        assert re.fullmatch(r"req_[0-9a-f]{24}", got)


@pytest.mark.parametrize("path", ["/sandbox/processes/x/tty", "/nothing", "/sandbox/health"])
def test_a_websocket_is_opened_for_nobody_without_a_key(service: Service, path: str) -> None:
    said = f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    said += "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
    with service.connect() as wire:
        wire.sendall(f"{said}Origin: https://evil.example\r\n\r\n".encode())
        answer = read_answer(wire)
    assert answer.status in (401, 403, 404)
    if path != "/sandbox/health":
        assert answer.reason == "no_key"


OPENING = {
    "Host": "localhost",
    "Connection": "Upgrade",
    "Upgrade": "websocket",
    "Sec-WebSocket-Version": "13",
    "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
}


def opening(service: Service, *more: str, method: str = "GET", path: str = "/x", **other: str) -> Answer:
    """Ask for a websocket, and return what is answered instead of one."""
    headers = OPENING | {name.replace("_", "-"): value for name, value in other.items()}
    lines = [f"{method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items() if value), *more]
    return service.say("\r\n".join([*lines, "", ""]).encode())


@pytest.mark.parametrize(
    "wrong",
    [
        {"Sec_WebSocket_Key": ""},
        {"Sec_WebSocket_Key": "AAA"},
        {"Sec_WebSocket_Version": "1"},
        {"Sec_WebSocket_Version": ""},
        {"method": "POST"},
    ],
    ids=str,
)
def test_what_opens_no_websocket_is_told_so_as_a_problem(service: Service, wrong: dict[str, str]) -> None:
    answer = opening(service, **wrong)
    assert (answer.status, answer.reason) == (400, "malformed")
    assert answer.headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize(
    "more",
    [("X: 1",) * 200, ("Content-Length: 5",), ("Transfer-Encoding: chunked",), ("Sec-WebSocket-Key: AAAA",)],
    ids=lambda lines: f"{len(lines)} {lines[0]}",
)
def test_nobody_without_a_key_keeps_a_connection_by_half_a_websocket(service: Service, more: tuple[str, ...]) -> None:
    """The parser of websockets takes less than that of requests, and says nothing: they stayed open for ever."""
    answer = opening(service, *more)
    assert (answer.status, answer.reason) == (400, "malformed")


@pytest.mark.parametrize("path", ["/nothing", "/keys", "/sandbox/execs"])
def test_a_path_that_has_no_websocket_is_not_found(service: Service, path: str) -> None:
    answer = opening(service, path=path, Authorization=f"Bearer {service.key}")
    assert (answer.status, answer.reason) == (404, "not_found")
