"""What an operator says about the network of this host, once, for everybody who is let out into it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ringfence.dataclass import dataclass
from ringfence.errors import InvalidRequest

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

    def __post_init__(self) -> None:
        check_nat64(self.nat64)


def check_nat64(prefixes: tuple[str, ...]) -> None:
    """Refuse what no translator is behind: of a wider prefix the wrong bits would be judged in place of an address.

    Raises:
        InvalidRequest: Naming the prefix.
    """
    if not prefixes:
        return
    from ipaddress import IPv6Network  # most networks have none

    for prefix in prefixes:
        try:
            network = IPv6Network(prefix)
        except ValueError:
            network = None
        if network is None or network.prefixlen != _BITS or network.network_address.ipv4_mapped is not None:
            raise InvalidRequest(
                f"{str(prefix)[:100]!a} is no prefix of {_BITS} bits",
                reason="invalid_config",
                fix="write it as 2001:db8:64::/96",
            )


def check_ca_file(path: Path) -> None:
    """Refuse a file that holds no certificates, before a request fails for the want of them.

    Raises:
        InvalidRequest: Naming the file.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise InvalidRequest(f"{path} cannot be read: {error.strerror}", reason="invalid_config") from None
    if _CERTIFICATE not in content:
        raise InvalidRequest(f"{path} holds no certificate in PEM", reason="invalid_config")


_BITS: Final = 96
_CERTIFICATE: Final = b"-----BEGIN CERTIFICATE-----"
