"""The risk policy of the source documents: assess a program, then say which box it needs."""

from __future__ import annotations

from functools import lru_cache

from ringfence.authority.levels import IsolationLevel, RiskLevel
from ringfence.authority.profile import SecurityMode
from ringfence.errors import InvalidRequest
from ringfence.outcome import SandboxType
from ringfence.risk.assessment import Refusal, RiskAssessment, refused
from ringfence.risk.isolation import required_isolation

__all__ = ["RiskAssessment", "RiskLevel", "SecurityMode", "UnifiedRiskPolicy"]

# Agents run the same small programs again and again. What is kept is what the text contains, never a verdict: no
# policy, grant or mode takes part in it.
_REMEMBERED_CHARACTERS = 8192


class UnifiedRiskPolicy:
    """Static analysis is a hint; the box is the boundary."""

    @staticmethod
    def assess(code: str, language: str) -> RiskAssessment:
        """Return how risky `code` looks; what cannot be assessed is at least HIGH, never safe."""
        if len(code) > _REMEMBERED_CHARACTERS:
            return _assess(code, str(language))
        try:
            return _remembered(code, str(language))
        except _NotToBeRemembered as refusal:
            return refusal.assessment

    @staticmethod
    def get_required_sandbox(
        risk: RiskAssessment | RiskLevel,
        mode: SecurityMode = SecurityMode.STRICT,
        *,
        container: SandboxType = SandboxType.NATIVE,
    ) -> SandboxType:
        """Return the kind of box code of this risk needs.

        `container` is what serves as container-class isolation: the native box, unless the policy names another.

        Raises:
            InvalidRequest: `container` isolates nothing.
        """
        if container is SandboxType.SUBPROCESS:
            raise InvalidRequest("a plain subprocess is no container", reason="isolation_too_weak")
        level = risk if isinstance(risk, RiskLevel) else risk.level
        wanted = required_isolation(level, mode).preferred
        if wanted is IsolationLevel.PROCESS:
            return SandboxType.SUBPROCESS
        return SandboxType.NATIVE if wanted is IsolationLevel.OS else container


class _NotToBeRemembered(Exception):
    """The extra is missing now; it may be installed the next time."""

    def __init__(self, assessment: RiskAssessment) -> None:
        super().__init__()
        self.assessment = assessment


@lru_cache(maxsize=256)
def _remembered(code: str, language: str) -> RiskAssessment:
    assessment = _assess(code, language)
    if assessment.refusal is Refusal.GRAMMAR_MISSING:
        raise _NotToBeRemembered(assessment)
    return assessment


def _assess(code: str, language: str) -> RiskAssessment:
    # each where it is needed: a command that runs one program pays for one reader
    if language == "python":
        from ringfence.risk.python_source import assess_python

        return assess_python(code)
    if language == "bash":
        from ringfence.risk.shell_source import assess_bash

        return assess_bash(code)
    if language in ("javascript", "typescript"):
        from ringfence.risk.javascript_source import assess_javascript

        return assess_javascript(code, language)
    return refused(language[:40], Refusal.UNKNOWN_LANGUAGE, "no analysis knows this language")
