"""The HTTP door against callers who bring no key, the wrong one, too much, too little, too slowly, or no HTTP."""

from __future__ import annotations

import asyncio
import http.client
import json
import re
import select
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest
from tests.command_line import told
from tests.http_service import Answer, Service, read_answer, serving

from ringfence import SandboxManager
from ringfence.authority.caller import Caller

pytestmark = [pytest.mark.guarantee(22), pytest.mark.once]

READ_SECONDS = 1.0
BODY_BYTES = 4096


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with serving(
        tmp_path_factory.mktemp("doors"),
        RINGFENCE_SERVER_READ_SECONDS=str(READ_SECONDS),
        RINGFENCE_SERVER_WRITE_SECONDS=str(READ_SECONDS),
        RINGFENCE_SERVER_MAX_BODY_BYTES=str(BODY_BYTES),
        RINGFENCE_SERVER_MAX_HEADER_BYTES="4096",
    ) as running:
        yield running


# --- keys ---


@pytest.mark.parametrize(
    "path", ["/keys", "/evidence", "/metrics", "/openapi.json", "/", "/nothing", "/docs", "/redoc"]
)
def test_without_a_key_every_path_but_health_answers_the_same(service: Service, path: str) -> None:
    answer = service.ask("GET", path, key=None)
    assert (answer.status, answer.reason) == (401, "no_key")
    assert answer.headers["www-authenticate"] == "Bearer"
    assert answer.body == service.ask("POST", "/sandbox/execs", key=None).body


def wrong_keys(key: str) -> list[str]:
    _, key_id, secret = key.split("_", 2)
    return [
        "",
        "x",
        "rfk_",
        key[:-1],
        key + "A",
        f"rfk_{key_id}_{secret[:-1]}{'A' if secret[-1] != 'A' else 'B'}",
        f"rfk_{'a' * 12}_{secret}",
        f"rfk_{key_id}_{'A' * 43}",
        key.upper(),
        f"{key}\x00".replace("\x00", "%00"),
        "rfk_" + "é".encode().decode("latin-1") * 20,
        "A" * 3000,
    ]


def test_every_wrong_key_gets_the_same_answer(service: Service) -> None:
    assert service.key is not None
    answers = {service.ask("GET", "/keys", key=key).body for key in wrong_keys(service.key)}
    assert len(answers) == 1
    for header in (f"Basic {service.key}", service.key, f"Bearer{service.key}", "Bearer", f"Token {service.key}"):
        answer = service.ask("GET", "/keys", key=None, headers={"Authorization": header})
        assert answer.reason == "no_key"


def test_of_two_keys_none_counts(service: Service) -> None:
    said = f"GET /keys HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {service.key}\r\n"
    said += "Authorization: Bearer x\r\nConnection: close\r\n\r\n"
    assert service.say(said.encode()).reason == "no_key"


def test_a_key_in_the_query_or_the_body_opens_nothing(service: Service) -> None:
    assert service.ask("GET", f"/keys?key={service.key}&access_token={service.key}", key=None).reason == "no_key"
    assert service.ask("POST", "/keys", {"access": "admin", "key": service.key}, key=None).reason == "no_key"


MATRIX = {
    ("GET", "/keys"): {"admin"},
    ("POST", "/keys"): {"admin"},
    ("DELETE", "/keys/aaaaaaaaaaaa"): {"admin"},
    ("POST", "/grants"): {"admin"},
    ("POST", "/grants/x/revoke"): {"admin"},
    ("GET", "/evidence"): {"admin", "auditor"},
    ("GET", "/evidence/verify"): {"admin", "auditor"},
    ("GET", "/evidence/export"): {"admin", "auditor"},
    ("GET", "/evidence/ex_1"): {"admin", "auditor"},
    ("GET", "/metrics"): {"admin", "auditor", "operator"},
    ("GET", "/sandbox/execs"): {"admin", "agent", "operator", "auditor"},
    ("POST", "/sandbox/execs"): {"admin", "agent"},
    ("POST", "/sandbox/execs/ex_1/cancel"): {"admin", "agent", "operator"},
    ("POST", "/sandbox/ops"): {"admin", "agent"},
    ("GET", "/sandbox/processes"): {"admin", "agent", "operator"},
    ("POST", "/sandbox/processes"): {"admin", "agent"},
    ("GET", "/sandbox/workspaces/p/files"): {"admin", "agent"},
    ("GET", "/skills"): {"admin", "agent"},
    ("POST", "/skills/shell.run/invoke"): {"admin", "agent"},
}


