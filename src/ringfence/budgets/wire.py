"""The messages to an external quota service; whatever it answers that is not exactly an answer is a refusal.

POST {url}/reservations                      {exec_id, chain: [{scope, name, tenant, budget}], amounts, least?}
    200 {"amounts": {…}}                     held, at most what was asked and at least what was needed
    429 {"scope", "name", "kind", "limit", "observed"}
POST {url}/reservations/{exec_id}/settle     {used: {…}, source}    200 {"charged": {…}, "was_open": true}
POST {url}/reservations/{exec_id}/release    {}                     200 {"charged": {}, "was_open": true}

The `exec_id` makes each of them safe to repeat. The service gives up reservations that nobody settles, as it sees fit.
"""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import quote

from ringfence.budgets.decide import demand, quota_exceeded
from ringfence.budgets.reservation import MeterSource, Reservation, Settlement, Usage
from ringfence.budgets.scope import Chain
from ringfence.capability.budget import KINDS, Budget, read_budget
from ringfence.errors import QuotaExceeded, RingfenceError


def reserve_request(chain: Chain, amounts: Budget, exec_id: str, least: Budget | None) -> tuple[str, dict[str, Any]]:
    """Return the path and the body that ask for a reservation.

    Raises:
        InvalidRequest: An amount is not a number.
    """
    wanted, needed = demand(amounts, least)
    body: dict[str, Any] = {
        "exec_id": exec_id,
        "chain": [
            {
                "scope": account.scope.kind.value,
                "name": account.scope.name,
                "tenant": account.scope.tenant,
                "budget": account.budget.to_json(),
            }
            for account in chain.accounts
        ],
        "amounts": wanted,
    }
    if needed != wanted:
        body["least"] = needed
    return "/reservations", body


def settle_request(exec_id: str, used: Usage) -> tuple[str, dict[str, Any]]:
    """Return the path and the body that settle a reservation."""
    return f"/reservations/{quote(exec_id, safe='')}/settle", {
        "used": used.amounts.to_json(),
        "source": used.source.value,
    }


def release_request(exec_id: str) -> tuple[str, dict[str, Any]]:
    """Return the path and the body that give a reservation back."""
    return f"/reservations/{quote(exec_id, safe='')}/release", {}


def read_reservation(answer: bytes, amounts: Budget, exec_id: str, least: Budget | None) -> Reservation:
    """Read what was granted.

    Raises:
        ValueError: It is not an answer, or not one to what was asked.
    """
    granted = _budget(_object(answer).get("amounts"))
    wanted, needed = demand(amounts, least)
    stated = granted.to_json()
    for kind in wanted.keys() | needed.keys() | stated.keys():
        amount = stated.get(kind)
        # more than was asked would be caps that the profile does not allow
        if type(amount) is not int or not needed.get(kind, 0) <= amount <= wanted.get(kind, 0):
            raise ValueError(f"it granted {amount!r} of {kind}, asked for {wanted.get(kind, 0)}")
    return Reservation(exec_id, granted)


def read_refusal(answer: bytes) -> QuotaExceeded:
    """Read why the service refuses; it refuses even when it cannot say why."""
    try:
        form = _object(answer)
        kind, scope, name = (_text(form, key) for key in ("kind", "scope", "name"))
        limit, observed, asked = (_count(form, key) for key in ("limit", "observed", "asked"))
        if kind not in KINDS:
            raise ValueError(kind)
    except ValueError:
        return QuotaExceeded("the quota service refuses, and does not say which budget is used up")
    return quota_exceeded(kind, scope=scope, name=name, limit=limit, observed=observed, asked=asked)


def read_settlement(answer: bytes, exec_id: str, source: MeterSource) -> Settlement:
    """Read what was charged.

    Raises:
        ValueError: It is not an answer.
    """
    form = _object(answer)
    if type(form.get("was_open")) is not bool:
        raise ValueError("it does not say whether the reservation was open")
    return Settlement(exec_id, _budget(form.get("charged")), source, was_open=form["was_open"])


def _object(answer: bytes) -> dict[str, Any]:
    try:
        form = json.loads(answer)
    except RecursionError as error:
        raise ValueError("it answered with too many brackets") from error
    if not isinstance(form, dict):
        raise ValueError("it answered with something that is not an object")
    return form


def _budget(form: object) -> Budget:
    try:
        return read_budget(form)
    except RingfenceError as error:
        raise ValueError(str(error)) from error


def _text(form: dict[str, Any], key: str) -> str:
    value = form.get(key, "")
    if not isinstance(value, str) or len(value) > 256:
        raise ValueError(key)
    return value


def _count(form: dict[str, Any], key: str) -> int:
    value = form.get(key, 0)
    if type(value) is not int:
        raise ValueError(key)
    return value
