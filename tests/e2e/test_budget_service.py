"""A quota service chosen by a setting: it counts every call instead of this home, and without its word nothing runs."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest
from tests.unit.budgets.quota_service import Service, running, send

from ringfence import InvalidRequest, QuotaExceeded, SandboxConfig, SandboxManager, Unavailable
from ringfence.database.sqlite import DATABASE_NAME
from ringfence.operation.brokered import FsWrite

BOX = pytest.mark.needs("native")
TWO_CALLS = "policies: {}\nbudgets: {tenant: {local: {calls: 2}}}\n"


@pytest.fixture
def service() -> Iterator[Service]:
    with running() as service:
        yield service


@pytest.fixture
def policy(tmp_path: Path) -> Path:
    path = tmp_path / "policy.yaml"
    path.write_text(TWO_CALLS)
    return path


def manager(at: Path, url: str, policy_file: Path | None = None) -> SandboxManager:
    return SandboxManager("s", home=at / "home", policy_file=policy_file, pool_size=0, budget_service=url)


async def write(held: SandboxManager, name: str) -> None:
    await held.perform(FsWrite(name, b"1"))


def unavailable(handler: BaseHTTPRequestHandler, path: str) -> bool:
    send(handler, 503, b"")
    return True


async def test_the_service_counts_every_call_and_its_no_holds(service: Service, policy: Path, tmp_path: Path) -> None:
    async with manager(tmp_path, service.url, policy) as held:
        await write(held, "work/a")
        await write(held, "work/b")
        with pytest.raises(QuotaExceeded) as refusal:
            await write(held, "work/c")
        assert refusal.value.reason == "calls"
    with closing(sqlite3.connect(tmp_path / "home" / DATABASE_NAME)) as here:
        assert here.execute("SELECT count(*) FROM budget_account").fetchone() == (0,)
    # two were held and settled, the third was refused
    assert [path.count("/") for path, _ in service.asked] == [1, 3, 1, 3, 1]
    assert service.open == {}


async def test_it_is_asked_where_no_policy_here_names_a_budget(service: Service, tmp_path: Path) -> None:
    async with manager(tmp_path, service.url) as held:
        await write(held, "work/a")
        assert [path.count("/") for path, _ in service.asked] == [1, 3]
        service.misbehave = unavailable
        with pytest.raises(Unavailable):
            await write(held, "work/b")
    names = [path.name for path in (tmp_path / "home").rglob("*") if path.is_file()]
    assert ("a" in names, "b" in names) == (True, False)


@BOX
def test_the_command_takes_it_from_the_environment(service: Service, policy: Path, tmp_path: Path) -> None:
    settings = {
        "RINGFENCE_HOME": str(tmp_path / "home"),
        "RINGFENCE_BUDGET_SERVICE": service.url,
        "RINGFENCE_BUDGET_TOKEN": "s3cret",
    }
    argv = [sys.executable, "-m", "ringfence", "run", "--policy", str(policy), "-c", "print('RAN')"]
    done = [
        subprocess.run(argv, capture_output=True, text=True, timeout=60, env={**os.environ, **settings}, check=False)
        for _ in range(3)
    ]
    assert [(each.returncode, each.stdout) for each in done] == [(0, "RAN\n"), (0, "RAN\n"), (5, "")], done[2].stderr
    assert {token for _, token in service.asked} == {"Bearer s3cret"}
    assert "s3cret" not in "".join(each.stdout + each.stderr for each in done)


@pytest.mark.parametrize("url", ["http://quota.example", "ftp://127.0.0.1", "", "quota.example"])
async def test_a_service_that_anybody_could_answer_for_is_refused(url: str, tmp_path: Path) -> None:
    async with manager(tmp_path, url) as held:
        with pytest.raises(InvalidRequest) as refusal:
            await write(held, "work/a")
        assert refusal.value.reason == "invalid_url"


def test_what_is_no_address_is_refused_at_once() -> None:
    with pytest.raises(InvalidRequest, match="budget_service must be a URL"):
        SandboxManager(config=SandboxConfig(budget_service=3))  # type: ignore[arg-type]
