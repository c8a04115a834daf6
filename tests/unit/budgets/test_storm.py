"""Processes that share a home, killed at any moment: no limit is passed, nothing is lost, nothing is charged twice."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.conftest import Databases
from tests.unit.budgets import storm
from tests.unit.budgets.accounts import TENANT, chain_of, used

from ringfence.budgets.decide import Standing
from ringfence.budgets.port import Measured
from ringfence.budgets.reservation import MeterSource, Settlement, Usage
from ringfence.budgets.sqlite import SqliteMeter
from ringfence.capability.budget import Budget

ROUNDS = 2000


def start(databases: Databases, name: str, calls: int) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    where: list[str | Path] = [databases.home, databases.url or ""]
    return subprocess.Popen([sys.executable, storm.__file__, *where, name, str(ROUNDS), str(calls)], env=environment)


def told(home: Path, name: str) -> list[list[str]]:
    log = home / f"{name}.log"
    return [line.split() for line in log.read_text().splitlines()] if log.exists() else []


@pytest.mark.timeout(600)
def test_a_storm_of_processes_killed_at_any_moment_keeps_every_account_exact(
    databases: Databases, count: Callable[[int], int]
) -> None:
    meter = SqliteMeter(databases.open(wait_seconds=60))
    at_random = random.Random(7)
    names: list[str] = []
    calls_in_all = count(1600)
    for generation in range(count(200)):
        batch = [f"g{generation}p{place}" for place in range(3)]
        running = {name: start(databases, name, calls_in_all) for name in batch}
        names += batch
        # wait until each has done something, then kill in the middle of whatever it is doing
        wanted = {name: at_random.randrange(1, 60) for name in batch}
        while any(len(told(databases.home, name)) < wanted[name] and running[name].poll() is None for name in batch):
            assert meter.standing(storm.TENANT, "concurrent").held <= storm.CONCURRENT
        for process in running.values():
            process.send_signal(signal.SIGKILL)
            process.wait()
        while meter.standing(storm.TENANT, "concurrent") != Standing(0, 0):
            # a server takes a moment to see that a session is over
            assert meter.recover() or databases.url

    words = [words for name in names for words in told(databases.home, name)]
    held, settled = ({word[1] for word in words if word[0] == what} for what in ("holds", "settled"))
    asked = {word[1] for word in words if word[0] == "asks"} - {word[1] for word in words if word[0] == "refused"}
    figures = {word[1]: int(word[2]) for word in words if word[0] == "settles"}
    calls, cpu_ms = (meter.standing(storm.TENANT, kind) for kind in ("calls", "cpu_ms"))
    assert (calls.held, cpu_ms.held) == (0, 0)
    assert calls.settled <= calls_in_all
    # whoever was killed between asking and being told may or may not have got it
    assert len(held) <= calls.settled <= len(asked)
    # settled runs cost what they said; the others no more than what was reserved, and no less than nothing
    certain = sum(figures[exec_id] for exec_id in settled)
    unclear = asked - settled
    assert certain <= cpu_ms.settled <= certain + len(unclear) * storm.CPU_EACH
    meter.close()


def die_holding(databases: Databases, exec_id: str) -> None:
    child = os.fork()
    if child == 0:
        SqliteMeter(databases.open()).reserve(
            chain_of(Budget(cpu_ms=100, concurrent=1)), Budget(cpu_ms=60, concurrent=1), exec_id
        )
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(child, 0)


def recovered(meter: SqliteMeter, measured: Measured = lambda _: None) -> tuple[Settlement, ...]:
    """Recover until there was something; a server takes a moment to see that a session is over."""
    while not (settled := meter.recover(measured)):
        pass
    return settled


def test_what_a_dead_process_reserved_is_settled_in_full_where_nobody_measured_it(databases: Databases) -> None:
    die_holding(databases, "ex")
    meter = SqliteMeter(databases.open())
    assert meter.standing(TENANT, "cpu_ms") == Standing(0, 60)
    (settlement,) = recovered(meter)
    assert (settlement.exec_id, settlement.charged.cpu_ms, settlement.source) == ("ex", 60, MeterSource.RESERVED)
    assert (meter.standing(TENANT, "cpu_ms"), meter.standing(TENANT, "concurrent")) == (Standing(60, 0), Standing(0, 0))
    assert meter.recover() == ()
    meter.close()


def test_what_a_dead_process_used_is_settled_where_a_figure_is_still_there(databases: Databases) -> None:
    die_holding(databases, "ex")
    meter = SqliteMeter(databases.open())
    figures = {"ex": Usage(Budget(cpu_ms=17), MeterSource.CGROUP)}
    (settlement,) = recovered(meter, figures.get)
    assert (settlement.charged.cpu_ms, settlement.source) == (17, MeterSource.CGROUP)
    assert meter.standing(TENANT, "cpu_ms") == Standing(17, 0)
    meter.close()


def test_a_clock_that_jumps_neither_frees_nor_forgets_anything(tmp_path: Path) -> None:
    meter = SqliteMeter.in_home(tmp_path)
    held = meter.reserve(chain_of(Budget(calls=2)), Budget(calls=1), "ex")
    code = f"""
import time
shift = 0
real = time.time
time.time = lambda: real() + shift
time.time_ns = lambda: int(time.time() * 1e9)
from pathlib import Path
from ringfence.budgets.sqlite import SqliteMeter
meter = SqliteMeter.in_home(Path({str(tmp_path)!r}))
for shift in (-10**9, 10**9, 10**10):
    print(meter.recover())
meter.close()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "()\n" * 3
    assert meter.settle(held, used(calls=1)).was_open
    assert meter.standing(TENANT, "calls") == Standing(1, 0)
    meter.close()


def test_a_forked_child_opens_the_file_for_itself_and_leaves_the_parents_alone(tmp_path: Path) -> None:
    meter = SqliteMeter.in_home(tmp_path)
    chain = chain_of(Budget(calls=9))
    meter.reserve(chain, Budget(calls=1), "parent")
    child = os.fork()
    if child == 0:
        try:
            held = meter.reserve(chain, Budget(calls=1), "child")
            meter.settle(held, used(calls=1))
            meter.close()
        finally:
            os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert meter.standing(TENANT, "calls") == Standing(1, 1)
    meter.close()


def test_a_forked_child_that_ends_in_the_ordinary_way_leaves_the_parents_log_alone(tmp_path: Path) -> None:
    code = f"""
import os, sys
from pathlib import Path
from ringfence.budgets.sqlite import SqliteMeter
from ringfence.capability.budget import Budget
from tests.unit.budgets.accounts import TENANT, chain_of, used
home = Path({str(tmp_path)!r})
meter = SqliteMeter.in_home(home)
held = meter.reserve(chain_of(Budget(calls=9)), Budget(calls=1), "ex")
log = (home / "ringfence.db-wal").stat().st_size
if (child := os.fork()) == 0:
    sys.exit()
os.waitpid(child, 0)
print(log > 0, (home / "ringfence.db-wal").stat().st_size == log)
meter.settle(held, used(calls=1))
print(*meter.standing(TENANT, "calls"))
meter.close()
"""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run([sys.executable, "-Werror", "-c", code], capture_output=True, text=True, env=environment)
    assert (done.stdout, done.stderr) == ("True True\n1 0\n", "")
