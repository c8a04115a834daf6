"""Whether a run gets its share of every scope's budget, and what each scope is charged afterwards; all of it pure.

A scope's *standing* in one kind is what was settled and what is held by runs under way. The law that every store keeps:
settled + held never passes the limit that the reservation was made under.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from ringfence.budgets.reservation import Hold, MeterSource, Overrun, Reservation, Settlement, Usage
from ringfence.budgets.scope import Bound, Chain, Scope
from ringfence.capability.budget import KINDS, Amount, Budget
from ringfence.dataclass import dataclass
from ringfence.errors import InvalidRequest, QuotaExceeded

LEVELS = frozenset({"concurrent"})
"""Kinds that are had for as long as a run lasts, and given back whole."""

REASONS: Mapping[str, str] = {
    **{kind: kind for kind in KINDS},
    "memory_mb_s": "memory",
    "disk_bytes": "disk",
    "concurrent": "concurrency",
}
"""The reason under QUOTA.BUDGET_EXCEEDED for each kind that can run out."""


class Standing(NamedTuple):
    """Where one scope stands in one kind."""

    settled: int = 0
    held: int = 0


Key = tuple[Scope, str]
UNTOUCHED = Standing()


@dataclass(frozen=True, slots=True)
class Refusal:
    """The bound that has too little left for what was asked."""

    bound: Bound
    observed: int
    asked: int

    def error(self) -> QuotaExceeded:
        """Return it as the error a caller gets."""
        scope, kind, limit = self.bound
        return quota_exceeded(
            kind, scope=str(scope.kind), name=scope.name, limit=limit, observed=self.observed, asked=self.asked
        )


def quota_exceeded(kind: str, *, scope: str, name: str, limit: int, observed: int, asked: int) -> QuotaExceeded:
    """Return the error that names the scope and the kind which refuse."""
    holder = f"{scope} {name!r}" if name else scope
    error = QuotaExceeded(
        f"{kind} of the {holder}: {observed} of {limit} used or reserved, {asked} more asked for",
        scope=scope,
        name=name,
        kind=kind,
        limit=limit,
        observed=observed,
        asked=asked,
    )
    error.reason = REASONS.get(kind, QuotaExceeded.default_reason)
    return error


def decide(
    chain: Chain, standings: Mapping[Key, Standing], amounts: Budget, exec_id: str, least: Budget | None = None
) -> Reservation | Refusal:
    """Return what `exec_id` is given of every account of the chain, or the bound that refuses it.

    It is given `amounts`, or less where that is all there is and no less than `least`; without `least`, all or nothing.
    Where several bounds refuse, the first kind is named, at the scope that has the least left: concurrency comes last,
    so whoever is told to wait would not wait in vain.

    Raises:
        InvalidRequest: An amount is not a number.
    """
    wanted, needed = demand(amounts, least)
    strictest: dict[str, tuple[int, Bound]] = {}
    for bound in chain.bounds:
        standing = standings.get((bound.scope, bound.kind), UNTOUCHED)
        left = bound.limit - standing.settled - standing.held
        if bound.kind not in strictest or left < strictest[bound.kind][0]:
            strictest[bound.kind] = (left, bound)
    given: dict[str, Amount] = dict(wanted)
    for kind in KINDS:
        if kind not in strictest:
            continue
        left, bound = strictest[kind]
        given[kind] = amount = max(0, min(wanted.get(kind, 0), left))
        if amount < needed.get(kind, 0):
            return Refusal(bound, bound.limit - left, needed[kind])
    granted = Budget(**given)
    # a bound nothing was asked of is held at 0: should the run use some of it after all, it is charged
    holds = tuple(Hold(scope, kind, limit, number(granted, kind)) for scope, kind, limit in chain.bounds)
    return Reservation(exec_id, granted, holds)


def demand(amounts: Budget, least: Budget | None) -> tuple[dict[str, int], dict[str, int]]:
    """Return what is wanted and what is needed of every kind that is stated.

    Raises:
        InvalidRequest: An amount is not a number.
    """
    wanted = _numbers(amounts)
    return wanted, wanted if least is None else {**wanted, **_numbers(least)}


def _numbers(amounts: Budget) -> dict[str, int]:
    stated = amounts.to_json()
    for kind, amount in stated.items():
        if not isinstance(amount, int):
            raise InvalidRequest(f"{kind}: only a number can be reserved, not {amount!r}", reason="invalid_budget")
    return stated


def number(amounts: Budget, kind: str) -> int:
    """Return how much of `kind` is stated; what is not a number is none."""
    amount = getattr(amounts, kind)
    return amount if isinstance(amount, int) else 0


class Change(NamedTuple):
    """What happens to one scope's standing in one kind."""

    scope: Scope
    kind: str
    settled: int
    held: int


def changes_of(reservation: Reservation) -> tuple[Change, ...]:
    """Return what reserving does to the accounts."""
    return tuple(Change(hold.scope, hold.kind, 0, hold.amount) for hold in reservation.holds)


def settle(
    reservation: Reservation, standings: Mapping[Key, Standing], usage: Usage
) -> tuple[tuple[Change, ...], Settlement]:
    """Return what settling does to the accounts, and what is told about it.

    What a run used beyond its reservation (a cap that acts late) is charged as far as its scope has anything left that
    nobody else was promised; the rest is named as an overrun, so that it is seen and no account passes its limit.
    """
    changes: list[Change] = []
    overruns: list[Overrun] = []
    for scope, kind, limit, amount in reservation.holds:
        standing = standings.get((scope, kind), UNTOUCHED)
        used = _used(usage, kind, amount)
        charged = min(used, amount + max(0, limit - standing.settled - standing.held))
        changes.append(Change(scope, kind, charged, -amount))
        if used > charged:
            overruns.append(Overrun(scope, kind, used - charged))
    charged_in_all = Budget(
        **{kind: _used(usage, kind, amount) for kind, amount in _numbers(reservation.amounts).items()}
    )
    return tuple(changes), Settlement(reservation.exec_id, charged_in_all, _source(usage), tuple(overruns))


def _used(usage: Usage, kind: str, reserved: int) -> int:
    if kind in LEVELS:
        return 0
    measured = getattr(usage.amounts, kind)
    return measured if isinstance(measured, int) else reserved


def _source(usage: Usage) -> MeterSource:
    return usage.source if usage.amounts.to_json() else MeterSource.RESERVED


def keys(parts: Iterable[Bound | Hold | Change]) -> tuple[Key, ...]:
    """Return which standings are concerned."""
    return tuple((part.scope, part.kind) for part in parts)
