"""Records and execs that the tests of the journal write, without the hashing that is none of its business."""

from __future__ import annotations

import hashlib
import json

from ringfence.budgets.owner import Owner
from ringfence.database.port import Cursor
from ringfence.journal import store
from ringfence.journal.store import Checkpoint, Exec, LogState, Row

DEAD = Owner("another boot", "pid:[1]", 1, 1)


def row(seq: int, type_: str = "log.opened", exec_id: str | None = None, /, **members: object) -> Row:
    body = {"type": type_, "seq": seq, **({"exec_id": exec_id} if exec_id else {}), **members}
    text = json.dumps(body, sort_keys=True)
    return Row(seq, 1000 + seq, type_, exec_id, hashlib.sha256(text.encode()).digest(), text)


def run(cursor: Cursor, log: LogState, seq: int, exec_id: str, outcome: str = "succeeded", **ids: str) -> Exec:
    """Write the begin and the end of an exec at `seq` and after it."""
    begin, end = row(seq, "exec.begin", exec_id, **ids), row(seq + 1, "exec.end", exec_id, **ids)
    store.append(cursor, log, [begin])
    store.open_exec(cursor, exec_id, log.number, seq)
    store.append(cursor, log, [end])
    ended = Exec(exec_id, log.number, seq, seq + 1, begin.time_ms, outcome, **ids)
    store.close_exec(cursor, ended)
    return ended


def checkpoint(size: int) -> Checkpoint:
    return Checkpoint(size, 5000 + size, bytes([size % 256]) * 32, f"frontier-{size}", f"note-{size}")
