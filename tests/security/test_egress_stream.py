"""Attack: the way out of a container, which is connections in the one stream that carries everything else.

By the guest, who has connections to its init and nothing more; and by an init that is not ours any more.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests import container_engine
from tests.egress_lab import WEB, EgressLab, running_lab
from tests.stream_box import started
from tests.stream_scripts import Container, Script, parked

from ringfence.authority.profile import Isolation
from ringfence.capability.capabilities import Capabilities
from ringfence.capability.denials import PRIVATE_NETWORKS, Denials
from ringfence.capability.limits import Limits
from ringfence.capability.net import NetHttp
from ringfence.dataclass import replace
from ringfence.egress.proxy.ledger import Ledger
from ringfence.egress.proxy.proxy import Proxy
from ringfence.egress.proxy.rules import Rules
from ringfence.isolation.linux.metering import descendants
from ringfence.isolation.protocol import Kind, encode
from ringfence.isolation.stream import wire
from ringfence.isolation.stream.channels import CALLS, numbering
from ringfence.isolation.stream.host import StreamWorker
from ringfence.isolation.stream.way_out import WayOut
from ringfence.operation import Language
from ringfence.operation.target import METHODS
from ringfence.outcome import Network, OnOutput
from ringfence.ports import Ending, Job, Worker, WorkerSpec
from ringfence.wiring.box import make_backend
from ringfence.wiring.settings import Settings

pytestmark = [pytest.mark.guarantee(29, 32), pytest.mark.timeout(120)]

RULES = Rules(Capabilities([NetHttp(WEB, None, None, METHODS)]), Denials(networks=PRIVATE_NETWORKS))
Start = Callable[[], Worker]


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EgressLab]:
    with running_lab(tmp_path_factory.mktemp("lab")) as lab:
        yield lab


KINDS = [
    pytest.param("stream", marks=[pytest.mark.needs("bwrap"), pytest.mark.needs("egress_lab")]),
    pytest.param("docker", marks=[pytest.mark.needs("docker"), pytest.mark.needs("egress_lab")]),
    pytest.param("gvisor", marks=[pytest.mark.needs("gvisor"), pytest.mark.needs("egress_lab")]),
]
"""The first is the same worker in a container of bubblewrap's, without an engine."""


@pytest.fixture(scope="module", params=KINDS)
def start(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Start]:
    spec = WorkerSpec(egress=True)
    if request.param == "stream":
        yield lambda: started(spec)
        return
    request.getfixturevalue({"docker": "docker_engine", "gvisor": "gvisor_image"}[request.param])
    backend = make_backend(Settings(home=tmp_path_factory.mktemp("home"), isolation=Isolation(request.param)))
    yield lambda: backend.start(spec)
    backend.close()


def job(code: str, *args: str, **limits: Any) -> Job:
    return Job(Language.PYTHON, code, args, {}, b"", Limits(**limits))


def run(
    worker: Worker, proxy: Proxy, code: str, *args: str, most: int = 1 << 30, on_output: OnOutput | None = None
) -> tuple[Ending, Network]:
    """Run a program with a way out to the lab, and return how it ended and where it went."""
    assert worker.door is not None
    gate = proxy.open(worker.door, RULES, Ledger(most, most))

    async def once() -> tuple[Ending, Network]:
        try:
            ending = await worker.run(job(code, *args), on_output)
        finally:
            network = await gate.close()
        return ending, network

    try:
        return asyncio.run(once())
    finally:
        worker.discard()
        proxy.close()


def said(ending: Ending) -> Any:
    assert ending.exit_code == 0, ending.stderr.decode()
    return json.loads(ending.stdout)


def held() -> int:
    for thread in threading.enumerate():
        if thread.name == "ringfence-ports":  # which lets go of its descriptors a moment after its worker is discarded
            thread.join(30)
    return len(os.listdir("/proc/self/fd"))


# --- a hostile guest ---

TOOLS = f"""
import json, os, socket, sys, threading
def connected():
    return socket.create_connection(('127.0.0.1', 3128), timeout=30)
def everything(end):
    heard = b''
    while True:
        piece = end.recv(1 << 16)
        if not piece: return heard
        heard += piece
def ask(path='/', host={WEB!r}):
    with connected() as end:
        end.sendall(f'GET http://{{host}}{{path}} HTTP/1.1\\r\\nHost: {{host}}\\r\\n\\r\\n'.encode())
        return everything(end)
"""


