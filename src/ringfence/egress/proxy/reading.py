"""What a browser may reach that only ever reads: its process refuses every other method before it leaves the box.

Nobody sees the methods in an encrypted tunnel, so code in a box gets one only where all are granted. The methods of a
browser are held by its own process, which no page reaches, so that for its tunnels GET is all there is to grant.
"""

from __future__ import annotations

from collections.abc import Iterable

from ringfence.authority.profile import Profile
from ringfence.capability.capabilities import Capabilities
from ringfence.capability.net import READING, NetHttp
from ringfence.dataclass import fields, replace
from ringfence.egress.proxy.refusal import FORBIDDEN, Refusal
from ringfence.egress.proxy.rules import Rules, rules_for
from ringfence.operation.target import Target


class ReadingRules(Rules):
    """Rules for whoever sends GET and HEAD and nothing else."""

    __slots__ = ()

    def refuse_tunnel(self, where: Target) -> Refusal | None:
        """Return why an encrypted tunnel may not be opened, given that only reading goes through it."""
        return self.refuse_unseen(("GET",), where)

    def refuse_protocols(self, where: Target, offered: tuple[bytes, ...]) -> Refusal | None:
        """Refuse what can only be a WebSocket, by which a page would write: Chromium offers HTTP/2 for all else."""
        if offered and b"h2" not in offered:
            return Refusal(FORBIDDEN, "websocket", f"a browser that reads opens no WebSocket to {where.host}")
        return None


def reading_rules(profile: Profile, hosts: Iterable[str], *, nat64: Iterable[str] = ()) -> ReadingRules:
    """Return what a browser under `profile` may reach of `hosts`, for reading alone."""
    whole = rules_for(profile, hosts, nat64=nat64)
    read = (replace(item, methods=item.methods & READING) for item in whole.allowed if isinstance(item, NetHttp))
    parts = {each.name: getattr(whole, each.name) for each in fields(Rules)}
    return ReadingRules(**parts | {"allowed": Capabilities(read)})
