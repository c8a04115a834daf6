"""What every register of calls keeps to, in memory and in a database; and what only the lasting one can promise."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from tests.conftest import Databases

from ringfence.authority.credential import Credential, ProposedCall
from ringfence.authority.narrowing import Narrowing
from ringfence.authority.policy import BUILT_IN
from ringfence.capability.budget import Budget
from ringfence.database.address import open_database
from ringfence.errors import Denied, QuotaExceeded, Unavailable
from ringfence.grants.calls import CallsInMemory
from ringfence.grants.issuer import LocalIssuer
from ringfence.identifiers import TimeOrdered
from ringfence.journal.calls import CallsInDatabase
from ringfence.ports import CallRegister

CALL = ProposedCall("acme", "agent-7", "file_read", "call-1", "site-a")


@dataclass
class StillClock:
    ms: int = 1_800_000_000_000

    def now_ms(self) -> int:
        return self.ms


@pytest.fixture
def clock() -> StillClock:
    return StillClock()


@pytest.fixture(params=["memory", "sqlite", pytest.param("postgres", marks=pytest.mark.needs("postgres"))])
def register(request: pytest.FixtureRequest, tmp_path: Path, clock: StillClock) -> Iterator[CallRegister]:
    if request.param == "memory":
        yield CallsInMemory(clock)
        return
    url = request.getfixturevalue("postgres").new_database() if request.param == "postgres" else None
    database = open_database(tmp_path, url)
    yield CallsInDatabase(database, clock)
    database.close()


def credential(calls: int | None = None, call: ProposedCall = CALL) -> Credential:
    return LocalIssuer(StillClock(), TimeOrdered()).issue(BUILT_IN, call, budget=Budget(calls=calls))


def reason(register: CallRegister, presented: Credential) -> str | None:
    try:
        register.spend(presented)
    except (Denied, QuotaExceeded) as refused:
        return refused.reason
    return None


def test_a_grant_is_spent_as_often_as_it_allows(register: CallRegister) -> None:
    presented = credential(2)
    assert [reason(register, presented) for _ in range(3)] == [None, None, "calls"]


def test_a_grant_without_a_number_is_spent_as_often_as_anybody_likes(register: CallRegister) -> None:
    presented = credential()
    assert [reason(register, presented) for _ in range(5)] == [None] * 5


def test_a_grant_for_no_operation_is_refused_at_once(register: CallRegister) -> None:
    with pytest.raises(QuotaExceeded) as refused:
        register.spend(credential(0))
    assert refused.value.details["limit"] == 0


def test_a_closed_call_is_a_replay_whether_or_not_anything_was_spent(register: CallRegister) -> None:
    used, unused = credential(5), credential(5)
    register.spend(used)
    for presented in (used, unused):
        assert not register.is_closed(presented)
        register.close(presented)
        register.close(presented)
        assert register.is_closed(presented)
        assert reason(register, presented) == "replayed"


def test_a_call_that_is_closed_and_used_up_is_a_replay(register: CallRegister) -> None:
    presented = credential(1)
    register.spend(presented)
    register.close(presented)
    assert reason(register, presented) == "replayed"


def test_halves_of_one_grant_share_its_calls(register: CallRegister) -> None:
    whole = credential(3)
    one, other = (whole.narrowed(Narrowing(budget=Budget(calls=2))) for _ in range(2))
    assert [reason(register, half) for half in (one, other, one, other)] == [None, None, "calls", "calls"]
    assert [reason(register, whole) for _ in range(2)] == [None, "calls"]
    register.close(one)
    assert register.is_closed(whole)


def test_calls_of_two_tenants_are_two(register: CallRegister) -> None:
    mine = credential(1)
    theirs = replace(mine, grant=replace(mine.grant, tenant="other"))
    register.close(mine)
    assert reason(register, theirs) is None


def test_a_call_is_remembered_as_long_as_its_grant_was_issued_for(register: CallRegister, clock: StillClock) -> None:
    long = replace(credential(1), first_expires_at=clock.ms + 10_000)
    # narrowed to expire early; whoever has the longer one presents it later
    short = replace(long, grant=replace(long.grant, expires_at=clock.ms + 1))
    register.close(short)
    clock.ms += 5_000
    for number in range(2100):
        other = replace(long.grant, decision_key_fingerprint=f"other-{number}")
        register.close(replace(long, grant=other, first_expires_at=clock.ms - 1 if number < 2000 else clock.ms + 1))
    assert reason(register, long) == "replayed"


def test_threads_never_spend_more_than_a_grant_allows(register: CallRegister) -> None:
    presented = credential(20)
    given: list[int] = []

    def spend() -> None:
        given.append(sum(reason(register, presented) is None for _ in range(10)))

    threads = [threading.Thread(target=spend) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(given) == 20


def test_expired_calls_are_swept_and_only_those(databases: Databases, clock: StillClock) -> None:
    register = CallsInDatabase(databases.open(), clock)
    first = credential()
    for number in range(600):
        grant = replace(first.grant, decision_key_fingerprint=f"f{number}")
        register.close(replace(first, grant=grant, first_expires_at=clock.ms + 1 + number % 2))
    clock.ms += 1
    CallsInDatabase(databases.open(), clock).close(replace(first, first_expires_at=clock.ms + 1))
    with databases.open().transaction() as cursor:
        assert cursor.execute("SELECT count(*) FROM grant_call").fetchone() == (301,)


def test_a_grant_used_up_is_refused_after_a_restart_and_by_another_process(databases: Databases) -> None:
    closed, spent = credential(2), credential(1)
    before = databases.open()
    register = CallsInDatabase(before, StillClock())
    register.close(closed)
    register.spend(spent)
    beside = CallsInDatabase(databases.open(), StillClock())
    assert (reason(beside, closed), reason(beside, spent)) == ("replayed", "calls")
    before.close()
    after = CallsInDatabase(databases.open(), StillClock())
    assert (reason(after, closed), reason(after, spent)) == ("replayed", "calls")


SPEND = """
import sys
from pathlib import Path
from tests.unit.journal.test_calls import StillClock, credential, reason
from dataclasses import replace
from ringfence.database.address import open_database
from ringfence.journal.calls import CallsInDatabase
presented = credential(40)
presented = replace(presented, grant=replace(presented.grant, decision_key_fingerprint="the one"))
register = CallsInDatabase(open_database(Path(sys.argv[1]), sys.argv[2] or None, wait_seconds=60), StillClock())
print(sum(reason(register, presented) is None for _ in range(30)))
"""


def test_processes_never_spend_more_than_a_grant_allows(databases: Databases) -> None:
    command = [sys.executable, "-c", SPEND, str(databases.home), databases.url or ""]
    there = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=there) for _ in range(3)]
    assert sum(int(process.communicate()[0]) for process in running) == 40


def test_without_a_place_to_write_nothing_is_admitted(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    register = CallsInDatabase(open_database(tmp_path / "file"), StillClock())
    for step in (register.spend, register.close, register.is_closed):
        with pytest.raises(Unavailable):
            step(credential())