@pytest.mark.guarantee(3)
def test_a_container_with_a_way_out_has_a_loopback_and_no_other_interface(start: Start, lab: EgressLab) -> None:
    code = """
import json
def lines(path): return [line.split(':')[0].strip() for line in open(path)][2:]
print(json.dumps([lines('/proc/net/dev'), [line.split()[0] for line in open('/proc/net/route')][1:]]))
"""
    ending, network = run(start(), lab.proxy(), code)
    interfaces, routes = said(ending)
    assert interfaces == ["lo"]
    assert set(routes) <= {"lo"}
    assert network.destinations == ()


def test_a_hundred_tunnels_at_once_finish_and_leave_nothing(start: Start, lab: EgressLab) -> None:
    code = (
        TOOLS
        + """
ready, got = threading.Barrier(100, timeout=60), []
def tunnel():
    with connected() as end:
        end.sendall(b'CONNECT web.example.com:80 HTTP/1.1\\r\\nHost: web.example.com:80\\r\\n\\r\\n')
        answer = b''
        while not answer.endswith(b'\\r\\n\\r\\n'): answer += end.recv(100)
        ready.wait()
        end.sendall(b'GET /size/50000 HTTP/1.1\\r\\nHost: web.example.com\\r\\n\\r\\n')
        got.append(everything(end).endswith(b'x' * 50000))
threads = [threading.Thread(target=tunnel) for _ in range(100)]
for thread in threads: thread.start()
for thread in threads: thread.join()
print(json.dumps(got))
"""
    )
    run(start(), lab.proxy(), "pass")
    before = held()
    ending, network = run(start(), lab.proxy(), code)
    assert said(ending) == [True] * 100
    assert held() <= before
    assert sum(place.count for place in network.destinations) == 100
    assert network.complete


def test_a_connection_that_nobody_reads_holds_up_no_other_and_no_output(start: Start, lab: EgressLab) -> None:
    code = (
        TOOLS
        + """
unread = [connected() for _ in range(8)]
for end in unread:
    end.sendall(b'GET http://web.example.com/size/20000000 HTTP/1.1\\r\\nHost: web.example.com\\r\\n\\r\\n')
    end.recv(1)  # it has begun
sys.stderr.write('x' * 1000000)
got = [len(ask('/size/3000000').partition(b'\\r\\n\\r\\n')[2]) for _ in range(3)]
rest = len(everything(unread[0]).partition(b'\\r\\n\\r\\n')[2])
print(json.dumps([got, rest]))
"""
    )
    ending, _ = run(start(), lab.proxy(), code)
    assert said(ending) == [[3_000_000] * 3, 20_000_000]
    assert ending.stderr_bytes == 1_000_000


def test_a_flood_of_connections_is_answered_or_waits_and_then_there_is_room_again(start: Start, lab: EgressLab) -> None:
    code = (
        TOOLS
        + """
def half_open(count):
    ends = [socket.socket() for _ in range(count)]
    for end in ends:
        end.setblocking(False)
        end.connect_ex(('127.0.0.1', 3128))
    return ends
flood = half_open(900)
print(len(flood), flush=True)
for end in flood: end.close()
for _ in range(300): connected().close()
again = b'hello' in ask()
os.close(1)
sys.exit(0 if again else 3)
"""
    )
    ending, _ = run(start(), lab.proxy(), code)
    assert (ending.stdout, ending.exit_code) == (b"900\n", 0), ending.stderr


FORGED = b"".join(
    encode(kind, numbering(CALLS) + b"0")
    for kind in (Kind.CALL, Kind.FLOW, Kind.ROOM, Kind.CUT, Kind.DIAL, Kind.EXIT, Kind.STDOUT, Kind.READY, Kind.HARVEST)
)


