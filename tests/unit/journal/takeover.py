"""One process of the storm over a journal: takes logs, its own and living ones, and writes until it is killed.

Run as `python takeover.py HOME URL NAME`. It says on its standard output what was acknowledged to it.
"""

from __future__ import annotations

import random
import sys
from pathlib import Path

from tests.unit.journal.entries import DEAD, row

from ringfence.budgets.owner import this_process
from ringfence.database.address import open_database
from ringfence.database.port import Database
from ringfence.errors import Unavailable
from ringfence.journal import store
from ringfence.journal.store import LogState, LogTaken


def main(home: Path, url: str, name: str) -> None:
    database = open_database(home, url or None, wait_seconds=60)
    log = _take(database, name)
    seq, last = log.size, log.last_hash
    number = 0
    while True:
        number += 1
        if random.random() < 0.1:
            _rob(database)
        exec_id = f"{name}-{number}"
        begin = row(seq, "exec.begin", exec_id, prev=last.hex())
        try:
            with database.transaction() as cursor:
                store.append(cursor, log, [begin])
                store.open_exec(cursor, exec_id, log.number, seq)
        except LogTaken:
            log = _take(database, name)
            seq, last = log.size, log.last_hash
            continue
        seq, last = seq + 1, begin.hash
        print(exec_id, flush=True)


def _take(database: Database, name: str) -> LogState:
    with database.transaction() as cursor:
        return store.take_log(cursor, this_process(), 1, f"lg-{name}-{random.random()}")


def _rob(database: Database) -> None:
    """Make everybody's logs look like those of the dead, which is as wrong as a takeover can be."""
    with database.transaction() as cursor:
        cursor.execute("UPDATE journal_log SET boot_id = ?", (DEAD.boot_id,))
        for log in store.logs(cursor):
            cursor.end_lease(log.number)


if __name__ == "__main__":
    try:
        main(Path(sys.argv[1]), sys.argv[2], sys.argv[3])
    except Unavailable as error:
        print("failed:", error, flush=True)
