"""What an operator says about the network of this host, once, for everybody who is let out into it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ringfence.dataclass import dataclass

if TYPE_CHECKING:
    from ringfence.egress.dialing import Dial


@dataclass(frozen=True, slots=True)
class NetSettings:
    """How requests leave this host."""

    ca_file: Path | None = None
    """The authorities that are trusted instead of this host's own."""
    nat64: tuple[str, ...] = ()
    """The prefixes of 96 bits behind which this network reaches IPv4, where it has others than 64:ff9b::/96."""
    lookup: Callable[[str], Sequence[str]] | None = None
    """Returns the addresses of a name instead of this host's resolver; may block."""
    dial: Dial | None = None
    """Makes connections instead of this host: it is given addresses that were judged, and believed to go there."""