def test_our_messages_on_a_connection_are_bytes_for_the_proxy_and_nothing_else(start: Start, lab: EgressLab) -> None:
    code = (
        TOOLS
        + f"""
with connected() as end:
    end.sendall({FORGED!r} + b'\\r\\n\\r\\n')
    refused = everything(end).split()[1].decode()
print(json.dumps([refused, b'hello' in ask()]))
"""
    )
    ending, network = run(start(), lab.proxy(), code)
    assert said(ending) == ["400", True]
    assert {place.decision for place in network.destinations} == {"denied", "allowed"}


def test_the_end_of_a_request_and_of_an_answer_arrive_as_on_a_wire(start: Start, lab: EgressLab) -> None:
    code = (
        TOOLS
        + """
with connected() as half:
    half.sendall(b'GET http://web.example.com/ HTTP/1.1\\r\\nHost: web.example.com\\r\\n\\r\\n')
    half.shutdown(socket.SHUT_WR)
    answered = everything(half).endswith(b'hello')
def endless(end):
    try:
        while True: end.sendall(bytes(65536))
    except OSError as error:
        return type(error).__name__
with connected() as refused:
    refused.sendall(b'no request\\r\\n\\r\\n')
    told = everything(refused)[:12].decode()
    ended = endless(refused)  # nobody swallows what is sent to somebody who hung up
print(json.dumps([answered, told, ended]))
"""
    )
    ending, _ = run(start(), lab.proxy(), code)
    answered, told, ended = said(ending)
    assert (answered, told) == (True, "HTTP/1.1 400")
    assert ended in ("ConnectionResetError", "BrokenPipeError")


def test_a_download_that_the_guest_gives_up_is_given_up(start: Start, lab: EgressLab) -> None:
    code = (
        TOOLS
        + """
for _ in range(3):
    with connected() as end:
        end.sendall(b'GET http://web.example.com/size/50000000 HTTP/1.1\\r\\nHost: web.example.com\\r\\n\\r\\n')
        end.recv(1000)
assert b'hello' in ask()
print('given up', flush=True)
__import__('signal').pause()
"""
    )
    worker, proxy = start(), lab.proxy()
    assert isinstance(worker, StreamWorker)
    left: list[int] = []

    def listen(_: str, data: bytes) -> None:
        if b"given up" in data:
            thread = proxy._thread
            assert thread is not None
            while (
                thread.connections.total()
            ):  # bounded by the test's own time: without the end being told it never comes
                pass
            left.append(thread.connections.total())
            worker.kill("cancelled")

    ending, network = run(worker, proxy, code, on_output=listen)
    assert (ending.killed_by, left) == ("cancelled", [0]), ending.stderr
    assert 0 < network.bytes_in < 150_000_000


def test_bytes_beyond_the_budget_do_not_pass(start: Start, lab: EgressLab) -> None:
    ending, network = run(start(), lab.proxy(), TOOLS + "print(ask('/size/1000000').count(b'x'))", most=100_000)
    assert 0 < said(ending) < 100_000
    assert network.bytes_in == 100_000
    assert [place.reason for place in network.destinations] == ["budget"]


@pytest.mark.needs("bwrap", "egress_lab")
def test_who_is_not_of_this_process_cannot_connect_where_the_proxy_accepts() -> None:
    """Before: with a name of the abstract kind, everybody in the host's network could have had the guest's way out."""
    way_out = WayOut()
    try:
        listed = Path("/proc/net/unix").read_text()
        with socket.socket(fileno=os.dup(way_out.door)) as listener:
            name = listener.getsockname()
        assert "/door" in name
        assert not [line for line in listed.splitlines() if line.endswith("@")]
        for address in (name, name.replace("self", str(os.getpid()))):
            with socket.socket(socket.AF_UNIX) as other, pytest.raises(OSError, match=r"No such file|Not a directory"):
                other.connect(address)
        way_out.connect().close()
    finally:
        way_out.close()
    with pytest.raises(ConnectionRefusedError):
        way_out.connect()


CUT = (
    TOOLS
    + """
import select
ends, poll = [connected() for _ in range(int(sys.argv[1]))], select.poll()
for end in ends: poll.register(end, select.POLLIN)
cut = set()
while len(cut) < int(sys.argv[2]):
    for number, _ in poll.poll():
        cut.add(number)
        poll.unregister(number)
print(len(cut), len(poll.poll(100)), flush=True)
"""
)


