"""Chains and amounts that the tests of budgets are about."""

from __future__ import annotations

from ringfence.budgets.reservation import MeterSource, Usage
from ringfence.budgets.scope import INSTANCE, SYSTEM_BUDGET, Account, Chain, Scope, ScopeKind
from ringfence.capability.budget import Budget

TENANT = Scope(ScopeKind.TENANT, "acme", "acme")
USER = Scope(ScopeKind.USER, "ada", "acme")


def chain_of(tenant: Budget, user: Budget | None = None, instance: Budget = SYSTEM_BUDGET) -> Chain:
    accounts = [Account(INSTANCE, instance), Account(TENANT, tenant)]
    return Chain((*accounts, Account(USER, user)) if user is not None else tuple(accounts))


def used(source: MeterSource = MeterSource.CGROUP, **amounts: int) -> Usage:
    return Usage(Budget(**amounts), source)
