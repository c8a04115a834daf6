"""Attack safe retrieval: rules 1 to 21 one by one, which decide whom a URL, a name and an address may stand for."""

from __future__ import annotations

import re
import socket
from ipaddress import IPv4Address
from pathlib import Path
from typing import Any

import pytest
from tests.hostile_web import OTHER, PUBLIC
from tests.security.retrieval_net import PRIVATE, READING, Internet
from tests.security.retrieval_net import net as net

from ringfence.egress.dialing import own_of, system_addresses
from ringfence.egress.urls import METADATA_NAMES
from ringfence.errors import CapabilityBlocked, Denied, InvalidRequest, RingfenceError, Unavailable

pytestmark = pytest.mark.guarantee(28)


def test_every_rule_has_a_test() -> None:
    tests = "".join(path.read_text() for path in Path(__file__).parent.glob("test_retrieval_*.py"))
    named = {int(number) for number in re.findall(r"^(?:async )?def test_rule_(\d+)_", tests, re.MULTILINE)}
    assert named == set(range(1, 38))


async def test_what_is_public_is_fetched_with_where_it_came_from(net: Internet) -> None:
    outcome = await net.fetch("http://WEB.example.com./?to=x#part")
    assert outcome.content == b"hello"
    assert outcome.out["url"] == "http://web.example.com/?to=x"
    assert outcome.out["address"] == PUBLIC
    assert net.wire.dialled == [PUBLIC]


# --- the URL ---


@pytest.mark.parametrize(
    "url", ["file:///etc/passwd", "gopher://web.example.com/", "ftp://web.example.com/", "web.example.com"]
)
async def test_rule_1_only_http_and_https_and_where_it_is_granted_only_https(net: Internet, url: str) -> None:
    assert isinstance(await net.refusal(url), InvalidRequest)
    assert net.wire.dialled == []


@pytest.mark.parametrize(
    "url",
    [
        "http://web.example.com/\r\nX: y",
        "http://web.example.com/\0",
        "http://web.example.com/\\@127.0.0.1",
        "http://web.example.com/" + "a" * 8192,
        "http://web.example.com/ x",
        "\thttp://web.example.com/",
    ],
)
async def test_rule_2_what_clients_read_differently_is_refused_before_it_is_parsed(net: Internet, url: str) -> None:
    assert isinstance(await net.refusal(url), InvalidRequest)
    assert net.names.asked == net.wire.dialled == []


async def test_rule_3_user_information_is_refused(net: Internet) -> None:
    for url in ("http://web.example.com@127.0.0.1/", "http://a:b@web.example.com/", "http://@web.example.com/"):
        assert isinstance(await net.refusal(url), InvalidRequest)


async def test_rule_4_the_name_that_was_judged_is_the_one_resolved_connected_and_asked_for(net: Internet) -> None:
    await net.fetch("http://WEB.EXAMPLE.COM.:80/echo")
    assert net.names.asked == ["web.example.com"]
    assert b"\r\nHost: web.example.com\r\n" in net.server.requests[0][1]
    for url in ("http:///x", "http://:80/", "http://?x"):
        assert isinstance(await net.refusal(url), InvalidRequest)


@pytest.mark.parametrize(
    "host",
    [
        "\uff11\uff12\uff17.0.0.1", "\u2460\u2461\u2466.0.0.1", "127\u30020\u30020\u30021", "ex\u00e4mple.com",
        "web.example.com\u200b", "\u24e6eb.example.com",
    ],
)  # fmt: skip
async def test_rule_5_a_name_that_is_not_ascii_is_written_as_idna_by_its_caller(net: Internet, host: str) -> None:
    assert isinstance(await net.refusal(f"http://{host}/"), InvalidRequest)
    assert isinstance(await net.led(f"http://{host}/"), CapabilityBlocked)
    assert net.wire.dialled == [PUBLIC]


@pytest.mark.parametrize(
    "host",
    [
        "2130706433",
        "0x7f000001",
        "0x7f.0.0.1",
        "0177.0.0.1",
        "127.1",
        "127.0.1",
        "1.2.3",
        "0.0x1",
        "x.0x7f",
        "127.0.0.1.2",
        "127.0.0.256",
        "01.2.3.4",
    ],
)
async def test_rule_6_no_odd_spelling_of_an_address_is_read(net: Internet, host: str) -> None:
    assert isinstance(await net.refusal(f"http://{host}/"), InvalidRequest)
    assert (await net.led(f"http://{host}/")).reason == "redirect"
    assert (await net.led(f"//{host}/")).reason == "redirect"
    assert net.wire.dialled == [PUBLIC, PUBLIC]


