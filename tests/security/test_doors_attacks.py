"""Attacks on the doors by somebody who has a key: to leave his box, his tenant, his project, or his share."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import select
import socket
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import uvicorn
from starlette.types import Receive, Scope, Send
from tests.http_service import Service, read_answer, serving
from uvicorn.server import ServerState
from websockets.frames import Frame, Opcode

from ringfence import SandboxManager, Status
from ringfence.authority.caller import Caller
from ringfence.errors import CapabilityBlocked
from ringfence.interfaces.http.websocket import Websocket


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    home = tmp_path_factory.mktemp("attacks")
    (home / "policy.yaml").write_text("policies: {tools: {code_run: {open_ports: [8000]}}}\n")
    with serving(home, "--policy", str(home / "policy.yaml")) as running:
        yield running


@pytest.fixture(scope="module")
def agent(service: Service) -> str:
    return service.make_key("agent", "acme", "mallory")


@pytest.fixture(scope="module")
def neighbour(service: Service) -> str:
    return service.make_key("agent", "beta", "bob")


def run_of(code: str, kind: str = "shell", **members: object) -> dict[str, object]:
    return {"ephemeral": True, "exec": {"kind": kind, "code": code}, **members}


@pytest.mark.guarantee(2)
@pytest.mark.parametrize("path", ["/sandbox/execs", "/sandbox/processes"])
def test_an_agent_cannot_have_a_package_imported_in_front_of_the_boxes(service: Service, agent: str, path: str) -> None:
    asked = {"ephemeral": True, "exec": {"kind": "python", "code": "pass", "preload": ["this"]}}
    answer = service.ask("POST", path, asked, key=agent)
    assert (answer.status, answer.reason) == (403, "access")


@pytest.mark.guarantee(16)
@pytest.mark.parametrize("way", ["reset", "restore without it", "restore another", "restore its mode"])
async def test_no_way_back_changes_what_nobody_may_change(tmp_path: Path, way: str) -> None:
    (tmp_path / "held.yaml").write_text("policies: {default: {denied_changes: ['.git/**']}}\n")
    (tmp_path / "open.yaml").write_text("policies: {}\n")
    earlier = {"restore without it": "true", "restore another": "mkdir .git; echo evil > .git/config"}
    before = earlier.get(way, "mkdir .git; echo good > .git/config; chmod 755 .git/config")
    async with SandboxManager("p", home=tmp_path / "home", policy_file=tmp_path / "open.yaml", pool_size=1) as free:
        assert (await free.execute_shell(before)).success
        kept = await free.workspace.snapshot("earlier")
        assert (await free.execute_shell("rm -rf .git; mkdir .git; echo good > .git/config; touch more")).success
    work = tmp_path / "home/workspace/projects/p/work"
    there = {path: path.lstat().st_mode for path in work.rglob("*")}
    async with SandboxManager("p", home=tmp_path / "home", policy_file=tmp_path / "held.yaml", pool_size=1) as held:
        with pytest.raises(CapabilityBlocked) as refused:
            await (held.workspace.reset() if way == "reset" else held.workspace.restore(kept["snapshot_id"]))
    assert refused.value.reason == "change_denied"
    assert {path: path.lstat().st_mode for path in work.rglob("*")} == there
    assert (work / ".git/config").read_text() == "good\n"


@pytest.mark.guarantee(16)
async def test_what_nobody_may_change_does_not_keep_the_rest_from_being_restored(tmp_path: Path) -> None:
    (tmp_path / "held.yaml").write_text("policies: {default: {denied_changes: ['.git/**']}}\n")
    (tmp_path / "open.yaml").write_text("policies: {}\n")
    async with SandboxManager("p", home=tmp_path / "home", policy_file=tmp_path / "open.yaml", pool_size=1) as free:
        assert (await free.execute_shell("mkdir .git; echo good > .git/config; ln -s config .git/in")).success
        kept = await free.workspace.snapshot("earlier")
        assert (await free.execute_shell("touch more")).success
    async with SandboxManager("p", home=tmp_path / "home", policy_file=tmp_path / "held.yaml", pool_size=1) as held:
        await held.workspace.restore(kept["snapshot_id"])
    assert not (tmp_path / "home/workspace/projects/p/work/more").exists()


FORGED = """
import os, struct, time
def say(*parts):
    for part in (struct.pack('>BI', 3, sum(map(len, parts))), *parts):
        rest = memoryview(part)
        while rest:
            rest = rest[os.write(4, rest):]
