"""Which addresses an agent's request may be sent to: a table of our own, because `is_global` lets metadata through.

An address is judged after resolution, in binary, and never in the spelling somebody chose. IPv6 is closed except for
the part from which addresses are given out; IPv4 is open except for what is listed. An IPv4 address inside an IPv6 one
is taken out and judged as well, whichever of the seven ways it was put in.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from enum import StrEnum
from functools import lru_cache
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Final

from ringfence.capability.denials import PRIVATE_NETWORKS, Denials
from ringfence.dataclass import dataclass
from ringfence.errors import InvalidRequest

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network


class AddressKind(StrEnum):
    """What an address is for."""

    PUBLIC = "public"
    LOOPBACK = "loopback"
    PRIVATE = "private"
    SHARED = "shared"
    """Between a provider and its customers (CGNAT), where clouds and overlay networks put services too."""
    OWN = "own"
    """Public, and this host's: what listens there believes it is asked by a neighbour."""
    METADATA = "metadata"
    """Where a cloud gives credentials to whoever asks from inside."""
    LINK_LOCAL = "link_local"
    MULTICAST = "multicast"
    RESERVED = "reserved"
    """For documentation, benchmarks, this host alone, later use, or nothing: no server is there."""
    TRANSLATED = "translated"
    """An IPv4 address written as IPv6 for a way of carrying it that no public server depends on."""


PRIVATE_KINDS: Final = frozenset({AddressKind.LOOPBACK, AddressKind.PRIVATE, AddressKind.SHARED, AddressKind.OWN})
"""What a grant for the private network opens; nothing opens the other kinds."""

_K = AddressKind
# The most telling entry first: 169.254.169.254 is link-local too.
_TABLE: Final[tuple[tuple[AddressKind, tuple[str, ...]], ...]] = (
    (
        _K.METADATA,
        (
            "169.254.169.254",       # AWS, Azure, GCP, OpenStack, DigitalOcean, Hetzner, IBM, Oracle
            "169.254.170.2",         # AWS ECS: credentials of a task
            "169.254.170.23",        # AWS EKS: credentials of a pod
            "169.254.42.42",         # Scaleway
            "169.254.0.23",          # Tencent
            "168.63.129.16",         # Azure WireServer: a public address that answers from inside only
            "100.100.100.200",       # Alibaba, in the shared range
            "192.0.0.192",           # Oracle, classic
            "fd00:ec2::/32",         # AWS, all of it: metadata, DNS, time, pods
            "fd20:ce::254",          # GCP
            "fd00:c1::a9fe:a9fe",    # Oracle
            "fd00:42::42",           # Scaleway
            "fd00:a9fe:a9fe::1",
            "fd00:100::100:200",     # Alibaba
            "fe80::a9fe:a9fe",       # OpenStack
        ),
    ),
    (_K.LOOPBACK, ("127.0.0.0/8", "::1")),
    (_K.PRIVATE, ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "fc00::/7", "fec0::/10")),
    (_K.SHARED, ("100.64.0.0/10",)),
    (_K.LINK_LOCAL, ("169.254.0.0/16", "fe80::/10")),
    (_K.MULTICAST, ("224.0.0.0/4", "ff00::/8")),
    (
        _K.RESERVED,
        (
            "0.0.0.0/8", "192.0.0.0/24", "192.0.2.0/24", "192.88.99.0/24", "198.18.0.0/15", "198.51.100.0/24",
            "203.0.113.0/24", "240.0.0.0/4",
            "::", "100::/64", "100:0:0:1::/64", "2001:2::/48", "2001:10::/28", "2001:20::/28", "2001:db8::/32",
            "3fff::/20", "5f00::/16", "64:ff9b:1::/48",
        ),
    ),
    # IPv4-compatible, IPv4-mapped, SIIT, Teredo, 6to4
    (_K.TRANSLATED, ("::/96", "::ffff:0:0/96", "::ffff:0:0:0/96", "2001::/32", "2002::/16")),
    (_K.RESERVED, ("2001::/23",)),
)  # fmt: skip
_RANGES: Final = tuple(
    (network.version, int(network.netmask), int(network.network_address), kind)
    for kind, networks in _TABLE
    for network in map(ip_network, networks)
)
_GIVEN_OUT: Final = IPv6Network("2000::/3")
_NAT64: Final = IPv6Network("64:ff9b::/96")
_TEREDO, _6TO4, _FIRST_96 = IPv6Network("2001::/32"), IPv6Network("2002::/16"), 2**32
_ISATAP: Final = frozenset({0x00005EFE, 0x02005EFE})


@dataclass(frozen=True, slots=True)
class Verdict:
    """What an address is; `carries` are the IPv4 addresses that are written inside it."""

    address: str
    kind: AddressKind
    carries: tuple[str, ...] = ()

    @property
    def is_public(self) -> bool:
        """Whether anybody may be sent there."""
        return self.kind is AddressKind.PUBLIC


