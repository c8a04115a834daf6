"""Whether the index that executions are found by says what their records say: it is under no hash of its own."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from ringfence.evidence.records import DENIED, END
from ringfence.journal import store

if TYPE_CHECKING:
    from ringfence.database.port import Cursor


def index_fault(cursor: Cursor) -> str | None:
    """Return the first thing that the index hides, invents or says otherwise about a journal whose records are whole.

    Whoever may write to the file could else take an execution out of every list and every selection, while every record
    of it still verifies.
    """
    ended = pruned = 0
    for log in store.logs(cursor):
        for row in store.rows(cursor, log.number, log.first_seq):
            if row.text is None:
                pruned += row.type in (END, DENIED)
                continue
            members = json.loads(row.text)
            if members["type"] not in (END, DENIED):
                continue
            ended += 1
            wrong = _wrong(store.exec_by_id(cursor, members["exec_id"]), log.number, members)
            if wrong is not None:
                return (
                    f"the index {wrong} execution {members['exec_id']}, whose end is record {row.seq} of {log.log_id}"
                )
    (listed,) = cursor.execute("SELECT count(*) FROM journal_exec").fetchone()
    if listed > ended + pruned:
        return f"the index lists {listed} executions, and there are records of {ended + pruned}"
    return None


def _wrong(found: store.Exec | store.OpenExec | None, log: int, members: dict[str, Any]) -> str | None:
    if not isinstance(found, store.Exec):
        return "does not have"
    told = {name: members.get(name) for name in (*store.ID_FIELDS, "outcome")}
    is_same = all(getattr(found, name) == value for name, value in told.items())
    return None if is_same and (found.log, found.end_seq) == (log, members["seq"]) else "says otherwise about"
