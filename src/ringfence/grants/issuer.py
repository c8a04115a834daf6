"""Who mints grants where no other authority does: the operator's own policy, for one role, tool and call."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ringfence.authority.credential import Credential, unsigned
from ringfence.authority.grant import Grant
from ringfence.capability.budget import INHERITED, Budget
from ringfence.capability.canonical import digest
from ringfence.errors import InvalidRequest

if TYPE_CHECKING:
    from ringfence.authority.credential import ProposedCall
    from ringfence.authority.policy import PolicySnapshot
    from ringfence.ports import Clock, Identifiers

DEFAULT_LIFETIME_MS: Final = 15 * 60 * 1000
MAX_LIFETIME_MS: Final = 24 * 3600 * 1000


class LocalIssuer:
    """Mints what the policy gives; nothing is signed, because nothing leaves the process."""

    def __init__(self, clock: Clock, identifiers: Identifiers) -> None:
        """Take where time and names come from."""
        self._clock = clock
        self._identifiers = identifiers

    def issue(
        self,
        policy: PolicySnapshot,
        call: ProposedCall,
        *,
        role: str | None = None,
        budget: Budget = INHERITED,
        lifetime_ms: int = DEFAULT_LIFETIME_MS,
    ) -> Credential:
        """Return the grant of `call` as one that may be presented; see `grant`."""
        return unsigned(self.grant(policy, call, role=role, budget=budget, lifetime_ms=lifetime_ms))

    def grant(
        self,
        policy: PolicySnapshot,
        call: ProposedCall,
        *,
        role: str | None = None,
        budget: Budget = INHERITED,
        lifetime_ms: int = DEFAULT_LIFETIME_MS,
    ) -> Grant:
        """Return the grant of `call` under `policy`; a role that may not use the tool gets one that allows nothing.

        Raises:
            InvalidRequest: The lifetime is not above zero and at most a day, or the call has no id.
        """
        if not 0 < lifetime_ms <= MAX_LIFETIME_MS:
            raise InvalidRequest("a grant lives for more than nothing and at most a day", reason="invalid_limit")
        if not call.call_id:
            raise InvalidRequest("a grant is made for one call, and this one has no id", reason="invalid_name")
        view = policy.view(call.tool_name, role)
        now = self._clock.now_ms()
        nonce = self._identifiers.new("gr")
        return Grant(
            tenant=call.tenant,
            subject_id=call.subject_id,
            tool_name=call.tool_name,
            call_id=call.call_id,
            capabilities=view.capabilities,
            expires_at=now + lifetime_ms,
            budget=view.budget.meet(budget),
            decision_key_fingerprint=_fingerprint(call, nonce, policy.policy_version_hash),
            nonce=nonce,
            denials=view.denials,
            not_before=now,
            audience=call.audience,
        )


def _fingerprint(call: ProposedCall, nonce: str, policy_version_hash: str) -> str:
    """Return the name of this one decision, under which its use is registered: no other grant has the same."""
    return digest([call.tenant, call.subject_id, call.tool_name, call.call_id, nonce, policy_version_hash])
