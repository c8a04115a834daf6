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
    number, log = 0, None
    while True:
        try:
            if log is None:
                log = _take(database, name)
                seq, last = log.size, log.last_hash
            if random.random() < 0.1:
                _rob(database, url)
                log = None
                continue
            number += 1
            exec_id = f"{name}-{number}"
            begin = row(seq, "exec.begin", exec_id, prev=last.hex())
            with database.transaction() as cursor:
                store.append(cursor, log, [begin])
                store.open_exec(cursor, exec_id, log.number, seq)
        except Unavailable as error:
            if isinstance(error, LogTaken):
                log = None
            # who was cut off believes that the log is still his; in a file there is no such excuse
            elif not url:
                raise
            continue
        seq, last = seq + 1, begin.hash
        print(exec_id, flush=True)


def _take(database: Database, name: str) -> LogState:
    with database.transaction() as cursor:
        return store.take_log(cursor, this_process(), 1, f"lg-{name}-{random.random()}")


def _rob(database: Database, url: str) -> None:
    """Make everybody's logs look like those of the dead, which is as wrong as a takeover can be."""
    with database.transaction() as cursor:
        if url:
            cursor.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'ringfence' "
                "AND datname = current_database() AND pid <> pg_backend_pid()"
            )
        cursor.execute("UPDATE journal_log SET boot_id = ?", (DEAD.boot_id,))


if __name__ == "__main__":
    try:
        main(Path(sys.argv[1]), sys.argv[2], sys.argv[3])
    except Unavailable as error:
        print("failed:", error, flush=True)
