"""Whose budgets a run draws on."""

from __future__ import annotations

import pytest

from ringfence.budgets.scope import (
    INSTANCE,
    UNBOUNDED,
    Account,
    Bound,
    Chain,
    Scope,
    ScopeKind,
    chain,
)
from ringfence.capability.budget import INHERITED, Budget
from ringfence.errors import InvalidRequest


def nothing_stated(scope: str, name: str) -> Budget:
    return INHERITED


def test_a_policy_without_budgets_bounds_nothing() -> None:
    names = {ScopeKind.TENANT: "acme", ScopeKind.SESSION: "s1"}
    assert chain(names, nothing_stated).bounds == ()
    assert UNBOUNDED.bounds == ()


def test_the_chain_is_ordered_from_the_widest_scope_whatever_order_the_names_have() -> None:
    names = {ScopeKind.CALL: "c", ScopeKind.GRANT: "g", ScopeKind.USER: "u", ScopeKind.TENANT: "t"}
    kinds = [account.scope.kind for account in chain(names, nothing_stated).accounts]
    assert kinds == [ScopeKind.INSTANCE, ScopeKind.TENANT, ScopeKind.USER, ScopeKind.GRANT, ScopeKind.CALL]


def test_zero_is_a_bound_absent_is_inherited_and_unlimited_bounds_nothing() -> None:
    grant = Budget(calls=0, cpu_ms="unlimited")
    made = chain({ScopeKind.TENANT: "t", ScopeKind.GRANT: "g"}, nothing_stated, {ScopeKind.GRANT: grant})
    assert made.bounds == (Bound(Scope(ScopeKind.GRANT, "g", "t"), "calls", 0),)


def test_what_the_outermost_scope_does_not_state_is_none() -> None:
    assert all(bound.limit == 0 for bound in Chain((Account(INSTANCE, Budget(calls=0)),)).bounds)
    assert len(Chain((Account(INSTANCE, Budget(calls="unlimited")),)).bounds) == 9


def test_a_user_of_one_tenant_is_another_one_in_another_tenant() -> None:
    ours = chain({ScopeKind.TENANT: "a", ScopeKind.USER: "bob"}, nothing_stated).accounts[-1].scope
    theirs = chain({ScopeKind.TENANT: "b", ScopeKind.USER: "bob"}, nothing_stated).accounts[-1].scope
    assert ours != theirs


@pytest.mark.parametrize("name", ["\ud800", "a\0b", "x" * 257, "line\nbreak", 7])
def test_a_name_no_store_could_keep_is_refused_before_any_store_sees_it(name: str) -> None:
    with pytest.raises(InvalidRequest):
        Scope(ScopeKind.USER, name, "t")


def test_only_the_instance_has_no_name() -> None:
    with pytest.raises(InvalidRequest):
        Scope(ScopeKind.USER)
    with pytest.raises(InvalidRequest):
        Scope(ScopeKind.INSTANCE, "other")


@pytest.mark.parametrize(
    "kinds", [[], [ScopeKind.TENANT], [ScopeKind.INSTANCE, ScopeKind.USER, ScopeKind.TENANT], [ScopeKind.INSTANCE] * 2]
)
def test_a_chain_that_does_not_narrow_from_the_instance_is_refused(kinds: list[ScopeKind]) -> None:
    accounts = tuple(
        Account(INSTANCE if kind is ScopeKind.INSTANCE else Scope(kind, "n", "t"), INHERITED) for kind in kinds
    )
    with pytest.raises(InvalidRequest):
        Chain(accounts)
