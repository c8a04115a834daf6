"""What safe retrieval costs beside a plain client: one page of a server on loopback, a new connection each time."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from ringfence.bench import promise
from ringfence.bench.bare import WrongOutput
from ringfence.bench.pairs import alternate
from ringfence.bench.promise import Line, judged
from ringfence.bench.series import Series
from ringfence.bench.subject import AsyncTimed, Bench, Measured
from ringfence.config import SandboxConfig
from ringfence.egress.asking import Ask
from ringfence.egress.dialing import Dial, Dialer, Streams, own_of
from ringfence.egress.retrieval import Retriever, Rules
from ringfence.egress.settings import NetSettings
from ringfence.facade import SandboxManager
from ringfence.operation.target import target

_CLIENTS: Final = ("httpx", "httpx2")
_SIZE: Final = 10_000
_URL: Final = "http://bench.example.com/"
_PUBLIC: Final = "93.184.216.34"
_POLICY: Final = 'network: {default: safe_retrieval, allowlist: {enabled: true, domains: ["*"]}}\n'
_MS: Final = 1000
_SERVER: Final = f"""
import socket
listening = socket.create_server(("127.0.0.1", 0), backlog=128)
print(listening.getsockname()[1], flush=True)
head = b"HTTP/1.1 200 OK\\r\\nContent-Type: text/plain\\r\\nContent-Length: {_SIZE}\\r\\nConnection: close\\r\\n\\r\\n"
while True:
    connection, _ = listening.accept()
    with connection:
        request = b""
        while b"\\r\\n\\r\\n" not in request and (piece := connection.recv(65536)):
            request += piece
        connection.sendall(head + b"x" * {_SIZE})
"""


async def fetch(bench: Bench) -> Measured:
    """A page of 10 kB from loopback through every rule of safe retrieval, against an open httpx client."""
    name = next((each for each in _CLIENTS if find_spec(each) is not None), None)
    if name is None:
        return Measured((judged(promise.FETCH, None, "httpx is not installed"),))
    httpx: Any = import_module(name)
    settings = bench.settings
    with _serving() as port, httpx.Client(limits=httpx.Limits(max_keepalive_connections=0), trust_env=False) as client:
        theirs = _timed(lambda: _got(client, port))
        dial = _dialling(port)
        retriever, rules = Retriever(_looked_up, dial), Rules(own=own_of)

        async def retrieved() -> bytes:
            return (await retriever.fetch(Ask("GET", target(_URL)), rules)).content

        own, beside = await alternate(
            _timed(retrieved), theirs, pairs=settings.pairs, gap_seconds=settings.gap_seconds / 4
        )
        governed = await _governed(bench, dial, theirs)
    ours, plain = Series("fetch: ringfence", tuple(own)), Series("fetch: httpx", tuple(beside))
    detail = f"{ours.p50 * _MS:.2f} ms to {plain.p50 * _MS:.2f} ms, n={len(own)}"
    with_proof = f"{governed.p50 * _MS:.2f} ms, with policy, guard and two durable records"
    return Measured(
        (
            judged(promise.FETCH, ours.p50 / plain.p50, detail),
            Line("the whole fetch_url, p50", governed.p50 / plain.p50, with_proof, unit="x httpx"),
        ),
        (ours, plain, governed),
    )


async def _governed(bench: Bench, dial: Dial, theirs: AsyncTimed) -> Series:
    policy = bench.home / "fetch-policy.yaml"
    policy.write_text(_POLICY)
    config = SandboxConfig(
        home=bench.home, policy_file=policy, pool_size=0, net=NetSettings(lookup=lambda _: [_PUBLIC], dial=dial)
    )
    async with SandboxManager(config=config) as manager:

        async def fetched() -> bytes:
            return (await manager.fetch_url(_URL)).content or b""

        settings = bench.settings
        own, _ = await alternate(_timed(fetched), theirs, pairs=settings.pairs, gap_seconds=settings.gap_seconds / 4)
    return Series("fetch: ringfence, governed", tuple(own))


def _timed(call: Callable[[], Awaitable[bytes]]) -> AsyncTimed:
    async def timed() -> float:
        began = time.perf_counter()
        content = await call()
        taken = time.perf_counter() - began
        if len(content) != _SIZE:
            raise WrongOutput(f"a page of {len(content)} bytes, not {_SIZE}")
        return taken

    return timed


async def _got(client: Any, port: int) -> bytes:
    content: bytes = client.get(f"http://127.0.0.1:{port}/").content
    return content


async def _looked_up(_host: str) -> Sequence[str]:
    return (_PUBLIC,)


def _dialling(port: int) -> Dial:
    """Return what connects to the bench's own server, wherever retrieval was allowed to go."""
    dialer = Dialer()

    async def dial(_address: str, _port: int, tls_name: str | None, seconds: float) -> Streams:
        return await dialer("127.0.0.1", port, tls_name, seconds)

    return dial


@contextmanager
def _serving() -> Iterator[int]:
    process = subprocess.Popen([sys.executable, "-I", "-c", _SERVER], stdout=subprocess.PIPE, text=True, cwd=Path("/"))
    try:
        assert process.stdout is not None  # noqa: S101  asked for above
        yield int(process.stdout.readline())
    finally:
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()
