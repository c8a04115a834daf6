"""Processes as callers of a service have them: over HTTP, by events, by websocket, and their ports through a proxy."""

from __future__ import annotations

import base64
import http.client
import json
import signal
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.command_line import ringfence
from tests.http_service import Answer, Service, serving
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection, connect

pytestmark = [pytest.mark.needs("native"), pytest.mark.timeout(120)]

POLICY = "policies: {tools: {shell_exec: {open_ports: [8000, 8001]}}}\n"
WAITS = "GET {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {key}\r\n\r\n"


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    home = tmp_path_factory.mktemp("home")
    policy = home / "policy.yaml"
    policy.write_text(POLICY)
    with serving(home, "--policy", str(policy)) as running:
        yield running


@pytest.fixture(scope="module")
def other(service: Service) -> str:
    """The key of another tenant."""
    return service.make_key("agent", "other")


def started(service: Service, command: str, *, code: int = 201, key: str | None = "first", **more: Any) -> Any:
    body = {"ephemeral": True, "exec": {"kind": "shell", "code": command}, **more}
    answer = service.ask("POST", "/sandbox/processes", body, key=key)
    assert answer.status == code, answer.body
    return answer.json if code == 201 else answer.reason


def place(process: Any) -> str:
    return f"/sandbox/processes/{process['process_id']}"


def heard(service: Service, process: Any, words: bytes) -> bytes:
    """Poll until `words` were said."""
    seen, offset = b"", 0
    while words not in seen:
        answer = service.ask("GET", f"{place(process)}?stdout_offset={offset}&wait_ms=20000").json
        piece = answer["stdout"]
        seen, offset = seen + base64.b64decode(piece["data_b64"]), piece["next_offset"]
        assert answer["state"] == "running" or piece["data_b64"], (answer, seen)
    return seen


def test_a_process_is_started_polled_fed_and_ends(service: Service) -> None:
    process = started(service, "echo ready; while read line; do echo got $line; done; exit 3", wait_ms=20_000)
    assert (process["state"], process["stdout"]["text"]) == ("running", "ready\n")
    assert service.ask("POST", f"{place(process)}/stdin", {"data": "one\n"}).status == 200
    heard(service, process, b"got one\n")
    more = {"data_b64": base64.b64encode(b"two\n").decode(), "end": True}
    assert service.ask("POST", f"{place(process)}/stdin", more).status == 200
    heard(service, process, b"got two\n")
    over = service.ask("GET", f"{place(process)}?stdout_offset=6&wait_ms=20000").json
    while over["state"] == "running":
        over = service.ask("GET", f"{place(process)}?stdout_offset=22&wait_ms=20000").json
    assert (over["state"], over["exit_code"]) == ("failed", 3)
    late = service.ask("POST", f"{place(process)}/stdin", {"data": "x"})
    assert (late.status, late.reason) == (409, "process_ended")
    assert process["process_id"] in [
        each["process_id"] for each in service.ask("GET", "/sandbox/processes").json["items"]
    ]


def test_killing_ends_it_and_asking_again_changes_nothing(service: Service) -> None:
    process = started(service, "sleep 1000")
    for _ in range(2):
        answer = service.ask("POST", f"{place(process)}/kill", {})
        assert (answer.status, answer.json["state"], answer.json["killed_by"]) == (200, "cancelled", "cancelled")


def test_events_tell_everything_and_go_on_from_where_one_left_off(service: Service) -> None:
    process = started(service, "echo one; echo two >&2; echo three; exit 4", wait_ms=20_000)
    told = list(events(service.ask("GET", f"{place(process)}/stream")))
    said = {"stdout": "", "stderr": ""}
    for _, name, data in told:
        if name == "output":
            said[data["stream"]] += data["text"]
    assert said == {"stdout": "one\nthree\n", "stderr": "two\n"}
    assert (told[-1][1], told[-1][2]["exit_code"]) == ("ended", 4)
    again = list(events(service.ask("GET", f"{place(process)}/stream", headers={"Last-Event-ID": "4-4"})))
    assert [(name, data.get("text")) for _, name, data in again] == [("output", "three\n"), ("ended", None)]
    nonsense = service.ask("GET", f"{place(process)}/stream", headers={"Last-Event-ID": "x"})
    assert (nonsense.status, nonsense.reason) == (422, "invalid_value")