def test_nobody_is_made_an_admin_of_one_tenant_and_rules_over_all(service: Service) -> None:
    refused = service.ask("POST", "/keys", {"access": "admin", "tenant": "acme"})
    assert (refused.status, refused.reason) == (422, "invalid_name")
    assert "operators" in refused.json["fix"]
    assert service.ask("POST", "/keys", {"access": "admin"}).status == 201


@pytest.mark.parametrize("access", ["admin", "operator", "auditor", "agent"])
def test_an_access_reaches_what_is_its_own_and_nothing_else(service: Service, access: str) -> None:
    key = service.make_key(access)
    for (method, path), allowed in MATRIX.items():
        answer = service.ask(method, path, {} if method == "POST" else None, key=key)
        if access in allowed:
            assert answer.status not in (401, 403), (method, path)
        else:
            assert (answer.status, answer.reason) == (403, "access"), (method, path)


# --- tenants ---


@pytest.fixture(scope="module")
def ran(service: Service) -> dict[str, str]:
    """Run something for two tenants, and return the execution of each."""

    async def run() -> dict[str, str]:
        found = {}
        async with SandboxManager(home=service.home, pool_size=0) as manager:
            for tenant in ("acme", "globex"):
                acting = manager.acting_for(Caller(tenant, f"agent-of-{tenant}"))
                result = await acting.execute_code("python", "print(1)")
                assert result.exec_id is not None
                found[tenant] = result.exec_id
        return found

    return asyncio.run(run())


@pytest.mark.needs("native")
def test_evidence_of_another_tenant_is_as_if_there_were_none(service: Service, ran: dict[str, str]) -> None:
    key = service.make_key("auditor", "acme")
    listed = service.ask("GET", "/evidence", key=key).json
    assert [row["exec_id"] for row in listed["execs"]] == [ran["acme"]]
    assert b"globex" not in service.ask("GET", "/evidence?limit=500", key=key).body
    assert service.ask("GET", "/evidence?tenant=globex", key=key).body == (
        service.ask("GET", "/evidence?tenant=nobody", key=key).body
    )
    assert service.ask("GET", f"/evidence/{ran['acme']}", key=key).json["intact"] is True
    foreign = service.ask("GET", f"/evidence/{ran['globex']}", key=key)
    unknown = service.ask("GET", f"/evidence/{ran['globex'][:-4]}0000", key=key)
    assert foreign.status == 404
    assert _same(foreign, unknown)
    exported = service.ask("GET", f"/evidence/export?exec_id={ran['globex']}", key=key)
    assert _same(exported, service.ask("GET", "/evidence/export?exec_id=ex_0", key=key))
    assert b"globex" not in service.ask("GET", "/evidence/export?format=cloudevents", key=key).body
    assert service.ask("GET", "/evidence/export?format=log", key=key).status == 422


@pytest.mark.needs("native")
def test_an_execution_of_another_tenant_answers_like_one_that_never_was(service: Service) -> None:
    own, other = (service.make_key("agent", tenant) for tenant in ("initech", "hooli"))
    body = {"project_id": "p", "exec": {"kind": "python", "code": "open('/workspace/artifacts/a', 'w').write('x')"}}
    made = service.ask("POST", "/sandbox/execs", body | {"inputs": []}, key=own)
    assert made.status == 201, made.body
    exec_id = made.json["exec_id"]
    unknown = exec_id[:-6] + "000000"
    tries = [
        *(("GET", f"/sandbox/execs/{{}}{rest}") for rest in ("", "/artifacts", "/artifacts/a", "/stdout", "/events")),
        ("POST", "/sandbox/execs/{}/cancel"),
    ]
    for method, path in tries:
        assert service.ask(method, path.format(exec_id), key=own).status == 200, path
        foreign = service.ask(method, path.format(exec_id), key=other)
        assert foreign.status == 404, path
        assert _same(foreign, service.ask(method, path.format(unknown), key=other)), path
    assert exec_id.encode() not in service.ask("GET", "/sandbox/execs?limit=100", key=other).body
    assert exec_id.encode() in service.ask("GET", "/sandbox/execs?limit=100", key=own).body


