"""What each level of network lets a retrieval ask for, how much of it is one tenant's, and what is on record of it."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from tests.hostile_web import OTHER, PUBLIC
from tests.security.retrieval_net import LIMITS, LISTED, PRIVATE, READING, Internet
from tests.security.retrieval_net import net as net

from ringfence import load_policy
from ringfence.capability.limits import Limits
from ringfence.egress.caps import RetrievalCaps
from ringfence.egress.settings import NetSettings
from ringfence.errors import CapabilityBlocked, Denied, InvalidRequest
from ringfence.executors.net import MOST_OF_A_TENANT, NetExecutor
from ringfence.operation.brokered import NetHttp
from ringfence.testing import orchestrator_over, standard_profile

pytestmark = pytest.mark.guarantee(28)

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
