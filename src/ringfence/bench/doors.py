"""What the HTTP door costs: one call, a crowd of clients, clients that only wait, and lists of very many runs."""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from ringfence.bench import bare, promise
from ringfence.bench.bare import WrongOutput
from ringfence.bench.pairs import alternate, interleave
from ringfence.bench.promise import judged
from ringfence.bench.series import Series, quantile
from ringfence.bench.subject import Bench, Measured
from ringfence.dataclass import dataclass

_CODE, _EXPECTED = "print(1)", b"1\n"
_CLIENTS: Final = 64
_PAGE: Final = 20
_MS: Final = 1000
_SERVING = re.compile(r"http://127\.0\.0\.1:(\d+)")
_KEY = re.compile(r"^  (rfk_\S+)$")


async def http_p50(bench: Bench) -> Measured:
    """`POST /sandbox/execs` with wait, from another process, against bare; the warm `print(1)` of a project."""
    settings = bench.settings
    with serving(bench.home) as service:
        call = bare.timed(bare.python(_CODE), _EXPECTED)

        async def ours() -> float:
            return float(service.order(do="one"))

        theirs, own = await interleave(
            "http", call, ours, pairs=settings.pairs, gap_seconds=settings.gap_seconds, warm_up=settings.warm_up
        )
    detail = f"{own.p50 * _MS:.2f} ms to {theirs.p50 * _MS:.2f} ms, n={len(own.seconds)}; p99 {own.p99 * _MS:.1f} ms"
    return Measured((judged(promise.HTTP_P50, own.p50 / theirs.p50, detail),), (own, theirs))


async def http_crowd(bench: Bench) -> Measured:
    """64 clients for a minute, with half of bare's 64 threads before and half after."""
    seconds = bench.settings.http_crowd_seconds
    with serving(bench.home) as service:
        for _ in range(bench.settings.warm_up):
            service.order(do="one")
        service.order(do="crowd", clients=_CLIENTS, seconds=min(seconds, 3.0))  # until the pool is as large as it gets
        theirs = bare_crowd(seconds / 2)
        own = service.order(do="crowd", clients=_CLIENTS, seconds=seconds)
        theirs = theirs.and_then(bare_crowd(seconds / 2))
    ours = Crowd(tuple(own["seconds"]), own["lasted"])
    errors: list[str] = own["errors"]
    first = f"; first: {errors[0]}" if errors else ""
    p99 = f"{quantile(ours.seconds, 0.99) * _MS:.0f} ms to {quantile(theirs.seconds, 0.99) * _MS:.0f} ms"
    rate = f"{ours.rate:.0f} to {theirs.rate:.0f} runs per second for {seconds:g} s"
    return Measured(
        (
            judged(promise.HTTP_CROWD_ERRORS, len(errors), f"of {len(ours.seconds)} answers{first}"),
            judged(promise.HTTP_CROWD_P99, quantile(ours.seconds, 0.99) / quantile(theirs.seconds, 0.99), p99),
            judged(promise.HTTP_CROWD, ours.rate / theirs.rate, rate),
        ),
        (Series("64 clients: http", ours.seconds), Series("64 threads: bare", theirs.seconds)),
    )


async def http_idle(bench: Bench) -> Measured:
    """What a thousand clients that follow one sleeping execution add to the resident memory of the service."""
    clients = bench.settings.http_idle_clients
    with serving(bench.home) as service:
        service.order(do="one")
        exec_id = service.start("import time; time.sleep(50)")
        service.order(do="idle", clients=20, path=f"/sandbox/execs/{exec_id}/events")  # what the first ones import
        before = service.resident()
        service.order(do="idle", clients=clients, path=f"/sandbox/execs/{exec_id}/events")
        await asyncio.sleep(bench.settings.settle_seconds)
        grown = (service.resident() - before) / 1e6
    detail = f"from {before / 1e6:.0f} MB, {clients:,} streams, {grown / clients * 1000:.1f} kB each"
    return Measured((judged(promise.HTTP_IDLE, grown, detail),))


