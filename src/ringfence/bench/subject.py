"""The thing under test, by its public shape: the manager, and the settings of one bench run."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Protocol

from ringfence.bench.bare import WrongOutput
from ringfence.bench.promise import Line
from ringfence.bench.series import Series
from ringfence.dataclass import dataclass
from ringfence.outcome import ExecutionResult

AsyncTimed = Callable[[], Awaitable[float]]


class Runs(Protocol):
    """What is timed."""

    async def execute_code(self, *, language: str, code: str) -> ExecutionResult:
        """Run `code` once."""


class Manager(Runs, Protocol):
    """What the bench calls of `SandboxManager`."""

    def pool_pids(self) -> Iterable[tuple[int, int]]:
        """Return the host pids of init and worker for every parked pair."""


OpenManager = Callable[..., AbstractAsyncContextManager[Manager]]
"""What opens one, `SandboxManager` itself; without options it has the default pool."""


@dataclass(frozen=True, slots=True)
class Settings:
    """How much is measured; the defaults are those the promises are quoted from."""

    pairs: int = 1000
    gap_seconds: float = 0.020
    warm_up: int = 20
    crowd_runs: int = 2000
    crowd_callers: int = 16
    burst: int = 100
    bursts: int = 3
    idle_seconds: float = 60.0
    heavy_pairs: int = 1000
    cold_pairs: int = 200
    neighbour_runs: int = 50
    parked: int = 16
    settle_seconds: float = 2.0
    journal_records: int = 1_000_000
    journal_rounds: int = 1000
    snapshot_files: int = 10_000
    snapshot_rounds: int = 5
    http_crowd_seconds: float = 60.0
    http_idle_clients: int = 1000
    container_pairs: int = 100
    container_crowd: int = 200


QUICK = Settings(
    pairs=100,
    crowd_runs=200,
    bursts=1,
    idle_seconds=3.0,
    heavy_pairs=20,
    cold_pairs=20,
    neighbour_runs=10,
    journal_records=50_000,
    journal_rounds=200,
    snapshot_rounds=3,
    http_crowd_seconds=6.0,
    container_pairs=10,
)


@dataclass(frozen=True, slots=True)
class Measured:
    """What one case gave: lines for the table and the series behind them."""

    lines: tuple[Line, ...]
    series: tuple[Series, ...] = ()


@dataclass(frozen=True, slots=True)
class Bench:
    """Everything a case needs."""

    open_manager: OpenManager
    open_box: Callable[[], AbstractAsyncContextManager[Runs]]
    open_both: Callable[[Path], AbstractAsyncContextManager[tuple[Runs, Runs]]]
    """Opens one with a journal in the home that is given, and one on the same pool that writes down nothing."""
    home: Path
    """Where this user's state is, and so the disk that evidence is written to."""
    settings: Settings
    environment: Callable[[Sequence[str]], Path]
    say: Callable[[str], None]


def ours(manager: Runs, code: str, expected: str, *, language: str = "python") -> AsyncTimed:
    """Return a function that makes one whole `execute_code` call and gives its seconds, its output checked."""

    async def call() -> float:
        start = time.perf_counter()
        result = await manager.execute_code(language=language, code=code)
        taken = time.perf_counter() - start
        if result.stdout != expected or not result.success:
            raise WrongOutput(
                f"the run ended {result.status}: {result.error or result.stderr[-200:] or result.stdout!r}"
            )
        return taken

    return call