def events(answer: Answer) -> Iterator[tuple[str, str, Any]]:
    assert answer.headers["content-type"].startswith("text/event-stream")
    for block in answer.body.decode().split("\n\n"):
        fields = dict(line.split(": ", 1) for line in block.splitlines() if ": " in line and not line.startswith(":"))
        if "event" in fields:
            yield fields["id"], fields["event"], json.loads(fields["data"])


def test_a_process_goes_on_when_whoever_follows_it_leaves(service: Service) -> None:
    process = started(service, "read line; echo still $line")
    with service.connect() as wire:
        wire.sendall(WAITS.format(path=f"{place(process)}/stream", key=service.key).encode())
        assert wire.recv(4096).startswith(b"HTTP/1.1 200")
    service.ask("POST", f"{place(process)}/stdin", {"data": "here\n"})
    heard(service, process, b"still here\n")


def test_a_terminal_is_resized_interrupted_and_typed_into(service: Service) -> None:
    shell = "PS1='$ ' bash --norc --noediting -i"
    process = started(service, shell, terminal={"rows": 24, "columns": 80})
    heard(service, process, b"$ ")
    resized = service.ask("POST", f"{place(process)}/resize", {"rows": 30, "columns": 100})
    assert resized.json["terminal"] == {"rows": 30, "columns": 100}
    # it says so itself once it is in the foreground: between two programs ^C reaches nobody, as on every terminal
    line = "stty size; sh -c 'echo up-$((20+2)); exec sleep 1000'\n"
    service.ask("POST", f"{place(process)}/stdin", {"data": line})
    assert b"30 100" in heard(service, process, b"up-22")
    service.ask("POST", f"{place(process)}/signal", {"signal": "INT"})
    service.ask("POST", f"{place(process)}/stdin", {"data": "echo back-$((20+22))\n"})
    heard(service, process, b"back-42")
    service.ask("POST", f"{place(process)}/kill", {})


@pytest.mark.parametrize("how", ["header", "subprotocol"])
def test_a_websocket_shows_a_terminal_and_types_into_it(service: Service, how: str) -> None:
    process = started(service, "PS1='$ ' bash --norc --noediting -i", terminal={"rows": 24, "columns": 80})
    with opened(service, process, how) as wire:
        shown = b""
        wire.send(json.dumps({"type": "resize", "rows": 11, "columns": 22}))
        wire.send(b"stty size; exit 6\n")
        ended = None
        while ended is None:
            message = wire.recv(timeout=30)
            if isinstance(message, bytes):
                shown += message
            else:
                ended = json.loads(message)
        assert b"11 22" in shown
        assert (ended["type"], ended["exit_code"]) == ("ended", 6)


def opened(service: Service, process: Any, how: str = "header", **more: Any) -> ClientConnection:
    address = f"ws://127.0.0.1:{service.port}{place(process)}/tty"
    if how == "header":
        known: ClientConnection = connect(
            address, additional_headers={"Authorization": f"Bearer {service.key}"}, **more
        )
        return known
    names: Any = ["ringfence.tty", f"ringfence.bearer.{service.key}"]
    wire: ClientConnection = connect(address, subprotocols=names, **more)
    assert wire.subprotocol == "ringfence.tty"
    return wire


def test_a_websocket_is_refused_to_strangers_and_to_pages_of_other_sites(service: Service, other: str) -> None:
    process = started(service, "sleep 100", terminal={"rows": 24, "columns": 80})
    address = f"ws://127.0.0.1:{service.port}{place(process)}/tty"
    with pytest.raises(InvalidStatus) as nobody:
        connect(address)
    assert nobody.value.response.status_code == 401
    answers = []
    for name in (address, address.replace(process["process_id"], "pr_unknown")):
        with pytest.raises(InvalidStatus) as stranger:
            connect(name, additional_headers={"Authorization": f"Bearer {other}"})
        answers.append((stranger.value.response.status_code, stranger.value.response.body))
    assert answers[0] == answers[1]
    assert answers[0][0] == 404
    with pytest.raises(InvalidStatus) as page:
        opened(service, process, origin="https://evil.example")
    assert page.value.response.status_code == 403
    with opened(service, process, origin=f"http://127.0.0.1:{service.port}"):
        pass
    service.ask("POST", f"{place(process)}/kill", {})


