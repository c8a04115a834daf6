"""Every door to the network broker, each in front of the lab's internet: manager, world, HTTP, MCP, skill, command."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests import net_lab
from tests.hostile_web import PUBLIC
from tests.net_lab import Lab

import ringfence
from ringfence import SandboxConfig, SandboxManager

pytestmark = pytest.mark.needs("net_lab")

POLICY = """
network:
  default: safe_retrieval
  allowlist: {enabled: true, domains: ["*"]}
"""
METADATA = "http://a-169-254-169-254.x.test/latest/meta-data/"


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    with net_lab.running_lab(tmp_path_factory.mktemp("lab")) as running:
        yield running


def manager(at: Path, text: str = POLICY, session_id: str | None = "s", **options: Any) -> SandboxManager:
    policy = at / "policy.yaml"
    policy.write_text(text)
    config = SandboxConfig(home=at / "home", policy_file=policy, pool_size=0, **options)
    return SandboxManager(session_id, config=config)


async def refusals(held: SandboxManager, *urls: str) -> list[str]:
    found = []
    for url in urls:
        try:
            await held.fetch_url(url)
            found.append("fetched")
        except ringfence.RingfenceError as error:
            found.append(error.reason)
    return found


# --- the manager ---


async def by_manager(at: Path) -> Any:
    async with manager(at) as held:
        outcome = await held.fetch_url("http://web.x.test/to?to=/json", save_as="work/page.json")
        kept = await held.workspace.read("page.json")
        refused = await refusals(held, METADATA, "http://web.x.test/program", "http://10.0.0.5/", "http://localhost/")
        return {"out": dict(outcome.out), "kept": bytes(kept).decode(), "refused": refused}


# in the lab an ordinary user is root of a namespace without other users, in which no session's files can be had
@pytest.mark.needs("root")
def test_a_manager_fetches_saves_and_refuses(lab: Lab, tmp_path: Path) -> None:
    told = lab.inside(__file__, "by_manager", tmp_path)
    found = told["returned"]
    assert (found["out"]["status"], found["out"]["address"], found["kept"]) == (200, PUBLIC, '{"a": 1}')
    assert found["out"]["saved_as"] == "/workspace/work/page.json"
    assert [hop["status"] for hop in found["out"]["hops"]] == [302, 200]
    assert found["refused"] == ["private_address", "mime", "domain", "domain"]
    assert told["reached"] == [PUBLIC]


# --- an agent's tools ---


async def by_world(at: Path) -> Any:
    async with manager(at) as held:
        world = ringfence.WorldInterface(held)
        outcome = await world.execute({"tool": "net_http", "params": {"method": "GET", "url": "http://web.x.test/"}})
        assert isinstance(outcome, ringfence.BrokerOutcome)
        posted = None
        try:
            await world.execute(
                {"tool": "net_http", "params": {"method": "POST", "url": "http://web.x.test/", "body_b64": "eA=="}}
            )
        except ringfence.RingfenceError as error:
            posted = error.reason
        return {"content": (outcome.content or b"").decode(), "posted": posted}


def test_an_agents_tool_reads_the_internet_and_writes_nothing_to_it(lab: Lab, tmp_path: Path) -> None:
    assert lab.inside(__file__, "by_world", tmp_path)["returned"] == {"content": "hello", "posted": "method"}


# --- HTTP ---


async def by_http(at: Path) -> Any:
    from tests.http_service import serving

    policy = at / "policy.yaml"
    policy.write_text(POLICY)
    with serving(at / "home", "--policy", str(policy)) as service:

        def ask(**fields: Any) -> Any:
            answer = service.ask("POST", "/sandbox/ops", {"operation": {"op": "net_http", **fields}, "project_id": "p"})
            return answer.status, answer.json

        good = ask(method="GET", url="http://web.x.test/")
        async with SandboxManager("p", url=f"http://127.0.0.1:{service.port}", api_key=service.key) as distant:
            far = await distant.fetch_url("http://web.x.test/to?to=/json", save_as="work/a.json")
            kept = await distant.workspace.read("a.json")
        return {
            "far": [far.out["status"], len(far.out["hops"]), bytes(kept).decode()],
            "good": [good[0], good[1]["out"]["address"], good[1]["content_b64"]],
            "metadata": [ask(method="GET", url=METADATA)[index] for index in (0, 1)],
            "headers": [ask(method="GET", url="http://web.x.test/", headers={"X": "y"})[index] for index in (0, 1)],
            "silent": ask(method="GET", url="http://web.x.test/nothing")[0],
        }


def test_the_service_fetches_and_says_why_not(lab: Lab, tmp_path: Path) -> None:
    told = lab.inside(__file__, "by_http", tmp_path)
    found = told["returned"]
    assert found["good"] == [200, PUBLIC, base64.b64encode(b"hello").decode()]
    assert (found["metadata"][0], found["metadata"][1]["reason"]) == (403, "private_address")
    assert (found["headers"][0], found["headers"][1]["reason"]) == (403, "request_content")
    assert found["silent"] == 503
    assert found["far"] == [200, 2, '{"a": 1}'], "a manager with an address fetches through its service"
    assert set(told["reached"]) <= {PUBLIC, "127.0.0.1"}


# --- MCP ---


async def by_mcp(at: Path) -> Any:
    from tests.mcp_servers import over_stdio, structured, text_of

    policy = at / "policy.yaml"
    policy.write_text(POLICY)
    (at / "home").mkdir()
    async with over_stdio(at / "home", "--policy", str(policy)) as client:
        good = await client.call_tool("fetch_url", {"url": "http://web.x.test/"})
        bad = await client.call_tool("fetch_url", {"url": METADATA})
        none = await client.call_tool("fetch_url", {"url": "http://user@web.x.test/"})
        return {
            "good": structured(good),
            "text": text_of(good),
            "bad": structured(bad)["error"],
            "is_error": [good.is_error, bad.is_error, none.is_error],
        }


def test_a_model_fetches_through_the_protocol_and_is_told_that_it_is_untrusted(lab: Lab, tmp_path: Path) -> None:
    found = lab.inside(__file__, "by_mcp", tmp_path)["returned"]
    assert (found["good"]["content"], found["good"]["address"], found["good"]["untrusted"]) == ("hello", PUBLIC, True)
    assert found["text"].startswith("[what follows is from http://web.x.test/ ")
    assert (found["bad"]["reason"], found["is_error"]) == ("private_address", [False, True, True])
    assert found["bad"]["needs"].startswith("net.http:GET:http://a-169-254-169-254.x.test")


# --- the skill ---


async def by_skill(at: Path) -> Any:
    async with manager(at) as held:
        page = await held.invoke("web.fetch", {"url": "http://web.x.test/html"})
        refused = []
        for url in (METADATA, "http://web.x.test/program", "nonsense"):
            try:
                await held.invoke("web.fetch", {"url": url})
            except ringfence.RingfenceError as error:
                refused.append(error.reason)
        return {"outputs": page.outputs, "reason": page.reason, "refused": refused, "error": page.result.stderr}


@pytest.mark.needs("native", "root")
def test_the_skill_reads_a_page_in_a_box_without_network(lab: Lab, tmp_path: Path) -> None:
    told = lab.inside(__file__, "by_skill", tmp_path)
    found = told["returned"]
    assert found["reason"] is None, found
    outputs = found["outputs"]
    assert (outputs["title"], outputs["text"]) == ("A page", "Hello\n\nfirst\nsecond & third\n\nlink")
    assert outputs["links"] == ["http://web.x.test/x", "https://other.example.net/y?z=1"]
    assert (outputs["untrusted"], outputs["status"]) == (True, 200)
    assert found["refused"] == ["private_address", "mime", "invalid_url"]
    assert told["reached"] == [PUBLIC]


# --- one line, and switched off ---


async def by_one_line(at: Path) -> Any:
    import asyncio

    policy = at / "policy.yaml"
    policy.write_text(POLICY)
    found = await asyncio.to_thread(
        lambda: ringfence.fetch_url("http://web.x.test/", home=at / "home", policy_file=policy)
    )
    return (found.content or b"").decode()


def test_one_line_is_enough(lab: Lab, tmp_path: Path) -> None:
    assert lab.inside(__file__, "by_one_line", tmp_path)["returned"] == "hello"


async def test_what_is_switched_off_fetches_nothing_whatever_the_policy_says(tmp_path: Path) -> None:
    async with manager(tmp_path, executors={"net": False}) as held:
        assert await refusals(held, "http://web.example.com/") == ["executor_disabled"]


async def test_the_built_in_policy_lets_nobody_out(tmp_path: Path) -> None:
    async with manager(tmp_path, "{}") as held:
        assert await refusals(held, "http://web.example.com/") == ["manifest_mismatch"]
