"""`ringfence ps`: the processes that run in the service of this home, and the last of those that are over."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from typing import Any

from ringfence.interfaces.cli.process_desk import ProcessDesk, parser_of, say, state_of

_COLUMNS = ("PROCESS", "STATE", "STARTED", "LANGUAGE", "PROJECT", "OUTPUT")


def ps_command(words: Sequence[str]) -> int:
    """Carry out `ringfence ps` and return the exit code."""
    options = parser_of("ps").parse_args(list(words))
    found = ProcessDesk().listed()
    if options.json:
        say({"items": found}, "", as_json=True)
        return 0
    if not found:
        sys.stderr.write("ringfence: no processes; 'ringfence start -- COMMAND' starts one\n")
        return 0
    rows = [_COLUMNS, *map(_row, found)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_COLUMNS))]
    for row in rows:
        sys.stdout.write("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() + "\n")
    sys.stdout.flush()
    return 0


def _row(process: dict[str, Any]) -> tuple[str, ...]:
    kind = process["language"] + (" tty" if process["terminal"] else "")
    return (
        process["process_id"],
        state_of(process),
        time.strftime("%H:%M:%S", time.localtime(process["started_at_ms"] / 1000)),
        kind,
        process["project_id"] or "-",
        f"{process['stdout_bytes'] + process['stderr_bytes']} B",
    )
