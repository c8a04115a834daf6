"""A manager that answers at once, and the smallest bench over it, for the tests of what the bench makes of times."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Self

from ringfence.bench.promise import Line
from ringfence.bench.subject import Bench, Settings
from ringfence.outcome import ExecutionResult, Status

TINY = Settings(
    pairs=3,
    gap_seconds=0,
    warm_up=1,
    crowd_runs=8,
    crowd_callers=4,
    burst=5,
    bursts=2,
    idle_seconds=0,
    heavy_pairs=2,
    cold_pairs=1,
    neighbour_runs=2,
    parked=4,
    settle_seconds=0,
    journal_records=2000,
    journal_rounds=100,
    snapshot_files=200,
    snapshot_rounds=2,
)


class ScriptedManager:
    """Stands in for `SandboxManager`: answers at once with one output, and remembers how it was opened."""

    opened: list[dict[str, Any]]

    def __init__(self, stdout: bytes = b"1\n", status: Status = Status.SUCCEEDED) -> None:
        self.opened = []
        self.calls = 0
        self._result = ExecutionResult(status=status, exit_code=0, stdout_raw=stdout)

    def __call__(self, **options: Any) -> Self:
        self.opened.append(options)
        return self

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        return None

    async def execute_code(self, *, language: str, code: str) -> ExecutionResult:
        self.calls += 1
        await asyncio.sleep(0)
        return self._result

    def pool_pids(self) -> list[tuple[int, int]]:
        return [(os.getpid(), os.getpid())] * 4


def bench_of(manager: ScriptedManager, place: Path = Path("/nowhere")) -> Bench:
    def environment(packages: Sequence[str]) -> Path:
        return place

    @asynccontextmanager
    async def both(home: Path) -> AsyncIterator[tuple[ScriptedManager, ScriptedManager]]:
        manager.opened.append({"home": home})
        yield manager, manager

    return Bench(
        open_manager=manager,
        open_box=manager,
        open_both=both,
        home=place,
        settings=TINY,
        environment=environment,
        say=lambda _: None,
    )


def measured(lines: Sequence[Line]) -> dict[str, bool]:
    return {line.promise.id: line.measured is not None for line in lines if line.promise}
