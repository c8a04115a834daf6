"""The risk a call is treated with: the highest that anyone declared, found, or that its effects carry with them."""

from __future__ import annotations

from ringfence.authority.levels import RiskLevel, SideEffect
from ringfence.dataclass import dataclass

_FLOORS = {
    SideEffect.NONE: RiskLevel.SAFE,
    SideEffect.READ: RiskLevel.LOW,
    SideEffect.WRITE: RiskLevel.MEDIUM,
    SideEffect.FILESYSTEM: RiskLevel.MEDIUM,
    SideEffect.PROCESS: RiskLevel.HIGH,
    SideEffect.BROWSER: RiskLevel.HIGH,
    SideEffect.NETWORK: RiskLevel.HIGH,
}
# Their floor falls away for a program found SAFE that reaches neither the network nor beyond its workspace.
_CONFINABLE = frozenset({SideEffect.PROCESS, SideEffect.BROWSER, SideEffect.NETWORK})


@dataclass(frozen=True, slots=True)
class RiskInputs:
    """Everything that may raise the risk of one call; what nobody stated is None and raises nothing."""

    manifest: RiskLevel | None = None
    policy: RiskLevel | None = None
    grant: RiskLevel | None = None
    assessed: RiskLevel | None = None
    side_effects: frozenset[SideEffect] = frozenset()
    dangers: tuple[str, ...] = ()
    """What makes a call critical whoever asks for it, as a profile names it."""
    confined: bool = False


@dataclass(frozen=True, slots=True)
class EffectiveRisk:
    """The highest input, with every input that was asked."""

    level: RiskLevel
    because: tuple[tuple[str, RiskLevel], ...]


def effective_risk(inputs: RiskInputs) -> EffectiveRisk:
    """Return the maximum of all inputs and floors; a call about which nothing is known is HIGH."""
    stated = {
        "manifest": inputs.manifest,
        "policy": inputs.policy,
        "grant": inputs.grant,
        "assessed": inputs.assessed,
    }
    because = [(source, level) for source, level in stated.items() if level is not None]
    because += [(f"side effect {effect}", floor_of(effect, inputs)) for effect in sorted(inputs.side_effects)]
    because += [(f"danger {danger}", RiskLevel.CRITICAL) for danger in inputs.dangers]
    if not because:
        because = [("nothing is known", RiskLevel.HIGH)]
    return EffectiveRisk(max(level for _, level in because), tuple(because))


def floor_of(effect: SideEffect, inputs: RiskInputs) -> RiskLevel:
    """Return the least risk a call with this effect has."""
    if effect in _CONFINABLE and inputs.assessed is RiskLevel.SAFE and inputs.confined and not inputs.dangers:
        return RiskLevel.SAFE
    return _FLOORS[effect]