async def test_rule_7_one_dot_at_the_end_is_dropped_and_an_empty_label_refused(net: Internet) -> None:
    assert (await net.fetch("http://web.example.com./")).out["url"] == "http://web.example.com/"
    for host in ("web..example.com", ".web.example.com", "web.example.com..", "localhost."):
        assert isinstance(await net.refusal(f"http://{host}/"), RingfenceError)
    assert net.wire.dialled == [PUBLIC]


async def test_rule_8_ipv6_only_in_brackets_and_without_a_zone(net: Internet) -> None:
    assert (await net.fetch("http://[2606:2800::34]/")).out["address"] == "2606:2800::34"
    for host in ("2606:2800::34", "[fe80::1%25eth0]", "[fe80::1%eth0]", "[::1", "[v7.x]", "[2606:2800::34].x"):
        assert isinstance(await net.refusal(f"http://{host}/"), InvalidRequest)


async def test_rule_9_only_the_ports_of_the_scheme_unless_listed_and_never_those_of_others(net: Internet) -> None:
    assert (await net.refusal("http://web.example.com:8080/")).reason == "port"
    listed = READING + "policies: {default: {allowed_ports: [8080, 25, 6667]}}\n"
    assert (await net.fetch("http://web.example.com:8080/", policy=listed)).content == b"hello"
    for port in (25, 6667):
        assert (await net.refusal(f"http://web.example.com:{port}/", policy=listed)).reason == "port"
        assert (
            await net.led(f"http://web.example.com:{port}/", policy=listed.replace("[8080", "[80, 8080"))
        ).reason == "port"
    assert set(net.wire.dialled) == {PUBLIC}


async def test_rule_10_deny_lists_win_and_names_of_the_own_network_are_nobodys(net: Internet) -> None:
    denying = (
        READING
        + "  denylist: {enabled: true, domains: ['*.internal.*', localhost, '127.*', '10.*', web.example.com]}\n"
    )
    assert (await net.refusal("http://web.example.com/", policy=denying)).reason == "blacklist"
    assert (await net.refusal("http://web.internal.corp/", policy=denying)).reason == "blacklist"
    own = ("localhost", "a.localhost", "printer.local", "db.internal", "nas.home.arpa", "web", *METADATA_NAMES)
    for name in own:
        net.names.records[name] = [PUBLIC]  # whatever a resolver says
        assert (await net.refusal(f"http://{name}/")).reason == "domain"
        assert (await net.led(f"http://{name}/")).reason == "domain"
    assert net.server.requests
    assert set(net.names.asked) == {"web.example.com"}


async def test_rule_11_the_fragment_is_dropped_and_never_sent(net: Internet) -> None:
    outcome = await net.fetch("http://web.example.com/echo#secret-part")
    assert outcome.content is not None
    assert b"secret-part" not in outcome.content
    assert "#" not in outcome.out["url"]


# --- resolution ---


async def test_rule_12_a_name_is_resolved_once_and_what_it_says_later_is_not_heard(net: Internet) -> None:
    net.names.records["flip.example.net"] = lambda count: [PUBLIC] if count == 1 else ["127.0.0.1"]
    assert (await net.fetch("http://flip.example.net/")).content == b"hello"
    assert (net.names.asked, net.wire.dialled) == (["flip.example.net"], [PUBLIC])
    # the second retrieval asks again, and hears the lie
    assert (await net.refusal("http://flip.example.net/")).reason == "private_address"
    # so does a redirect to the same name
    net.names.records["turn.example.net"] = lambda count: [PUBLIC] if count == 1 else ["10.0.0.5"]
    assert (await net.refusal("http://turn.example.net/to?to=/")).reason == "private_address"
    assert net.wire.dialled == [PUBLIC, PUBLIC]


async def test_rule_12_no_domain_of_this_host_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def answer(name: str, *_: object, **__: object) -> list[Any]:
        asked.append(name)
        return [(socket.AF_INET, 1, 6, "", (PUBLIC, 0))]

    monkeypatch.setattr(socket, "getaddrinfo", answer)
    assert system_addresses("web.example.com") == (PUBLIC,)
    assert asked == ["web.example.com."]


@pytest.mark.parametrize("bad", ["10.0.0.5", "127.0.0.1", "169.254.169.254", "::1", "fd00:ec2::254", "::ffff:10.0.0.1", "fe80::1%eth0"])  # fmt: skip  # noqa: E501
async def test_rule_13_one_forbidden_answer_among_good_ones_is_enough(net: Internet, bad: str) -> None:
    for answers in ([bad], [PUBLIC, bad], [bad, PUBLIC], [PUBLIC, OTHER, bad, PUBLIC]):
        net.names.records["mixed.example.net"] = answers
        assert (await net.refusal("http://mixed.example.net/")).reason == "private_address"
    assert net.wire.dialled == []


