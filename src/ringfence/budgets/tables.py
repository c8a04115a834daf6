"""The budgets as tables; every function works inside a transaction that its caller has begun and will end."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import TYPE_CHECKING

from ringfence.budgets import decide
from ringfence.budgets.decide import Change, Key, Refusal, Standing
from ringfence.budgets.owner import Owner
from ringfence.budgets.reservation import Hold, Reservation, Settlement, Usage, already_closed
from ringfence.budgets.scope import Chain, Scope, ScopeKind, check_name
from ringfence.capability.budget import KINDS, Budget, read_budget
from ringfence.errors import InvalidRequest, RingfenceError, Unavailable

if TYPE_CHECKING:
    from ringfence.database.port import Cursor

_STANDING = "SELECT kind, settled, held FROM budget_account WHERE scope = ? AND tenant = ? AND name = ?"
_CHANGE = """
    UPDATE budget_account SET settled = settled + ?, held = held + ?
    WHERE scope = ? AND tenant = ? AND name = ? AND kind = ?
"""
_BEGIN = "INSERT INTO budget_account (scope, tenant, name, kind, settled, held) VALUES (?, ?, ?, ?, ?, ?)"
_OPEN = "INSERT INTO budget_reservation VALUES (?, ?, ?, ?, ?, ?, ?)"
_OWNED = "SELECT exec_id, boot_id, pid_namespace, pid, started FROM budget_reservation ORDER BY exec_id"


def reserve(
    cursor: Cursor, chain: Chain, amounts: Budget, exec_id: str, owner: Owner, least: Budget | None = None
) -> Reservation:
    """Hold `amounts` of every account of `chain`, and remember for whom; see `BudgetMeter.reserve`.

    A refusal has written nothing, so the transaction can go on: the record of a denial belongs in it.
    """
    check_name(exec_id, "the exec_id")
    decision = decide.decide(chain, standings(cursor, decide.keys(chain.bounds)), amounts, exec_id, least)
    if isinstance(decision, Refusal):
        raise decision.error()
    if cursor.execute("SELECT 1 FROM budget_reservation WHERE exec_id = ?", (exec_id,)).fetchone():
        raise InvalidRequest(f"{exec_id} has a reservation already")
    _apply(cursor, decide.changes_of(decision))
    granted, holds = json.dumps(decision.amounts.to_json()), json.dumps([_flat(hold) for hold in decision.holds])
    cursor.execute(_OPEN, (exec_id, granted, holds, owner.boot_id, owner.pid_namespace, owner.pid, owner.started))
    return decision


def settle(cursor: Cursor, exec_id: str, used: Usage) -> Settlement:
    """Charge what `exec_id` used and close its reservation; see `BudgetMeter.settle`."""
    row = cursor.execute("SELECT amounts, holds FROM budget_reservation WHERE exec_id = ?", (exec_id,)).fetchone()
    if row is None:
        return already_closed(exec_id, used)
    reservation = _read(exec_id, *row)
    changes, settlement = decide.settle(reservation, standings(cursor, decide.keys(reservation.holds)), used)
    _apply(cursor, changes)
    cursor.execute("DELETE FROM budget_reservation WHERE exec_id = ?", (exec_id,))
    return settlement


def owners(cursor: Cursor) -> tuple[tuple[str, Owner], ...]:
    """Return the `exec_id` of every open reservation with who made it."""
    return tuple((row[0], Owner(*row[1:])) for row in cursor.execute(_OWNED).fetchall())


def forget(cursor: Cursor, scopes: Iterable[Scope]) -> None:
    """Drop the accounts of `scopes` that nobody holds anything of."""
    cursor.executemany(
        "DELETE FROM budget_account WHERE scope = ? AND tenant = ? AND name = ? AND held = 0",
        [(scope.kind.value, scope.tenant, scope.name) for scope in scopes],
    )


def standings(cursor: Cursor, wanted: Iterable[Key]) -> dict[Key, Standing]:
    """Return where the scopes stand; one that never was asked for anything is not among them."""
    kinds: dict[Scope, list[str]] = {}
    for scope, kind in wanted:
        kinds.setdefault(scope, []).append(kind)
    found: dict[Key, Standing] = {}
    for scope, of_scope in kinds.items():
        for kind, settled, held in cursor.execute(_STANDING, (scope.kind.value, scope.tenant, scope.name)).fetchall():
            if kind not in of_scope:
                continue
            # less than nothing would be a larger budget
            if type(settled) is not int or type(held) is not int or settled < 0 or held < 0:
                raise _damaged(f"what the {scope} has used of {kind}")
            found[scope, kind] = Standing(settled, held)
    return found


def _apply(cursor: Cursor, changes: Iterable[Change]) -> None:
    for scope, kind, settled, held in changes:
        if settled or held:
            key = (scope.kind.value, scope.tenant, scope.name, kind)
            if not cursor.execute(_CHANGE, (settled, held, *key)).rowcount:
                cursor.execute(_BEGIN, (*key, settled, held))


def _flat(hold: Hold) -> list[str | int]:
    return [hold.scope.kind.value, hold.scope.tenant, hold.scope.name, hold.kind, hold.limit, hold.amount]


def _read(exec_id: str, amounts: str, holds: str) -> Reservation:
    try:
        return Reservation(exec_id, read_budget(json.loads(amounts)), tuple(_hold(*flat) for flat in json.loads(holds)))
    except (ValueError, TypeError, RingfenceError) as error:
        raise _damaged(f"the reservation of {exec_id}") from error


def _hold(scope: str, tenant: str, name: str, kind: str, limit: int, amount: int) -> Hold:
    if kind not in KINDS or type(limit) is not int or type(amount) is not int:
        raise ValueError(kind)
    return Hold(Scope(ScopeKind(scope), name, tenant), kind, limit, amount)


def _damaged(what: str) -> Unavailable:
    return Unavailable(f"{what} cannot be read, so nothing is counted and nothing runs")
