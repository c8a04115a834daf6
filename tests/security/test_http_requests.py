"""The HTTP door against what is no request, or two at once: wrong in its head, its body or what it asks."""

from __future__ import annotations

import re
from contextlib import suppress

import pytest
from tests.http_service import Service, read_answer
from tests.security.narrow_service import BODY_BYTES, JSON, head
from tests.security.narrow_service import service as service

pytestmark = [pytest.mark.guarantee(22), pytest.mark.once]


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"nonsense\r\n\r\n", 400),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", 400),
        (b"GET /keys HTTP/1.1\r\n\r\n", 400),
        (b"GET /keys HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", 400),
        (b"POST /keys HTTP/1.1\r\nHost: localhost\r\nContent-Length: x\r\n\r\n", 400),
        (b"POST /keys HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n", 400),
        (b"POST /keys HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n", 400),
        (b"POST /keys HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: gzip\r\n\r\n", 400),
        (b"POST /keys HTTP/1.0\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
        (b"GET /keys HTTP/2.0\r\nHost: localhost\r\n\r\n", 400),
        (b"G" * 33 + b" /keys HTTP/1.1\r\nHost: localhost\r\n\r\n", 400),
        (b"GET /a b HTTP/1.1\r\nHost: localhost\r\n\r\n", 400),
        (b"GET /keys HTTP/1.1\r\nHost: localhost\r\nX: " + b"a" * 8000 + b"\r\n\r\n", 431),
        (b"GET /" + b"a" * 8000 + b" HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n", 431),
        (b"GET /keys HTTP/1.1\r\nHost: localhost\r\n" + b"X: 1\r\n" * 2000 + b"\r\n", 431),
    ],
    ids=lambda value: value[:40].decode("latin-1") if isinstance(value, bytes) else str(value),
)
def test_what_is_no_request_is_told_so(service: Service, sent: bytes, status: int) -> None:
    answer = service.say(sent)
    assert answer.status == status
    assert answer.reason in ("malformed", "headers_too_large")
    assert answer.headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize(
    ("body", "kind", "status"),
    [
        (b"{", "application/json", 422),
        (b"", "application/json", 422),
        (b"\xff\xfe", "application/json", 422),
        (b"[" * 3000, "application/json", 422),
        (b"null", "application/json", 422),
        (b"[]", "application/json", 422),
        (b'"admin"', "application/json", 422),
        (b'{"access": "admin"}', "text/plain", 415),
        (b'{"access": "admin"}', "application/x-www-form-urlencoded", 415),
        (b'{"access": "god"}', "application/json", 422),
        (b'{"access": 1}', "application/json", 422),
        (b'{"access": "agent", "tenant": "../x"}', "application/json", 422),
        (b'{"access": "agent", "tenant": "*"}', "application/json", 422),
        (b'{"access": "agent", "name": "a\\u0000b"}', "application/json", 422),
        (b'{"access": "agent", "name": "\\ud800"}', "application/json", 422),
        (b'{"access": "agent", "days": true}', "application/json", 422),
        (b'{"access": "agent", "days": 1e400}', "application/json", 422),
        (b'{"access": "agent", "days": NaN}', "application/json", 422),
        (b'{"access": "agent", "days": ' + b"9" * 3900 + b"}", "application/json", 422),
        (b'{"access": "agent", "more": 1}', "application/json", 422),
        (b'{"access": "agent", "tenant": "' + b"a" * 64 + b'"}', "application/json", 422),
    ],
    ids=lambda value: value[:40].decode("latin-1") if isinstance(value, bytes) else str(value),
)
def test_a_body_that_is_not_as_it_must_be_makes_no_key(service: Service, body: bytes, kind: str, status: int) -> None:
    before = len(service.ask("GET", "/keys").json["keys"])
    answer = service.ask("POST", "/keys", body, headers={"Content-Type": kind})
    assert answer.status == status, answer.body
    assert answer.reason
    assert len(service.ask("GET", "/keys").json["keys"]) == before


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", "/keys", b'{"access": "agent", "access": "admin"}'),
        ("POST", "/keys", b'{"access": "agent", "\\u0061ccess": "admin"}'),
        ("POST", "/sandbox/execs", b'{"project_id": "a", "project_id": "b", "exec": {"kind": "python", "code": "1"}}'),
        ("POST", "/sandbox/execs", b'{"project_id": "a", "exec": {"kind": "python", "code": "1", "code": "2"}}'),
        (
            "POST",
            "/sandbox/ops",
            b'{"project_id": "a", "operation": {"op": "fs_list", "op": "fs_delete", "path": "x"}}',
        ),
        ("POST", "/sandbox/processes", b'{"project_id": "a", "command": "true", "command": "sleep 9"}'),
        ("POST", "/skills/shell.run/invoke", b'{"project_id": "a", "inputs": {"script": "1", "script": "2"}}'),
        ("POST", "/grants", b'{"caps": [], "caps": []}'),
        ("PUT", "/sandbox/secrets/S", b'{"value": "a", "value": "b"}'),
        ("POST", "/mcp", b'{"jsonrpc": "2.0", "id": 1, "method": "ping", "method": "tools/call"}'),
    ],
    ids=lambda value: value.decode() if isinstance(value, bytes) else str(value),
)
def test_a_key_that_is_written_twice_is_never_chosen_from(
    service: Service, method: str, path: str, body: bytes
) -> None:
    # whoever looks before us, a proxy with rules of its own, may have read the other one
    json_type = {"Content-Type": "application/json", "Accept": "application/json, text/event-stream"}
    answer = service.ask(method, path, body, headers=json_type)
    assert (answer.status, answer.reason) == (400, "given_twice"), answer.body
    assert "twice" in answer.json["detail"]