@dataclass(frozen=True, slots=True)
class AddressRules:
    """What one profile adds to the table; made without arguments it opens nothing but what is public."""

    denied: frozenset[str] = PRIVATE_NETWORKS
    """Networks that the policy closes, public ones included."""
    private: bool = False
    """Whether the private network was opened by policy, by grant, and by a person for this call."""
    own: frozenset[str] = frozenset()
    """The addresses of this host's interfaces."""
    nat64: tuple[str, ...] = ()
    """Prefixes of 96 bits, other than the well-known one, behind which this network reaches IPv4."""

    @classmethod
    def of(cls, denials: Denials, dangers: Iterable[str], *, nat64: Iterable[str] = ()) -> AddressRules:
        """Return the rules of a profile: the private network is open where it counts as one of its dangers.

        The guard then let nobody in whom a person had not agreed to.
        """
        private = "private_network" in dangers and not denials.networks >= PRIVATE_NETWORKS
        return cls(denials.networks, private, nat64=tuple(nat64))

    def refusal(self, address: str) -> Verdict | None:
        """Return what `address` is if nothing may be sent there, else nothing."""
        found = verdict_of(address, own=self.own, nat64=self.nat64)
        open_kinds = PRIVATE_KINDS if self.private else frozenset()
        if not found.is_public and found.kind not in open_kinds:
            return found
        asked = (found.address, *found.carries)
        return found if any(_is_in(one, self.denied) for one in asked) else None


def verdict_of(address: str, *, own: frozenset[str] = frozenset(), nat64: tuple[str, ...] = ()) -> Verdict:
    """Return what an address is, and every IPv4 address it carries.

    Raises:
        InvalidRequest: It is no address, or has a zone: a zone names an interface of this host.
    """
    found = parsed(address)
    if isinstance(found, IPv4Address):
        return Verdict(str(found), _kind_of(found, own))
    carried = tuple(dict.fromkeys(_carried(found, nat64)))
    return Verdict(str(found), _kind_of_ipv6(found, carried, own, nat64), tuple(map(str, carried)))


def parsed(address: str) -> Address:
    """Return an address from its strict spelling.

    Raises:
        InvalidRequest: It is no address, or has a zone.
    """
    try:
        found = ip_address(address)
    except ValueError:
        raise InvalidRequest(f"{str(address)[:100]!a} is not an address", reason="invalid_host") from None
    if isinstance(found, IPv6Address) and found.scope_id is not None:
        raise InvalidRequest(f"{str(address)[:100]!a} names an interface of this host", reason="invalid_host")
    return found


def _kind_of(address: Address, own: frozenset[str]) -> AddressKind:
    version, value = address.version, int(address)
    for its_version, mask, network, kind in _RANGES:
        if value & mask == network and version == its_version:
            return kind
    if str(address) in own:
        return AddressKind.OWN
    if isinstance(address, IPv6Address) and address not in _GIVEN_OUT:
        return AddressKind.RESERVED
    return AddressKind.PUBLIC


def _kind_of_ipv6(
    address: IPv6Address, carried: tuple[IPv4Address, ...], own: frozenset[str], nat64: tuple[str, ...]
) -> AddressKind:
    if _is_nat64(address, nat64):
        return _kind_of(carried[0], own)  # a translator in this network sends it to exactly that one
    kind = _kind_of(address, own)
    if kind is AddressKind.PUBLIC and carried:
        return AddressKind.TRANSLATED  # ISATAP: a tunnel to the address inside
    if kind is AddressKind.TRANSLATED:
        inner = {_kind_of(one, own) for one in carried}
        return AddressKind.METADATA if AddressKind.METADATA in inner else kind
    return kind


def _carried(address: IPv6Address, nat64: tuple[str, ...]) -> Iterator[IPv4Address]:
    """Take out every IPv4 address that some part of the network would send it on to."""
    value = int(address)
    low = IPv4Address(value & 0xFFFFFFFF)
    # ::a.b.c.d, ::ffff:a.b.c.d and ::ffff:0:a.b.c.d; `::` and `::1` are their own
    if _FIRST_96 > value > 1 or value >> 32 in (0xFFFF, 0xFFFF0000) or _is_nat64(address, nat64):
        yield low
    if address in _6TO4:
        yield IPv4Address(value >> 80 & 0xFFFFFFFF)
    if address in _TEREDO:
        yield IPv4Address(value >> 64 & 0xFFFFFFFF)  # the server
        yield IPv4Address(~value & 0xFFFFFFFF)  # the client, every bit turned round
    if value >> 32 & 0xFFFFFFFF in _ISATAP:
        yield low


def _is_nat64(address: IPv6Address, more: tuple[str, ...]) -> bool:
    return address in _NAT64 or any(address in _network(prefix) for prefix in more)


def _is_in(address: str, networks: frozenset[str]) -> bool:
    found = ip_address(address)
    version, value = found.version, int(found)
    return any(value & mask == network and version == its for its, mask, network in _masks(networks))


@lru_cache(maxsize=64)
def _masks(networks: frozenset[str]) -> tuple[tuple[int, int, int], ...]:
    parsed_ones = map(_network, networks)
    return tuple((each.version, int(each.netmask), int(each.network_address)) for each in parsed_ones)


@lru_cache(maxsize=512)
def _network(network: str) -> Network:
    return ip_network(network)
