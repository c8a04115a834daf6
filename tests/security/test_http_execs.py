"""Executions over HTTP against those who try: other tenants, crooked paths, crooked bodies, crowds and key thieves."""

from __future__ import annotations

import json
import socket
import struct
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from tests.http_service import Answer, Service, serving

pytestmark = [pytest.mark.guarantee(23), pytest.mark.once]

MARKER = "marker-49152"


class Two:
    """A service with two tenants; the first has run something."""

    def __init__(self, service: Service) -> None:
        self.service = service
        self.anna = service.make_key("agent", "acme")
        self.bert = service.make_key("agent", "other")
        code = f"print('{MARKER}'); open('/workspace/artifacts/a.txt','w').write('{MARKER}')"
        asked = {"project_id": "p", "exec": {"kind": "python", "code": code}, "task_ref": "secret-task"}
        answer = self.ask(self.anna, "POST", "", asked, {"Idempotency-Key": "k"})
        assert answer.status == 201, answer.body
        self.exec_id: str = answer.json["exec_id"]

    def ask(self, key: str, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None) -> Answer:
        return self.service.ask(method, f"/sandbox/execs{path}", body, key=key, headers=headers)


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Two]:
    with serving(tmp_path_factory.mktemp("execs")) as running:
        yield Two(running)


def same(answer: Answer) -> tuple[int, bytes, list[str]]:
    """Return an answer without what differs between any two answers."""
    return answer.status, answer.body, sorted(set(answer.headers) - {"date", "x-request-id"})


# --- tenants ---


@pytest.mark.parametrize(
    ("method", "suffix"),
    [
        ("GET", ""),
        ("POST", "/cancel"),
        ("GET", "/events"),
        ("GET", "/artifacts"),
        ("GET", "/artifacts/a.txt"),
        ("GET", "/stdout"),
        ("GET", "/stderr"),
    ],
)
def test_a_foreign_execution_and_an_unknown_one_answer_byte_by_byte_the_same(
    two: Two, method: str, suffix: str
) -> None:
    unknown = two.exec_id[:-4] + ("0000" if not two.exec_id.endswith("0000") else "1111")
    foreign = two.ask(two.bert, method, f"/{two.exec_id}{suffix}")
    assert foreign.status == 404
    assert foreign.reason == "not_found"
    assert same(foreign) == same(two.ask(two.bert, method, f"/{unknown}{suffix}"))
    assert two.ask(two.anna, method, f"/{two.exec_id}{suffix}").status == 200


def test_no_list_of_another_tenant_has_it(two: Two) -> None:
    for query in ("", "?task_id=secret-task", "?project_id=p", "?status=succeeded", "?limit=200"):
        answer = two.ask(two.bert, "GET", query)
        assert (answer.status, answer.json) == (200, {"items": [], "next_cursor": None})
    assert two.ask(two.anna, "GET", "?task_id=secret-task").json["items"][0]["exec_id"] == two.exec_id


def test_anothers_cursor_leads_nowhere(two: Two) -> None:
    asked = {"project_id": "p", "exec": {"kind": "python", "code": "print(2)"}}
    assert two.ask(two.anna, "POST", "", asked).status == 201
    cursor = two.ask(two.anna, "GET", "?limit=1").json["next_cursor"]
    assert cursor is not None
    assert two.ask(two.bert, "GET", f"?cursor={cursor}").json["items"] == []


def test_anothers_idempotency_key_gives_nothing_away(two: Two) -> None:
    code = f"print('{MARKER}'); open('/workspace/artifacts/a.txt','w').write('{MARKER}')"
    asked = {"project_id": "p", "exec": {"kind": "python", "code": code}, "task_ref": "secret-task"}
    answer = two.ask(two.bert, "POST", "", asked, {"Idempotency-Key": "k"})
    assert answer.status == 201
    assert answer.json["exec_id"] != two.exec_id
    assert "idempotency-replayed" not in answer.headers


