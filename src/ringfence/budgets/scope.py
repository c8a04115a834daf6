"""Whose budgets one run draws on: the chain of accounts from the whole instance down to the single call."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Final, NamedTuple

from ringfence.capability.budget import KINDS, UNLIMITED, Amount, Budget
from ringfence.dataclass import dataclass, field, replace
from ringfence.errors import InvalidRequest

_ALL: dict[str, Amount] = dict.fromkeys(KINDS, UNLIMITED)
SYSTEM_BUDGET: Final = Budget(**_ALL)
"""What an instance has when its policy says nothing; `unlimited` must be written, and this is where it is."""

_LONGEST_NAME = 256


class ScopeKind(StrEnum):
    """Who has a budget, the widest first; each is within the one before."""

    INSTANCE = "instance"
    TENANT = "tenant"
    SPACE = "space"
    USER = "user"
    SESSION = "session"
    PROFILE = "profile"
    GRANT = "grant"
    CALL = "call"


_ORDER = {kind: place for place, kind in enumerate(ScopeKind)}


@dataclass(frozen=True, slots=True)
class Scope:
    """One holder of a budget; a name means something within its tenant only, so one tenant never spends another's."""

    kind: ScopeKind
    name: str = ""
    tenant: str = ""

    def __post_init__(self) -> None:
        check_name(self.name, f"the {self.kind}")
        check_name(self.tenant, "the tenant")
        if (self.kind is ScopeKind.INSTANCE) != (self.name == ""):
            raise InvalidRequest(f"a budget's {self.kind} needs a name, and only the instance has none")

    def __str__(self) -> str:
        return f"{self.kind} {self.name!r}" if self.name else str(self.kind)


class Bound(NamedTuple):
    """One number that a run must stay within."""

    scope: Scope
    kind: str
    limit: int


@dataclass(frozen=True, slots=True)
class Account:
    """A scope and what it may use in all."""

    scope: Scope
    budget: Budget


@dataclass(frozen=True, slots=True)
class Chain:
    """The accounts a run draws on, the widest first; every one of them has to have enough."""

    accounts: tuple[Account, ...]
    bounds: tuple[Bound, ...] = field(init=False, compare=False)
    """Every number in it; where there is none, nothing is counted and nothing is looked up."""

    def __post_init__(self) -> None:
        places = [_ORDER[account.scope.kind] for account in self.accounts]
        if not places or places[0] != 0 or places != sorted(set(places)):
            raise InvalidRequest("a chain of budgets begins with the instance and only ever narrows")
        # nobody is there for the outermost scope to inherit from: what it leaves out is none
        outermost = replace(self.accounts[0], budget=self.accounts[0].budget.closed())
        object.__setattr__(self, "accounts", (outermost, *self.accounts[1:]))
        object.__setattr__(
            self,
            "bounds",
            tuple(
                Bound(account.scope, kind, limit)
                for account in self.accounts
                for kind in KINDS
                if isinstance(limit := getattr(account.budget, kind), int)
            ),
        )


def chain(
    names: Mapping[ScopeKind, str],
    budget_of: Callable[[str, str], Budget],
    own: Mapping[ScopeKind, Budget] | None = None,
) -> Chain:
    """Return the chain of a run whose scopes are called `names`; a scope without a name is not in it.

    `budget_of` is `Policy.budget_of`; `own` has the budgets of scopes no policy names: profile, grant and call.

    Raises:
        InvalidRequest: A name cannot be one.
    """
    tenant = names.get(ScopeKind.TENANT, "")
    accounts = [Account(INSTANCE, SYSTEM_BUDGET.meet(budget_of(ScopeKind.INSTANCE, "*")))]
    for kind in ScopeKind:
        if kind is ScopeKind.INSTANCE or not names.get(kind):
            continue
        budget = own[kind] if own is not None and kind in own else budget_of(kind, names[kind])
        accounts.append(Account(Scope(kind, names[kind], tenant), budget))
    return Chain(tuple(accounts))


def check_name(name: object, what: str) -> None:
    """Refuse a name that no store could keep.

    Raises:
        InvalidRequest: It is not text, too long, not Unicode or has a NUL byte.
    """
    # a lone surrogate would fail in the middle of a transaction, where it looks like a broken store
    if not isinstance(name, str) or len(name) > _LONGEST_NAME or not name.isprintable():
        raise InvalidRequest(f"{what} of a budget is not a name: {str(name)[:60]!r}", reason="invalid_name")


INSTANCE: Final = Scope(ScopeKind.INSTANCE)
UNBOUNDED: Final = Chain((Account(INSTANCE, SYSTEM_BUDGET),))