@pytest.mark.parametrize("content", [b"\xff\xfe{\x00}\x00", b"\xef\xbb\xbf{}", '{"access": "admin"}'.encode("utf-16")])
def test_a_body_in_another_encoding_than_utf_8_is_not_json(service: Service, content: bytes) -> None:
    answer = service.ask("POST", "/keys", content, headers={"Content-Type": "application/json"})
    assert (answer.status, answer.reason) == (422, "not_json")


@pytest.mark.parametrize(
    "path",
    [
        "/sandbox/execs?project_id=a&project_id=b",
        "/evidence?limit=1&limit=2",
        "/sandbox/workspaces/p/files?path=work/a&path=work/b",
        "/sandbox/workspaces/p/files?path=work/a&p%61th=work/b",
    ],
)
def test_a_question_that_is_asked_twice_is_never_chosen_from(service: Service, path: str) -> None:
    answer = service.ask("GET", path)
    assert (answer.status, answer.reason) == (400, "given_twice"), answer.body


@pytest.mark.parametrize("name", ["a%ff", "a%c0%ae", "a%ed%a0%80", "a%e2%82"])
def test_two_names_that_are_no_text_never_become_one(service: Service, name: str) -> None:
    service.ask("POST", "/sandbox/execs", {"project_id": "names", "exec": {"kind": "python", "code": "1"}})
    answer = service.ask("PUT", f"/sandbox/workspaces/names/files?path=work/{name}", b"x")
    assert (answer.status, answer.reason) == (400, "malformed"), answer.body
    assert service.ask("GET", "/sandbox/workspaces/names/files?path=work").json["entries"] == []


@pytest.mark.parametrize(
    "path",
    [
        "/sandbox/workspaces/p/diff?snapshot=sn_1",
        "/sandbox/processes?state=running",
        "/sandbox/execs?state=running",
        "/skills?limit=1",
        "/keys?tenant=acme",
    ],
)
def test_a_question_that_nobody_knows_is_not_answered_with_another(service: Service, path: str) -> None:
    answer = service.ask("GET", path)
    assert (answer.status, answer.reason) == (422, "invalid_request"), answer.body
    assert path.partition("?")[2].partition("=")[0] in answer.json["detail"]


def test_the_project_of_an_mcp_client_is_named_once(service: Service) -> None:
    hello = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
    accept = {"Accept": "application/json, text/event-stream"}
    answer = service.ask("POST", "/mcp?project=a&project=b", hello, headers=accept)
    assert (answer.status, answer.reason) == (400, "given_twice"), answer.body


def test_an_answer_repeats_nothing_of_what_was_wrong(service: Service) -> None:
    answer = service.ask("POST", "/keys", {"access": "s3cr3t-value", "tenant": "s3cr3t-tenant!"})
    assert answer.status == 422
    assert b"s3cr3t" not in answer.body


def test_a_body_too_large_is_refused_before_it_is_read(service: Service) -> None:
    with service.connect() as wire:
        wire.sendall(head(service, "POST", "/keys", JSON, "Content-Length: 1000000000000"))
        answer = read_answer(wire)
    assert (answer.status, answer.reason) == (413, "body_too_large")


