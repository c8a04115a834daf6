"""Consent: the recorded fact that somebody agreed; asking for it is somebody else's work."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Any

from ringfence.authority.levels import ApprovalMode, RiskLevel, SideEffect
from ringfence.capability.canonical import digest, digest_of
from ringfence.dataclass import dataclass
from ringfence.operation.code import WORKING_DIRECTORY, CodeRun

if TYPE_CHECKING:
    from ringfence.authority.profile import Profile
    from ringfence.operation.form import Operation

_CHANGING = frozenset({SideEffect.WRITE, SideEffect.PROCESS})


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


def needed(profile: Profile, declared: RiskLevel) -> tuple[Source | None, str]:
    """Return whose word a call takes at least, and why; nobody's where it neither risks nor changes much."""
    if declared is RiskLevel.CRITICAL or profile.dangers:
        what = ", ".join(profile.dangers) or "critical risk"
        return Source.CALL, f"{what}: a person has to agree to this very call"
    if profile.mode is ApprovalMode.STRICT_ASK:
        return Source.SESSION, "the policy's mode asks about everything"
    if declared >= RiskLevel.HIGH or profile.side_effects & _CHANGING:
        return Source.POLICY, f"{declared} risk: somebody has to agree"
    return None, ""


def request_hash(operation: Operation, session_id: str | None = None) -> str:
    """Return what a consent for exactly this operation names, in the session whose files are meant by it."""
    from ringfence.operation.form import summary, to_json

    if isinstance(operation, CodeRun):
        return digest(_form_of(operation))
    # `work/a` of one project is another file than that of the next, and code names its session itself
    meant = {"session_id": session_id} if session_id else {}
    try:
        return digest({**to_json(operation), **meant})  # type: ignore[arg-type]
    except (AttributeError, KeyError):
        return digest({"op": operation.kind, "need": summary(operation), **meant})


def _form_of(operation: CodeRun) -> dict[str, Any]:
    """Return everything a program would be run with; what is usual is left out."""
    form: dict[str, Any] = {
        "op": operation.kind,
        "language": str(operation.language),
        "code": operation.code,
        "args": list(operation.args),
        "env": dict(operation.env),
        "packages": list(operation.packages),
    }
    rest = {
        "ports": sorted(operation.ports),
        "secrets": sorted(map(str, operation.secrets)),
        "domains": sorted(operation.domains),
        # whoever agreed to `python main.py` agreed to that main.py, on that input, there
        "stdin": digest_of(operation.stdin) if operation.stdin else "",
        "files": {name: digest_of(content) for name, content in operation.files.items()},
        "inputs": {name: digest_of(content) for name, content in operation.inputs.items()},
        "preload": list(operation.preload),
        "session_id": operation.session_id,
        "process_id": operation.process_id,
        "cwd": "" if operation.cwd == WORKING_DIRECTORY else operation.cwd,
    }
    return form | {name: value for name, value in rest.items() if value}
