"""The doctor's findings as a person reads them: the verdict first, then one line each, then what to do."""

from __future__ import annotations

from ringfence.doctor.diagnosis import Diagnosis
from ringfence.doctor.finding import Finding, Health

_COLOURS = {Health.OK: "32", Health.WARN: "33", Health.FAIL: "31", Health.UNKNOWN: "90", Health.ABSENT: "90"}


def report(diagnosis: Diagnosis, *, colour: bool) -> str:
    """Return the whole report; `colour` only when a terminal shows it."""
    width = max((len(finding.title) for finding in diagnosis.findings), default=0)
    verdict = Health.OK if diagnosis.is_ready else Health.FAIL
    lines = [_paint(f"ringfence doctor: {diagnosis.verdict}", verdict, colour), ""]
    for finding in diagnosis.findings:
        lines += _entry(finding, width, colour)
    return "\n".join(lines) + "\n"


def _entry(finding: Finding, width: int, colour: bool) -> list[str]:
    mark = _paint(f"{finding.status:<7}", finding.status, colour)
    lines = [f"  {mark} {finding.title:<{width}}  {finding.found}"]
    indent = " " * (width + 12)
    if finding.means:
        lines.append(f"{indent}{finding.means}")
    # A hint beside something that is fine would drown the hints that matter; --json has them all.
    if finding.fix and finding.status is not Health.OK:
        first, *rest = finding.fix.splitlines()
        lines += [f"{indent}fix: {first}", *(f"{indent}     {line}" for line in rest)]
    return lines


def _paint(text: str, status: Health, colour: bool) -> str:
    return f"\x1b[{_COLOURS[status]}m{text}\x1b[0m" if colour else text