def test_a_body_too_large_that_does_not_say_so_is_cut_off(service: Service) -> None:
    chunk = b"400\r\n" + b" " * 1024 + b"\r\n"
    sent = head(service, "POST", "/keys", JSON, "Transfer-Encoding: chunked") + chunk * 8 + b"0\r\n\r\n"
    answer = service.say(sent.replace(b"Host", b"Connection: close\r\nHost"))
    assert (answer.status, answer.reason) == (413, "body_too_large")


def test_requests_that_come_without_a_pause_are_counted_one_by_one(service: Service) -> None:
    """Each has begun when the one before it is answered, and together they are more bytes than one request may be."""
    many, half = 20, b" " * 1000
    begun = head(service, "POST", "/keys", JSON, f"Content-Length: {2 * len(half)}") + half
    assert many * len(begun + half) > 3 * (4096 + BODY_BYTES)
    said = b""
    with service.connect() as wire:
        wire.sendall(begun)
        for number in range(1, many + 1):
            wire.sendall(half + begun)
            while said.count(b"HTTP/1.1 ") < number and (piece := wire.recv(65536)):
                said += piece
        wire.sendall(b" ")
        service.ask("GET", "/sandbox/health")  # by then it has been taken, and more of the last one is still to come
        wire.sendall(half[1:])
        while said.count(b"HTTP/1.1 ") <= many and (piece := wire.recv(65536)):
            said += piece
    assert re.findall(rb"HTTP/1.1 (\d+)", said) == [b"422"] * (many + 1)


def test_what_surrounds_a_body_counts_too(service: Service) -> None:
    """A chunk can say more about itself than it holds, and nobody counted that: such a body never ended."""
    begun = head(service, "POST", "/keys", JSON, "Transfer-Encoding: chunked")
    with service.connect() as wire:
        with suppress(ConnectionError):
            wire.sendall(begun + (b"1;" + b"a" * 2000 + b"\r\n \r\n") * 20)
        answer = read_answer(wire)
    assert (answer.status, answer.reason) == (413, "body_too_large")


@pytest.mark.parametrize(
    ("method", "path", "status", "reason"),
    [
        ("GET", "/nothing", 404, "not_found"),
        ("PATCH", "/keys", 405, "method_not_allowed"),
        ("GET", "/keys/", 404, "not_found"),
        ("TRACE", "/sandbox/health", 405, "method_not_allowed"),
        ("GET", "/evidence/..%2f..%2fetc%2fpasswd", 404, "not_found"),
        ("GET", "/evidence/%00", 404, "not_found"),
        ("GET", "/evidence/%ff%fe", 404, "not_found"),
        ("GET", "/evidence/" + "a" * 1000, 404, "not_found"),
        ("GET", "/%0a", 404, "not_found"),
        ("GET", "/keys%0a", 404, "not_found"),
        ("POST", "/keys%0A", 404, "not_found"),
        ("GET", "/openapi.json%0a", 404, "not_found"),
        ("GET", "/sandbox/health%0a", 404, "not_found"),
        ("POST", "/mcp%0a", 404, "not_found"),
        ("GET", "/evidence?cursor=!!", 422, "invalid_request"),
        ("GET", "/evidence?cursor=AAAA", 422, "invalid_range"),
        ("GET", "/evidence?limit=0", 422, "invalid_request"),
        ("GET", "/evidence?task_id=%00", 422, "invalid_request"),
        ("GET", "/evidence?nonsense=1", 422, "invalid_request"),
        ("GET", "/evidence?since_ms=99999999999999999999999", 422, "invalid_request"),
    ],
)
def test_wrong_paths_methods_and_questions_are_problems(
    service: Service, method: str, path: str, status: int, reason: str
) -> None:
    answer = service.ask(method, path)
    assert (answer.status, answer.reason) == (status, reason)
    if status == 405:
        assert answer.headers["allow"]


def test_a_line_that_ends_a_path_is_part_of_it_without_a_key_too(service: Service) -> None:
    assert service.ask("GET", "/sandbox/health", key=None).status == 200
    assert service.ask("GET", "/sandbox/health%0a", key=None).reason == "no_key"


def test_a_cursor_beyond_every_number_is_no_cursor(service: Service) -> None:
    import base64

    for text in (f"{10**30} ex_1", "-5 ex_1", "1 a\0b", "1 'x"):
        cursor = base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")
        assert service.ask("GET", f"/evidence?cursor={cursor}").reason == "invalid_range"
