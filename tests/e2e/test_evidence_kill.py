"""A host that is killed at any moment, under load, leaves a journal that is whole, and every run accounted for once."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest
from tests.conftest import Databases
from tests.journal_checks import verified

from ringfence.evidence import records
from ringfence.journal import store

MOST_ACKNOWLEDGED = 20

POLICY = """
policies:
  default: {max_execution_time: 10s}
budgets:
  tenant: {"*": {calls: 100000000, concurrent: 64}}
"""

# Every run that its caller was told about is one line on stdout, written in one piece; so is every refusal.
HOST = """
import asyncio, os, random, sys
from ringfence import SandboxManager
from ringfence.errors import RingfenceError
from ringfence.operation.brokered import FsWrite, FsRead

home, policy, url, seed = sys.argv[1:]
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
        await asyncio.gather(*(caller(number) for number in range(6)))

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
def test_of_a_killed_host_every_acknowledged_run_has_a_begin_and_an_end(
    tmp_path: Path, databases: Databases, count: Callable[[int], int]
) -> None:
    seed = random.randrange(2**32)
    rng = random.Random(seed)
    place = Place(databases.home, tmp_path / "policy.yaml", databases.url)
    place.policy.write_text(POLICY)
    told: list[str] = []
    for _ in range(count(200 if databases.url is None else 60)):  # two hosts each
        told += killed(place, rng)
    after = place.start(AFTERWARDS)
    told.append(after.communicate(timeout=60)[0].decode().strip())
    assert after.returncode == 0, f"seed {seed}"
    check(databases, told, f"seed {seed}")


def killed(place: Place, rng: random.Random) -> list[str]:
    """Run two hosts on one home, kill both at a random number of acknowledgements, and return those."""
    hosts = [place.start(HOST, str(rng.randrange(2**32))) for _ in range(2)]
    told = []
    for host in hosts:
        assert host.stdout is not None
        lines = [host.stdout.readline() for _ in range(rng.randrange(MOST_ACKNOWLEDGED))]
        host.send_signal(signal.SIGKILL)
        lines += host.stdout.readlines()
        assert host.wait() == -signal.SIGKILL
        host.stdout.close()
        told += [line.decode().strip() for line in lines if line.endswith(b"\n")]
    return told


def check(databases: Databases, told: list[str], where: str) -> None:
    kinds: dict[str, Counter[str]] = {}
    orphaned = 0
    with databases.open().reading() as cursor:
        assert store.open_execs(cursor) == (), where
        for log in store.logs(cursor):
            for row in store.rows(cursor, log.number):
                assert row.text is not None
                record = json.loads(row.text)
                if "exec_id" in record:
                    kinds.setdefault(record["exec_id"], Counter())[record["type"]] += 1
                orphaned += record.get("reason") == records.ORPHANED
        reserved = cursor.execute("SELECT count(*) FROM budget_reservation").fetchone()[0]
        accounts = cursor.execute("SELECT settled, held FROM budget_account WHERE kind = 'calls'").fetchall()
    whole, refused = Counter({records.BEGIN: 1, records.END: 1}), Counter({records.DENIED: 1})
    assert len(told) == len(set(told)), where
    assert [exec_id for exec_id in told if kinds.get(exec_id) not in (whole, refused)] == [], where
    assert [exec_id for exec_id, found in kinds.items() if found not in (whole, refused)] == [], where
    assert reserved == 0, where
    assert all(held == 0 for _, held in accounts), where
    assert orphaned > 0, f"no kill ever hit a run: {where}"
    verified(databases.home, databases.url)
