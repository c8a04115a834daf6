"""Attack safe retrieval: its 37 rules one by one, each with what would go wrong without it (docs/network.md has them).

Every request goes through the real pipeline to real sockets on loopback; only names and the addresses behind them are
made up, so that a public address can be had at all. `test_retrieval_lab.py` does the same on a wire.
"""

from __future__ import annotations

import asyncio
import json
import re
import socket
import sys
from collections.abc import Iterator
from ipaddress import IPv4Address
from pathlib import Path
from typing import Any

import pytest
from tests.net_lab import OTHER, PUBLIC, Names, Server, Wire, authority

from ringfence import load_policy
from ringfence.capability.limits import MIB, Limits
from ringfence.egress.caps import RetrievalCaps
from ringfence.egress.dialing import Dialer, own_of, system_addresses
from ringfence.egress.settings import NetSettings
from ringfence.egress.urls import METADATA_NAMES
from ringfence.errors import CapabilityBlocked, Denied, InvalidRequest, RingfenceError, Unavailable
from ringfence.executors.net import MOST_OF_A_TENANT, NetExecutor
from ringfence.guard.consent import Consent, Source, request_hash
from ringfence.operation.brokered import NetHttp
from ringfence.outcome import BrokerOutcome
from ringfence.testing import MemorySink, orchestrator_over, standard_profile

pytestmark = pytest.mark.guarantee(28)

READING = """
network:
  default: safe_retrieval
  allowlist: {enabled: true, domains: ["*", "93.184.216.34", "[2606:2800::34]"]}
"""
LISTED = """
network:
  default: allowlist
  allowlist: {enabled: true, domains: [web.example.com, "*.example.net"]}
policies: {default: {allowed_methods: [GET, HEAD, POST, PUT]}}
"""
PRIVATE = """
network:
  default: allowlist
  allowlist: {enabled: true, domains: ["*", "10.0.0.5", "127.0.0.1", "169.254.169.254"]}
  denylist: {enabled: true, networks: ["192.168.0.0/16"]}
"""
LIMITS = Limits(wall_seconds=10, max_bytes_in=4 * MIB)


class Internet:
    """One server, and names that lead to it wherever a test says that it is."""

    def __init__(self, server: Server, ca_file: Path | None = None) -> None:
        self.server, self.names, self.wire = server, Names(), Wire(server, ca_file)
        self.evidence = MemorySink()
        executor = NetExecutor(NetSettings(dial=self.wire, lookup=self.names))
        self._orchestrator = orchestrator_over(executor, evidence=self.evidence)

    async def fetch(
        self, url: str, method: str = "GET", *, policy: str = READING, agreed: bool = False, limits: Limits = LIMITS,
        **brought: Any,
    ) -> BrokerOutcome:  # fmt: skip
        operation = NetHttp(method, url, **brought)
        profile = standard_profile(operation, limits, load_policy(policy.encode()))
        consent = Consent(Source.CALL, request_hash(operation), approver="test") if agreed else None
        return await self._orchestrator.run(operation, profile, consent=consent)

    async def refusal(self, url: str, *args: Any, **options: Any) -> RingfenceError:
        with pytest.raises(RingfenceError) as refused:
            await self.fetch(url, *args, **options)
        return refused.value

    async def led(self, to: str, **options: Any) -> RingfenceError:
        """Have a public server redirect to `to`, and return the refusal."""
        from urllib.parse import quote

        return await self.refusal(f"http://web.example.com/to?to={quote(to, safe='')}", **options)


@pytest.fixture
def net() -> Iterator[Internet]:
    server = Server()
    yield Internet(server)
    server.close()


@pytest.fixture
def tls(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Internet]:
    directory = tmp_path_factory.getbasetemp() / "authority"
    directory.mkdir(exist_ok=True)
    ca_file, shown = authority(directory)
    server = Server(tls=shown)
    yield Internet(server, ca_file)
    server.close()


