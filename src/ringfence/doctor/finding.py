"""One finding of the doctor: what was looked at, how it stands, what that means and what changes it."""

from __future__ import annotations

from dataclasses import asdict
from enum import StrEnum

from ringfence.dataclass import dataclass


class Health(StrEnum):
    """How one check stands; only `FAIL` can keep code from running isolated."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"
    UNKNOWN = "unknown"
    ABSENT = "absent"
    """This version has no such part; nothing that it has needs it."""


@dataclass(frozen=True, slots=True)
class Finding:
    """The answer of one check; `fix` is a command or file a person can copy."""

    id: str
    title: str
    status: Health
    found: str
    means: str = ""
    fix: str | None = None

    def to_dict(self) -> dict[str, str | None]:
        """Return the finding as plain JSON values."""
        return {**asdict(self), "status": str(self.status)}
