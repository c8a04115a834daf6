"""How much one retrieval may take of this host: bytes on the wire and unpacked, lines, hops and seconds."""

from __future__ import annotations

from typing import Final

from ringfence.capability.limits import MIB, Limits
from ringfence.dataclass import dataclass

FREE_EXPANSION: Final = MIB
"""What may unpack from next to nothing: a short page of one repeated letter is no attack."""


@dataclass(frozen=True, slots=True)
class RetrievalCaps:
    """The bounds of one retrieval, all of its redirects together."""

    body_bytes: int = 16 * MIB
    """Of the body as it comes, and again of what it unpacks to."""
    ratio: int = 200
    """How many bytes may come out of one, beyond `FREE_EXPANSION`."""
    head_bytes: int = 32 * 1024
    headers: int = 100
    redirects: int = 5
    answers: int = 32
    """How many addresses a name may have."""
    interim: int = 4
    """How many answers with 1xx may come before the real one."""
    connect_seconds: float = 10.0
    read_seconds: float = 15.0
    """How long the other side may say nothing."""
    total_seconds: float = 30.0

    @classmethod
    def of(cls, limits: Limits) -> RetrievalCaps:
        """Return the caps of a profile: no more bytes, and no more seconds, than its limits give."""
        usual = cls()
        # a little less than the run has: whoever ends it first tells what was done, and that is to be retrieval
        total = min(usual.total_seconds, limits.wall_seconds * 0.95)
        return cls(
            body_bytes=limits.max_bytes_in,
            total_seconds=total,
            connect_seconds=min(usual.connect_seconds, total),
            read_seconds=min(usual.read_seconds, total),
        )
