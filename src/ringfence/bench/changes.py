"""How long it takes until the law has changed: a budget spent, a grant revoked, a policy file written anew."""

from __future__ import annotations

import itertools
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from ringfence.authority.credential import ProposedCall
from ringfence.authority.policy import BUILT_IN
from ringfence.authority.policy_source import PolicySource
from ringfence.bench.promise import Line
from ringfence.bench.series import Series
from ringfence.bench.subject import Bench, Measured
from ringfence.budgets.reservation import MeterSource, Usage
from ringfence.budgets.scope import INSTANCE, SYSTEM_BUDGET, Account, Chain, Scope, ScopeKind
from ringfence.budgets.sqlite import SqliteMeter
from ringfence.capability.budget import Budget
from ringfence.clock import SystemClock
from ringfence.errors import Unavailable
from ringfence.grants.issuer import LocalIssuer
from ringfence.grants.revocations import RevocationFile
from ringfence.identifiers import TimeOrdered
from ringfence.stores.policy_file import PolicyFile

_MS: Final = 1000
_TENANT: Final = "bench"


async def changes(bench: Bench) -> Measured:
    """Do each of the three, one after the other, until it is in force for whoever asks next."""
    runs = bench.settings.pairs
    with tempfile.TemporaryDirectory() as home:
        spent = _taken("a budget reserved and settled", _spending(Path(home)), runs)
        revoked = _taken("a grant revoked, until it is refused", _revoking(Path(home)), runs)
        lines = [_line(spent), _line(revoked)]
        taken = [spent, revoked]
        try:
            written = _taken("a policy changed, until it is in force", _rewriting(Path(home)), runs)
        except Unavailable as missing:
            lines.append(Line("a policy changed, until it is in force, p95", None, str(missing), unit="ms"))
        else:
            lines.append(_line(written))
            taken.append(written)
    return Measured(tuple(lines), tuple(taken))


def _line(series: Series) -> Line:
    detail = f"p50 {series.p50 * _MS:.2f} ms, n={len(series.seconds)}"
    return Line(f"{series.name}, p95", series.quantile(0.95) * _MS, detail, unit="ms")


def _taken(name: str, change: Callable[[], None], runs: int) -> Series:
    taken = []
    for _ in range(runs):
        began = time.perf_counter()
        change()
        taken.append(time.perf_counter() - began)
    return Series(name, tuple(taken))


def _spending(home: Path) -> Callable[[], None]:
    meter, numbers = SqliteMeter.in_home(home), itertools.count()
    tenant = Account(Scope(ScopeKind.TENANT, _TENANT, _TENANT), Budget(calls=1 << 40, cpu_ms=1 << 40))
    chain = Chain((Account(INSTANCE, SYSTEM_BUDGET), tenant))

    def spend() -> None:
        held = meter.reserve(chain, Budget(calls=1, cpu_ms=1000), f"bench{next(numbers)}")
        meter.settle(held, Usage(Budget(calls=1, cpu_ms=5), MeterSource.CGROUP))

    return spend


def _revoking(home: Path) -> Callable[[], None]:
    clock, numbers = SystemClock(), itertools.count()
    issuer, by, seen_by = LocalIssuer(clock, TimeOrdered()), RevocationFile(home, clock), RevocationFile(home, clock)

    def revoke() -> None:
        call = ProposedCall(_TENANT, "local", "code_run", f"call{next(numbers)}")
        grant = issuer.issue(BUILT_IN, call).grant
        by.revoke("grant", grant.nonce, tenant=_TENANT)
        if not seen_by.is_revoked(grant):
            raise AssertionError("a grant that was revoked is still good")

    return revoke


def _rewriting(home: Path) -> Callable[[], None]:
    path, numbers = home / "policy.yaml", itertools.count()
    path.write_text("policies: {}\n")
    source = PolicySource(PolicyFile(path))

    def rewrite() -> None:
        before = source.current().policy_version_hash
        path.write_text(f"policies: {{default: {{max_execution_time: {next(numbers) % 50 + 1}s}}}}\n")
        if source.current().policy_version_hash == before:
            raise AssertionError("a policy that was changed is not in force")

    return rewrite
