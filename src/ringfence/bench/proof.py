"""What the proof costs: evidence of one run, a journal that has grown large, and verifying all of it."""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from ringfence.bench import promise
from ringfence.bench.bare import WrongOutput
from ringfence.bench.pairs import alternate
from ringfence.bench.promise import Line, judged
from ringfence.bench.series import Series
from ringfence.bench.subject import Bench, Measured, ours
from ringfence.dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ringfence.bench.filled import Specimen
    from ringfence.database.port import Database
    from ringfence.journal.journal import Journal

PAGE = 20
ADDED_SECONDS, ADDED_SHARE = 0.0005, 0.25
"""What evidence may add to a warm run: the larger of the two."""
_PRINT = ("print(1)", "1\n")
_MS = 1000


async def evidence(bench: Bench) -> Measured:
    """The warm, governed `print(1)` with its journal on this disk, and without any, in turn on one pool."""
    settings = bench.settings
    with on_disk(bench.home) as (home, refused):
        if refused:
            return Measured((judged(promise.EVIDENCE, None, refused),))
        async with bench.open_both(home) as (recorded, unrecorded):
            with_it, without = ours(recorded, *_PRINT), ours(unrecorded, *_PRINT)
            for _ in range(settings.warm_up):
                for call in (with_it, without):
                    await call()
                    await asyncio.sleep(settings.gap_seconds)
            taken = await alternate(with_it, without, pairs=settings.pairs, gap_seconds=settings.gap_seconds)
    own, other = Series("evidence: journal", tuple(taken[0])), Series("evidence: none", tuple(taken[1]))
    return Measured(added_lines(own, other), (own, other))


def added_lines(own: Series, other: Series) -> tuple[Line, ...]:
    """Hold what evidence adds against the larger of what it may add."""
    added = own.p50 - other.p50
    allowed = max(ADDED_SECONDS, ADDED_SHARE * other.p50)
    made_of = f"{own.p50 * _MS:.2f} ms to {other.p50 * _MS:.2f} ms, n={len(own.seconds)}"
    may = f"{added * _MS:.2f} ms of {allowed * _MS:.2f} ms it may add"
    return (
        judged(promise.EVIDENCE, added / allowed, f"{may}; {made_of}"),
        Line("what evidence adds to a warm run, p50", added * _MS, made_of, unit="ms"),
        Line("the same, as a share of the run without it", added / other.p50, made_of, unit="x without"),
        Line("a warm run with evidence, p99", own.p99 * _MS, f"{other.p99 * _MS:.2f} ms without", unit="ms"),
    )


