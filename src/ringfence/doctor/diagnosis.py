"""All checks over one machine's facts, and the one answer: can code run isolated here?"""

from __future__ import annotations

from typing import Any

from ringfence.dataclass import dataclass
from ringfence.doctor import checks_host, checks_kernel
from ringfence.doctor.checks_absent import ABSENT
from ringfence.doctor.checks_deployment import deployment
from ringfence.doctor.checks_evidence import AUDIT_LOG
from ringfence.doctor.facts import Facts
from ringfence.doctor.finding import Finding, Health


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """What the doctor found; `tier` is the box that code would run in, or `None`."""

    tier: str | None
    findings: tuple[Finding, ...]

    @property
    def verdict(self) -> str:
        """The answer in one line."""
        warnings = sum(finding.status is Health.WARN for finding in self.findings)
        noted = f"; {warnings} thing{'s' if warnings > 1 else ''} could be better" if warnings else ""
        if self.tier is None:
            failed = next((f for f in self.findings if f.status is Health.FAIL and f.id != "box.native"), None)
            return f"code cannot run isolated here{f': {failed.title}: {failed.found}' if failed else ''}"
        if (refusing := self._refusing) is not None:
            return f"nothing runs here until it can be recorded: {refusing.found}"
        return f"code runs isolated here, in the {self.tier} box{noted}"

    @property
    def is_ready(self) -> bool:
        """Whether a program would run now: in a box, and with its evidence written."""
        return self.tier is not None and self._refusing is None

    @property
    def _refusing(self) -> Finding | None:
        return next((f for f in self.findings if f.id == AUDIT_LOG and f.status is Health.FAIL), None)

    def to_dict(self) -> dict[str, Any]:
        """Return the diagnosis as plain JSON values."""
        return {
            "isolated": self.tier is not None,
            "tier": self.tier,
            "verdict": self.verdict,
            "checks": [finding.to_dict() for finding in self.findings],
        }


def diagnose(facts: Facts) -> Diagnosis:
    """Judge `facts`."""
    findings = [check(facts) for check in (*checks_kernel.CHECKS, *checks_host.CHECKS)]
    findings += ABSENT
    for group in checks_host.GROUPS:
        findings += group(facts)
    findings += [checks_host.home_is_private(facts), *checks_kernel.hardening(facts), *deployment(facts)]
    return Diagnosis(_tier(facts), tuple(findings))


def _tier(facts: Facts) -> str | None:
    if facts.box.available:
        return "native"
    # The worker seals itself with seccomp inside bwrap, so bwrap alone is not enough.
    if facts.bwrap.usable and facts.seccomp_actions:
        return "bwrap"
    return None
