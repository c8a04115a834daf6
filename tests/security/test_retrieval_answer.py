"""Attack safe retrieval: rules 27 to 37 one by one, which bound what a stranger answers and what becomes of it."""

from __future__ import annotations

import asyncio
import socket
import sys
from pathlib import Path

import pytest
from tests.hostile_web import OTHER, PUBLIC
from tests.security.retrieval_net import READING, Internet
from tests.security.retrieval_net import net as net

from ringfence.capability.limits import MIB, Limits

pytestmark = pytest.mark.guarantee(28)

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
