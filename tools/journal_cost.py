"""Measures what appending, fetching and listing cost in an empty journal and in one with a million records.

    python tools/journal_cost.py [RECORDS [POSTGRES_URL_OF_AN_EMPTY_DATABASE POSTGRES_URL_OF_ANOTHER]]

Prints medians in microseconds, their ratio, and for a file the pages that one begin and one end write.
"""

from __future__ import annotations

import hashlib
import json
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from ringfence.budgets.owner import this_process
from ringfence.database.address import open_database
from ringfence.database.port import Database
from ringfence.database.sqlite import DATABASE_NAME
from ringfence.journal import finding, store
from ringfence.journal.store import Exec, LogState, Row

ROUNDS = 400
AT_ONCE = 5000
PAGE = 20
_FRAME = 4096 + 24
_PADDING = "x" * 700


def main() -> None:
    """Fill, measure and print."""
    records = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000
    urls = (sys.argv[2], sys.argv[3]) if len(sys.argv) > 3 else (None, None)
    with tempfile.TemporaryDirectory() as name:
        homes = Path(name, "empty"), Path(name, "full")
        databases = [open_database(home, url) for home, url in zip(homes, urls, strict=True)]
        logs = [fill(database, wanted) for database, wanted in zip(databases, (0, records), strict=True)]
        empty, full = measure(databases, logs)
        for what, cost in full.items():
            print(f"{what}: empty {empty[what]:.0f} µs, full {cost:.0f} µs, ratio {cost / empty[what]:.2f}")
        for database, log, home, url in zip(databases, logs, homes, urls, strict=True):
            if url is None:
                print(f"{home.name}: pages written by a begin and by an end: {pages(database, log, home)}")
            database.close()


def fill(database: Database, records: int) -> LogState:
    """Write `records` records of half as many execs, as fast as it goes."""
    with database.transaction() as cursor:
        log = store.take_log(cursor, this_process(), 1, "lg-1")
    for first in range(0, records, AT_ONCE):
        with database.transaction() as cursor:
            store.append(cursor, log, [entry(seq) for seq in range(first, first + AT_ONCE)])
            for seq in range(first, first + AT_ONCE, 2):
                store.close_exec(cursor, ended(log, seq))
    with database.transaction() as cursor:
        return store.state(cursor, log.number)


def measure(databases: list[Database], logs: list[LogState]) -> list[dict[str, float]]:
    """Return the median cost of each step in each journal; they take turns, so that both see the same machine."""
    costs: list[dict[str, list[float]]] = [{}, {}]

    def timed(which: int, what: str, step: Callable[..., object], *values: object) -> None:
        began = time.perf_counter()
        step(databases[which], *values)
        costs[which].setdefault(what, []).append((time.perf_counter() - began) * 1e6)

    for number in range(ROUNDS):
        for which, log in enumerate(logs):
            seq = log.size + 2 * number
            timed(which, "begin", begin, log, seq)
            timed(which, "end", end, log, seq)
    at_random = random.Random(1)  # noqa: S311 - which exec is fetched is no secret
    for number in range(ROUNDS):
        for which, log in enumerate(logs):
            wanted = 2 * at_random.randrange(log.size // 2 + ROUNDS)
            timed(which, "fetch by exec_id", fetch, f"ex_{wanted:012x}")
            # in both journals, each of these has a full page
            timed(which, "first page by session", first_page, {"session_id": f"s{number % (ROUNDS // PAGE)}"})
            timed(which, "first page by outcome", first_page, {"outcome": "failed"})
            timed(which, "first page by two", first_page, {"outcome": "succeeded", "tool_name": "code_run"})
            timed(which, "first page of all", first_page, {})
    return [{what: statistics.median(each) for what, each in found.items()} for found in costs]


def begin(database: Database, log: LogState, seq: int) -> None:
    """Begin an exec, durably."""
    with database.transaction() as cursor:
        store.append(cursor, log, [entry(seq)])
        store.open_exec(cursor, f"ex_{seq:012x}", log.number, seq)


def end(database: Database, log: LogState, seq: int) -> None:
    """End it, durably."""
    with database.transaction() as cursor:
        store.append(cursor, log, [entry(seq + 1)])
        store.close_exec(cursor, ended(log, seq))


def fetch(database: Database, exec_id: str) -> None:
    """Fetch an exec with both its records."""
    with database.reading() as cursor:
        found = store.exec_by_id(cursor, exec_id)
        if not isinstance(found, Exec):
            raise LookupError(exec_id)
        store.record(cursor, found.log, found.begin_seq)
        store.record(cursor, found.log, found.end_seq)


def first_page(database: Database, filters: dict[str, str]) -> None:
    """List a page of execs."""
    with database.reading() as cursor:
        if len(finding.list_execs(cursor, filters, limit=PAGE)) != PAGE:
            raise LookupError(filters)


def pages(database: Database, log: LogState, home: Path) -> tuple[float, float]:
    """Return how many pages a begin and an end write to the file's log, on average."""
    wal = home / f"{DATABASE_NAME}-wal"
    with database.transaction() as cursor:
        seq = store.state(cursor, log.number).size
        cursor.execute("PRAGMA wal_autocheckpoint=0")
    written: list[list[int]] = [[], []]
    size = wal.stat().st_size
    for _ in range(1000):
        for which, step in enumerate((begin, end)):
            step(database, log, seq)
            now = wal.stat().st_size
            if now > size:
                written[which].append((now - size) // _FRAME)
            size = now
        seq += 2
    return (round(statistics.mean(written[0]), 1), round(statistics.mean(written[1]), 1))


def entry(seq: int) -> Row:
    """Return a record of the usual length."""
    exec_id = f"ex_{seq & ~1:012x}"
    text = json.dumps({"exec_id": exec_id, "seq": seq, "padding": _PADDING})
    kind = "exec.end" if seq & 1 else "exec.begin"
    return Row(seq, 1_700_000_000_000 + seq, kind, exec_id, hashlib.sha256(text.encode()).digest(), text)


def ended(log: LogState, seq: int) -> Exec:
    """Return what the exec begun at `seq` is found by: a session, a tool, a call, an envelope, as in the usual run."""
    return Exec(
        f"ex_{seq:012x}",
        log.number,
        seq,
        seq + 1,
        1_700_000_000_000 + seq,
        "failed" if seq // 2 % PAGE == 0 else "succeeded",
        tenant="local",
        subject_id="local",
        session_id=f"s{seq // 2 % (ROUNDS // PAGE)}",
        tool_name="code_run",
        call_id=f"call_{seq:012x}",
        envelope_id=f"ev_{seq:012x}",
    )


if __name__ == "__main__":
    main()