def test_every_rule_has_a_test() -> None:
    named = {int(found[1]) for name in globals() if (found := re.match(r"test_rule_(\d+)_", name))}
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


# --- the connection ---


async def test_rule_22_tls_is_for_the_name_and_nobody_elses_certificate_will_do(tls: Internet) -> None:
    assert (await tls.fetch("https://web.example.com/")).content == b"hello"
    assert tls.wire.dialled == [PUBLIC]
    assert (await tls.refusal("https://other.example.net/")).reason == "tls"
    assert (await tls.refusal(f"https://{PUBLIC}/")).reason == "tls"


async def test_rule_22_a_certificate_of_an_unknown_authority_is_refused(tls: Internet) -> None:
    strict = Internet(tls.server)
    assert (await strict.refusal("https://web.example.com/")).reason == "tls"
    assert tls.server.requests == []


async def test_rule_23_a_connection_that_ends_up_elsewhere_is_not_used(
    net: Internet, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = asyncio.get_running_loop()
    connect = loop.sock_connect

    async def redirected(sock: socket.socket, _: Any) -> None:  # as a rule of the packet filter would
        await connect(sock, ("127.0.0.1", net.server.port))

    monkeypatch.setattr(loop, "sock_connect", redirected)
    with pytest.raises(Unavailable, match="elsewhere"):
        await Dialer()("127.0.0.2", net.server.port, None, 5)
    assert net.server.requests == []


async def test_rule_24_no_proxy_no_netrc_and_no_cookie_of_this_host_is_used(
    net: Internet, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    canary = Server()
    for name in ("http_proxy", "HTTP_PROXY", "ALL_PROXY", "https_proxy"):
        monkeypatch.setenv(name, f"http://127.0.0.1:{canary.port}")
    (tmp_path / ".netrc").write_text("machine web.example.com login me password hunter22\n")
    monkeypatch.setenv("HOME", str(tmp_path))
    sent = (await net.fetch("http://web.example.com/echo")).content or b""
    assert (canary.reached, canary.requests) == ([], [])
    canary.close()
    assert not re.search(rb"(?i)cookie|authorization|hunter22|proxy", sent)


async def test_rule_25_no_connection_is_used_twice(net: Internet) -> None:
    for _ in range(3):
        outcome = await net.fetch("http://web.example.com/two-answers")
        assert outcome.content == b"hello", "and what follows an answer is nobody's"
    assert len(net.server.reached) == 3
    assert all(b"Connection: close\r\n" in request for _, request in net.server.requests)


# --- redirects ---


async def test_rule_26_every_hop_is_judged_again_and_there_are_five_at_most(net: Internet) -> None:
    outcome = await net.fetch("http://web.example.com/to?to=http%3A//other.example.net/json")
    assert [hop["address"] for hop in outcome.out["hops"]] == [PUBLIC, OTHER]
    maze = "/"
    for _ in range(5):
        maze = f"/to?to={maze.replace('%', '%25').replace('?', '%3F').replace('=', '%3D')}"
    assert len((await net.fetch(f"http://web.example.com{maze}")).out["hops"]) == 6
    deeper = f"/to?to={maze.replace('%', '%25').replace('?', '%3F').replace('=', '%3D')}"
    assert (await net.refusal(f"http://web.example.com{deeper}")).reason == "redirect"


async def test_rule_26_a_redirect_to_a_name_that_was_not_granted_is_refused(net: Internet) -> None:
    net.names.records["evil.example.org"] = [OTHER]
    error = await net.led("http://evil.example.org/secret", policy=LISTED)
    assert (error.reason, error.details["refused"]) == ("redirect", "domain")
    assert "evil.example.org" not in net.names.asked
    for decision in ("deny", "ask"):
        ruled = LISTED + f"rules: [{{id: other, domain: other.example.net, decision: {decision}}}]\n"
        assert (await net.led("http://other.example.net/", policy=ruled)).reason == "redirect"


@pytest.mark.parametrize("to", ["file:///etc/passwd", "gopher://127.0.0.1/", "javascript:1", "data:,x", "unix:///run/x", "ws://web.example.com/", "\\\\127.0.0.1\\x", "http:127.0.0.1", "http:///127.0.0.1/", "/\tx", "//web.example.com:0/", "http://web.example.com@127.0.0.1/"])  # fmt: skip  # noqa: E501
async def test_rule_26_a_redirect_to_another_scheme_or_to_no_url_is_refused(net: Internet, to: str) -> None:
    assert (await net.led(to)).reason == "redirect"
    assert net.wire.dialled == [PUBLIC]


async def test_rule_26_no_redirect_leads_from_https_to_http(tls: Internet) -> None:
    url = "https://web.example.com/to?to=http%3A//web.example.com/"
    assert (await tls.refusal(url)).reason == "redirect"


async def test_rule_26_another_origin_is_told_nothing_that_the_first_was_told(net: Internet) -> None:
    told = {"Authorization": "Bearer hunter22", "Cookie": "a=b", "X-Mine": "hunter22"}
    url = "http://web.example.com/to?to=http%3A//other.example.net/echo"
    outcome = await net.fetch(url, policy=LISTED, headers=told)
    assert b"hunter22" in net.server.requests[0][1]
    assert b"hunter22" not in (outcome.content or b"")
    same = await net.fetch("http://web.example.com/to?to=/echo", policy=LISTED, headers=told)
    assert b"hunter22" in (same.content or b"")


@pytest.mark.parametrize(("status", "method"), [("301", "GET"), ("302", "GET"), ("303", "GET"), ("307", "POST"), ("308", "POST")])  # fmt: skip  # noqa: E501
async def test_rule_26_a_redirect_changes_the_method_as_the_standard_says(
    net: Internet, status: str, method: str
) -> None:
    url = f"http://web.example.com/to?to=/echo&status={status}"
    outcome = await net.fetch(url, "POST", policy=LISTED, body=b"payload")
    assert (outcome.content or b"").startswith(f"{method} /echo".encode())
    away = f"http://web.example.com/to?to=http%3A//other.example.net/echo&status={status}"
    if method == "POST":
        assert (await net.refusal(away, "POST", policy=LISTED, body=b"payload")).reason == "redirect"


async def test_rule_26_what_only_looks_like_a_redirect_is_an_answer(net: Internet) -> None:
    assert (await net.fetch("http://web.example.com/refresh")).out["status"] == 200
    assert (await net.fetch("http://web.example.com/300")).out["status"] == 300
    assert (await net.refusal("http://web.example.com/two-locations")).reason == "bad_http"
    assert set(net.wire.dialled) == {PUBLIC}


# --- the answer ---


@pytest.mark.parametrize("path", ["long-head", "longer-head", "endless-head", "many-headers"])
async def test_rule_27_headers_are_bounded_in_number_and_size(net: Internet, path: str) -> None:
    assert (await net.refusal(f"http://web.example.com/{path}")).reason == "too_large"


async def test_rule_28_a_body_is_bounded_as_it_comes_and_unpacked(net: Internet) -> None:
    assert (await net.refusal("http://web.example.com/claims-much")).reason == "too_large"
    assert (await net.refusal("http://web.example.com/endless")).reason == "too_large"
    assert net.evidence.records[-1]["budget_used"]["bytes_in"] < 4 * MIB + 200_000, "stopped at the cap, not later"
    assert (await net.refusal("http://web.example.com/endless?chunked=1")).reason == "too_large"
    assert (await net.refusal("http://web.example.com/packed")).reason == "too_large"
    small = Limits(wall_seconds=10, max_bytes_in=100_000)
    assert (await net.refusal("http://web.example.com/all-frame", limits=small)).reason == "too_large"
    exactly = await net.fetch(f"http://web.example.com/large?size={4 * MIB}")
    assert exactly.out["bytes"] == 4 * MIB
    assert (await net.refusal(f"http://web.example.com/large?size={4 * MIB + 1}")).reason == "too_large"


async def test_rule_28_a_bomb_does_not_go_off(net: Internet) -> None:
    import resource

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    plenty = Limits(wall_seconds=20, max_bytes_in=1024 * MIB)
    assert (await net.refusal("http://web.example.com/bomb", limits=plenty)).reason == "expansion"
    assert (await net.refusal("http://web.example.com/bomb")).reason in ("expansion", "too_large")
    assert (await net.refusal("http://web.example.com/bomb-of-bombs")).reason == "bad_http"
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown < 128 * 1024, f"{grown} KiB for a bomb of 256 MiB"


@pytest.mark.parametrize("path", ["gzip", "deflate", "raw-deflate"])
async def test_rule_28_what_is_honestly_packed_is_unpacked(net: Internet, path: str) -> None:
    outcome = await net.fetch(f"http://web.example.com/{path}")
    assert outcome.content == b"hello " * 100
    assert outcome.out["raw_bytes"] < outcome.out["bytes"] == 600


@pytest.mark.parametrize("path", ["cut-gzip", "no-gzip", "after-gzip", "brotli"])
async def test_rule_28_what_is_packed_otherwise_than_it_says_is_refused(net: Internet, path: str) -> None:
    assert (await net.refusal(f"http://web.example.com/{path}")).reason == "bad_http"


@pytest.mark.parametrize("part", ["head", "body"])
async def test_rule_29_a_server_that_drips_is_given_up_in_the_time_of_all_of_it(net: Internet, part: str) -> None:
    error = await net.refusal(f"http://web.example.com/drip?part={part}", limits=Limits(wall_seconds=0.5))
    assert error.code == "LLM.TIMEOUT"
    (hop,) = net.evidence.records[-1]["network"]["destinations"]
    assert (hop["address"], hop["decision"]) == (PUBLIC, "timeout")


async def test_rule_29_a_server_that_says_nothing_and_one_that_takes_no_connection_are_given_up(net: Internet) -> None:
    silent = socket.socket()
    silent.bind(("127.0.0.1", 0))
    silent.listen(1)
    net.server.port = silent.getsockname()[1]
    error = await net.refusal("http://web.example.com/", limits=Limits(wall_seconds=0.3))
    assert error.code == "LLM.TIMEOUT"
    silent.close()
    net.server.port = 1
    assert (await net.refusal("http://web.example.com/")).reason == "connect_failed"


async def test_rule_29_nothing_stays_open_after_a_failure_a_timeout_or_a_change_of_mind(net: Internet) -> None:
    silent = socket.create_server(("127.0.0.1", 0))

    def opened() -> int:
        return len(list(Path("/proc/self/fd").iterdir()))

    await net.fetch("http://web.example.com/")
    before, port = opened(), net.server.port
    for path in ("http09", "endless", "cut", "bomb", "drip", "two-lengths"):
        await net.refusal(f"http://web.example.com/{path}", limits=Limits(wall_seconds=1, max_bytes_in=100_000))
    net.server.port = silent.getsockname()[1]
    for url in ("http://web.example.com/", "https://web.example.com/"):  # no answer, no handshake
        await net.refusal(url, limits=Limits(wall_seconds=0.3))
        task = asyncio.ensure_future(net.fetch(url))
        await asyncio.sleep(0.1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    net.server.port = port
    for _ in range(100):  # connections that were aborted end in the next turns of the loop
        if opened() <= before:
            break
        await asyncio.sleep(0.05)
    silent.close()
    assert opened() <= before


@pytest.mark.parametrize(
    ("path", "reason"),
    [("program", "mime"), ("disguised", "mime"), ("no-picture", "mime"), ("untyped-program", "mime")],
)
async def test_rule_30_content_is_of_a_type_that_is_taken_and_looks_like_it(
    net: Internet, path: str, reason: str
) -> None:
    assert (await net.refusal(f"http://web.example.com/{path}")).reason == reason


async def test_rule_30_a_type_that_is_not_taken_is_refused_before_any_of_it_is_read(net: Internet) -> None:
    assert (await net.refusal("http://web.example.com/endless?kind=application/octet-stream")).reason == "mime"


async def test_rule_30_the_policy_says_which_types_are_taken(net: Internet) -> None:
    assert (await net.fetch("http://web.example.com/json")).out["media_type"] == "application/json"
    assert (await net.fetch("http://web.example.com/untyped")).out["media_type"] == "text/plain"
    text = READING + "policies: {default: {mime_allow: ['text/*']}}\n"
    assert (await net.refusal("http://web.example.com/json", policy=text)).reason == "mime"
    programs = READING + "policies: {default: {mime_allow: [application/octet-stream]}}\n"
    assert (await net.fetch("http://web.example.com/program", policy=programs)).out["bytes"] == 8
    assert (await net.refusal("http://web.example.com/", policy=programs)).reason == "mime"


def test_rule_31_nothing_that_came_is_parsed_or_run_by_the_host() -> None:
    code = "import ringfence.executors.net, sys; print(*sys.modules)"
    import subprocess

    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    readers = {"html.parser", "xml", "xml.etree", "xml.etree.ElementTree", "pickle", "json", "email", "http.client"}
    assert readers & set(loaded) <= {"json", "email", "http.client"} - {"http.client"} | {"json"}


async def test_rule_32_the_name_a_server_proposes_leads_nowhere(net: Internet) -> None:
    name = (await net.fetch("http://web.example.com/named")).out["filename"]
    assert name == "job__x_"


async def test_rule_33_a_result_says_where_it_came_from_and_what_it_is(net: Internet) -> None:
    import base64
    import hashlib

    outcome = await net.fetch("http://web.example.com/to?to=//other.example.net/gzip")
    out = outcome.out
    assert out["hops"] == [
        {"url": "http://web.example.com/to?to=//other.example.net/gzip", "status": 302, "address": PUBLIC},
        {"url": "http://other.example.net/gzip", "status": 200, "address": OTHER},
    ]
    assert (out["url"], out["address"], out["status"]) == ("http://other.example.net/gzip", OTHER, 200)
    assert base64.b64decode(out["digest"]["b64"]) == hashlib.sha256(b"hello " * 100).digest()
    assert out["preview"] == "hello " * 100


async def test_rule_34_nothing_is_cached_between_one_retrieval_and_the_next(net: Internet) -> None:
    await net.fetch("http://web.example.com/")
    await net.fetch("http://web.example.com/")
    assert (len(net.server.requests), net.names.asked) == (2, ["web.example.com"] * 2)


async def test_rule_35_bytes_and_calls_are_charged_also_where_the_retrieval_fails(net: Internet) -> None:
    budgeted = READING + "policies: {default: {budget: {bytes_in: 100000}}}\n"
    assert (await net.refusal("http://web.example.com/large?size=200000", policy=budgeted)).reason == "too_large"
    ended = net.evidence.records[-1]
    assert ended["budget_used"]["bytes_in"] >= 0
    assert (await net.refusal("http://web.example.com/endless", policy=budgeted)).reason == "too_large"
    assert net.evidence.records[-1]["budget_used"]["bytes_in"] > 100_000


async def test_rule_36_nothing_that_came_is_followed(net: Internet) -> None:
    await net.fetch("http://web.example.com/refresh")
    assert len(net.server.requests) == 1


async def test_rule_37_what_came_is_marked_as_a_strangers(net: Internet) -> None:
    assert (await net.fetch("http://web.example.com/")).out["untrusted"] is True


# --- the answer, read strictly ---


@pytest.mark.parametrize(
    "path",
    [
        "http09", "http2", "switching", "two-lengths", "same-lengths", "list-of-lengths", "signed-length", "hex-length",
        "length-and-chunked", "odd-coding", "spaced-coding", "folded", "bare-lf", "inner-lf", "nul", "bad-chunk",
        "long-chunk", "lf-chunk", "cut-chunk", "cut", "cut-head", "nothing", "endless-interim",
    ],
)  # fmt: skip
async def test_an_answer_that_can_be_read_in_two_ways_is_not_read(net: Internet, path: str) -> None:
    error = await net.refusal(f"http://web.example.com/{path}")
    assert (error.code, error.reason) == ("PROVIDER.UNAVAILABLE", "bad_http")


@pytest.mark.parametrize("path", ["chunked", "until-close", "interim", "two-answers"])
async def test_an_answer_as_the_standard_has_it_is_read(net: Internet, path: str) -> None:
    assert (await net.fetch(f"http://web.example.com/{path}")).content == b"hello"


async def test_a_head_has_no_body_and_neither_has_204(net: Internet) -> None:
    assert (await net.fetch("http://web.example.com/head-only", "HEAD")).out["bytes"] == 0
    assert (await net.fetch("http://web.example.com/204")).out["status"] == 204
    assert (await net.fetch("http://web.example.com/404")).out["status"] == 404, "an answer like any other"


# --- the levels ---


async def test_without_a_word_about_the_network_there_is_none(net: Internet) -> None:
    error = await net.refusal("http://web.example.com/", policy="{}")
    assert isinstance(error, Denied)
    assert net.names.asked == []


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS"])
async def test_safe_retrieval_only_ever_reads(net: Internet, method: str) -> None:
    everything = READING + "policies: {default: {allowed_methods: [GET, HEAD, POST, PUT, DELETE, PATCH, OPTIONS]}}\n"
    assert isinstance(await net.refusal("http://web.example.com/", method, policy=everything), Denied)
    assert net.wire.dialled == []


async def test_safe_retrieval_takes_no_header_and_no_body_of_the_caller(net: Internet) -> None:
    for brought in ({"headers": {"X-Data": "out"}}, {"body": b"out"}, {"body": b""}):
        assert (await net.refusal("http://web.example.com/", **brought)).reason == "request_content"
    assert net.wire.dialled == []


async def test_an_allow_list_takes_both_but_never_what_frames_a_request_or_says_whom_it_is_for(net: Internet) -> None:
    outcome = await net.fetch(
        "http://web.example.com/echo", "POST", policy=LISTED, headers={"X-A": "b", "User-Agent": "mine"}, body=b"data"
    )
    sent = outcome.content or b""
    assert sent.count(b"User-Agent") == 1
    assert b"X-A: b" in sent
    for name in (
        "Host",
        "content-length",
        "Transfer-Encoding",
        "Connection",
        "Proxy-Authorization",
        "Metadata-Flavor",
        "X-Original-URL",  # to some servers it is the path, whatever was judged
        "X_HTTP_Method_Override",
        "X A",
        "Expect",
    ):
        error = await net.refusal("http://web.example.com/", "POST", policy=LISTED, headers={name: "x"}, body=b"x")
        assert isinstance(error, InvalidRequest)
    assert len(net.server.requests) == 1


async def test_a_host_that_is_not_listed_is_refused_before_a_name_is_looked_up(net: Internet) -> None:
    for host in ("evil.test", "web.example.com.evil.test", "example.net", "xweb.example.com", PUBLIC):
        assert isinstance(await net.refusal(f"http://{host}/", policy=LISTED), CapabilityBlocked)
    assert net.names.asked == net.wire.dialled == []


@pytest.mark.parametrize("policy", [PRIVATE, READING.replace("safe_retrieval", "unrestricted")])
async def test_the_private_network_and_unrestricted_wait_for_a_person(net: Internet, policy: str) -> None:
    net.names.records["db.example.net"] = ["10.0.0.5"]
    error = await net.refusal("http://db.example.net/", policy=policy)
    assert (error.code, error.reason) == ("SANDBOX.PERMISSION_DENY", "consent_required")
    assert net.names.asked == []
    assert (await net.fetch("http://db.example.net/", policy=policy, agreed=True)).content == b"hello"
    assert net.wire.dialled == ["10.0.0.5"]


async def test_what_a_person_agreed_to_is_one_origin_and_no_redirect_leads_from_it(net: Internet) -> None:
    net.names.records["db.example.net"] = ["10.0.0.5"]
    url = "http://db.example.net/to?to=http%3A//other.example.net/"
    assert (await net.refusal(url, policy=PRIVATE, agreed=True)).reason == "redirect"
    net.names.records["nas.example.net"] = ["192.168.1.1"]
    error = await net.refusal("http://nas.example.net/", policy=PRIVATE, agreed=True)
    assert error.reason == "private_address", "the operator's own list still counts"


# --- tenants ---


async def test_one_tenant_has_no_more_than_its_share_of_requests_under_way(net: Internet) -> None:
    open_now: list[int] = [0]
    most: list[int] = [0]
    dial = net.wire

    async def counted(address: str, port: int, tls_name: str | None, seconds: float) -> Any:
        open_now[0] += 1
        most[0] = max(most[0], open_now[0])
        await asyncio.sleep(0.01)
        open_now[0] -= 1
        return await dial(address, port, tls_name, seconds)

    executor = NetExecutor(NetSettings(dial=counted, lookup=net.names))
    orchestrator = orchestrator_over(executor)
    operation = NetHttp("GET", "http://web.example.com/")
    profile = standard_profile(operation, LIMITS, load_policy(READING.encode()))
    outcomes = await asyncio.gather(*(orchestrator.run(operation, profile) for _ in range(60)))
    assert [outcome.content for outcome in outcomes] == [b"hello"] * 60
    assert most[0] <= MOST_OF_A_TENANT


# --- evidence ---


async def test_every_hop_is_in_the_evidence_with_what_was_decided_and_nothing_of_the_content(net: Internet) -> None:
    await net.fetch("http://web.example.com/to?to=http%3A//other.example.net/secret%3Ftoken%3Dhunter22")
    ended = net.evidence.records[-1]
    assert [
        (each["host"], each["address"], each["status"], each["decision"]) for each in ended["network"]["destinations"]
    ] == [
        ("web.example.com", PUBLIC, 302, "allowed"),
        ("other.example.net", OTHER, 200, "allowed"),
    ]
    assert ended["network"]["complete"]
    assert ended["budget_used"]["bytes_in"] > 18
    written = json.dumps(net.evidence.records)
    assert "CANARY" not in written
    assert "hunter22" not in written


async def test_a_refused_hop_is_in_the_evidence_with_the_hops_before_it(net: Internet) -> None:
    net.names.records["there.example.net"] = ["169.254.169.254"]
    error = await net.led("http://there.example.net/latest/meta-data/iam?key=hunter22")
    ended = net.evidence.records[-1]
    assert [(each["host"], each["decision"]) for each in ended["network"]["destinations"]] == [
        ("web.example.com", "allowed"),
        ("there.example.net", "private_address"),
    ]
    assert (ended["outcome"], ended["reason"]) == ("denied", "private_address")
    assert ended["budget_used"]["bytes_out"] > 0
    assert "hunter22" not in json.dumps(net.evidence.records)
    assert error.details["evidence_id"]


async def test_where_the_policy_keeps_content_out_of_results_there_is_neither_content_nor_preview(
    net: Internet,
) -> None:
    outcome = await net.fetch(
        "http://web.example.com/", policy=READING + "policies: {default: {output_inline: false}}\n"
    )
    assert (outcome.content, outcome.out["preview"], outcome.out["bytes"]) == (None, "", 5)


def test_the_caps_of_a_profile_are_never_more_than_its_limits() -> None:
    caps = RetrievalCaps.of(Limits(wall_seconds=2, max_bytes_in=1000))
    assert caps.body_bytes == 1000
    assert max(caps.total_seconds, caps.read_seconds, caps.connect_seconds) < 2
