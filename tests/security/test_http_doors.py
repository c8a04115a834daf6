"""The HTTP door against callers who bring no key, the wrong one, or that of another tenant."""

from __future__ import annotations

import asyncio
import http.client
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from tests.command_line import told
from tests.http_service import Answer, Service, read_answer, serving
from tests.security.narrow_service import service as service

from ringfence import SandboxManager
from ringfence.authority.caller import Caller

pytestmark = [pytest.mark.guarantee(22), pytest.mark.once]


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
