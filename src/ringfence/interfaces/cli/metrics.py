"""`ringfence metrics`: what the journal of a home amounts to, in the text that Prometheus scrapes.

What was counted is kept in the home, so that the next call reads only what the journal gained since.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from ringfence.errors import InvalidRequest
from ringfence.interfaces.cli.evidence_desk import INTACT, Desk, open_desk, read_place
from ringfence.interfaces.cli.options import StrictParser
from ringfence.journal import store
from ringfence.metrics.exposition import openmetrics_text, prometheus_text
from ringfence.metrics.recorder import Recorder
from ringfence.metrics.snapshot import restore, snapshot

_MOST_BYTES: Final = 64 << 20


def metrics_command(words: Sequence[str]) -> int:
    """Carry out `ringfence metrics` and return the exit code."""
    taken = StrictParser(prog="ringfence metrics")
    taken.add_argument("--home", type=Path)
    taken.add_argument("--no-aliases", action="store_true")
    taken.add_argument("--openmetrics", action="store_true")
    options = taken.parse_args(list(words))
    desk = open_desk(options.home)
    recorder = counted(desk)
    text = openmetrics_text if options.openmetrics else prometheus_text
    sys.stdout.write(text(recorder, aliases=not options.no_aliases))
    sys.stdout.flush()
    return 0


def counted(desk: Desk) -> Recorder:
    """Return what the journal of a home amounts to, and keep it for the next call."""
    kept = desk.home / "evidence" / "metrics.json"
    recorder = _restored(kept)
    with desk.reading() as reader:
        for log in reader.logs():
            known = recorder.position.get(log.log_id, -1)
            for place in reader.records(log.number, max(log.first_seq, known + 1)):
                read = read_place(place)
                if read.state == INTACT:  # what was tampered with is for `evidence verify` to tell
                    recorder.record(read.members)
    with desk.database.reading() as cursor:
        for log in store.logs(cursor):
            last = store.last_checkpoint(cursor, log.number)
            if last is not None:
                recorder.checkpointed(last.time_ms)
    _keep(kept, snapshot(recorder))
    return recorder


def _restored(path: Path) -> Recorder:
    try:
        with path.open("rb") as file:
            return restore(json.loads(file.read(_MOST_BYTES)))
    except (OSError, ValueError, RecursionError, InvalidRequest):
        return Recorder()  # it is a cache: the journal is counted from its start


def _keep(path: Path, fields: dict[str, Any]) -> None:
    """Replace the cache whole; one that cannot be written costs time at the next call, and nothing else."""
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        fd = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        with os.fdopen(fd, "w") as file:
            json.dump(fields, file)
        partial.replace(path)
    except OSError:
        partial.unlink(missing_ok=True)
