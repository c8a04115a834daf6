"""Addresses: every range in every spelling, and every IPv4 address inside an IPv6 one (rules 16 to 21)."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringfence.capability.denials import NO_DENIALS, PRIVATE_NETWORKS, Denials
from ringfence.egress.addresses import AddressKind, AddressRules, verdict_of
from ringfence.errors import InvalidRequest

FORBIDDEN = {
    "metadata": """169.254.169.254 169.254.170.2 169.254.170.23 169.254.42.42 169.254.0.23 168.63.129.16 100.100.100.200
        192.0.0.192 fd00:ec2::254 fd00:ec2::23 fd00:ec2:ffff::1 fd20:ce::254 fd00:c1::a9fe:a9fe fd00:42::42
        fd00:a9fe:a9fe::1 fd00:100::100:200 fe80::a9fe:a9fe""",
    "loopback": "127.0.0.1 127.0.0.0 127.255.255.255 127.1.2.3 ::1",
    "private": """10.0.0.0 10.255.255.255 172.16.0.0 172.31.255.255 192.168.0.1 192.168.255.255 fc00:: fdff::1
        fec0::1 feff::1""",
    "shared": "100.64.0.0 100.127.255.255",
    "link_local": "169.254.0.1 169.254.255.255 fe80::1 febf::1",
    "multicast": "224.0.0.1 239.255.255.255 ff02::1 ff0e::1",
    "reserved": """0.0.0.0 0.1.2.3 192.0.0.1 192.0.2.1 192.88.99.1 198.18.0.1 198.19.255.255 198.51.100.1 203.0.113.1
        240.0.0.1 255.255.255.255 :: 100::1 100:0:0:1::1 2001:2::1 2001:10::1 2001:20::1 2001:db8::1 3fff::1 5f00::1
        64:ff9b:1::1 2001:100::1 2001:1ff::1 1::1 4000::1 e000::1 fe00::1""",
    "translated": """::127.0.0.1 ::8.8.8.8 ::ffff:127.0.0.1 ::ffff:8.8.8.8 ::ffff:0:127.0.0.1 ::ffff:0:8.8.8.8
        2002:7f00:1:: 2002:808:808::1 2001:0:7f00:1:: 2001:0:808:808::f7f7:f7f7
        2606:4700::5efe:10.0.0.1 2606:4700::200:5efe:10.0.0.1
        2606:4700::5efe:8.8.8.8""",
}
PUBLIC = "1.1.1.1 8.8.8.8 93.184.216.34 100.63.255.255 100.128.0.0 172.15.255.255 172.32.0.0 192.0.1.1 198.17.255.255"
PUBLIC6 = "2606:4700:4700::1111 2a00:1450:4001::200e 2001:4860:4860::8888 2001:200::1 2003::1 64:ff9b::808:808"
LISTED = [(address, kind) for kind, text in FORBIDDEN.items() for address in text.split()]


@pytest.mark.parametrize(("address", "kind"), LISTED)
def test_what_is_not_public_is_told_by_its_kind(address: str, kind: str) -> None:
    assert verdict_of(address).kind == kind


@pytest.mark.parametrize(("address", "kind"), LISTED)
def test_nothing_that_is_not_public_passes_the_rules_of_a_profile_that_opens_nothing(address: str, kind: str) -> None:
    assert AddressRules().refusal(address) is not None
    assert AddressRules(denied=frozenset()).refusal(address) is not None


@pytest.mark.parametrize("address", [*PUBLIC.split(), *PUBLIC6.split()])
def test_what_is_public_is_public_up_to_the_last_address_of_its_range(address: str) -> None:
    assert verdict_of(address).is_public
    assert AddressRules(denied=frozenset()).refusal(address) is None


@pytest.mark.parametrize(("address", "kind"), LISTED)
def test_the_private_network_opens_four_kinds_and_never_metadata(address: str, kind: str) -> None:
    refused = AddressRules(denied=frozenset(), private=True).refusal(address)
    assert (refused is None) == (kind in ("loopback", "private", "shared", "own"))


@given(st.integers(0, 2**32 - 1).map(IPv4Address))
def test_an_ipv4_address_is_taken_out_of_every_form_that_carries_it(inner: IPv4Address) -> None:
    value = int(inner)
    forms = {
        "compatible": value,
        "mapped": 0xFFFF << 32 | value,
        "siit": 0xFFFF << 48 | value,
        "nat64": 0x64FF9B << 96 | value,
        "6to4": 0x2002 << 112 | value << 80 | 1,
        "teredo server": 0x20010000 << 96 | value << 64,
        "teredo client": 0x20010000 << 96 | ~value & 0xFFFFFFFF,
        "isatap": 0x26064700 << 96 | 0x5EFE << 32 | value,
    }
    for form, whole in forms.items():
        if form == "compatible" and value < 2:
            continue
        assert str(inner) in verdict_of(str(IPv6Address(whole))).carries, form
        if not verdict_of(str(inner)).is_public:
            assert AddressRules(denied=frozenset()).refusal(str(IPv6Address(whole))) is not None, form


@given(st.integers(0, 2**128 - 1).map(IPv6Address))
def test_only_what_was_given_out_or_translated_to_a_public_address_is_public(address: IPv6Address) -> None:
    if verdict_of(str(address)).is_public:
        assert int(address) >> 125 == 1 or int(address) >> 32 == 0x64FF9B << 64


@pytest.mark.parametrize("address", ["64:ff9b::7f00:1", "64:ff9b::a9fe:a9fe", "64:ff9b::a83f:8110", "64:ff9b::a00:1"])
def test_an_address_behind_nat64_is_what_it_is_translated_to(address: str) -> None:
    carried = verdict_of(address).carries[0]
    assert verdict_of(address).kind == verdict_of(carried).kind
    assert AddressRules(denied=frozenset()).refusal(address) is not None


def test_a_prefix_that_the_operator_lists_is_decoded_as_nat64() -> None:
    rules = AddressRules(denied=frozenset(), nat64=("2a01:1:2:3:4::/96",))
    assert rules.refusal("2a01:1:2:3:4::808:808") is None
    assert rules.refusal("2a01:1:2:3:4::a00:1") is not None
    assert AddressRules(denied=frozenset()).refusal("2a01:1:2:3:4::a00:1") is None, "nobody can know it unasked"


def test_the_hosts_own_public_address_is_closed_to_who_may_only_reach_the_internet() -> None:
    own = frozenset({"8.8.4.4"})
    assert verdict_of("8.8.4.4", own=own).kind is AddressKind.OWN
    assert AddressRules(own=own).refusal("8.8.4.4") is not None
    assert AddressRules(own=own).refusal("64:ff9b::808:404") is not None


def test_a_network_that_the_policy_closes_is_closed_in_every_form() -> None:
    rules = AddressRules(denied=frozenset({"8.8.8.0/24"}))
    assert rules.refusal("8.8.8.8") is not None
    assert rules.refusal("64:ff9b::808:808") is not None
    assert rules.refusal("8.8.9.9") is None


def test_the_private_network_is_open_only_where_the_profile_counts_it_as_a_danger() -> None:
    danger = ("private_network",)
    assert not AddressRules.of(Denials(networks=PRIVATE_NETWORKS), danger).private
    assert not AddressRules.of(Denials(networks=PRIVATE_NETWORKS | {"8.8.8.0/24"}), danger).private
    assert not AddressRules.of(NO_DENIALS, ()).private
    assert AddressRules.of(NO_DENIALS, danger).private
    some = AddressRules.of(Denials(networks=PRIVATE_NETWORKS - {"10.0.0.0/8"}), danger)
    assert some.refusal("10.1.2.3") is None
    assert some.refusal("192.168.1.1") is not None


@pytest.mark.parametrize(
    "text",
    ["", "127.1", "0x7f000001", "2130706433", "0177.0.0.1", "fe80::1%eth0", "::1%lo", "1.2.3.4 ", "[::1]", "a.b"],
)
def test_no_other_spelling_is_an_address(text: str) -> None:
    with pytest.raises(InvalidRequest):
        verdict_of(text)