@pytest.mark.parametrize(
    "words",
    [
        "nonsense",
        "[]",
        '{"type": "resize"}',
        '{"type": "resize", "rows": -1, "columns": 1}',
        '{"type": "resize", "rows": 9, "rows": 10, "columns": 10}',
    ],
)
def test_a_websocket_that_talks_nonsense_is_closed_and_the_process_goes_on(service: Service, words: str) -> None:
    process = started(service, "cat", terminal={"rows": 24, "columns": 80})
    with opened(service, process) as wire:
        wire.send(words)
        with pytest.raises(ConnectionClosed) as closed:
            shown_until_closed(wire)
    assert closed.value.rcvd is not None
    assert closed.value.rcvd.code == 1008
    assert service.ask("GET", place(process)).json["state"] == "running"
    service.ask("POST", f"{place(process)}/kill", {})


def shown_until_closed(wire: ClientConnection) -> None:
    while True:
        wire.recv(timeout=30)


def test_another_tenants_process_is_answered_like_one_that_is_not_there(service: Service, other: str) -> None:
    process = started(service, "sleep 100", ports=[8000])
    unknown = "/sandbox/processes/pr_unknown"
    for method, rest, body in (
        ("GET", "", None),
        ("GET", "/stream", None),
        ("POST", "/stdin", {"data": "x"}),
        ("POST", "/resize", {"rows": 1, "columns": 1}),
        ("POST", "/signal", {"signal": "INT"}),
        ("POST", "/kill", {}),
        ("GET", "/ports/8000/", None),
    ):
        mine, none = (service.ask(method, path + rest, body, key=other) for path in (place(process), unknown))
        assert (mine.status, mine.body) == (none.status, none.body)
        assert mine.status == 404
    assert service.ask("GET", "/sandbox/processes", key=other).json == {"items": []}
    service.ask("POST", f"{place(process)}/kill", {})


def test_an_operator_sees_and_ends_processes_and_does_not_hear_them(service: Service) -> None:
    operator = service.make_key("operator")
    process = started(service, "sleep 100")
    seen = service.ask("GET", "/sandbox/processes", key=operator)
    assert process["process_id"] in [each["process_id"] for each in seen.json["items"]]
    assert service.ask("GET", place(process), key=operator).status == 403
    assert service.ask("POST", f"{place(process)}/stdin", {"data": "x"}, key=operator).status == 403
    assert service.ask("POST", f"{place(process)}/kill", {}, key=operator).json["state"] == "cancelled"


HOSTILE = """
import http.server, json
class Guest(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        if self.path.startswith('/away'):
            self.send_response(302)
            self.send_header('Location', self.headers['X-To'])
            self.end_headers()
            return
        body = json.dumps({'path': self.path, 'headers': {k.lower(): v for k, v in self.headers.items()}}).encode()
        self.send_response(200)
        for name, value in (('Set-Cookie', 'session=stolen'), ('Content-Security-Policy', "default-src *"),
                            ('Access-Control-Allow-Origin', '*'), ('Service-Worker-Allowed', '/'),
                            ('Clear-Site-Data', '"*"'), ('Content-Type', 'application/json'), ('X-Own', 'kept')):
            self.send_header(name, value)
        self.send_header('Content-Length', str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    do_POST = do_GET
print('up', flush=True)
http.server.HTTPServer(('127.0.0.1', 8000), Guest).serve_forever()
"""


def test_a_server_in_a_box_is_shown_as_a_stranger(service: Service) -> None:
    process = started(
        service, "exec python3 server.py", ports=[8000], files=[{"path": "server.py", "content": HOSTILE}]
    )
    heard(service, process, b"up\n")
    asked = {"Cookie": "session=mine", "X-Forwarded-For": "1.2.3.4", "X-Mine": "told", "Proxy-Authorization": "x"}
    answer = service.ask("GET", f"{place(process)}/ports/8000/a%2Fb/../c?q=1&r=%20", headers=asked)
    assert answer.status == 200
    assert answer.json["path"] == "/a%2Fb/../c?q=1&r=%20"
    told = answer.json["headers"]
    assert (told["x-mine"], told["host"]) == ("told", "localhost:8000")
    assert not {"authorization", "cookie", "x-forwarded-for", "proxy-authorization"} & told.keys()
    assert service.key is not None
    assert service.key not in answer.body.decode()
    assert answer.headers["content-security-policy"] == "sandbox allow-scripts allow-forms"
    assert answer.headers["x-own"] == "kept"
    kept = answer.headers.keys()
    assert not {"set-cookie", "access-control-allow-origin", "service-worker-allowed", "clear-site-data"} & kept
    root = f"{place(process)}/ports/8000"
    for to, seen in (
        ("/in", f"{root}/in"),
        ("http://localhost:8000/in", f"{root}/in"),
        ("in", "in"),
        ("//evil.example", None),
        ("https://evil.example", None),
        ("/../../../keys", None),
        ("javascript:alert(1)", None),
    ):
        away = service.ask("GET", f"{root}/away", headers={"X-To": to})
        assert (away.status, away.headers.get("location")) == (302, seen), to
    undeclared = service.ask("GET", f"{place(process)}/ports/8001/")
    assert (undeclared.status, undeclared.reason) == (403, "port")
    for nonsense in ("0", "70000", "x", "-1"):
        assert service.ask("GET", f"{place(process)}/ports/{nonsense}/").status in (403, 404, 422)
    service.ask("POST", f"{place(process)}/kill", {})
    gone = service.ask("GET", f"{root}/")
    assert (gone.status, gone.reason) == (409, "process_ended")


