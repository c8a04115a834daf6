"""G21: whatever a tenant can make stays within a number, which is told; what others make counts for nobody else."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from ringfence.clock import SystemClock
from ringfence.database.sqlite import SqliteDatabase
from ringfence.errors import Overloaded, QuotaExceeded
from ringfence.runtimes import tenants
from ringfence.service import exec_store, keys
from ringfence.service.callers import Access
from ringfence.service.exec_store import ExecStore, Promised, key_digest
from ringfence.service.keys import ApiKeys

pytestmark = pytest.mark.guarantee(21)


def promised(tenant: str, number: int) -> Promised:
    return Promised(f"ex_{tenant}{number}", tenant, key_digest(f"k{number}"), "d", 1)


def test_a_tenant_has_so_many_keys_for_executions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exec_store, "MOST_KEYS", 5)
    store = ExecStore(SqliteDatabase.in_home(tmp_path))
    for number in range(5):
        assert store.promise(promised("acme", number), room=True) is not None
    for again in (store, ExecStore(SqliteDatabase.in_home(tmp_path))):
        with pytest.raises(Overloaded) as refused:
            again.promise(promised("acme", 5), room=True)
        assert refused.value.reason == "idempotency_keys"
        assert again.promise(promised("acme", 4), room=True) is not None
    assert store.promise(promised("other", 5), room=True) is not None


def test_a_service_has_so_many_keys_and_a_revoked_one_makes_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keys, "MOST_KEYS", 2)
    made = ApiKeys(SqliteDatabase.in_home(tmp_path), SystemClock(), tmp_path)
    first, _ = made.create(Access.AGENT)
    made.create(Access.AGENT)
    with pytest.raises(QuotaExceeded, match="already"):
        made.create(Access.AGENT)
    made.revoke(first.key_id)
    made.create(Access.AGENT)


def test_a_tenant_has_so_many_package_environments(tmp_path: Path) -> None:
    for number in range(tenants.MOST_ENVIRONMENTS):
        (tmp_path / f"tenants/acme/{number}").mkdir(parents=True)
    with pytest.raises(QuotaExceeded) as refused:
        tenants.environment_for("acme", ("attrs",), tmp_path, Path(sys.executable))
    assert refused.value.reason == "packages"
