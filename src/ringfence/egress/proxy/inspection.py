"""What a run is told when its TLS is opened: the authority it believes, whom the host believes, and its secrets."""

from __future__ import annotations

import ssl

from ringfence.dataclass import dataclass, field
from ringfence.egress.proxy.authority import Authority
from ringfence.egress.proxy.swap import Swap


@dataclass(frozen=True, slots=True)
class Inspection:
    """Has every request of one run read before it goes out; without it, what is in TLS is nobody's to see."""

    authority: Authority
    trust: ssl.SSLContext
    """How hosts have to show that they have their names."""
    swap: Swap = field(default_factory=Swap)