@pytest.mark.needs("native")
def test_a_process_of_another_tenant_answers_like_one_that_never_was(service: Service) -> None:
    own, other = (service.make_key("agent", tenant) for tenant in ("initech", "hooli"))
    made = service.ask(
        "POST", "/sandbox/processes", {"project_id": "p", "exec": {"kind": "shell", "code": "cat"}}, key=own
    )
    assert made.status in (201, 202), made.body
    process_id = made.json["process_id"]
    unknown = process_id[:-6] + "000000"
    tries: list[tuple[str, str, Any]] = [
        ("GET", "/sandbox/processes/{}", None),
        ("GET", "/sandbox/processes/{}/stream", None),
        ("POST", "/sandbox/processes/{}/stdin", {"data": "x"}),
        ("POST", "/sandbox/processes/{}/kill", None),
    ]
    for method, path, body in tries:
        foreign = service.ask(method, path.format(process_id), body, key=other)
        assert foreign.status == 404, (path, foreign.body)
        assert _same(foreign, service.ask(method, path.format(unknown), body, key=other)), path
    assert process_id.encode() not in service.ask("GET", "/sandbox/processes", key=other).body
    assert service.ask("POST", f"/sandbox/processes/{process_id}/kill", key=own).status == 200


@pytest.mark.needs("native")
def test_a_stream_ends_soon_after_its_key_is_revoked(service: Service) -> None:
    made_key = told(service.home, "key", "create", "--access", "agent", "--tenant", "initech")
    code = "import time\nwhile True: print('more', flush=True); time.sleep(0.05)"
    body = {"project_id": "p", "exec": {"kind": "python", "code": code}, "inputs": [], "wait": False}
    mate = service.make_key("agent", "initech")  # whose run goes on: that of a void key is ended itself
    exec_id = service.ask("POST", "/sandbox/execs", body, key=mate).json["exec_id"]
    connection = http.client.HTTPConnection("127.0.0.1", service.port, timeout=30)
    headers = {"Authorization": f"Bearer {made_key['key']}"}
    connection.request("GET", f"/sandbox/execs/{exec_id}/events", headers=headers)
    events = connection.getresponse()
    assert events.readline()
    told(service.home, "key", "revoke", made_key["key_id"])
    while events.readline():  # to its end, which only the revocation brings about
        pass
    connection.close()
    assert service.ask("GET", f"/sandbox/execs/{exec_id}").json["status"] == "running"
    assert service.ask("POST", f"/sandbox/execs/{exec_id}/cancel").status == 200


@pytest.mark.needs("native")
def test_those_of_every_tenant_see_all_and_the_verdict_in_full(service: Service, ran: dict[str, str]) -> None:
    key = service.make_key("auditor", "*")
    seen = {row["exec_id"] for row in service.ask("GET", "/evidence", key=key).json["execs"]}
    assert set(ran.values()) <= seen
    full = service.ask("GET", "/evidence/verify", key=key).json
    assert (full["verdict"], full["faults"]) == ("proven", [])
    short = service.ask("GET", "/evidence/verify", key=service.make_key("auditor", "acme")).json
    assert short.keys() == {"verdict", "against"}


@pytest.mark.needs("native")
def test_no_tenant_keeps_another_from_having_the_evidence_verified(service: Service, ran: dict[str, str]) -> None:
    keys = [service.make_key("auditor", tenant=tenant) for tenant in ("acme", "globex")]
    with ThreadPoolExecutor(12) as crowd:
        told = list(crowd.map(lambda number: service.ask("GET", "/evidence/verify", key=keys[number % 2]), range(12)))
    assert {(answer.status, answer.json["verdict"]) for answer in told} == {(200, "proven")}
    assert {frozenset(answer.json) for answer in told} == {frozenset({"verdict", "against"})}


def test_metrics_of_a_tenant_hold_nothing_of_another(service: Service, ran: dict[str, str]) -> None:
    key = service.make_key("operator", "acme")
    own = service.ask("GET", "/metrics", key=key).body.decode()
    assert 'tenant="acme"' in own
    assert "globex" not in own
    assert "sandbox_pool_size{" not in own
    assert _executions(own) == 1
    assert _executions(service.ask("GET", "/metrics", key=key).body.decode()) == 1
    every = service.ask("GET", "/metrics").body.decode()
    assert 'tenant="globex"' in every
    assert 'sandbox_pool_size{status="idle"}' in every
    nobody = service.ask("GET", "/metrics", key=service.make_key("operator", "nobody")).body.decode()
    assert _executions(nobody) == 0
    assert "sandbox_cpu_ms 0\n" in nobody


def _executions(text: str) -> int:
    return sum(int(n) for n in re.findall(r"^sandbox_executions_total\{[^}]*\} (\d+)$", text, re.MULTILINE))


