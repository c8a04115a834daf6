"""The network broker behind its interface: what it is given is what it uses, and what it says can be kept and told."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import NoReturn

import pytest
from tests.hostile_web import PUBLIC, Names, Server, Wire

from ringfence import load_policy
from ringfence.egress.settings import NetSettings
from ringfence.evidence.recorded import from_bytes, to_bytes
from ringfence.executors.net import NetExecutor
from ringfence.operation.brokered import NetHttp
from ringfence.outcome import BrokerOutcome
from ringfence.testing import MemorySink, orchestrator_over, standard_profile

POLICY = load_policy(b"network: {default: safe_retrieval, allowlist: {enabled: true, domains: ['*.example.com']}}")


@pytest.fixture
def server() -> Iterator[Server]:
    running = Server()
    yield running
    running.close()


async def fetched(server: Server, url: str) -> BrokerOutcome:
    operation = NetHttp("GET", url)
    wire = Wire(server)
    orchestrator = orchestrator_over(NetExecutor(NetSettings(dial=wire, lookup=Names())))
    outcome = await orchestrator.run(operation, standard_profile(operation, policy=POLICY))
    assert wire.dialled == [PUBLIC] * len(outcome.out["hops"])
    return outcome


async def test_a_client_of_the_applications_own_is_used_and_sees_the_request(server: Server) -> None:
    outcome = await fetched(server, "http://web.example.com/json")
    assert outcome.content == b'{"a": 1}'
    assert server.requests[0][1].startswith(b"GET /json HTTP/1.1\r\nHost: web.example.com\r\n")


async def test_what_came_can_be_kept_and_read_again(server: Server) -> None:
    outcome = await fetched(server, "http://web.example.com/to?to=/")
    again = from_bytes(to_bytes(outcome))
    assert isinstance(again, BrokerOutcome)
    assert (again.out, again.content, again.effects) == (outcome.out, outcome.content, outcome.effects)


async def test_a_preview_is_the_beginning_of_a_text_and_nothing_of_a_picture(server: Server) -> None:
    outcome = await fetched(server, "http://web.example.com/large?size=100000")
    assert len(outcome.out["preview"]) == 2000


def test_its_domain_is_that_of_the_operation() -> None:
    assert NetExecutor(NetSettings()).capability_domain() == NetHttp("GET", "http://x.example.com/").domain


async def test_a_request_that_its_caller_gave_up_is_on_record_with_where_it_went() -> None:
    dialled, sink = asyncio.Event(), MemorySink()

    async def dial(*_: object) -> NoReturn:
        dialled.set()
        await asyncio.get_running_loop().create_future()
        raise AssertionError("nobody answers")

    operation = NetHttp("GET", "http://web.example.com/path-of-the-request")
    orchestrator = orchestrator_over(NetExecutor(NetSettings(dial=dial, lookup=Names())), evidence=sink)
    task = asyncio.ensure_future(orchestrator.run(operation, standard_profile(operation, policy=POLICY)))
    await dialled.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    (place,) = sink.records[-1]["network"]["destinations"]
    assert (place["host"], place["address"], place["reason"]) == ("web.example.com", PUBLIC, "cancelled")
    assert "path-of-the-request" not in str(sink.records[-1]["network"])