def test_what_speaks_no_http_or_says_nothing_is_a_problem_and_not_a_hang(service: Service) -> None:
    code = (
        "import socket\ns = socket.create_server(('127.0.0.1', 8000))\nprint('up', flush=True)\n"
        "while True:\n    c, _ = s.accept()\n    c.recv(100)\n"
        "    c.sendall(b'SSH-2.0-nonsense\\r\\n' * 9)\n    c.close()\n"
    )
    process = started(service, "exec python3 s.py", ports=[8000, 8001], files=[{"path": "s.py", "content": code}])
    heard(service, process, b"up\n")
    for port in (8000, 8001):
        answer = service.ask("GET", f"{place(process)}/ports/{port}/")
        assert (answer.status, answer.reason) == (503, "connect_failed")
    service.ask("POST", f"{place(process)}/kill", {})


def test_a_port_that_no_policy_opens_starts_nothing(service: Service) -> None:
    assert started(service, "sleep 100", code=403, ports=[22]) == "port"


def test_a_malformed_request_changes_nothing(service: Service) -> None:
    before = len(service.ask("GET", "/sandbox/processes").json["items"])
    good = {"ephemeral": True, "exec": {"kind": "shell", "code": "true"}}
    for wrong in (
        {},
        {**good, "terminal": {"rows": 0, "columns": 80}},
        {**good, "terminal": [24, 80]},
        {**good, "ports": ["8000"]},
        {**good, "ports": [8000] * 17},
        {**good, "idle_timeout_ms": -1},
        {**good, "wait_ms": 10**9},
        {**good, "unknown": 1},
        {**good, "exec": {"kind": "shell"}},
    ):
        assert 400 <= service.ask("POST", "/sandbox/processes", wrong).status < 500
    process = started(service, "sleep 100")
    for path, body in (
        ("stdin", {"data": "x", "data_b64": "eA=="}),
        ("stdin", {"data_b64": "!"}),
        ("stdin", {"data": "x" * (1 << 19)}),
        ("signal", {"signal": "KILL"}),
        ("resize", {"rows": 1, "columns": 1}),
    ):
        assert service.ask("POST", f"{place(process)}/{path}", body).status in (409, 422)
    assert service.ask("GET", f"{place(process)}?stdout_offset=-1").status == 422
    service.ask("POST", f"{place(process)}/kill", {})
    assert len(service.ask("GET", "/sandbox/processes").json["items"]) <= before + 1


def test_the_service_ends_its_processes_and_says_so(tmp_path: Path) -> None:
    with serving(tmp_path) as service:
        process = started(service, "trap '' TERM; sleep 1000")
        with socket.socket(socket.AF_UNIX) as owner:
            owner.connect(str(tmp_path / "service.sock"))
        assert service.end() == 0
    with serving(tmp_path) as service:
        told = service.ask_socket("GET", f"/sandbox/execs/{process['exec_id']}").json
        assert told["status"] == "cancelled"
        assert service.ask_socket("GET", place(process)).status == 404


