"""One process of the storm: reserves and settles until it is killed, and says before each step what it is about to do.

Run as `python storm.py HOME URL NAME ROUNDS CALLS`; an empty URL means the file of the home. Its log is what the test
knows without asking the database.
"""

from __future__ import annotations

import os
import random
import sys
from pathlib import Path

from ringfence.budgets.reservation import MeterSource, Usage
from ringfence.budgets.scope import INSTANCE, SYSTEM_BUDGET, Account, Chain, Scope, ScopeKind
from ringfence.budgets.sqlite import SqliteMeter
from ringfence.capability.budget import Budget
from ringfence.database.address import open_database
from ringfence.errors import QuotaExceeded

TENANT = Scope(ScopeKind.TENANT, "acme", "acme")
CPU_MS, CONCURRENT, CPU_EACH = 10**9, 2, 50


def chain(calls: int) -> Chain:
    budget = Budget(calls=calls, cpu_ms=CPU_MS, concurrent=CONCURRENT)
    return Chain((Account(INSTANCE, SYSTEM_BUDGET), Account(TENANT, budget)))


def main(home: Path, url: str, name: str, rounds: int, calls: int) -> None:
    meter = SqliteMeter(open_database(home, url or None, wait_seconds=60))
    log = os.open(home / f"{name}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def say(*words: object) -> None:
        os.write(log, (" ".join(map(str, words)) + "\n").encode())

    for i in range(rounds):
        exec_id = f"{name}-{i}"
        say("asks", exec_id)
        try:
            held = meter.reserve(chain(calls), Budget(calls=1, cpu_ms=CPU_EACH, concurrent=1), exec_id)
        except QuotaExceeded as refused:
            say("refused", exec_id, refused.reason)
            continue
        say("holds", exec_id)
        used = random.randrange(CPU_EACH)
        say("settles", exec_id, used)
        meter.settle(held, Usage(Budget(calls=1, cpu_ms=used), MeterSource.CGROUP))
        say("settled", exec_id)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3], int(sys.argv[4]), int(sys.argv[5]))