def _same(one: Answer, other: Answer) -> bool:
    varies = {"x-request-id", "date"}
    left, right = ({k: v for k, v in a.headers.items() if k not in varies} for a in (one, other))
    return (one.status, left, one.body) == (other.status, right, other.body)


@pytest.mark.needs("native")
def test_health_for_a_tenants_operator_does_not_tell_when_another_tenant_was_active(
    service: Service, ran: dict[str, str]
) -> None:
    assert ran
    seen = service.ask("GET", "/sandbox/health", key=service.make_key("operator", "nobody")).json
    assert not {"pool", "executions"} & seen.keys()
    (evidence,) = (check for check in seen["checks"] if check["name"] == "evidence")
    assert (evidence["status"], evidence["detail"]) == ("green", "records can be read")


def test_pages_follow_each_other_without_gap_or_repetition(service: Service, ran: dict[str, str]) -> None:
    key = service.make_key("auditor", "*")
    whole = [row["exec_id"] for row in service.ask("GET", "/evidence?limit=500", key=key).json["execs"]]
    seen, cursor = [], ""
    while True:
        page = service.ask("GET", f"/evidence?limit=1{cursor}", key=key).json
        seen += [row["exec_id"] for row in page["execs"]]
        if page["cursor"] is None:
            break
        cursor = f"&cursor={page['cursor']}"
    assert seen == whole


# --- what is no request ---


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


def head(service: Service, method: str = "POST", path: str = "/keys", *more: str) -> bytes:
    lines = [f"{method} {path} HTTP/1.1", "Host: localhost", f"Authorization: Bearer {service.key}", *more, "", ""]
    return "\r\n".join(lines).encode()


JSON = "Content-Type: application/json"


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


def test_a_cursor_beyond_every_number_is_no_cursor(service: Service) -> None:
    import base64

    for text in (f"{10**30} ex_1", "-5 ex_1", "1 a\0b", "1 'x"):
        cursor = base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")
        assert service.ask("GET", f"/evidence?cursor={cursor}").reason == "invalid_range"


# --- clients that are slow, or half gone ---


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


# --- browsers ---


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


# --- what it writes down ---


def test_no_key_body_or_query_is_in_what_the_service_says(tmp_path: Path) -> None:
    with serving(tmp_path) as service:
        key = service.make_key("auditor")
        service.ask("GET", "/evidence?task_id=qu3ry", key=key)
        service.ask("POST", "/keys", {"access": "agent", "name": "b0dy", "bad": 1})
        service.ask("POST", "/keys", b'{"b0dy"', headers={"Content-Type": "application/json"})
        service.say(b"n0nsense\r\n\r\n")
        service.end()
    text = "".join(service.said)
    for secret in (key, "qu3ry", "b0dy", "n0nsense"):
        assert secret not in text


def test_connections_beyond_the_most_are_told_to_come_back(tmp_path: Path) -> None:
    with serving(tmp_path, RINGFENCE_SERVER_MAX_CONNECTIONS="3") as service:
        held = [service.connect() for _ in range(3)]
        try:
            for wire in held:  # each is taken before the next comes
                wire.sendall(b"GET /sandbox/health HTTP/1.1\r\nHost: localhost\r\n\r\n")
                assert wire.recv(1)
            with service.connect() as late:
                answer = read_answer(late)
            assert (answer.status, answer.reason) == (503, "too_many_connections")
            assert answer.headers["retry-after"]
        finally:
            for wire in held:
                wire.close()


def test_grants_are_signed_and_revoked_over_http(service: Service) -> None:
    pytest.importorskip("biscuit_auth")
    assert service.ask("POST", "/grants", {"tool": "file_read", "call_id": "c1"}).reason == "no_signing_key"
    told(service.home, "key", "create")
    made = service.ask(
        "POST", "/grants", {"tool": "file_read", "call_id": "c1", "tenant": "acme", "budget": {"calls": 1}}
    )
    assert made.status == 201, made.body
    assert made.json["grant"]["tenant"] == "acme"
    shown = told(service.home, "grant", "inspect", made.json["token"])
    assert shown["good"] is True
    revoked = service.ask("POST", f"/grants/{made.json['grant_id']}/revoke", {"tenant": "acme"})
    assert revoked.status == 200
    assert told(service.home, "grant", "inspect", made.json["token"], code=3)["reason"] == "revoked"
    too_much = service.ask(
        "POST", "/grants", {"tool": "file_read", "call_id": "c1", "allow": ["net.http:GET:evil.example"]}
    )
    assert too_much.status in (403, 422)