def test_an_interpreter_takes_cells_and_keeps_what_they_defined(service: Service, other: str) -> None:
    body = {"ephemeral": True, "interpreter": "python", "exec": {"kind": "python", "env": {"GREETING": "hi"}}}
    answer = service.ask("POST", "/sandbox/processes", body)
    assert answer.status == 201, answer.body
    cells = f"{place(answer.json)}/cells"
    assert service.ask("POST", cells, {"code": "import os; x = 40"}).json["status"] == "succeeded"
    second = service.ask("POST", cells, {"code": "print(os.environ['GREETING']); x + 2", "timeout_ms": 20_000}).json
    assert (second["status"], second["stdout"], second["value"]) == ("succeeded", "hi\n", "42")
    assert service.ask("POST", cells, {"code": "1"}, key=other).status == 404
    assert service.ask("POST", f"{place(answer.json)}/kill", {}).status == 200
    assert service.ask("POST", cells, {"code": "1"}).status == 409
    for wrong in (
        {"ephemeral": True, "interpreter": "perl"},
        {"ephemeral": True, "interpreter": "python", "exec": {"kind": "python", "code": "1"}},
        {"ephemeral": True, "interpreter": "python", "terminal": {"rows": 1, "columns": 1}},
        {"ephemeral": True},
    ):
        assert service.ask("POST", "/sandbox/processes", wrong).status in (409, 422)
    plain = started(service, "sleep 100")
    assert service.ask("POST", f"{place(plain)}/cells", {"code": "1"}).status in (409, 422)
    service.ask("POST", f"{place(plain)}/kill", {})


def test_after_the_service_is_killed_its_processes_are_gone_and_their_runs_have_ended(tmp_path: Path) -> None:
    policy = tmp_path / "policy.yaml"
    policy.write_text(POLICY)
    home = tmp_path / "home"
    with serving(home, "--policy", str(policy)) as service:
        process = started(service, "exec python3 -u -m http.server 8000", ports=[8000])
        heard(service, process, b"Serving")
        assert service.ask("GET", f"{place(process)}/ports/8000/").status == 200
        service.end(signal.SIGKILL)
    with serving(home) as service:
        told = service.ask_socket("GET", f"/sandbox/execs/{process['exec_id']}").json
        assert (told["status"], told["reason"]) == ("error", "orphaned")
        assert service.ask_socket("GET", "/sandbox/processes").json == {"items": []}
        run = {"ephemeral": True, "exec": {"kind": "shell", "code": "true"}}
        assert service.ask_socket("POST", "/sandbox/execs", run).status == 201
        assert service.end() == 0
    verified = ringfence(home, "evidence", "verify")
    assert verified.returncode == 0, verified.stderr


ENDLESS = """
import socket
s = socket.create_server(('127.0.0.1', 8000))
print('up', flush=True)
while True:
    c, _ = s.accept()
    path = c.recv(65536).split(b' ')[1]
    try:
        if path == b'/head':
            c.sendall(b'HTTP/1.1 200 OK\\r\\n')
            while True:
                c.sendall(b'X-Again: ' + b'a' * 1000 + b'\\r\\n')
        elif path == b'/body':
            c.sendall(b'HTTP/1.1 200 OK\\r\\nContent-Type: text/plain\\r\\n\\r\\n')
            while True:
                c.sendall(b'b' * 65536)
        elif path == b'/both':
            c.sendall(b'HTTP/1.1 200 OK\\r\\nContent-Length: 3\\r\\nTransfer-Encoding: chunked\\r\\n\\r\\n')
            c.sendall(b'0\\r\\n\\r\\nHTTP/1.1 200 OK')
        elif path == b'/split':
            c.sendall(b'HTTP/1.1 200 OK\\r\\nX-A: b\\rSet-Cookie: a=b\\r\\nContent-Length: 0\\r\\n\\r\\n')
        elif path == b'/upgrade':
            c.sendall(b'HTTP/1.1 101 Switching Protocols\\r\\nUpgrade: websocket\\r\\nConnection: Upgrade\\r\\n\\r\\n')
    except OSError:
        pass
    c.close()
"""


def test_a_server_that_never_ends_or_breaks_the_rules_costs_nobody_else_anything(service: Service) -> None:
    files = [{"path": "s.py", "content": ENDLESS}]
    process = started(service, "exec python3 s.py", ports=[8000], files=files)
    heard(service, process, b"up\n")
    root = f"{place(process)}/ports/8000"
    head = service.ask("GET", f"{root}/head")
    assert (head.status, head.reason) == (503, "connect_failed")
    with pytest.raises(http.client.IncompleteRead) as cut:
        service.ask("GET", f"{root}/body")
    assert len(cut.value.partial) <= 64 * 1024 * 1024
    assert service.ask("GET", f"{root}/upgrade").status == 503
    for path in ("both", "split"):
        answer = service.ask("GET", f"{root}/{path}")
        assert "set-cookie" not in answer.headers
        assert answer.status == 503 or answer.body == b""
    assert service.ask("GET", "/sandbox/health", key=None).status == 200
    service.ask("POST", f"{place(process)}/kill", {})
