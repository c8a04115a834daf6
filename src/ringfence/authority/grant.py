"""The grant: what a subject may do in one call, until when and how often; signing it is the codec's work."""

from __future__ import annotations

from typing import Any, Self

from ringfence.authority.levels import RiskLevel
from ringfence.authority.limit_names import NOTHING_STATED, Stated, check_stated, nothing
from ringfence.capability.budget import Budget, read_budget
from ringfence.capability.canonical import digest
from ringfence.capability.capabilities import Capabilities, read_capabilities
from ringfence.capability.denials import NO_DENIALS, Denials, read_denials
from ringfence.dataclass import dataclass, field, fields, replace
from ringfence.errors import InvalidRequest

_TEXTS = ("tenant", "subject_id", "tool_name", "call_id", "decision_key_fingerprint", "nonce")
_OPTIONAL = ("nonce", "limits", "denials", "safety_floor", "not_before", "audience")


@dataclass(frozen=True, slots=True)
class Grant:
    """Authority for one proposed call; times are in milliseconds since the epoch, and `nonce` is the grant's id."""

    tenant: str
    subject_id: str
    tool_name: str
    call_id: str
    capabilities: Capabilities
    expires_at: int
    budget: Budget
    decision_key_fingerprint: str
    nonce: str = ""
    limits: Stated = field(default_factory=nothing)
    denials: Denials = NO_DENIALS
    safety_floor: RiskLevel = RiskLevel.SAFE
    not_before: int = 0
    audience: str = ""
    """The deployment it is for; empty is any that trusts the key."""

    def __post_init__(self) -> None:
        check_stated(self.limits)

    def attenuate(
        self,
        *,
        capabilities: Capabilities | None = None,
        budget: Budget | None = None,
        limits: Stated = NOTHING_STATED,
        denials: Denials | None = None,
        expires_at: int | None = None,
        safety_floor: RiskLevel | None = None,
    ) -> Self:
        """Return a grant that allows what this one and the arguments allow: it is never wider, whatever they say."""
        return replace(
            self,
            capabilities=self.capabilities if capabilities is None else self.capabilities.meet(capabilities),
            budget=self.budget if budget is None else self.budget.meet(budget),
            limits=narrowed(self.limits, limits),
            denials=self.denials if denials is None else self.denials.meet(denials),
            expires_at=self.expires_at if expires_at is None else min(self.expires_at, expires_at),
            safety_floor=self.safety_floor if safety_floor is None else max(self.safety_floor, safety_floor),
        )

    def is_expired(self, now_ms: int) -> bool:
        """Whether its time is over at `now_ms`."""
        return now_ms >= self.expires_at

    def to_json(self) -> dict[str, Any]:
        """Return it as the object that is signed; what says nothing is left out."""
        form: dict[str, Any] = {name: getattr(self, name) for name in (*_TEXTS, "expires_at")}
        form["capabilities"] = self.capabilities.to_json()
        form["budget"] = self.budget.to_json()
        if self.limits:
            form["limits"] = dict(sorted(self.limits.items()))
        if self.denials != NO_DENIALS:
            form["denials"] = self.denials.to_json()
        if self.safety_floor is not RiskLevel.SAFE:
            form["safety_floor"] = str(self.safety_floor)
        if self.not_before:
            form["not_before"] = self.not_before
        if self.audience:
            form["audience"] = self.audience
        return form

    def digest(self) -> str:
        """Return the hash of everything in it."""
        return digest(self.to_json())


def read_grant(form: object) -> Grant:
    """Read what `Grant.to_json` returns.

    Raises:
        InvalidRequest: A field is missing, unknown or wrong.
    """
    if not isinstance(form, dict):
        raise _refused("grant", "must be an object")
    known = {field.name for field in fields(Grant)}
    required = known.difference(_OPTIONAL)
    for problem, names in (("is not a field of a grant", form.keys() - known), ("is missing", required - form.keys())):
        if names:
            raise _refused(min(map(str, names)), problem)
    for name in (*_TEXTS, "audience"):
        if not isinstance(form.get(name, ""), str):
            raise _refused(name, "must be text")
    return Grant(
        **{name: form.get(name, "") for name in _TEXTS},
        audience=form.get("audience", ""),
        expires_at=read_time("expires_at", form["expires_at"]),
        not_before=read_time("not_before", form.get("not_before", 0)),
        capabilities=read_capabilities(form["capabilities"]),
        budget=read_budget(form["budget"]),
        limits=read_limits(form.get("limits", {})),
        denials=read_denials(form.get("denials", {})),
        safety_floor=read_risk(form.get("safety_floor", "safe")),
    )


def narrowed(one: Stated, other: Stated) -> Stated:
    """Return what both state, the smaller where both state something."""
    if not other:
        return one
    return {name: min(stated[name] for stated in (one, other) if name in stated) for name in {**one, **other}}


def read_time(name: str, form: object) -> int:
    """Read a time in milliseconds since the epoch.

    Raises:
        InvalidRequest: It is anything else.
    """
    if type(form) is not int:
        raise _refused(name, "must be a whole number of milliseconds")
    return form


def read_limits(form: object) -> Stated:
    """Read limits by the names of `Limits`, which whoever holds them checks.

    Raises:
        InvalidRequest: They are not an object.
    """
    if not isinstance(form, dict):
        raise _refused("limits", "must be an object")
    return form


def read_risk(word: Any) -> RiskLevel:
    """Read the name of a risk level.

    Raises:
        InvalidRequest: There is no such level.
    """
    try:
        return RiskLevel(word)
    except ValueError:
        raise _refused("safety_floor", f"{word!r} is not a risk level") from None


def _refused(name: str, problem: str) -> InvalidRequest:
    return InvalidRequest(f"{name} {problem}", reason="invalid_grant", field=name)