@pytest.mark.needs("bwrap")
def test_connections_in_all_leave_this_process_its_descriptors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ringfence.isolation.stream.ports.resource.getrlimit", lambda _: (64, 64))
    worker = started(WorkerSpec(egress=True))
    try:
        ending = asyncio.run(worker.run(job(CUT, "20", "12"), None))
    finally:
        worker.discard()
    assert ending.stdout == b"12 0\n", ending.stderr


@pytest.mark.needs("bwrap")
@pytest.mark.guarantee(21)
async def test_a_tenant_that_opens_what_it_can_leaves_another_its_way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before: connections were counted of all containers together, and whoever came first had all of them."""
    monkeypatch.setattr("ringfence.isolation.stream.ports.resource.getrlimit", lambda _: (64, 64))
    greedy, more, other = (started(WorkerSpec(egress=True)) for _ in range(3))
    full = asyncio.Event()
    holding = asyncio.create_task(
        greedy.run(replace(job(CUT + "sys.stdin.read()\nthreading.Event().wait()", "20", "12"), tenant="acme"),
                   lambda *_: full.set())
    )  # fmt: skip
    try:
        await full.wait()
        again = await more.run(replace(job(CUT, "3", "3"), tenant="acme"), None)
        ending = await other.run(replace(job(CUT, "6", "2"), tenant="other"), None)
    finally:
        greedy.kill("cancelled")
        held = await holding
        for worker in (greedy, more, other):
            worker.discard()
    assert held.stdout == b"12 0\n", held.stderr
    assert again.stdout == b"3 0\n", again.stderr
    assert ending.stdout == b"2 0\n", ending.stderr


HOST = """
import asyncio, ringfence, sys
async def main():
    async with ringfence.SandboxManager(
        home={home!r}, isolation={kind!r}, pool_size=0, policy_file={policy!r}, preload=()
    ) as manager:
        await manager.execute_code(
            'python', {code!r}, 60, allow_domains=['granted.example.com'],
            on_output=lambda *_: print('running', flush=True),
        )
