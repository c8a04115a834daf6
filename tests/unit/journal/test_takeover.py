"""Processes that rob each other of their logs and are killed: every log stays one chain, and nothing is lost."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable

import pytest
from tests.conftest import Databases
from tests.unit.journal import takeover

from ringfence.journal import store
from ringfence.journal.store import NO_HASH

PROCESSES, EACH = 3, 25


@pytest.mark.timeout(300)
def test_writers_that_take_each_others_logs_and_are_killed_never_fork_one(
    databases: Databases, count: Callable[[int], int]
) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    acknowledged: list[str] = []
    for generation in range(count(60)):
        running = []
        for place in range(PROCESSES):
            where = [str(databases.home), databases.url or "", f"g{generation}p{place}"]
            command = [sys.executable, takeover.__file__, *where]
            running.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment))
        for process in running:
            assert process.stdout is not None
            acknowledged += [process.stdout.readline().strip() for _ in range(EACH)]
        for process in running:
            process.kill()
            acknowledged += [
                line.strip() for line in process.communicate()[0].splitlines(keepends=True) if line[-1] == "\n"
            ]
    with databases.open().reading() as cursor:
        found: list[str] = []
        terms = 0
        for log in store.logs(cursor):
            last = NO_HASH
            for seq, record in enumerate(store.rows(cursor, log.number)):
                assert (record.seq, json.loads(record.text or "")["prev"]) == (seq, last.hex())
                last = record.hash
                found.append(str(record.exec_id))
            terms += store.state(cursor, log.number).term
        assert terms > PROCESSES  # there were robberies
        assert sorted(set(found)) == sorted(found)
        assert set(acknowledged) <= set(found)
        assert {begun.exec_id for begun in store.open_execs(cursor)} == set(found)