def test_two_tenants_projects_of_one_name_share_no_file(two: Two) -> None:
    write = {"project_id": "q", "exec": {"kind": "python", "code": "open('x','w').write('1')"}}
    read = {"project_id": "q", "exec": {"kind": "python", "code": "import os; print(os.path.exists('x'))"}}
    assert two.ask(two.anna, "POST", "", write).json["success"]
    assert two.ask(two.bert, "POST", "", read).json["stdout"] == "False\n"
    assert two.ask(two.anna, "POST", "", read).json["stdout"] == "True\n"


@pytest.mark.parametrize("access", ["operator", "auditor"])
def test_who_may_only_look_runs_nothing_and_reads_no_content(two: Two, access: str) -> None:
    key = two.service.make_key(access, "acme")
    asked = {"project_id": "p", "exec": {"kind": "python", "code": "print(1)"}}
    assert two.ask(key, "POST", "", asked).reason == "access"
    for suffix in ("/stdout", "/stderr", "/artifacts", "/artifacts/a.txt", "/events"):
        assert two.ask(key, "GET", f"/{two.exec_id}{suffix}").reason == "access"
    listed = two.ask(key, "GET", "?task_id=secret-task")
    assert listed.json["items"][0]["exec_id"] == two.exec_id
    assert MARKER.encode() not in listed.body
    detail = two.ask(key, "GET", f"/{two.exec_id}")
    assert detail.status == (200 if access == "operator" else 403)
    assert MARKER.encode() not in detail.body


# --- paths ---


@pytest.mark.parametrize(
    "path",
    [
        "../x",
        "a/../../x",
        "/etc/passwd",
        "/workspace/work/x",
        "..",
        "a/..",
    ],
)
@pytest.mark.parametrize("field", ["inputs", "files"])
def test_a_path_that_leads_out_is_refused_and_nothing_is_written(two: Two, path: str, field: str) -> None:
    if field == "files" and path.startswith("/workspace/work/"):
        return  # which is where files lie
    asked = {
        "project_id": "paths",
        "exec": {"kind": "python", "code": "print(1)"},
        field: [{"path": path, "content": MARKER}],
    }
    answer = two.ask(two.anna, "POST", "", asked)
    assert (answer.status, answer.reason) == (400, "path_traversal")
    assert answer.json["code"] == "SCHEMA.VALIDATION_FAILED"


@pytest.mark.parametrize("path", ["", "a/", "a\0b", "a\nb", "x" * 300, "\ud800"])
def test_a_path_that_is_none_is_refused(two: Two, path: str) -> None:
    asked = {
        "project_id": "paths",
        "exec": {"kind": "python", "code": "print(1)"},
        "inputs": [{"path": path, "content": ""}],
    }
    answer = two.ask(two.anna, "POST", "", asked)
    assert answer.status == 422
    assert answer.reason in ("invalid_path", "invalid_request")


@pytest.mark.parametrize(
    "project", ["..", ".", "../x", "/etc", "a/b", "a\nb", "a b", "", "x" * 129, "é", ".hidden", "-x\0"]
)
def test_a_project_that_is_no_plain_name_is_refused(two: Two, project: str) -> None:
    asked = {"project_id": project, "exec": {"kind": "python", "code": "print(1)"}}
    answer = two.ask(two.anna, "POST", "", asked)
    assert answer.status == 422, answer.body
    assert answer.reason in ("invalid_session_id", "invalid_request", "invalid_name")


@pytest.mark.parametrize(
    "path",
    [
        "..%2f..%2f..%2fmeta.json",
        "%2e%2e/%2e%2e/stdout.txt",
        "../meta.json",
        "../../../../../etc/passwd",
        "/etc/passwd",
        "%2Fetc%2Fpasswd",
        "a.txt%00",
        "a.txt/",
        "./a.txt",
        "d//a.txt",
        "meta.json",
        "manifest.json",
        "stdout.txt",
        "%C0%AE%C0%AE/a.txt",
        "%FF",
        "a%E2%80%AE.txt",
        "%25",
        "x" * 5000,
        "",
    ],
)
def test_no_path_of_an_artifact_reaches_anything_else(two: Two, path: str) -> None:
    wire = two.service.connect()
    with wire:
        wire.sendall(
            f"GET /sandbox/execs/{two.exec_id}/artifacts/{path} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n"
            f"Authorization: Bearer {two.anna}\r\n\r\n".encode()
        )
        got = read_all(wire)
    assert got.startswith(b"HTTP/1.1 404 "), got[:300]
    assert b"application/problem+json" in got
    assert MARKER.encode() not in got
    assert path.encode() not in got.partition(b"\r\n\r\n")[2] or not path or len(path) < 3


