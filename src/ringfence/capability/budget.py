"""How much may be used in all: 0 is none, absent is whatever the wider scope allows, and unlimited must be written."""

from __future__ import annotations

from typing import Any, Final, Literal, Self

from ringfence.dataclass import dataclass, fields
from ringfence.errors import InvalidRequest

UNLIMITED: Final = "unlimited"
Amount = int | Literal["unlimited"] | None
_MOST = 2**53


@dataclass(frozen=True, slots=True)
class Budget:
    """Totals over the life of a grant or a scope."""

    calls: Amount = None
    bytes_out: Amount = None
    bytes_in: Amount = None
    cpu_ms: Amount = None
    gpu_ms: Amount = None
    file_count: Amount = None
    wall_ms: Amount = None
    memory_mb_s: Amount = None
    disk_bytes: Amount = None
    concurrent: Amount = None

    def __post_init__(self) -> None:
        for kind in KINDS:
            amount = getattr(self, kind)
            if amount is None or amount == UNLIMITED:
                continue
            if type(amount) is not int or not 0 <= amount <= _MOST:
                raise InvalidRequest(
                    f"budget: {kind} must be a whole number from 0, or 'unlimited', not {amount!r}",
                    reason="invalid_budget",
                )

    def meet(self, other: Budget) -> Self:
        """Return the smaller amount of each kind; what one leaves open, the other decides."""
        if other is INHERITED:
            return self
        return type(self)(*(_smaller(getattr(self, kind), getattr(other, kind)) for kind in KINDS))

    def closed(self) -> Self:
        """Return the budget of the outermost scope, where there is nobody to inherit from: absent becomes none."""
        return type(self)(*(0 if getattr(self, kind) is None else getattr(self, kind) for kind in KINDS))

    def exceeding(self, ceiling: Budget) -> tuple[str, ...]:
        """Name the kinds that ask for more than `ceiling` has."""
        met = self.meet(ceiling)
        return tuple(
            kind for kind in KINDS if getattr(self, kind) is not None and getattr(met, kind) != getattr(self, kind)
        )

    def to_json(self) -> dict[str, Any]:
        """Return what is stated."""
        return {kind: getattr(self, kind) for kind in KINDS if getattr(self, kind) is not None}


KINDS: Final = tuple(field.name for field in fields(Budget))
INHERITED: Final = Budget()


def read_budget(form: object) -> Budget:
    """Read what `Budget.to_json` returns.

    Raises:
        InvalidRequest: A kind is unknown, or an amount is wrong.
    """
    if not isinstance(form, dict):
        raise InvalidRequest("budget must be an object", reason="invalid_budget")
    unknown = form.keys() - set(KINDS)
    if unknown:
        raise InvalidRequest(
            f"budget: {min(map(str, unknown))[:100]!r} is not one of {', '.join(KINDS)}", reason="invalid_budget"
        )
    if None in form.values():
        raise InvalidRequest("budget: leave out what is to be inherited", reason="invalid_budget")
    return Budget(**form)


def _smaller(one: Amount, other: Amount) -> Amount:
    if one is None or other is None:
        return other if one is None else one
    if one == UNLIMITED or other == UNLIMITED:
        return other if one == UNLIMITED else one
    return min(one, other)
