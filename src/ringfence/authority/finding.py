"""What is wrong or doubtful in a policy or a manifest, where it stands, and what would mend it."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from typing import Any

from ringfence.dataclass import dataclass
from ringfence.errors import InvalidRequest


class Severity(StrEnum):
    """An error keeps a document from being used; a warning does not."""

    ERROR = "error"
    WARNING = "warning"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing about one place of a document; lines and columns count from 1, and 0 is unknown."""

    severity: Severity
    rule: str
    path: str
    message: str
    fix: str = ""
    file: str = ""
    line: int = 0
    column: int = 0

    def __str__(self) -> str:
        place = ":".join(str(part) for part in (self.file, self.line, self.column) if part)
        fix = f" (fix: {self.fix})" if self.fix else ""
        what = ": ".join(part for part in (place, str(self.severity), self.path, self.message) if part)
        return f"{what}{fix} [{self.rule}]"

    def to_json(self) -> dict[str, Any]:
        """Return it as one flat object."""
        return {
            "severity": str(self.severity),
            "rule": self.rule,
            "path": self.path,
            "message": self.message,
            "fix": self.fix,
            "file": self.file,
            "line": self.line,
            "column": self.column,
        }


def errors(findings: Iterable[Finding]) -> list[Finding]:
    """Return those that keep a document from being used."""
    return [finding for finding in findings if finding.severity is Severity.ERROR]


def refuse_errors(findings: Iterable[Finding], *, reason: str) -> None:
    """Refuse a document that has errors.

    Raises:
        InvalidRequest: With the first error's place and fix, and the number of the others.
    """
    wrong = errors(findings)
    if not wrong:
        return
    first = wrong[0]
    more = f" (and {len(wrong) - 1} more)" if len(wrong) > 1 else ""
    place = f"{first.file}:{first.line}: " if first.line else ""
    raise InvalidRequest(
        f"{place}{first.path}{': ' if first.path else ''}{first.message}{more}",
        reason=reason,
        fix=first.fix or None,
        rule=first.rule,
        path=first.path,
        file=first.file,
        line=first.line,
        column=first.column,
    )