"""


@pytest.mark.guarantee(15)
async def test_a_forged_end_of_a_cell_does_not_become_a_million_objects_of_ours(tmp_path: Path) -> None:
    many = "say(b'{\"cell\": 1, \"x\": [', b'{},' * (1 << 20), b'{}]}')\ntime.sleep(60)"
    async with SandboxManager(home=tmp_path / "home", pool_size=1) as manager, manager.session() as session:
        result = await session.run(FORGED + many, timeout=30)
        assert not result.success
        assert "the session is over" in result.notes


@pytest.mark.guarantee(15)
async def test_what_a_forged_cell_shows_is_told_in_few_words(tmp_path: Path) -> None:
    shown = 'say(b\'{"cell": 1, "artifacts": [\', b\',\'.join([b\'{"name": "a", "b64": ""}\'] * 50000), b\']}\')'
    async with SandboxManager(home=tmp_path / "home", pool_size=1) as manager, manager.session() as session:
        result = await session.run(f"{FORGED}{shown}\ntime.sleep(60)", timeout=30)
        assert len(result.notes) < 100


@pytest.mark.guarantee(7)
async def test_a_cell_that_nobody_reads_ends_at_its_own_time(tmp_path: Path) -> None:
    deaf = "say(b'{\"cell\": 1}')\nwhile True:\n  try: time.sleep(60)\n  except BaseException: pass\n"
    async with SandboxManager(home=tmp_path / "home", pool_size=1) as manager, manager.session() as session:
        assert (await session.run(FORGED + deaf, timeout=30)).success  # its own word for it
        async with asyncio.timeout(30):
            result = await session.run("#" + "x" * 900_000, timeout=0.5)
        assert (result.status, result.killed_by) == (Status.TIMED_OUT, "wall_timeout")


@pytest.mark.needs("native")
@pytest.mark.guarantee(7)
def test_pongs_that_nobody_reads_do_not_pile_up(service: Service, agent: str) -> None:
    asked = run_of("sleep 100", terminal={"rows": 24, "columns": 80})
    process = service.ask("POST", "/sandbox/processes", asked, key=agent).json["process_id"]
    opening = (
        f"GET /sandbox/processes/{process}/tty HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {agent}\r\n"
        "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
        "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
    )
    ping = b"\x89\xfd" + bytes(4) + b"p" * 125  # masked, 125 bytes
    with service.connect() as wire:
        wire.sendall(opening.encode())
        assert b"101" in wire.recv(64)
        with pytest.raises(ConnectionError):  # and not a service that has read and answered all of them
            wire.sendall(ping * 8000 * 64)
    service.ask("POST", f"/sandbox/processes/{process}/kill", key=agent)


@pytest.mark.needs("native")
@pytest.mark.guarantee(7)
def test_whoever_opens_a_terminal_and_never_reads_it_is_cut_off(tmp_path: Path) -> None:
    """A ping that is not answered closes our half alone, which then waited for ever for its last bytes to be read."""
    with serving(tmp_path, RINGFENCE_SERVER_WRITE_SECONDS="1") as service, socket.socket() as wire:
        asked = run_of("yes | head -c 50000000; sleep 100", terminal={"rows": 24, "columns": 80})
        process = service.ask("POST", "/sandbox/processes", asked).json["process_id"]
        wire.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        wire.connect(("127.0.0.1", service.port))
        wire.sendall(
            f"GET /sandbox/processes/{process}/tty HTTP/1.1\r\nHost: localhost\r\n"
            f"Authorization: Bearer {service.key}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
            "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n".encode()
        )
        cut = select.poll()
        cut.register(wire, 0)
        assert [what & select.POLLHUP for _, what in cut.poll(30_000)] == [select.POLLHUP]


@pytest.mark.guarantee(7)
async def test_pieces_of_nothing_without_end_take_no_room() -> None:
    """A client can send a million of them in a breath, and no bound on the length of a message counts them."""
    config = uvicorn.Config(never, ws=Websocket, log_config=None)
    wire = Websocket(config, ServerState(), {})
    wire.read_paused = True  # there is no transport to pause
    wire.handle_bytes(Frame(Opcode.BINARY, b"a", fin=False))
    pieces = 20_000
    for _ in range(pieces):
        wire.handle_cont(Frame(Opcode.CONT, b"", fin=False))
    assert sum(map(sys.getsizeof, vars(wire).values())) < pieces
    wire.handle_cont(Frame(Opcode.CONT, b"b", fin=True))
    wire.handle_bytes(Frame(Opcode.BINARY, b"c", fin=True))
    said = [wire.queue.get_nowait() for _ in range(2)]
    assert said == [{"type": "websocket.receive", "bytes": b"ab"}, {"type": "websocket.receive", "bytes": b"c"}]


async def never(scope: Scope, receive: Receive, send: Send) -> None:
    raise AssertionError("nobody is asked anything here")


DEAF = "import socket, time; s = socket.socket(); s.bind(('127.0.0.1', 8000)); s.listen(0); print('up', flush=True)"


@pytest.mark.needs("native")
@pytest.mark.guarantee(7)
def test_a_guest_that_accepts_no_connection_keeps_nobody_else_waiting(
    service: Service, agent: str, neighbour: str
) -> None:
    asked = run_of(f"{DEAF}; time.sleep(600)", "python", ports=[8000], wait_ms=20_000)
    process = service.ask("POST", "/sandbox/processes", asked, key=agent).json["process_id"]
    with ThreadPoolExecutor(40) as callers:
        path = f"/sandbox/processes/{process}/ports/8000/"
        # the first few are held in the queue of the socket; whoever comes after them waits to be let in
        waiting = [callers.submit(service.ask, "GET", path, key=agent) for _ in range(40)]
        for _ in range(20):
            assert service.ask("GET", "/sandbox/execs", key=neighbour).status == 200
        answered = sum(each.done() for each in waiting)
        service.ask("POST", f"/sandbox/processes/{process}/kill", key=agent)
    assert answered == 0


@pytest.mark.guarantee(7)
async def test_a_tenant_whose_work_waits_keeps_no_other_tenant_waiting(tmp_path: Path) -> None:
    async with SandboxManager("p", home=tmp_path / "home", pool_size=1) as manager:
        slow = manager.acting_for(caller=Caller("acme", "mallory"))
        other = manager.acting_for(caller=Caller("beta", "bob"))
        await slow.workspace.write("a", "a")
        lock = tmp_path / "home/workspace/tenants/acme/projects/p/lock"
        with lock.open("r+") as held:
            fcntl.flock(held, fcntl.LOCK_EX)  # as a long restore has it
            waiting = [asyncio.ensure_future(slow.workspace.write(f"f{number}", "x")) for number in range(100)]
            end = asyncio.get_running_loop().call_later(30, fcntl.flock, held, fcntl.LOCK_UN)
            for number in range(50):
                await other.workspace.write(f"b{number}", "b")
            end.cancel()
            assert not any(each.done() for each in waiting)
            fcntl.flock(held, fcntl.LOCK_UN)
            await asyncio.gather(*waiting)


@pytest.mark.guarantee(7)
def test_what_waits_is_bounded_in_bytes_and_not_in_number_alone(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    with serving(tmp_path_factory.mktemp("heavy"), RINGFENCE_SANDBOX_MAX_CONCURRENT_EXECS="1") as service:
        agent, neighbour = service.make_key("agent", "acme"), service.make_key("agent", "beta")
        assert service.ask("POST", "/sandbox/execs", run_of("sleep 600", wait=False), key=agent).status == 202
        heavy = run_of("true", wait=False, inputs=[{"path": f"{n}", "content": "x" * (4 << 20)} for n in range(7)])
        answers = [service.ask("POST", "/sandbox/execs", heavy, key=agent) for _ in range(12)]
        assert {answer.status for answer in answers} == {202, 429}
        assert (answers[-1].reason, answers[-1].json["details"]["scope"]) == ("queue_full", "tenant")
        assert service.ask("POST", "/sandbox/execs", run_of("true", wait=False), key=agent).status == 202
        assert service.ask("POST", "/sandbox/execs", heavy, key=neighbour).status == 202


RUN = '{"project_id": "p", "exec": {"kind": "python", "code": "1"}, '


@pytest.mark.parametrize(
    "body",
    [
        RUN + ",".join(f'"k{n}": 0' for n in range(70_000)) + "}",
        RUN + '"inputs": [' + ",".join(["{}"] * 70_000) + "]}",
        RUN + '"inputs": [' + ",".join(['"\\""'] * 140_000) + "]}",
    ],
    ids=["keys", "objects", "texts"],
)
@pytest.mark.parametrize("path", ["/sandbox/execs", "/mcp"])
@pytest.mark.guarantee(7)
def test_a_body_of_nothing_but_mistakes_is_not_told_each_of_them(
    service: Service, agent: str, path: str, body: str
) -> None:
    # millions of them were a minute of everybody's time, and gigabytes
    answer = service.ask("POST", path, body.encode(), key=agent, headers={"Content-Type": "application/json"})
    assert (answer.status, answer.reason) == (413, "body_too_large"), answer.body
    assert "objects and keys" in answer.json["detail"]


@pytest.mark.guarantee(7)
def test_one_long_text_is_one_however_many_quotes_it_has(service: Service, agent: str) -> None:
    table = "\n".join(['"a","b\\"'] * 100_000)
    body = {
        "project_id": "p",
        "exec": {"kind": "shell", "code": "wc -l < /workspace/inputs/a"},
        "inputs": [{"path": "a", "content": table}],
    }
    assert service.ask("POST", "/sandbox/execs", body, key=agent).json["stdout"] == "99999\n"


@pytest.mark.guarantee(7)
def test_bodies_that_never_end_are_bounded_for_all_requests_of_a_tenant(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    with serving(tmp_path_factory.mktemp("bodies"), RINGFENCE_SERVER_MAX_BODY_BYTES="1048576") as service:
        agent, neighbour = service.make_key("agent", "acme"), service.make_key("agent", "beta")
        head = (
            f"POST /sandbox/execs HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {agent}\r\n"
            "Content-Type: application/json\r\nContent-Length: 1048576\r\n\r\n"
        ).encode()
        with contextlib.ExitStack() as open_ones:
            wires = [open_ones.enter_context(service.connect()) for _ in range(24)]
            for wire in wires:
                wire.sendall(head + b" " * 1_000_000)
            refused, _, _ = select.select(wires, [], [], 10)
            assert read_answer(refused[0]).reason == "queue_full"
            assert service.ask("POST", "/sandbox/execs", run_of("true"), key=neighbour).status == 201
        assert service.ask("POST", "/sandbox/execs", run_of("true"), key=agent).status == 201


PAGE = """
import http.server
class Page(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(302)
        for line in {lines!r}:
            self.send_header(*line)
        self.send_header('Content-Length', '0')
        self.end_headers()
print('up', flush=True)
http.server.HTTPServer(('127.0.0.1', 8000), Page).serve_forever()
"""
CLIMBING = ["/%2e%2e/%2E%2e/keys", "/.%2e/keys", ".\t./.\t./keys", "..%2fkeys", "a/../../keys", "//evil.example/"]


@pytest.mark.needs("native")
@pytest.mark.guarantee(13)
def test_a_page_of_a_guest_gives_no_orders_to_browsers_caches_or_proxies(service: Service, agent: str) -> None:
    orders = {
        "X-Accel-Redirect": "/internal/keys",
        "X-Sendfile": "/etc/shadow",
        "Cache-Control": "public, max-age=99999",
        "CDN-Cache-Control": "public",
        "Set-Cookie": "a=b",
        "Speculation-Rules": '"/x"',
        "Link": "</x>; rel=preload",
    }
    lines = [*orders.items(), *(("Location", where) for where in CLIMBING), ("Content-Type", "text/html")]
    asked = run_of(PAGE.format(lines=lines), "python", ports=[8000], wait_ms=20_000)
    process = service.ask("POST", "/sandbox/processes", asked, key=agent).json["process_id"]
    answer = service.ask("GET", f"/sandbox/processes/{process}/ports/8000/", key=agent)
    service.ask("POST", f"/sandbox/processes/{process}/kill", key=agent)
    assert (answer.status, answer.headers["content-type"]) == (302, "text/html")
    assert answer.headers["cache-control"] == "no-store"
    assert not {name.lower() for name in orders if name != "Cache-Control"} & answer.headers.keys()
    assert "location" not in answer.headers


@pytest.mark.guarantee(7)
def test_no_tenant_takes_every_connection_with_streams(tmp_path_factory: pytest.TempPathFactory) -> None:
    with serving(tmp_path_factory.mktemp("streams"), RINGFENCE_SERVER_MAX_CONNECTIONS="8") as service:
        agent, neighbour = service.make_key("agent", "acme"), service.make_key("agent", "beta")
        run = service.ask("POST", "/sandbox/execs", run_of("sleep 600", wait=False), key=agent).json["exec_id"]
        asking = f"GET /sandbox/execs/{run}/events HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {agent}\r\n\r\n"
        with contextlib.ExitStack() as open_ones:
            said = []
            for _ in range(6):
                wire = open_ones.enter_context(service.connect())
                wire.sendall(asking.encode())
                said.append(wire.recv(12))
                if b"200" not in said[-1]:
                    wire.close()
            assert said == [b"HTTP/1.1 200"] * 4 + [b"HTTP/1.1 503"] * 2
            assert service.ask("GET", "/sandbox/execs", key=neighbour).status == 200