@pytest.mark.parametrize("exec_id", ["%00", "..", "%2e%2e", "ex_%0d%0aX:%20y", "ev_1", "x" * 4000, "%FF"])
def test_no_crooked_id_gets_anything_but_not_found(two: Two, exec_id: str) -> None:
    for suffix in ("", "/events", "/artifacts", "/stdout"):
        answer = two.ask(two.anna, "GET", f"/{exec_id}{suffix}")
        assert answer.status == 404, answer.body
        assert "x" not in {name for name in answer.headers if name == "x"}


# --- bodies ---


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"", 422),
        (b"{", 422),
        (b"[]", 422),
        (b"null", 422),
        (b"1", 422),
        (b'"x"', 422),
        (b'{"exec": {}}', 422),
        (b'{"project_id": 7, "exec": {"kind": "python", "code": "1"}}', 422),
        (b'{"project_id": "p", "exec": {"kind": "python", "code": "1"}, "wait": "yes"}', 422),
        (b'{"project_id": "p", "exec": {"kind": "python", "code": "1"}, "policy_overrides": {"timeout_ms": NaN}}', 422),
        (
            b'{"project_id": "p", "exec": {"kind": "python", "code": "1"}, "policy_overrides": {"timeout_ms": 1e999}}',
            422,
        ),
        (b'{"project_id": "p", "exec": {"kind": "python", "code": "1"}, "policy_overrides": {"timeout_ms": -1}}', 422),
        (b'{"project_id": "p", "exec": {"kind": "python", "code": "1"}, "policy_overrides": {"pids": true}}', 422),
        (b'{"project_id": "p", "exec": {"kind": "python", "code": "\\ud800"}}', 422),
        (b'{"project_id": "p", "exec": {"kind": "python", "code": "1", "env": {"A": 1}}}', 422),
        (b'{"project_id": "p", "exec": {"kind": "python", "code": "1"}, "task_ref": "a\\nb"}', 422),
        (b"\xff\xfe", 422),
        (b'{"a":' * 5000, 422),
        (b"[" * 100_000, 422),
    ],
)
def test_a_crooked_body_is_a_problem_and_nothing_runs(two: Two, body: bytes, status: int) -> None:
    before = two.ask(two.anna, "GET", "?limit=1").json["items"]
    answer = two.ask(two.anna, "POST", "", body, {"Content-Type": "application/json"})
    assert answer.status == status, answer.body
    assert answer.headers["content-type"] == "application/problem+json"
    assert two.ask(two.anna, "GET", "?limit=1").json["items"] == before


def test_of_two_idempotency_keys_none_is_chosen_and_nothing_runs(two: Two) -> None:
    raw = json.dumps({"project_id": "p", "exec": {"kind": "python", "code": "print(1)"}}).encode()
    before = two.ask(two.anna, "GET", "?limit=1").json["items"]
    answer = two.service.say(
        b"POST /sandbox/execs HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n"
        + f"Content-Type: application/json\r\nAuthorization: Bearer {two.anna}\r\n".encode()
        + f"Content-Length: {len(raw)}\r\nIdempotency-Key: one\r\nIdempotency-Key: other\r\n\r\n".encode()
        + raw
    )
    assert (answer.status, answer.reason) == (422, "invalid_name")
    assert two.ask(two.anna, "GET", "?limit=1").json["items"] == before


