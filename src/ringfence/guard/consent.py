"""Consent: the recorded fact that somebody agreed; asking for it is somebody else's work."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING

from ringfence.authority.levels import ApprovalMode
from ringfence.capability.canonical import digest
from ringfence.dataclass import dataclass

if TYPE_CHECKING:
    from ringfence.operation.form import Operation


class Source(Enum):
    """Who agreed; what is critical takes a person's word for this very call."""

    POLICY = "policy"
    AUTO = "auto"
    SESSION = "session"
    CALL = "call"


@dataclass(frozen=True, slots=True)
class Consent:
    """Permission for one request, one session or, by the policy's mode, for everything standard."""

    source: Source
    request_hash: str = ""
    """Of the operation it was given for; a consent of a whole session or policy names none."""
    expires_at_ms: int | None = None
    approver: str = ""
    consent_id: str = ""


STANDING = {
    ApprovalMode.COWORK: Consent(Source.POLICY),
    ApprovalMode.NEVER_ASK: Consent(Source.POLICY),
    ApprovalMode.AUTO: Consent(Source.AUTO),
}
"""What a policy's mode agrees to beforehand: standard actions, never critical ones."""


def request_hash(operation: Operation) -> str:
    """Return what a consent for exactly this operation names."""
    from ringfence.operation.code import CodeRun
    from ringfence.operation.form import summary, to_json

    if isinstance(operation, CodeRun):
        form: dict[str, object] = {
            "op": operation.kind,
            "language": str(operation.language),
            "code": operation.code,
            "args": list(operation.args),
            "env": dict(operation.env),
            "packages": list(operation.packages),
        }
        if operation.ports:
            form["ports"] = sorted(operation.ports)
        if operation.secrets:
            form["secrets"] = sorted(map(str, operation.secrets))
        if operation.domains:
            form["domains"] = sorted(operation.domains)
        return digest(form)
    try:
        return digest(to_json(operation))  # type: ignore[arg-type]
    except (AttributeError, KeyError):
        return digest({"op": operation.kind, "need": summary(operation)})
