"""A secret that the host puts into a request: it goes to the one host it is bound to, and comes back to nobody."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from tests.hostile_web import ANSWERS, PUBLIC, Names, Server, Wire, authority, plain, raw

from ringfence.authority.policy_reader import load_policy
from ringfence.capability.limits import Limits
from ringfence.clock import SystemClock
from ringfence.egress.settings import NetSettings
from ringfence.errors import RingfenceError
from ringfence.executors.net import NetExecutor
from ringfence.operation.brokered import NetHttp
from ringfence.operation.secret import Way
from ringfence.outcome import BrokerOutcome
from ringfence.secrets.registry import Registry
from ringfence.testing import MemorySink, orchestrator_over, standard_profile

pytestmark = [pytest.mark.guarantee(20), pytest.mark.guarantee(28)]

VALUE = "tok-4f9a-not-to-be-seen"
NAMES = ("web.example.com", "second.example.com", "api.example.com", "web.example.org")
BEARER = {"Authorization": "Bearer ${secret:TOKEN}"}
POLICY = b"""
policies:
  default:
    network_access: true
    allowed_domains: ['*.example.com', '*.example.org']
    allowed_methods: [GET, POST]
secrets: {TOKEN: {}, ENVONLY: {}, TWICE: {}}
"""


class Internet:
    def __init__(self, server: Server, ca_file: Path, home: Path) -> None:
        self.server, self.evidence, self.registry = server, MemorySink(), Registry(home, SystemClock())
        hosts = ("web.example.com",)
        self.registry.put("test", "TOKEN", VALUE.encode(), hosts=hosts)
        self.registry.put("test", "KEPT", VALUE.encode(), hosts=hosts)
        self.registry.put("test", "ENVONLY", VALUE.encode(), hosts=hosts, ways=frozenset({Way.ENV}))
        self.registry.put("test", "TWICE", VALUE.encode(), hosts=("*.example.com", "web.example.com"))
        settings = NetSettings(dial=Wire(server, ca_file), lookup=Names({name: [PUBLIC] for name in NAMES}))
        executor = NetExecutor(settings, lambda: self.registry)
        self._orchestrator = orchestrator_over(executor, evidence=self.evidence)

    async def send(self, url: str, headers: dict[str, str] = BEARER, **brought: Any) -> BrokerOutcome:
        operation = NetHttp("GET", url, headers, **brought)
        profile = standard_profile(operation, Limits(), load_policy(POLICY))
        outcome: BrokerOutcome = await self._orchestrator.run(operation, profile)
        return outcome

    async def refusal(self, url: str, headers: dict[str, str] = BEARER) -> RingfenceError:
        with pytest.raises(RingfenceError) as caught:
            await self.send(url, headers)
        return caught.value

    @property
    def seen(self) -> str:
        return repr(self.server.requests)


@pytest.fixture
def net(tmp_path: Path) -> Iterator[Internet]:
    ca_file, shown = authority(tmp_path)
    server = Server(tls=shown)
    yield Internet(server, ca_file, tmp_path / "home")
    server.close()


async def test_the_host_it_is_bound_to_gets_it_and_evidence_its_name(net: Internet) -> None:
    outcome = await net.send("https://web.example.com/")
    assert f"Bearer {VALUE}" in net.seen
    told = repr(net.evidence.records)
    assert "secret.leased" in told
    assert "'TOKEN'" in told
    assert VALUE not in told + repr(outcome)


@pytest.mark.parametrize(
    ("url", "headers", "reason"),
    [
        ("http://web.example.com/", BEARER, "secret_way"),  # everybody on the way could read it
        ("https://api.example.com/", BEARER, "secret_way"),
        ("https://web.example.org/", BEARER, "secret_way"),
        ("https://web.example.com/", {"X-Key": "${secret:ENVONLY}"}, "secret_way"),
        ("https://web.example.com/", {"X-Key": "${secret:TWICE}"}, "secret_way"),
        ("https://web.example.com/", {"X-Key": "${secret:KEPT}"}, "secret"),  # no policy lends it
        ("https://web.example.com/", {"X-Key": "${secret:NEVER}"}, "secret"),
        ("https://web.example.com/", {"A": "${secret:TOKEN}", "B": "${secret:TWICE}"}, "invalid_secret"),
    ],
)
async def test_nobody_else_gets_it(net: Internet, url: str, headers: dict[str, str], reason: str) -> None:
    assert (await net.refusal(url, headers)).reason == reason
    assert VALUE not in net.seen


async def test_what_only_looks_like_a_reference_is_sent_as_it_is(net: Internet) -> None:
    await net.send("https://web.example.com/", {"X-Text": "${secret:} ${secret:a b} $secret:TOKEN"})
    assert "${secret:} ${secret:a b} $secret:TOKEN" in net.seen
    assert VALUE not in net.seen


async def test_a_redirect_takes_it_to_no_other_origin(net: Internet) -> None:
    await net.send(f"https://web.example.com/to?to={quote('https://second.example.com/', safe='')}")
    assert net.seen.count(VALUE) == 1


async def test_a_server_that_says_it_back_makes_it_known_to_nobody(net: Internet) -> None:
    echoed = await net.send("https://web.example.com/echo")
    assert b"[secret:TOKEN]" in (echoed.content or b"")
    assert VALUE not in repr(echoed) + repr(net.evidence.records)
    away = await net.refusal(f"https://web.example.com/to?to={quote(f'https://{VALUE}.example.net/', safe='')}")
    assert VALUE not in str(away) + repr(away.details) + repr(away.done) + repr(net.evidence.records)


@pytest.mark.parametrize("name", ["Range", "If-Range", "Request-Range", "range"])
async def test_no_part_of_an_answer_can_be_asked_for_which_would_hold_a_part_of_it(net: Internet, name: str) -> None:
    refused = await net.refusal("https://web.example.com/echo", {**BEARER, name: "bytes=0-5"})
    assert refused.reason == "secret_way"
    assert VALUE not in net.seen


async def test_a_part_of_an_answer_that_nobody_asked_for_is_not_passed_on(
    net: Internet, monkeypatch: pytest.MonkeyPatch
) -> None:
    part = plain(VALUE[:6].encode(), "Content-Range: bytes 0-5/*", status="206 Partial")
    monkeypatch.setitem(ANSWERS, "/part", raw(part))
    refused = await net.refusal("https://web.example.com/part")
    assert VALUE[:6] not in repr(refused.details) + repr(refused.done) + str(refused)


async def test_a_revoked_one_is_put_in_no_more(net: Internet) -> None:
    net.registry.remove("test", "TOKEN")
    assert (await net.refusal("https://web.example.com/")).reason == "unknown_secret"
