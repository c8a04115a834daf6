"""What the guard says: the answer of every rule, and what they come to together."""

from __future__ import annotations

from ringfence.authority.levels import Decision, RiskLevel
from ringfence.dataclass import dataclass
from ringfence.errors import CapabilityBlocked, Denied, RingfenceError, ToolDenied


@dataclass(frozen=True, slots=True)
class Answer:
    """One rule's word; `code` and `reason` are there when it is not a yes."""

    rule: str
    decision: Decision
    code: str = ""
    reason: str = ""
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The answers of all rules to one operation, and the risk it is treated with."""

    answers: tuple[Answer, ...]
    risk: RiskLevel
    declared: RiskLevel = RiskLevel.CRITICAL
    assessed: RiskLevel | None = None
    """What the static analysis found; nothing, where there was no program to look at."""
    kinds: tuple[str, ...] = ()
    """What it saw, without a word of the program."""

    @property
    def decision(self) -> Decision:
        """The strictest of the answers; no answer at all is a no."""
        return max((answer.decision for answer in self.answers), default=Decision.DENY)

    @property
    def deciding(self) -> Answer | None:
        """The first of the strictest answers, unless everything is allowed."""
        decision = self.decision
        if decision is Decision.ALLOW:
            return None
        return next((answer for answer in self.answers if answer.decision is decision), _NOBODY)

    def require_allowed(self) -> None:
        """Pass only what every rule allows.

        Raises:
            Denied: A grant or a consent is missing.
            ToolDenied: The policy, the manifest or a template does not allow it.
            CapabilityBlocked: The target is outside what the sandbox may touch.
        """
        answer = self.deciding
        if answer is None:
            return
        refused = _ERRORS[answer.code](answer.detail, reason=answer.reason)
        refused.details["rule"] = answer.rule
        refused.details["risk"] = str(self.risk)
        refused.details["answers"] = ", ".join(f"{each.rule}: {each.decision}" for each in self.answers)
        raise refused


_NOBODY = Answer("nobody", Decision.DENY, ToolDenied.code, "no_verdict", "no rule came to an answer")
_ERRORS: dict[str, type[RingfenceError]] = {
    Denied.code: Denied,
    ToolDenied.code: ToolDenied,
    CapabilityBlocked.code: CapabilityBlocked,
}
