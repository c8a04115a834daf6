"""Verifies the journal of a home in a process of its own, and tells what that took of the machine.

A process that has filled a journal before has memory to spare, and would not show what verifying takes.
"""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path

from ringfence.database.sqlite import SqliteDatabase
from ringfence.dataclass import dataclass
from ringfence.evidence.verify import Trust
from ringfence.journal.reader import reading
from ringfence.journal.signer import key_in_home, verify


@dataclass(frozen=True, slots=True)
class Verification:
    """What verifying found, and what it took of the machine."""

    proven: bool
    records: int
    checkpoints: int
    cpu_seconds: float
    memory_samples: tuple[int, ...]
    """Resident bytes before the first record, and then every 10,000 records."""

    @property
    def grown_bytes(self) -> int:
        """The most that was resident beyond what was at the beginning."""
        return max(self.memory_samples) - self.memory_samples[0]


def verify_apart(home: Path) -> Verification:
    """Verify the journal of `home`, against the key of that home, in a new process."""
    command = [sys.executable, "-m", "ringfence.bench.verifying", str(home)]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True, env=_environment())
    answer = json.loads(done.stdout)
    return Verification(**answer | {"memory_samples": tuple(answer["memory_samples"])})


def verify_here(home: Path) -> Verification:
    """Verify the journal of `home` in this process."""
    key = key_in_home(home)
    trust = Trust(verify, keys=() if key is None else (key,))
    samples: list[int] = []
    database = SqliteDatabase.in_home(home)
    try:
        with reading(database) as reader:
            gc.collect()
            samples.append(_resident_bytes())
            began = time.thread_time()
            found = reader.verify(trust, lambda _: samples.append(_resident_bytes()))
            taken = time.thread_time() - began
    finally:
        database.close()
    samples.append(_resident_bytes())
    return Verification(
        proven=found.is_proven,
        records=sum(report.records for report in found.reports),
        checkpoints=sum(report.checkpoints for report in found.reports),
        cpu_seconds=taken,
        memory_samples=tuple(samples),
    )


def _environment() -> dict[str, str]:
    # the very package that measures, wherever it was imported from
    package = Path(__file__).resolve().parents[2]
    return {**os.environ, "PYTHONPATH": f"{package}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}


def _resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


if __name__ == "__main__":
    sys.stdout.write(json.dumps(asdict(verify_here(Path(sys.argv[1])))) + "\n")