asyncio.run(main())
"""
POLICY = "policies: {tools: {code_run: {network_access: true, allowed_domains: [granted.example.com]}}}\n"
ENDLESS = """
import socket
ends = [socket.create_connection(('127.0.0.1', 3128)) for _ in range(50)]
print('connected', flush=True)
while True: pass
"""


@pytest.mark.guarantee(8)
@pytest.mark.parametrize(
    "kind",
    [
        pytest.param("docker", marks=pytest.mark.needs("docker")),
        pytest.param("gvisor", marks=pytest.mark.needs("gvisor")),
    ],
)
def test_a_host_that_is_killed_leaves_no_container_with_a_way_out(
    request: pytest.FixtureRequest, tmp_path: Path, kind: str
) -> None:
    request.getfixturevalue({"docker": "docker_engine", "gvisor": "gvisor_image"}[kind])
    policy = tmp_path / "policy.yaml"
    policy.write_text(POLICY)
    text = HOST.format(home=str(tmp_path / "home"), kind=kind, policy=str(policy), code=ENDLESS)
    host = subprocess.Popen([sys.executable, "-c", text], stdout=subprocess.PIPE, start_new_session=True)
    try:
        assert host.stdout is not None
        assert host.stdout.readline() == b"running\n"
        inside = _of_the_box(kind, host.pid)
        assert inside
        host.send_signal(signal.SIGKILL)
        for pid in inside:
            _await_end(pid)
    finally:
        host.kill()
        host.wait()
        host.stdout.close()  # type: ignore[union-attr]
    assert [path for path in os.listdir("/tmp") if path.startswith("ringfence-door-")] == []


def _of_the_box(kind: str, host: int) -> list[int]:
    """Return processes of the one box that `host` has."""
    if kind == "gvisor":
        return [pid for pid in descendants((host,)) if pid != host]
    engine = container_engine.engine()
    containers = engine.docker("ps", "-q").stdout.split()
    said = engine.docker("inspect", "--format", "{{.State.Pid}}", *containers).stdout.split()
    return [int(pid) for pid in said if ":0C38 00000000:0000 0A" in Path(f"/proc/{pid}/net/tcp").read_text()]


def _await_end(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        fd = os.pidfd_open(pid)
        try:
            poll = select.poll()
            poll.register(fd, select.POLLIN)
            assert poll.poll(60_000), f"{pid} outlives its host"
        finally:
            os.close(fd)


# --- an init that is not ours any more ---

CALL = numbering(CALLS)


@contextlib.contextmanager
def lying(script: Script, *, egress: bool = True) -> Iterator[Worker]:
    worker, container = parked(script, egress=egress)
    try:
        yield worker
    finally:
        worker.discard()
        container.end()


@pytest.mark.parametrize(
    "lie",
    [
        encode(Kind.CALL),
        encode(Kind.CALL, numbering(CALLS + 1)),
        encode(Kind.CALL, numbering(0)),
        encode(Kind.CALL, CALL + b"more"),
        encode(Kind.CALL, CALL) * 2,
        encode(Kind.FLOW, CALL + b"before it called"),
        encode(Kind.CUT, CALL),
        encode(Kind.CALL, CALL) + encode(Kind.CUT, CALL + b"more"),
        encode(Kind.CALL, CALL) + encode(Kind.FLOW, CALL) + encode(Kind.FLOW, CALL + b"after its end"),
        encode(Kind.CALL, CALL) + encode(Kind.ROOM, CALL + b"1"),
        encode(Kind.CALL, CALL) + b"".join(encode(Kind.FLOW, CALL + bytes(wire.ROOM_BYTES)) for _ in range(100)),
        encode(Kind.DIAL, (1).to_bytes(4, "big") + b"0"),
    ],
)
def test_a_container_that_lies_about_its_calls_is_ended(lie: bytes) -> None:
    def script(container: Container) -> None:
        container.start()
        container.write(lie)
        container.stay()

    with lying(script) as worker:
        ending = asyncio.run(worker.run(job("pass"), None))
    assert ending.killed_by == "unknown"


def test_a_container_without_a_way_out_cannot_call() -> None:
    def script(container: Container) -> None:
        container.start()
        container.say(Kind.CALL, CALL)
        container.stay()

    with lying(script, egress=False) as worker:
        assert worker.door is None
        ending = asyncio.run(worker.run(job("pass"), None))
    assert ending.killed_by == "unknown"


def test_a_container_that_calls_without_end_and_hears_nothing_is_not_read_without_end() -> None:
    taken: list[int] = []
    stopped = threading.Event()

    def script(container: Container) -> None:
        container.start()
        os.set_blocking(container.outlet, False)
        poll = select.poll()
        poll.register(container.outlet, select.POLLOUT)
        number = written = 0
        while poll.poll(2000) and written < 1 << 26:
            words = b"".join(encode(Kind.CALL, numbering(CALLS + number + ahead)) for ahead in range(100))
            number += 100
            rest = memoryview(words)
            while rest and poll.poll(2000):
                count = os.write(container.outlet, rest)
                rest, written = rest[count:], written + count
        taken.append(written)
        stopped.set()
        container.stay()

    async def once(worker: Worker) -> None:
        going = asyncio.ensure_future(worker.run(job("pass"), None))
        await asyncio.to_thread(stopped.wait)
        going.cancel()
        worker.discard()
        await asyncio.gather(going, return_exceptions=True)

    with lying(script) as worker:
        asyncio.run(once(worker))
    assert taken[0] < 8 << 20


def test_a_call_that_nobody_takes_is_cut_and_no_other_is_asked_for() -> None:
    heard: list[tuple[Kind, bytes]] = []

    def script(container: Container) -> None:
        container.start()
        container.say(Kind.CALL, CALL)
        heard.append((Kind.CUT, container.until(Kind.CUT)))
        container.say(Kind.EXIT, b"0 0 0 0 0 0 0")
        container.stay()

    with lying(script) as worker:
        assert worker.door is not None
        with socket.socket(fileno=os.dup(worker.door)) as listener:
            listener.shutdown(socket.SHUT_RDWR)  # as a gate does when it closes
        ending = asyncio.run(worker.run(job("pass"), None))
    assert ending.exit_code == 0
    assert heard == [(Kind.CUT, CALL)]
