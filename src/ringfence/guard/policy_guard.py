"""Asks every rule about an operation and puts the answers together; what cannot be answered is a no."""

from __future__ import annotations

from collections.abc import Callable

from ringfence.authority.levels import Decision, IsolationLevel, RiskLevel
from ringfence.authority.profile import Profile
from ringfence.errors import ToolDenied
from ringfence.guard.consent import Consent
from ringfence.guard.rules import RULES, Case, Rule
from ringfence.guard.verdict import Answer, Verdict
from ringfence.operation.code import CodeRun
from ringfence.operation.form import Operation
from ringfence.risk.effective import RiskInputs, effective_risk
from ringfence.risk.isolation import RequiredIsolation, required_isolation

Assess = Callable[[str, str], RiskLevel]
"""How risky a program in a language looks."""


class PolicyGuard:
    """Pure but for what it is given: it decides, and acts on nothing."""

    def __init__(self, assess: Assess, rules: tuple[Rule, ...] = RULES) -> None:
        """`assess` is the static analysis, which may be slow for a program seen for the first time."""
        self._assess = assess
        self._rules = rules

    def validate(
        self, profile: Profile, operation: Operation, *, now_ms: int, consent: Consent | None = None
    ) -> Verdict:
        """Ask every rule; the strictest answer wins, and all of them are kept."""
        declared, risk = self.risk_of(profile, operation)
        case = Case(profile, operation, now_ms, risk, declared, consent)
        answers = [answer for rule in self._rules if (answer := _ask(rule, case)) is not None]
        return Verdict(tuple(answers), risk)

    def risk_of(self, profile: Profile, operation: Operation) -> tuple[RiskLevel, RiskLevel]:
        """Return the risk as it was declared, and with what the static analysis found."""
        inputs = RiskInputs(manifest=profile.safety, side_effects=profile.side_effects, dangers=profile.dangers)
        declared = effective_risk(inputs).level
        if not isinstance(operation, CodeRun):
            return declared, declared
        return declared, max(declared, self._assess(operation.code, operation.language))


def isolation_for(profile: Profile, operation: Operation, risk: RiskLevel) -> RequiredIsolation:
    """Return the isolation that the risk and the policy's floor demand."""
    needed = required_isolation(risk, profile.security_mode, runs_code=isinstance(operation, CodeRun))
    floor = profile.isolation_floor if isinstance(operation, CodeRun) else IsolationLevel.BROKER
    return RequiredIsolation(max(needed.least, floor), max(needed.preferred, floor), needed.needs_call_consent)


def _ask(rule: Rule, case: Case) -> Answer | None:
    try:
        return rule(case)
    except Exception as error:  # noqa: BLE001  a rule that breaks must not be a yes
        detail = f"the rule {rule.__name__} failed: {type(error).__name__}"
        return Answer(rule.__name__, Decision.DENY, ToolDenied.code, "no_verdict", detail)
