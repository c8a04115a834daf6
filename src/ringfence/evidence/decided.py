"""The members of a record that a decision can be made again from; who writes records puts these into each of them."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from ringfence.guard.consent import STANDING, Consent, request_hash
from ringfence.guard.verdict import Verdict

if TYPE_CHECKING:
    from ringfence.authority.profile import Profile
    from ringfence.errors import RingfenceError
    from ringfence.operation.form import Operation


_MOST_KEPT = 1024
_voices: dict[str, Mapping[str, str]] = {}


def voices(profile: Profile) -> Mapping[str, str]:
    """Return the members that a profile alone decides; found again by its hash, which covers them all."""
    known = _voices.get(profile.profile_hash)
    if known is None:
        known = _voices_of(profile)
        if len(_voices) >= _MOST_KEPT:
            _voices.clear()
        if profile.profile_hash:  # one that nobody made has none
            _voices[profile.profile_hash] = known
    return known


def documents(*, policy: str, grant: str = "", manifest: str = "", request: str = "") -> dict[str, str]:
    """Return the `documents` member from the digests of what the profile was made from; what is empty is left out."""
    named = {"policy": policy, "grant": grant, "manifest": manifest, "request": request}
    return {name: digest for name, digest in named.items() if digest}


def risks(verdict: Verdict) -> dict[str, Any]:
    """Return the `risk` member; what the static analysis found and saw only programs have."""
    found: dict[str, Any] = {"effective": verdict.risk.value, "declared": verdict.declared.value}
    if verdict.assessed is not None:
        found["assessed"] = verdict.assessed.value
    if verdict.kinds:
        found["patterns"] = list(verdict.kinds)
    return found


def consented(given: Consent | None, profile: Profile, operation: Operation, session_id: str | None) -> dict[str, Any]:
    """Return the `consent` member: who agreed, and whether a consent that names a request names this one.

    What a policy's mode agrees to beforehand is found again from the policy; what somebody gave is marked `given`.
    """
    if given is None:
        standing = STANDING.get(profile.mode)
        return {} if standing is None else {"source": standing.source.value}
    members: dict[str, Any] = {"source": given.source.value, "given": True}
    if given.expires_at_ms is not None:
        members["expires_at_ms"] = given.expires_at_ms
    if given.consent_id:
        members["consent_id"] = given.consent_id
    if given.approver:
        members["approver"] = given.approver
    if given.request_hash:
        members["request_hash"] = given.request_hash
        members["fits"] = given.request_hash == request_hash(operation, session_id)
    return members


def refusal(verdict: Verdict) -> dict[str, Any]:
    """Return the members that `decision.denied` has beyond those of a begin."""
    deciding = verdict.deciding
    if deciding is None:
        return {}
    return {
        "status": "denied",
        "outcome": "denied",
        "error_code": deciding.code,
        "reason": deciding.reason,
        "rule": deciding.rule,
        "decision": str(deciding.decision),
        "answers": [
            {"rule": each.rule, "decision": str(each.decision)}
            | ({"code": each.code, "reason": each.reason} if each.code else {})
            for each in verdict.answers
        ],
    }


def refused_request(error: RingfenceError) -> dict[str, Any]:
    """Return the same members where no profile could be made, because the request asks for more than it may have."""
    return refused_elsewhere(error) | {"rule": "request", "decision": "deny"}


def refused_elsewhere(error: RingfenceError) -> dict[str, Any]:
    """Return the same members for a refusal that no policy decides: a bad grant, a spent budget, no box."""
    return {"status": "denied", "outcome": "denied", "error_code": error.code, "reason": error.reason}


def _voices_of(profile: Profile) -> Mapping[str, str]:
    members = {
        "tool_name": profile.tool_name,
        "policy_version_hash": profile.policy_version_hash,
        "profile_hash": profile.profile_hash,
        "manifest_version": profile.manifest_version,
        "mode": str(profile.mode),
        "safety": str(profile.safety),
        "side_effect": str(profile.side_effect),
        "security_mode": str(profile.security_mode),
    }
    if profile.role is not None:
        members["role"] = profile.role
    return MappingProxyType(members)
