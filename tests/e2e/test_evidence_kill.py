"""A host that is killed at any moment, under load, leaves a journal that is whole, and every run accounted for once."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest
from tests.conftest import SOAK, Databases
from tests.journal_checks import verified

from ringfence.evidence import records
from ringfence.journal import store

MOST_ACKNOWLEDGED = 20

# what draws on a budget is filed before it is told, as is what comes together; the rest is noted
COUNTED = """
policies:
  default: {max_execution_time: 10s}
budgets:
  tenant: {"*": {calls: 100000000, concurrent: 64}}
"""
UNCOUNTED = "policies: {default: {max_execution_time: 10s}}"

# Every run that its caller was told about is one line on stdout, written in one piece; so is every refusal.
HOST = """
import asyncio, os, random, sys
from ringfence import SandboxManager
from ringfence.errors import RingfenceError
from ringfence.operation.brokered import FsWrite, FsRead

home, policy, url, seed, callers = sys.argv[1:]
rng = random.Random(int(seed))

def told(exec_id):
    os.write(1, f"{exec_id}\\n".encode())

async def main():
    async with SandboxManager("kept", home=home, policy_file=policy, database=url or None) as manager:
        plain = SandboxManager(home=home, policy_file=policy, database=url or None)

        async def caller(number):
            while True:
                match rng.randrange(4):
                    case 0 | 1:
                        told((await plain.execute_code("python", "print(1)")).exec_id)
                    case 2:
                        change = FsWrite(f"work/f{number}", b"x" * rng.randrange(100), overwrite=True)
                        told((await manager.perform(change)).exec_id)
                    case 3:
                        try:
                            await manager.perform(FsRead("work/../../etc/passwd"))
                        except RingfenceError as refused:
                            pass
        await asyncio.gather(*(caller(number) for number in range(int(callers))))

asyncio.run(main())
"""

AFTERWARDS = """
import sys
from ringfence import engines
from ringfence import SandboxManager
from ringfence.portal import portal
home, policy, url = sys.argv[1:]
manager = SandboxManager(home=home, policy_file=policy, database=url or None)
print(portal().call(manager.execute_code("python", "print(1)")).exec_id, flush=True)
engines._end_all()
"""


class Place(NamedTuple):
    """Where one storm takes place."""

    home: Path
    policy: Path
    url: str | None

    def start(self, code: str, *arguments: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-c", code, str(self.home), str(self.policy), self.url or "", *arguments]
        return subprocess.Popen(command, stdout=subprocess.PIPE)


@pytest.mark.needs("native")
@pytest.mark.guarantee(18)
@pytest.mark.timeout(0)
@pytest.mark.parametrize(("policy", "callers"), [(COUNTED, 6), (UNCOUNTED, 6), (UNCOUNTED, 1)])
def test_of_a_killed_host_every_acknowledged_run_has_a_begin_and_an_end(
    tmp_path: Path, databases: Databases, count: Callable[[int], int], policy: str, callers: int
) -> None:
    seed = random.randrange(2**32)
    rng = random.Random(seed)
    place = Place(databases.home, tmp_path / "policy.yaml", databases.url)
    place.policy.write_text(policy)
    told: list[str] = []
    for _ in range(count(100 if databases.url is None else 60)):  # two hosts each
        told += killed(place, rng, callers)
    after = place.start(AFTERWARDS)
    told.append(after.communicate(timeout=60)[0].decode().strip())
    assert after.returncode == 0, f"seed {seed}"
    orphaned = check(databases, told, f"seed {seed}")
    assert orphaned or not SOAK, f"no kill ever hit a run: seed {seed}"


@pytest.mark.needs("native")
@pytest.mark.guarantee(18)
def test_whoever_looks_after_a_kill_finds_every_acknowledged_run(tmp_path: Path) -> None:
    place = Place(tmp_path / "home", tmp_path / "policy.yaml", None)
    place.policy.write_text(UNCOUNTED)
    for seed in range(5):
        told = killed(place, random.Random(seed), callers=1)
        command = [
            sys.executable,
            "-m",
            "ringfence",
            "evidence",
            "list",
            "--json",
            "--limit",
            "500",
            "--home",
            str(place.home),
        ]
        found = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
        ended = {each["exec_id"] for each in found["execs"] if each["status"] == "ok"}
        assert set(told) <= ended


def killed(place: Place, rng: random.Random, callers: int) -> list[str]:
    """Run two hosts on one home, kill both at a random number of acknowledgements, and return those."""
    hosts = [place.start(HOST, str(rng.randrange(2**32)), str(callers)) for _ in range(2)]
    told = []
    for host in hosts:
        assert host.stdout is not None
        lines = [host.stdout.readline() for _ in range(rng.randrange(MOST_ACKNOWLEDGED))]
        time.sleep(rng.random() / 100)  # any moment of the next runs, and not only the one after a result
        host.send_signal(signal.SIGKILL)
        lines += host.stdout.readlines()
        assert host.wait() == -signal.SIGKILL
        host.stdout.close()
        told += [line.decode().strip() for line in lines if line.endswith(b"\n")]
    return told


def check(databases: Databases, told: list[str], where: str) -> list[str]:
    """Hold the journal against what was told, and return what was cut off."""
    kinds: dict[str, Counter[str]] = {}
    orphaned: list[str] = []
    with databases.open().reading() as cursor:
        assert store.open_execs(cursor) == (), where
        for log in store.logs(cursor):
            for row in store.rows(cursor, log.number):
                assert row.text is not None
                record = json.loads(row.text)
                if "exec_id" in record:
                    kinds.setdefault(record["exec_id"], Counter())[record["type"]] += 1
                orphaned += [record["exec_id"]] if record.get("reason") == records.ORPHANED else []
        reserved = cursor.execute("SELECT count(*) FROM budget_reservation").fetchone()[0]
        accounts = cursor.execute("SELECT settled, held FROM budget_account WHERE kind = 'calls'").fetchall()
    whole, refused = Counter({records.BEGIN: 1, records.END: 1}), Counter({records.DENIED: 1})
    assert len(told) == len(set(told)), where
    assert [exec_id for exec_id in told if kinds.get(exec_id) not in (whole, refused)] == [], where
    assert [exec_id for exec_id, found in kinds.items() if found not in (whole, refused)] == [], where
    assert reserved == 0, where
    assert all(held == 0 for _, held in accounts), where
    assert set(orphaned).isdisjoint(told), where  # of what was told it is known how it ended
    verified(databases.home, databases.url)
    return orphaned
