"""What the holder of a grant takes away from it before handing it on: it has no word for giving anything."""

from __future__ import annotations

from typing import Any, Final

from ringfence.authority.grant import Grant, read_limits, read_risk, read_time
from ringfence.authority.levels import RiskLevel
from ringfence.authority.limit_names import Stated, check_stated, nothing
from ringfence.capability.budget import INHERITED, Budget, read_budget
from ringfence.capability.capabilities import Capabilities, read_capabilities
from ringfence.capability.denials import NO_DENIALS, Denials, read_denials
from ringfence.dataclass import dataclass, field
from ringfence.errors import InvalidRequest

# The holder writes these, and reading them costs the host: a long list against a long list is a product.
MAX_CAPABILITIES: Final = 64
MAX_PARTS: Final = 512
_FIELDS: Final = frozenset({"capabilities", "budget", "limits", "denials", "expires_at", "safety_floor"})


@dataclass(frozen=True, slots=True)
class Narrowing:
    """One step of attenuation; what is left out stays as it was."""

    capabilities: Capabilities | None = None
    budget: Budget = INHERITED
    limits: Stated = field(default_factory=nothing)
    denials: Denials = NO_DENIALS
    expires_at: int | None = None
    safety_floor: RiskLevel = RiskLevel.SAFE

    def __post_init__(self) -> None:
        check_stated(self.limits)

    def of(self, grant: Grant) -> Grant:
        """Return what `grant` and this both allow."""
        return grant.attenuate(
            capabilities=self.capabilities,
            budget=self.budget,
            limits=self.limits,
            denials=self.denials,
            expires_at=self.expires_at,
            safety_floor=self.safety_floor,
        )

    def to_json(self) -> dict[str, Any]:
        """Return it as the object that is signed; what says nothing is left out."""
        form: dict[str, Any] = {}
        if self.capabilities is not None:
            form["capabilities"] = self.capabilities.to_json()
        if self.budget != INHERITED:
            form["budget"] = self.budget.to_json()
        if self.limits:
            form["limits"] = dict(sorted(self.limits.items()))
        if self.denials != NO_DENIALS:
            form["denials"] = self.denials.to_json()
        if self.expires_at is not None:
            form["expires_at"] = self.expires_at
        if self.safety_floor is not RiskLevel.SAFE:
            form["safety_floor"] = str(self.safety_floor)
        return form


def read_narrowing(form: object) -> Narrowing:
    """Read what `Narrowing.to_json` returns.

    Raises:
        InvalidRequest: A field is unknown or wrong, or there is too much of it.
    """
    if not isinstance(form, dict):
        raise InvalidRequest("a narrowing must be an object", reason="invalid_grant")
    unknown = form.keys() - _FIELDS
    if unknown:
        # `tenant`, `call_id` and the like land here: who and what a grant is for is never the holder's to say
        raise InvalidRequest(f"a holder cannot change {min(map(str, unknown))[:100]!r}", reason="invalid_grant")
    capabilities = form.get("capabilities")
    if isinstance(capabilities, list) and len(capabilities) > MAX_CAPABILITIES:
        raise InvalidRequest(f"more than {MAX_CAPABILITIES} capabilities in one narrowing", reason="invalid_grant")
    if _parts(form) > MAX_PARTS:
        raise InvalidRequest(f"more than {MAX_PARTS} values in one narrowing", reason="invalid_grant")
    return Narrowing(
        capabilities=read_capabilities(capabilities) if "capabilities" in form else None,
        budget=read_budget(form.get("budget", {})),
        limits=read_limits(form.get("limits", {})),
        denials=read_denials(form.get("denials", {})),
        expires_at=read_time("expires_at", form["expires_at"]) if "expires_at" in form else None,
        safety_floor=read_risk(form.get("safety_floor", "safe")),
    )


def _parts(form: object) -> int:
    """Return how many values there are in `form`, at any depth."""
    waiting, found = [form], 0
    while waiting:
        each = waiting.pop()
        inner: list[object] = list(each.values()) if isinstance(each, dict) else each if isinstance(each, list) else []
        waiting.extend(inner)
        found += not inner
    return found
