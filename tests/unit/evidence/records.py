"""Records as the pipeline writes them: the real authority and the real guard decide, and their word is written down."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from ringfence.authority.grant import Grant
from ringfence.authority.layers import Request
from ringfence.authority.levels import Decision, RiskLevel
from ringfence.authority.policy import BUILT_IN, PolicySnapshot
from ringfence.authority.profile_builder import NO_REQUEST
from ringfence.authority.request_form import request_document
from ringfence.capability.canonical import canonical, digest_of
from ringfence.errors import InvalidRequest
from ringfence.evidence import decided
from ringfence.evidence.described import content_of, describe, env_keys, inputs_digest_of
from ringfence.guard.consent import Consent
from ringfence.guard.policy_guard import PolicyGuard
from ringfence.operation.form import Operation
from ringfence.risk.assessment import RiskAssessment
from ringfence.testing import FrozenClock
from ringfence.wiring import assess, authority_over

NOW = 1_700_000_000_000


@dataclass
class Archive:
    """What a journal and its stores would hold."""

    texts: dict[str, str] = field(default_factory=dict)
    contents: dict[str, bytes] = field(default_factory=dict)
    count: int = 0

    def documents(self, digest: str) -> str | None:
        return self.texts.get(digest)

    def keep(self, text: str) -> str:
        digest = digest_of(text.encode())
        self.texts[digest] = text
        return digest

    def record(
        self,
        operation: Operation,
        policy: PolicySnapshot = BUILT_IN,
        *,
        role: str | None = None,
        request: Request = NO_REQUEST,
        granted: Grant | None = None,
        consent: Consent | None = None,
        found: RiskLevel | None = None,
        now_ms: int = NOW,
    ) -> dict[str, Any]:
        """Decide as every call is decided, and return its record as it would be read back from the journal."""
        self.count += 1
        exec_id = f"ex-{self.count}"
        asked = request_document(request)
        documents = decided.documents(
            policy=self.keep(policy.text.decode()),
            grant="" if granted is None else self.keep(canonical(granted.to_json()).decode()),
            request="" if asked is None else self.keep(asked[1]),
        )
        common: dict[str, Any] = {
            "v": 1,
            "exec_id": exec_id,
            "call_id": f"call-{self.count}",
            "time_ms": now_ms,
            "subject_id": "local",
            "documents": documents,
            "op": describe(operation),
            "env_keys": env_keys(operation),
            "inputs_digest": inputs_digest_of(operation),
        }
        self.contents[exec_id] = content_of(operation)
        authority = authority_over(lambda: policy, FrozenClock(now_ms / 1000))
        try:
            profile = authority.profile(
                operation, call_id=common["call_id"], role=role, request=request, granted=granted
            )
        except InvalidRequest as error:
            from ringfence.authority.local import tool_of

            early = {"policy_version_hash": policy.policy_version_hash, "tool_name": tool_of(operation)}
            early |= {} if role is None else {"role": role}
            return _read_back({"type": "decision.denied", **common, **early, **decided.refused_request(error)})
        guard = PolicyGuard(
            lambda code, language: assess(code, language) if found is None else RiskAssessment(found, language)
        )
        verdict = guard.validate(profile, operation, now_ms=now_ms, consent=consent)
        members = {
            **common,
            **decided.voices(profile),
            "risk": decided.risks(verdict),
            "consent": decided.consented(consent, profile, operation, None),
        }
        if granted is None and profile.expires_at is not None:
            members["expires_at_ms"] = profile.expires_at
        if verdict.decision is Decision.ALLOW:
            return _read_back({"type": "exec.begin", **members})
        return _read_back({"type": "decision.denied", **members, **decided.refusal(verdict)})


def _read_back(record: dict[str, Any]) -> dict[str, Any]:
    read: dict[str, Any] = json.loads(canonical(record))
    return read
