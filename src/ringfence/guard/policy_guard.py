"""Asks every rule about an operation and puts the answers together; what cannot be answered is a no."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING

from ringfence.authority.levels import Decision, IsolationLevel, RiskLevel, SideEffect
from ringfence.authority.profile import Profile, SecurityMode
from ringfence.errors import ToolDenied
from ringfence.guard.consent import Consent
from ringfence.guard.rules import RULES, Case, Rule
from ringfence.guard.verdict import Answer, Verdict
from ringfence.operation.code import CodeRun
from ringfence.risk.effective import RiskInputs, effective_risk
from ringfence.risk.isolation import RequiredIsolation, required_isolation

_RUN_CODE = ("code_run", "proc_exec")

if TYPE_CHECKING:
    from ringfence.authority.taint import Tainted
    from ringfence.operation.form import Operation
    from ringfence.risk.assessment import RiskAssessment

Assess = Callable[[str, str], "RiskAssessment"]
"""How risky a program in a language looks."""


class PolicyGuard:
    """Pure but for what it is given: it decides, and acts on nothing."""

    def __init__(self, assess: Assess, rules: tuple[Rule, ...] = RULES) -> None:
        """`assess` is the static analysis, which may be slow for a program seen for the first time."""
        self._assess = assess
        self._rules = rules

    def validate(
        self,
        profile: Profile,
        operation: Operation,
        *,
        now_ms: int,
        consent: Consent | None = None,
        tainted: Tainted | None = None,
        session_id: str | None = None,
    ) -> Verdict:
        """Ask every rule; the strictest answer wins, and all of them are kept."""
        declared = declared_risk(profile)
        assessed = self._assess(operation.code, operation.language) if isinstance(operation, CodeRun) else None
        risk = declared if assessed is None else max(declared, assessed.level)
        case = Case(profile, operation, now_ms, risk, declared, consent, tainted, session_id)
        answers = [answer for rule in self._rules if (answer := _ask(rule, case)) is not None]
        if assessed is None:
            return Verdict(tuple(answers), risk, declared)
        return Verdict(tuple(answers), risk, declared, assessed.level, assessed.kinds if assessed.signs else ())


def declared_risk(profile: Profile) -> RiskLevel:
    """Return the risk of what the profile allows, before anybody looked at a program."""
    return _declared(profile.safety, profile.side_effects, profile.dangers)


def isolation_for(profile: Profile, operation: Operation, risk: RiskLevel) -> RequiredIsolation:
    """Return the isolation that the risk and the policy's floor demand; a program needs a box as code does."""
    runs_code = operation.kind in _RUN_CODE
    return _isolation(
        risk, profile.security_mode, profile.isolation_floor, profile.critical_isolation, runs_code=runs_code
    )


@lru_cache(maxsize=256)
def _isolation(
    risk: RiskLevel, mode: SecurityMode, floor: IsolationLevel, critical: IsolationLevel, *, runs_code: bool
) -> RequiredIsolation:
    needed = required_isolation(risk, mode, runs_code=runs_code, strongest=critical)
    floor = floor if runs_code else IsolationLevel.BROKER
    return RequiredIsolation(max(needed.least, floor), max(needed.preferred, floor), needed.needs_call_consent)


@lru_cache(maxsize=256)
def _declared(safety: RiskLevel, side_effects: frozenset[SideEffect], dangers: tuple[str, ...]) -> RiskLevel:
    return effective_risk(RiskInputs(manifest=safety, side_effects=side_effects, dangers=dangers)).level


def _ask(rule: Rule, case: Case) -> Answer | None:
    try:
        return rule(case)
    except Exception as error:  # noqa: BLE001  a rule that breaks must not be a yes
        detail = f"the rule {rule.__name__} failed: {type(error).__name__}"
        return Answer(rule.__name__, Decision.DENY, ToolDenied.code, "no_verdict", detail)