@pytest.mark.parametrize("key", ["x" * 256, "é", " ", "a\tb"])
def test_a_crooked_idempotency_key_is_refused_or_none(two: Two, key: str) -> None:
    asked = {"project_id": "p", "exec": {"kind": "python", "code": "print(1)"}}
    raw = json.dumps(asked).encode()
    with two.service.connect() as wire:
        wire.sendall(
            b"POST /sandbox/execs HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n"
            + f"Content-Type: application/json\r\nAuthorization: Bearer {two.anna}\r\n".encode()
            + f"Content-Length: {len(raw)}\r\n".encode()
            + b"Idempotency-Key: "
            + key.encode()
            + b"\r\n\r\n"
            + raw
        )
        got = read_all(wire)
    assert got.split(b" ", 2)[1] in (b"422", b"400", b"201"), got[:200]
    assert b"500" not in got[:20]


def test_what_a_guest_writes_cannot_forge_an_event(two: Two) -> None:
    code = r"print('x\n\nid: 99\nevent: result\ndata: {\"status\": \"forged\"}\n\n', flush=True)"
    asked = {"project_id": "p", "exec": {"kind": "python", "code": code}}
    exec_id = two.ask(two.anna, "POST", "", asked).json["exec_id"]
    body = two.ask(two.anna, "GET", f"/{exec_id}/events").body
    assert b'\ndata: {"status": "forged"}' not in body
    assert body.count(b"\nevent: result\n") == 1


# --- crowds ---


def test_a_crowd_beyond_the_line_gets_429_with_its_scope_and_leaves_no_box(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text(
        "[server]\nqueue_size = 2\n[sandbox]\nmax_concurrent_execs = 1\nmax_concurrent_per_user = 1\n"
    )
    with serving(tmp_path) as service:
        two_keys = service.make_key("agent", "acme"), service.make_key("agent", "other")
        asked = {"project_id": "p", "exec": {"kind": "python", "code": "import time; time.sleep(1)"}, "wait": False}
        answers = [service.ask("POST", "/sandbox/execs", asked, key=two_keys[0]) for _ in range(6)]
        refused = [answer for answer in answers if answer.status == 429]
        assert len(refused) >= 2
        for answer in refused:
            assert answer.reason == "queue_full"
            assert answer.json["retryable"] is True
            assert answer.json["details"]["scope"] in ("tenant", "user")
            assert int(answer.headers["retry-after"]) >= 1
        quick = {"project_id": "p", "exec": {"kind": "python", "code": "print(1)"}}
        other = service.ask("POST", "/sandbox/execs", quick, key=two_keys[1])
        assert other.status == 201, other.body
        listed = service.ask("GET", "/sandbox/execs?limit=200", key=two_keys[0]).json["items"]
        assert len(listed) == len(answers) - len(refused)


def test_many_who_hang_up_in_line_leave_nothing_running(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text("[sandbox]\nmax_concurrent_execs = 1\n")
    with serving(tmp_path) as service:
        slow = {"project_id": "p", "exec": {"kind": "python", "code": "import time; time.sleep(1)"}, "wait": False}
        assert service.ask("POST", "/sandbox/execs", slow).status == 202
        body = json.dumps({"project_id": "p", "exec": {"kind": "python", "code": "print(1)"}, "task_ref": "left"})

        def hang_up(_: int) -> None:
            with service.connect() as wire:
                # reset, not closed: one half of a connection may be closed by somebody who still wants his answer
                wire.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                wire.sendall(
                    b"POST /sandbox/execs HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
                    + f"Authorization: Bearer {service.key}\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode()
                )
                while not service.ask("GET", "/sandbox/execs?task_id=left").json["items"]:
                    pass

        with ThreadPoolExecutor(2) as pool:
            list(pool.map(hang_up, range(4)))
        assert service.ask("POST", "/sandbox/execs", {**slow, "wait": True}).status == 201
        assert service.ask("GET", "/sandbox/execs?task_id=left&status=succeeded").json["items"] == []


def read_all(wire: socket.socket) -> bytes:
    got = bytearray()
    while chunk := wire.recv(65536):
        got += chunk
    return bytes(got)
