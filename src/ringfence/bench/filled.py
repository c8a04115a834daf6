"""Fills a journal with as many records as wanted, sealed, linked and signed as the pipeline's own, so that it verifies.

They are what the pipeline wrote of one run, over and over under new names, and many to a transaction: one at a time,
most of the time would go into waiting for the disk.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from ringfence.clock import SystemClock
from ringfence.database.sqlite import SqliteDatabase
from ringfence.dataclass import dataclass
from ringfence.evidence.records import Members
from ringfence.identifiers import TimeOrdered
from ringfence.journal import recovery, store
from ringfence.journal.log import Checkpoints, Draft
from ringfence.journal.signer import Signer
from ringfence.operation import CodeRun, Language
from ringfence.outcome import ExecutionResult, Status
from ringfence.testing import AS_A_BOX_LOOKS, MemorySink, ScriptedExecutor, orchestrator_over, standard_profile

FAILS_EVERY: Final = 5
"""One run in so many failed."""
RUNS_PER_SESSION: Final = 20
_RUN_MS: Final = 10
_CHECKPOINTS_AT_ONCE: Final = 4


@dataclass(frozen=True, slots=True)
class Specimen:
    """The two records of one run, as the pipeline made them, and how they are made those of another."""

    begin: Members
    end: Members
    prefix: str
    """What the ids of these runs begin with: two fillings of one journal share none."""
    first_ms: int
    """When the first of them began; each lasts 10 ms."""

    def exec_id(self, number: int) -> str:
        """Return the name of a run: its time first, as in every name that Ringfence gives."""
        return f"ex_{self._started(number):012x}{self.prefix}{number:012x}"

    def session_id(self, number: int) -> str:
        """Return whose run it was."""
        return f"{self.prefix}{number // RUNS_PER_SESSION}"

    def failed(self, number: int) -> bool:
        """Whether this run is one that failed."""
        return number % FAILS_EVERY == 0

    def records(self, number: int) -> tuple[Members, Members]:
        """Return what is written when a run begins and when it ends."""
        started, name = self._started(number), self.exec_id(number)
        ids = {
            "exec_id": name,
            "envelope_id": f"ev{name[2:]}",
            "call_id": f"call{name[2:]}",
            "session_id": self.session_id(number),
        }
        ended = started + _RUN_MS - 1
        end = {**self.end, **ids, "time_ms": ended, "finished_at_ms": ended}
        if self.failed(number):
            end |= {"status": "error", "outcome": "failed", "exit_code": 1}
        return {**self.begin, **ids, "time_ms": started, "produced_at_ms": started}, end

    def _started(self, number: int) -> int:
        return self.first_ms + number * _RUN_MS


def specimen(prefix: str, first_ms: int) -> Specimen:
    """Have the real pipeline write down one run, which a stand-in answers."""
    sink = MemorySink()

    async def once() -> None:
        result = ExecutionResult(
            Status.SUCCEEDED,
            exit_code=0,
            stdout_raw=b"1\n",
            elapsed_ms=1.5,
            backend="native",
            sandbox_id="native-1",
            isolation=AS_A_BOX_LOOKS,
        )
        operation = CodeRun(Language.PYTHON, "print(1)")
        pipeline = orchestrator_over(ScriptedExecutor(lambda _: result), evidence=sink)
        await pipeline.run(operation, standard_profile(operation))

    # in a thread of its own: whoever measures is in an event loop already
    thread = threading.Thread(target=lambda: asyncio.run(once()))
    thread.start()
    thread.join()
    begin, end = sink.records
    return Specimen(begin, end, prefix, first_ms)


def fill(home: Path, runs: int, *, prefix: str = "f") -> Specimen:
    """Write the records of `runs` runs into the journal of `home`, the last of them over by now."""
    clock = SystemClock()
    kind = specimen(prefix, clock.now_ms() - runs * _RUN_MS)
    signer, database = Signer.in_home(home), SqliteDatabase.in_home(home)
    try:
        with database.transaction() as cursor:
            log = recovery.take_log(cursor, TimeOrdered(), clock.now_ms(), lambda: signer).log
        for numbers in _parts(range(runs), _CHECKPOINTS_AT_ONCE * Checkpoints().every // 2):
            with database.transaction() as cursor:
                draft = Draft(log, cursor, signer)
                for covered in _parts(numbers, Checkpoints().every // 2):
                    for record in _records(kind, covered):
                        draft.add(record)
                    draft.sign(clock.now_ms())
            log.became(draft)
        with database.transaction() as cursor:
            store.release_log(cursor, log.state)
    finally:
        database.close()
    return kind


def _records(kind: Specimen, numbers: Iterable[int]) -> Iterator[Members]:
    for number in numbers:
        yield from kind.records(number)


def _parts(numbers: range, size: int) -> Iterator[range]:
    return (numbers[first : first + size] for first in range(0, len(numbers), size))