async def http_list(bench: Bench) -> Measured:
    """The first page of lists over a million executions, against a service that has a page of them."""
    from ringfence.bench.filled import FAILS_EVERY, fill  # not at the top: only this case fills journals

    settings = bench.settings
    with TemporaryDirectory(prefix="full-", dir=bench.home) as full, TemporaryDirectory(dir=bench.home) as empty:
        await asyncio.to_thread(fill, Path(full), settings.journal_records)
        await asyncio.to_thread(fill, Path(empty), _PAGE * FAILS_EVERY)
        bench.say(f"{settings.journal_records:,} executions written")
        with serving(Path(full)) as large, serving(Path(empty)) as small:
            measured = {}
            for path in (f"/sandbox/execs?limit={_PAGE}", f"/sandbox/execs?limit={_PAGE}&status=failed"):

                async def of_large(path: str = path) -> float:
                    return float(large.order(do="one", path=path))

                async def of_small(path: str = path) -> float:
                    return float(small.order(do="one", path=path))

                for _ in range(settings.warm_up):
                    await of_large()
                    await of_small()
                own, other = await alternate(of_large, of_small, pairs=settings.pairs // 2, gap_seconds=0)
                measured[path] = Series(f"full: {path}", tuple(own)), Series(f"empty: {path}", tuple(other))
    ratios = {path: own.p50 / other.p50 for path, (own, other) in measured.items()}
    worst = max(ratios, key=lambda path: ratios[path])
    details = "; ".join(
        f"{path} {own.p50 * _MS:.2f} to {other.p50 * _MS:.2f} ms" for path, (own, other) in measured.items()
    )
    return Measured(
        (judged(promise.HTTP_LIST, ratios[worst], f"{details}; {settings.journal_records:,} executions"),),
        tuple(series for both in measured.values() for series in both),
    )


@dataclass(frozen=True, slots=True)
class Crowd:
    """What many callers saw, and how long that lasted."""

    seconds: tuple[float, ...]
    lasted: float

    @property
    def rate(self) -> float:
        """Answers in a second."""
        return len(self.seconds) / self.lasted

    def and_then(self, other: Crowd) -> Crowd:
        """Return both as one."""
        return Crowd(self.seconds + other.seconds, self.lasted + other.lasted)


def bare_crowd(seconds: float) -> Crowd:
    """Have as many threads run `print(1)` bare, again and again for so long."""
    call = bare.timed(bare.python(_CODE), _EXPECTED)
    with ThreadPoolExecutor(_CLIENTS) as pool:
        list(pool.map(lambda _: None, range(_CLIENTS)))
        began = time.perf_counter()

        def again_and_again(_: int) -> list[float]:
            taken = []
            while time.perf_counter() - began < seconds:
                taken.append(call())
            return taken

        taken = tuple(one for own in pool.map(again_and_again, range(_CLIENTS)) for one in own)
        return Crowd(taken, time.perf_counter() - began)


@dataclass
class Service:
    """A service in a process of its own, and its caller in another."""

    process: subprocess.Popen[str]
    caller: subprocess.Popen[str]
    port: int
    key: str

    def order(self, **order: Any) -> Any:
        """Have the caller do something, and return what came of it.

        Raises:
            WrongOutput: It failed, or the service gave a wrong answer.
        """
        if self.caller.stdin is None or self.caller.stdout is None:
            raise WrongOutput("the caller has no pipes")
        self.caller.stdin.write(json.dumps(order) + "\n")
        self.caller.stdin.flush()
        told = json.loads(self.caller.stdout.readline() or '{"error": "the caller died"}')
        if "error" in told:
            raise WrongOutput(told["error"])
        return told["answer"]

    def start(self, code: str) -> str:
        """Start something that nobody waits for, and return its name."""
        import http.client

        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        body = json.dumps({"project_id": "idle", "exec": {"kind": "python", "code": code}, "wait": False})
        headers = {"Authorization": f"Bearer {self.key}", "Content-Type": "application/json"}
        connection.request("POST", "/sandbox/execs", body, headers)
        exec_id: str = json.loads(connection.getresponse().read())["exec_id"]
        connection.close()
        return exec_id

    def resident(self) -> int:
        """Return the resident memory of the service, in bytes."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        found = re.search(r"^VmRSS:\s+(\d+) kB", status, re.MULTILINE)
        return 0 if found is None else int(found[1]) * 1024


@contextmanager
def serving(home: Path) -> Iterator[Service]:
    """Start `ringfence serve` in a home, and a caller for it; end both.

    Raises:
        WrongOutput: It does not start.
    """
    home.mkdir(parents=True, exist_ok=True)
    environment = {**os.environ, "RINGFENCE_HOME": str(home)}
    process = subprocess.Popen(
        [sys.executable, "-m", "ringfence", "serve", "--port", "0"],
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    caller = None
    try:
        port, key = _announced(process, home)
        caller = subprocess.Popen(
            [sys.executable, "-m", "ringfence.bench.http_caller", str(port)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        if caller.stdin is None:
            raise WrongOutput("the caller has no pipes")
        caller.stdin.write(key + "\n")  # not on its command line, which everybody can read
        caller.stdin.flush()
        yield Service(process, caller, port, key)
    finally:
        for one in (caller, process):
            if one is not None:
                one.terminate()
                one.communicate()


def _announced(process: subprocess.Popen[str], home: Path) -> tuple[int, str]:
    """Read where the service is, and the key that it made; a home that had one before keeps it in a file of ours."""
    kept, port = home / "bench-key", None
    for line in process.stderr or ():
        port = port or _SERVING.search(line)
        made = _KEY.match(line)
        if made is not None:
            kept.write_text(made[1])
        if port is not None and (made is not None or kept.exists()):
            return int(port[1]), kept.read_text()
    raise WrongOutput("the service did not start")
