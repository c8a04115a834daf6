"""What one run may reach: decided on the canonical name before anything is resolved, and on every address after."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from ringfence.authority.levels import Decision
from ringfence.authority.profile import Profile
from ringfence.authority.rule import Rule, Subject, strictest
from ringfence.capability.capabilities import Capabilities
from ringfence.capability.denials import NO_DENIALS, Denials
from ringfence.capability.host import host_pattern, meet
from ringfence.capability.net import NetHttp
from ringfence.capability.url_path import example_of
from ringfence.dataclass import dataclass, field, replace
from ringfence.egress.addresses import AddressRules
from ringfence.egress.overrides import is_override
from ringfence.egress.proxy.refusal import FORBIDDEN, Refusal
from ringfence.egress.urls import checked
from ringfence.errors import CapabilityBlocked, InvalidRequest
from ringfence.operation import brokered
from ringfence.operation.target import METHODS, Target

_WHY: Final = {
    "not_granted": "no host is granted",
    "host": "the host is not among those that were granted",
    "scheme": "the host is granted for another scheme",
    "port": "the host is granted, this port of it is not",
    "method": "the host is granted, this method is not",
    "path": "the host is granted, this path is not, or not in this spelling",
    "denied_domain": "the host is on a deny list",
    "denied_port": "the port is on a deny list",
    "denied_address": "the address is on a deny list",
}
_SEEN_INSIDE: Final = ("method", "path")
# not a place of any pattern, but below all that are for everything
_ANY_OTHER: Final = "/;"


@dataclass(frozen=True, slots=True)
class Rules:
    """Hosts by name, deny lists that win, and the rules about addresses; made once, and never changed under a run."""

    allowed: Capabilities
    denials: Denials = NO_DENIALS
    rules: tuple[Rule, ...] = ()
    addresses: AddressRules = field(default_factory=AddressRules)

    def refuse_request(self, method: str, where: Target) -> Refusal | None:
        """Return why a plain request may not be sent."""
        return self._refuse((method,), where)

    def refuse_tunnel(self, where: Target) -> Refusal | None:
        """Return why an encrypted tunnel may not be opened: nobody sees what is in it, so all must be granted."""
        return self.refuse_unseen(sorted(METHODS), where)

    def refuse_protocols(self, where: Target, offered: tuple[bytes, ...]) -> Refusal | None:  # noqa: ARG002
        """Return why a tunnel may not carry any of the protocols that its client offers; here all are welcome."""
        return None

    def refuse_unseen(self, methods: Iterable[str], where: Target) -> Refusal | None:
        """Return why a tunnel may not be opened in which nobody sees which of `methods` is used, and on which path."""
        for path in ("/", _ANY_OTHER):
            refusal = self._refuse(methods, replace(where, path=path))
            if refusal is not None and refusal.reason in _SEEN_INSIDE:
                some = f"some {refusal.reason}s only"
                detail = f"{where.origin} is granted for {some}, and nobody can see which a tunnel carries"
                return Refusal(FORBIDDEN, refusal.reason, detail)
            if refusal is not None:
                return refusal
        return None

    def refuse_all(self, where: Target) -> Refusal | None:
        """Return why no request at all may be sent there; which may, its head will tell."""
        refusals = [
            self._refuse((method,), replace(where, path=path)) for path in self._examples for method in sorted(METHODS)
        ]
        return None if None in refusals else refusals[0]

    def refuse_plain_tunnel(self, where: Target) -> Refusal | None:
        """Return why no plain request at all may be sent there."""
        return self.refuse_all(replace(where, scheme="http"))

    def refuse_overrides(self, fields: Iterable[tuple[str, str]], where: Target) -> Refusal | None:
        """Return why a request may not name another method or path in a header than the one that was judged.

        Some servers believe these. Where every method and path is granted, nothing is gained by them.
        """
        named = next((name for name, _ in fields if is_override(name)), None)
        refusal = None if named is None else self.refuse_tunnel(where)
        if refusal is None or refusal.reason not in _SEEN_INSIDE:
            return None
        return Refusal(FORBIDDEN, refusal.reason, f"{named} could mean another {refusal.reason} than the one granted")

    @property
    def _examples(self) -> tuple[str, ...]:
        """A path of every pattern: what none of these reaches, nothing does."""
        granted = (item for item in self.allowed.of("net.http") if isinstance(item, NetHttp))
        return tuple(dict.fromkeys(("/", *(example_of(path) for item in granted for path in sorted(item.paths)))))

    def refuse_addresses(self, host: str, found: Iterable[str], own: frozenset[str]) -> Refusal | None:
        """Return why nothing may be sent to `host`, given all its addresses: one that is forbidden is enough.

        `own` are those of them that are this host's.
        """
        rules = replace(self.addresses, own=self.addresses.own | own)
        for address in found:
            try:
                verdict = rules.refusal(address)
            except InvalidRequest as error:
                return Refusal(FORBIDDEN, "address", str(error))
            if verdict is not None:
                return Refusal(FORBIDDEN, "address", f"{host} leads to {verdict.address}, which is {verdict.kind}")
        return None

    def _refuse(self, methods: Iterable[str], where: Target) -> Refusal | None:
        try:
            checked(where, private=self.addresses.private)
        except CapabilityBlocked as error:
            return Refusal(FORBIDDEN, error.reason or "host", str(error))
        for method in methods:
            operation = brokered.NetHttp(method, f"{where.origin}{where.path}")
            reason = self.denials.refusal(operation) or self.allowed.refusal(operation)
            if reason is not None:
                return Refusal(FORBIDDEN, reason, f"{method} {where.origin}: {_WHY.get(reason, reason)}")
        rule = strictest(self.rules, Subject.DOMAIN, where.host)
        if rule is not None and rule.decision is not Decision.ALLOW:
            reason = "rule" if rule.decision is Decision.DENY else "consent_required"
            return Refusal(FORBIDDEN, reason, f"rule {rule.id} decides {rule.decision} about {where.host}")
        return None


def rules_for(profile: Profile, asked: Iterable[str], *, nat64: Iterable[str] = ()) -> Rules:
    """Return what a run under `profile` that asks for these hosts may reach: nothing that either does not name."""
    granted = [item for item in profile.capabilities.of("net.http") if isinstance(item, NetHttp)]
    hosts = [host_pattern(host) for host in asked]
    met = [(item, meet(item.host, host)) for item in granted for host in hosts]
    return Rules(
        allowed=Capabilities(replace(item, host=host) for item, host in met if host is not None),
        denials=profile.denials,
        rules=profile.rules,
        addresses=AddressRules.of(profile.denials, profile.dangers, nat64=nat64),
    )