async def journal(bench: Bench) -> Measured:
    """A journal of a million records against an empty one: append, fetch, first page of a list; then verify it."""
    # not at the top: only this case fills journals, and whoever measures another need not wait for it
    from ringfence.bench.filled import fill
    from ringfence.bench.verifying import verify_apart

    settings = bench.settings
    with on_disk(bench.home) as (home, refused):
        if refused:
            promises = (promise.JOURNAL_SCALE, promise.VERIFY_RATE, promise.VERIFY_MEMORY)
            return Measured(tuple(judged(each, None, refused) for each in promises))
        began = time.perf_counter()
        filling = await asyncio.to_thread(fill, home / "full", settings.journal_records // 2)
        bench.say(f"{settings.journal_records:,} records written in {time.perf_counter() - began:.0f} s")
        measured = await _compared(home, filling, settings.journal_records // 2, settings.journal_rounds)
        bench.say("verifying them")
        verified = await asyncio.to_thread(verify_apart, home / "full")
    if not verified.proven or verified.records != settings.journal_records + 2 * settings.journal_rounds:
        raise WrongOutput(f"the journal that was measured does not verify: {verified}")
    rate = verified.records / verified.cpu_seconds
    return Measured(
        (
            scale_line(measured, settings.journal_records),
            judged(
                promise.VERIFY_RATE,
                rate,
                f"{verified.records:,} records, {verified.checkpoints:,} checkpoints, {verified.cpu_seconds:.1f} s CPU",
            ),
            judged(
                promise.VERIFY_MEMORY,
                verified.grown_bytes / 1e6,
                f"from {verified.memory_samples[0] / 1e6:.1f} MB, looked at every 10,000 records",
            ),
        ),
        tuple(series for both in measured.values() for series in both),
    )


def scale_line(measured: Mapping[str, tuple[Series, Series]], records: int) -> Line:
    """Judge the worst of what was compared; each is the full journal's series, then the empty one's."""
    ratios = {what: full.p50 / empty.p50 for what, (full, empty) in measured.items()}
    details = [
        f"{what} {ratios[what]:.2f} ({full.p50 * _MS:.2f} to {empty.p50 * _MS:.2f} ms)"
        for what, (full, empty) in measured.items()
    ]
    rounds = min(len(full.seconds) for full, _ in measured.values())
    return judged(promise.JOURNAL_SCALE, max(ratios.values()), f"{'; '.join(details)}; {records:,} records, n={rounds}")


async def _compared(home: Path, filling: Specimen, filled: int, rounds: int) -> dict[str, tuple[Series, Series]]:
    """Append to both journals, then read from both; what is listed has a full page in each."""
    from ringfence.bench.filled import specimen
    from ringfence.clock import SystemClock

    coming = specimen("n", SystemClock().now_ms())
    found: dict[str, tuple[Series, Series]] = {}

    async def compare(what: str, full: Step, empty: Step) -> None:
        numbers = (iter(range(rounds)), iter(range(rounds)))
        own, other = await alternate(
            lambda: _timed(full, next(numbers[0])), lambda: _timed(empty, next(numbers[1])), pairs=rounds, gap_seconds=0
        )
        found[what] = Series(f"{what}: full journal", tuple(own)), Series(f"{what}: empty journal", tuple(other))

    full, empty = _Opened.at(home / "full"), _Opened.at(home / "empty")
    try:
        await compare("append", full.appends(coming), empty.appends(coming))
        chosen = random.Random(1)  # noqa: S311  which run is fetched is no secret
        names = [coming.exec_id(number) for number in range(rounds)]
        among_all = [
            names[number]
            if (number := chosen.randrange(filled + rounds)) < rounds
            else filling.exec_id(number - rounds)
            for _ in range(rounds)
        ]
        await compare("fetch by exec_id", full.fetches(among_all), empty.fetches(chosen.sample(names, rounds)))
        sessions = max(rounds // PAGE, 1)
        for what, filters in {
            "list by session": lambda number: {"session_id": coming.session_id(number % sessions * PAGE)},
            "list by outcome": lambda _: {"outcome": "failed"},
            "list by tool and outcome": lambda _: {"tool_name": "code_run", "outcome": "succeeded"},
        }.items():
            await compare(what, full.lists(filters), empty.lists(filters))
    finally:
        full.close()
        empty.close()
    return found


Step = Callable[[int], Awaitable[None]]


async def _timed(step: Step, number: int) -> float:
    began = time.perf_counter()
    await step(number)
    return time.perf_counter() - began


@dataclass(frozen=True, slots=True)
class _Opened:
    """One of the two journals, and what is timed of it."""

    database: Database
    written: Journal

    @classmethod
    def at(cls, home: Path) -> _Opened:
        from ringfence import wiring
        from ringfence.clock import SystemClock
        from ringfence.database.address import open_database

        database = open_database(home)
        return cls(database, wiring.make_journal(wiring.Settings(home), database, SystemClock()))

    def appends(self, coming: Specimen) -> Step:
        async def append(number: int) -> None:
            begin, end = coming.records(number)
            await self.written.begin(begin)
            await self.written.end(end)

        return append

    def fetches(self, names: list[str]) -> Step:
        from ringfence.journal.reader import reading

        async def fetch(number: int) -> None:
            with reading(self.database) as reader:
                found = reader.execution(names[number])
            if found is None or found.end is None or found.end.text is None:
                raise WrongOutput(f"{names[number]} is not in the journal")

        return fetch

    def lists(self, filters: Callable[[int], dict[str, str]]) -> Step:
        from ringfence.journal.reader import reading

        async def first_page(number: int) -> None:
            with reading(self.database) as reader:
                page = reader.executions(filters(number), limit=PAGE)
            if len(page) != PAGE:
                raise WrongOutput(f"{filters(number)} gave {len(page)} of {PAGE} runs")

        return first_page

    def close(self) -> None:
        self.written.close()


@contextmanager
def on_disk(place: Path) -> Iterator[tuple[Path, str]]:
    """Yield a new home beside the one of this user, and why nothing measured in it would count, if so."""
    place.mkdir(parents=True, exist_ok=True, mode=0o700)
    with TemporaryDirectory(prefix="bench-", dir=place) as name:
        kind = file_system(Path(name))
        yield Path(name), f"{place} is on {kind}, which is no disk" if kind in ("tmpfs", "ramfs") else ""


def file_system(path: Path) -> str:
    """Name the kind of file system that a path is on."""
    mounts = [line.split() for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    device = path.stat().st_dev
    number = f"{os.major(device)}:{os.minor(device)}"
    return next((words[words.index("-") + 1] for words in mounts if words[2] == number), "an unknown file system")
