"""A grant as it was presented: what all its blocks allow together, who signed it, and what revokes it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ringfence.authority.catalogue import tool_name
from ringfence.authority.grant import Grant
from ringfence.authority.issuer_key import CLOCK_TOLERANCE_MS, IssuerKey
from ringfence.dataclass import dataclass, replace
from ringfence.errors import Denied

if TYPE_CHECKING:
    from ringfence.authority.narrowing import Narrowing


@dataclass(frozen=True, slots=True)
class Credential:
    """A grant that may be checked; one without a `key` never left this process."""

    grant: Grant
    first_expires_at: int
    """When the grant expires as it was issued: until then somebody may hold it with less taken away."""
    key: IssuerKey | None = None
    revocation_ids: tuple[str, ...] = ()
    """One for each block, in their order; revoking one revokes whatever was made from it."""

    def narrowed(self, narrowing: Narrowing) -> Credential:
        """Return the credential with something taken away; the call it belongs to stays the same."""
        return replace(self, grant=narrowing.of(self.grant))


@dataclass(frozen=True, slots=True)
class ProposedCall:
    """Whom a grant has to be for: the call as the door knows it, never as the grant tells it."""

    tenant: str
    subject_id: str
    tool_name: str
    call_id: str
    audience: str = ""
    """The name of this deployment; a grant for another one is refused."""


def unsigned(grant: Grant) -> Credential:
    """Return the credential of a grant that stays in the process it was made in."""
    return Credential(grant, grant.expires_at)


def require_time(credential: Credential, now_ms: int) -> None:
    """Refuse a grant or a key outside its time.

    Raises:
        Denied: Expired, not yet valid, or signed by a key whose time is over or has not come.
    """
    grant, key = credential.grant, credential.key
    if key is not None and not key.is_valid(now_ms):
        raise Denied(
            f"key {key.key_id}, which signed the grant, is not valid now",
            reason="key_expired",
            fix="present a grant signed by a current key",
            key_id=key.key_id,
        )
    if grant.is_expired(now_ms):
        raise Denied("the grant has expired", reason="expired", fix="get a new grant", expires_at=grant.expires_at)
    if now_ms + CLOCK_TOLERANCE_MS < grant.not_before:
        raise Denied("the grant is not valid yet", reason="not_yet_valid", not_before=grant.not_before)


def require_call(grant: Grant, call: ProposedCall) -> None:
    """Refuse a grant that was made for anything but `call`.

    Raises:
        Denied: Another tenant, deployment, subject, tool or call; or the grant is bound to none.
    """
    if not (grant.call_id and grant.decision_key_fingerprint and grant.nonce):
        raise Denied("the grant is bound to no single decision", reason="call_mismatch")
    if grant.tenant != call.tenant:
        raise Denied("the grant was made for another tenant", reason="tenant_mismatch")
    if grant.audience not in ("", call.audience):
        raise Denied("the grant was made for another deployment", reason="audience_mismatch")
    if grant.subject_id != call.subject_id:
        raise Denied("the grant was made for another subject", reason="subject_mismatch")
    if tool_name(grant.tool_name) != tool_name(call.tool_name):
        raise Denied("the grant was made for another tool", reason="tool_mismatch")
    if grant.call_id != call.call_id:
        raise Denied("the grant was made for another call", reason="call_mismatch", fix="get a grant for this call")
