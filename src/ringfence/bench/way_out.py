"""What the egress proxy costs: 100 MB, a small request and 500 tunnels through it, to the same on plain loopback."""

from __future__ import annotations

import asyncio
import json
import resource
import socket
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from ringfence.bench import promise
from ringfence.bench.bare import WrongOutput, interpreter
from ringfence.bench.promise import Line, judged
from ringfence.bench.series import Series
from ringfence.bench.subject import Bench, Measured
from ringfence.capability.capabilities import Capabilities
from ringfence.capability.net import NetHttp
from ringfence.egress.addresses import AddressRules
from ringfence.egress.proxy.ledger import Ledger
from ringfence.egress.proxy.proxy import Proxy
from ringfence.egress.proxy.rules import Rules
from ringfence.operation.target import METHODS

LARGE_BYTES: Final = 100 * 1024 * 1024
TUNNELS: Final = 500
_ALLOWED_SECONDS = 0.002
_MS = 1000
_HOST = "bench.example.com"
_PATIENCE_SECONDS = 120
_DESCRIPTORS = 4 * TUNNELS

# Both in processes of their own, as a guest and a host on the internet are.
_SERVER = """
import socket, threading
server = socket.create_server(('127.0.0.1', 0), backlog=1024)
print(server.getsockname()[1], flush=True)
piece = bytes(1 << 20)
def answer(end):
    with end:
        head = b''
        while b'\\r\\n\\r\\n' not in head:
            data = end.recv(65536)
            if not data:
                return
            head += data
        left = int(head.split(b' ')[1].rpartition(b'/')[2])
        end.sendall(b'HTTP/1.1 200 OK\\r\\nContent-Length: %d\\r\\n\\r\\n' % left)
        while left:
            end.sendall(piece[:left])
            left -= min(left, len(piece))
while True:
    threading.Thread(target=answer, args=(server.accept()[0],), daemon=True).start()
"""
_CLIENT = """
import json, socket, sys, time
port, authority, proxied, size, times = json.loads(sys.argv[1])
room = memoryview(bytearray(1 << 18))
target = f'http://{authority}/{size}' if proxied else f'/{size}'
request = f'GET {target} HTTP/1.1\\r\\nHost: {authority}\\r\\n\\r\\n'.encode()
taken = []
for _ in range(times):
    began = time.perf_counter()
    with socket.create_connection(('127.0.0.1', port)) as end:
        end.sendall(request)
        came = 0
        while count := end.recv_into(room):
            came += count
    taken.append(time.perf_counter() - began)
    assert came > size, came
print(json.dumps(taken))
"""
_CROWD = """
import json, socket, sys
port, authority, tunnels = json.loads(sys.argv[1])
ends = [socket.create_connection(('127.0.0.1', port), 60) for _ in range(tunnels)]
for end in ends:
    end.sendall(f'CONNECT {authority} HTTP/1.1\\r\\nHost: {authority}\\r\\n\\r\\n'.encode())
established = [end for end in ends if end.recv(4096).startswith(b'HTTP/1.1 200')]
for end in established:
    end.sendall(f'GET /10000 HTTP/1.1\\r\\nHost: {authority}\\r\\n\\r\\n'.encode())
finished = 0
for end in established:
    came = 0
    while data := end.recv(65536):
        came += len(data)
    finished += came > 10000
print(finished)
"""


async def way_out(bench: Bench) -> Measured:
    """100 MB and a small request, through the proxy and without it in turn; then 500 tunnels at once."""
    rounds, small = (9, 300) if bench.settings.pairs >= 1000 else (3, 100)
    with _server() as port, _many_descriptors():
        authority = f"{_HOST}:{port}"
        before = _descriptors()
        proxy = Proxy(resolve=lambda _: ["127.0.0.1"])
        with socket.create_server(("127.0.0.1", 0), backlog=2 * TUNNELS) as door:
            through = door.getsockname()[1]
            # loopback is nobody's public network: the bench opens the private one, as no policy does unasked
            rules = Rules(
                Capabilities([NetHttp(_HOST, port, "http", METHODS)]),
                addresses=AddressRules(denied=frozenset(), private=True),
            )
            gate = proxy.open(door.fileno(), rules, Ledger(1 << 50, 1 << 50))
            large = _pairs(port, through, authority, LARGE_BYTES, rounds, 1)
            little = _pairs(port, through, authority, 100, 3, small)
            finished = int(_run(_CROWD, [through, authority, TUNNELS]))
            await gate.close()
        await asyncio.to_thread(proxy.close)
        left = _descriptors() - before
    series = [
        Series(f"egress: {what}, {how}", tuple(taken))
        for what, pair in (("100 MB", large), ("small", little))
        for how, taken in zip(("direct", "proxy"), pair, strict=True)
    ]
    return Measured(lines(series, finished, left), tuple(series))


def lines(series: Sequence[Series], finished: int, left: int) -> tuple[Line, ...]:
    """Hold all of it against the promises; the series are 100 MB and a small request, each direct and proxied."""
    large, large_through, small, small_through = series
    added = small_through.p50 - small.p50
    return (
        judged(
            promise.EGRESS_RATE,
            large.p50 / large_through.p50,
            f"{large.p50 * _MS:.0f} ms direct, {large_through.p50 * _MS:.0f} ms through it, n={len(large.seconds)}",
        ),
        judged(
            promise.EGRESS_LATENCY,
            added / max(_ALLOWED_SECONDS, small.p50),
            f"{small.p50 * _MS:.2f} ms direct, {small_through.p50 * _MS:.2f} ms through it, n={len(small.seconds)}",
        ),
        judged(
            promise.EGRESS_TUNNELS,
            TUNNELS - finished + max(0, left),
            f"{finished} of {TUNNELS} finished, {max(0, left)} descriptors left",
        ),
    )


def _pairs(
    direct: int, through: int, authority: str, size: int, rounds: int, times: int
) -> tuple[list[float], list[float]]:
    taken: tuple[list[float], list[float]] = [], []
    for number in range(rounds):
        for turn in (0, 1):
            which = (number + turn) % 2
            job = [through if which else direct, authority, bool(which), size, times]
            taken[which].extend(json.loads(_run(_CLIENT, job)))
    return taken


def _run(program: str, job: list[object]) -> str:
    done = subprocess.run(
        [interpreter(), "-I", "-S", "-c", program, json.dumps(job)],
        capture_output=True,
        text=True,
        timeout=_PATIENCE_SECONDS,
        check=False,
    )
    if done.returncode:
        raise WrongOutput(done.stderr[-200:])
    return done.stdout


@contextmanager
def _server() -> Iterator[int]:
    process = subprocess.Popen([interpreter(), "-I", "-S", "-c", _SERVER], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None  # noqa: S101  it is a pipe
        yield int(process.stdout.readline())
    finally:
        process.kill()
        process.communicate()


@contextmanager
def _many_descriptors() -> Iterator[None]:
    """Let this process, for as long as it measures, open as many as the tunnels need."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = max(soft, _DESCRIPTORS if hard == resource.RLIM_INFINITY else min(_DESCRIPTORS, hard))
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def _descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))