async def test_rule_14_a_name_with_very_many_addresses_is_refused(net: Internet) -> None:
    net.names.records["many.example.net"] = [str(IPv4Address("93.184.0.0") + n) for n in range(33)]
    assert (await net.refusal("http://many.example.net/")).reason == "domain"
    assert net.wire.dialled == []


async def test_rule_15_what_cannot_be_resolved_is_refused_and_asked_of_nobody_else(net: Internet) -> None:
    error = await net.refusal("http://unknown.example.net/")
    assert (error.reason, type(error)) == ("name_resolution", Unavailable)
    net.names.records["empty.example.net"] = []
    assert (await net.refusal("http://empty.example.net/")).reason == "name_resolution"
    assert net.wire.dialled == []


# --- addresses: `tests/unit/egress/test_addresses.py` has every range; here they are reached for ---

V4 = """0.0.0.0 10.1.2.3 100.64.0.1 127.0.0.1 127.8.8.8 169.254.1.1 172.16.0.1 172.31.255.254 192.0.0.8 192.0.2.1
    192.88.99.1 192.168.0.1 198.18.0.1 198.51.100.1 203.0.113.1 224.0.0.1 240.0.0.1 255.255.255.255"""
V6 = """:: ::1 100::1 100:0:0:1::1 2001:1::1 2001:2::1 2001:10::1 2001:db8::1 3fff::1 5f00::1 fc00::1 fd12::1 fe80::1
    fec0::1 ff02::1 64:ff9b:1::1"""
EMBEDDED = """::ffff:127.0.0.1 ::ffff:7f00:1 ::127.0.0.1 ::ffff:0:127.0.0.1 64:ff9b::127.0.0.1 64:ff9b::10.0.0.1
    2002:7f00:1:: 2002:a00:1::1 2001:0:7f00:1:: 2001:0:5db8:d822::80ff:fffe 2606:2800::5efe:127.0.0.1
    2606:2800::200:5efe:10.0.0.1"""
CLOUD = """169.254.169.254 169.254.170.2 168.63.129.16 100.100.100.200 192.0.0.192 fd00:ec2::254 fd20:ce::254
    fd00:c1::a9fe:a9fe fd00:42::42 fd00:a9fe:a9fe::1 fd00:100::100:200 64:ff9b::a9fe:a9fe ::ffff:168.63.129.16"""


async def _is_closed(net: Internet, address: str) -> None:
    """Try an address as the answer for a name, as a literal, and as where a redirect leads, by name and by literal."""
    literal = f"[{address}]" if ":" in address else address
    net.names.records["there.example.net"] = [address]
    everything = READING.replace('"*"', f'"*", "{literal}"')
    for policy in (READING, everything):
        assert (await net.refusal("http://there.example.net/", policy=policy)).reason == "private_address"
        assert isinstance(await net.refusal(f"http://{literal}/", policy=policy), Denied)
        assert isinstance(await net.led("http://there.example.net/", policy=policy), CapabilityBlocked)
        assert isinstance(await net.led(f"http://{literal}/", policy=policy), CapabilityBlocked)
    assert set(net.wire.dialled) == {PUBLIC}


@pytest.mark.parametrize("address", V4.split())
async def test_rule_16_no_special_ipv4_range_is_reached(net: Internet, address: str) -> None:
    await _is_closed(net, address)


@pytest.mark.parametrize("address", V6.split())
async def test_rule_17_no_special_ipv6_range_is_reached(net: Internet, address: str) -> None:
    await _is_closed(net, address)


@pytest.mark.parametrize("address", EMBEDDED.split())
async def test_rule_18_no_ipv4_address_inside_an_ipv6_one_is_reached(net: Internet, address: str) -> None:
    await _is_closed(net, address)


@pytest.mark.parametrize("address", CLOUD.split())
async def test_rule_19_no_metadata_service_is_reached_even_with_the_private_network_open(
    net: Internet, address: str
) -> None:
    await _is_closed(net, address)
    net.wire.dialled.clear()
    assert (await net.refusal("http://there.example.net/", policy=PRIVATE, agreed=True)).reason == "private_address"
    assert net.wire.dialled == []


async def test_rule_20_the_addresses_of_this_host_are_known_and_closed(net: Internet) -> None:
    assert own_of(["127.0.0.1", PUBLIC, "::1", "127.3.2.1"]) >= {"127.0.0.1"}
    assert PUBLIC not in own_of([PUBLIC])


def test_rule_21_nothing_here_relies_on_what_python_calls_global() -> None:
    import ringfence.egress.addresses as module

    source = Path(str(module.__file__)).read_text().partition('"""')[2].partition('"""')[2]
    assert not re.search(r"\.is_(global|private|loopback|link_local|reserved|multicast|unspecified)", source)
