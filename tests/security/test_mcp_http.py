"""The MCP door over HTTP, alone and in the service: who has no key gets nothing, and a key opens one tenant's files."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import httpx2
import pytest
from tests.command_line import told
from tests.mcp_servers import (
    HttpServer,
    eventually,
    listening,
    new_key,
    over_http,
    running,
    serving,
    structured,
)

from ringfence.interfaces.mcp.streamable import MOST_SESSIONS
from ringfence.service.callers import Access

pytestmark = [pytest.mark.needs("native"), pytest.mark.guarantee(21, 22), pytest.mark.once]

Start = Callable[[Path], AbstractContextManager[HttpServer]]
STARTS: dict[str, Start] = {"alone": listening, "service": serving}


class Place:
    """A server and the home it serves."""

    def __init__(self, home: Path, server: HttpServer) -> None:
        self.home, self.server = home, server


@pytest.fixture(scope="module", params=STARTS)
def place(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    home = tmp_path_factory.mktemp("home")
    with STARTS[request.param](home) as server:
        yield Place(home, server)


PING = {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {}}
ACCEPT = {"Accept": "application/json, text/event-stream", "MCP-Protocol-Version": "2025-11-25"}
HELLO = {
    "jsonrpc": "2.0",
    "id": 0,
    "method": "initialize",
    "params": {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "h", "version": "0"}},
}


def sent(place: Place, message: object, **headers: str) -> httpx2.Response:
    given = {"Authorization": f"Bearer {place.server.key}", **ACCEPT}
    given.update({name.replace("_", "-"): value for name, value in headers.items()})
    return httpx2.post(place.server.url, json=message, headers={name: text for name, text in given.items() if text})


# --- keys ---


@pytest.mark.parametrize("key", ["", "Bearer", "Bearer x", "Basic x", "Bearer rfk_aaaaaaaaaaaa_" + "A" * 43])
def test_nothing_answers_without_a_key(place: Place, key: str) -> None:
    answered = sent(place, PING, Authorization=key)
    assert answered.status_code == 401
    assert answered.headers["www-authenticate"].startswith("Bearer")
    assert answered.json()["reason"] == "no_key"


def test_a_key_for_reading_evidence_runs_nothing(place: Place) -> None:
    key = new_key(place.home, access=Access.AUDITOR)
    answered = sent(place, PING, Authorization=f"Bearer {key}")
    assert (answered.status_code, answered.json()["reason"]) == (403, "access")


async def test_a_revoked_key_is_void_for_the_session_that_it_opened(place: Place) -> None:
    key = new_key(place.home)
    headers = {"Authorization": f"Bearer {key}", **ACCEPT}
    opened = httpx2.post(place.server.url, json=HELLO, headers=headers)
    assert opened.status_code == 200
    headers["Mcp-Session-Id"] = opened.headers["mcp-session-id"]
    assert httpx2.post(place.server.url, json=PING, headers=headers).status_code == 200
    told(place.home, "key", "revoke", key.split("_")[1])
    assert httpx2.post(place.server.url, json=PING, headers=headers).status_code == 401


# --- tenants ---


async def test_a_tenant_sees_files_processes_and_runs_of_its_own_alone(place: Place) -> None:
    theirs, ours = new_key(place.home, tenant="theirs"), new_key(place.home, tenant="ours")
    async with over_http(place.server, key=theirs) as client:
        await client.call_tool("write_file", {"path": "work/secret", "content": "SECRET", "overwrite": True})
        process = structured(await client.call_tool("start_process", {"command": "cat"}))
    async with over_http(place.server, key=ours) as client:
        assert structured(await client.call_tool("list_files", {}))["entries"] == []
        foreign = await client.call_tool("read_process", {"process_id": process["process_id"]})
        unknown = await client.call_tool("read_process", {"process_id": "pr_" + "0" * 32})
        assert foreign.is_error
        assert foreign.model_dump_json() == unknown.model_dump_json()
        killed = await client.call_tool("kill_process", {"process_id": process["process_id"]})
        assert killed.is_error
        seen = structured(
            await client.call_tool("run_shell", {"command": "cat /workspace/work/secret; ls -laR /workspace"})
        )
        assert "SECRET" not in seen["stdout"]
    async with over_http(place.server, key=theirs) as client:
        still = structured(await client.call_tool("read_process", {"process_id": process["process_id"]}))
        assert still["state"] == "running"
        await client.call_tool("kill_process", {"process_id": process["process_id"]})


@pytest.mark.parametrize("project", ["..", "../theirs", "a/b", "%2e%2e", "x" * 300, "", "a%00b", "%F0%9F%98%80"])
async def test_the_project_of_an_url_leads_nowhere_else(place: Place, project: str) -> None:
    async with over_http(place.server, query=f"?project={project}") as client:
        result = await client.call_tool("run_shell", {"command": "ls /workspace/work"})
    if not result.is_error:  # an empty one is none, and the usual one is meant
        assert project == ""
        return
    assert structured(result)["error"]["code"] == "SCHEMA.VALIDATION_FAILED"


def test_a_session_is_only_its_own_tenants_and_unknown_to_others(place: Place) -> None:
    theirs, ours = new_key(place.home, tenant="theirs"), new_key(place.home, tenant="ours")
    opened = httpx2.post(place.server.url, json=HELLO, headers={"Authorization": f"Bearer {theirs}", **ACCEPT})
    session = opened.headers["mcp-session-id"]

    def answered(key: str, session: str) -> tuple[int, bytes]:
        headers = {"Authorization": f"Bearer {key}", **ACCEPT, "Mcp-Session-Id": session}
        got = httpx2.post(place.server.url, json=PING, headers=headers)
        return got.status_code, got.content

    assert answered(theirs, session)[0] == 200
    assert answered(ours, session) == answered(ours, "0" * 32)
    assert answered(ours, session)[0] == 404
    deleted = httpx2.delete(
        place.server.url, headers={"Authorization": f"Bearer {ours}", **ACCEPT, "Mcp-Session-Id": session}
    )
    assert deleted.status_code == 404
    assert answered(theirs, session)[0] == 200


def test_no_tenant_takes_the_sessions_of_another(place: Place) -> None:
    greedy, other = new_key(place.home, tenant="greedy"), new_key(place.home, tenant="other")

    def opened(key: str) -> int:
        with httpx2.Client(headers={"Authorization": f"Bearer {key}", **ACCEPT}) as client:
            return client.post(place.server.url, json=HELLO).status_code

    with httpx2.Client(headers={"Authorization": f"Bearer {greedy}", **ACCEPT}) as client:
        answers = [client.post(place.server.url, json=HELLO).status_code for _ in range(MOST_SESSIONS + 1)]
    assert (answers[0], answers[-1]) == (200, 503)
    assert (opened(greedy), opened(other)) == (503, 200)


# --- browsers ---


@pytest.mark.parametrize(
    "host", ["evil.example", "127.0.0.1.evil.example", "evil.example:8322", "localhost@evil.example"]
)
def test_a_name_that_was_made_to_point_here_is_refused(place: Place, host: str) -> None:
    answered = sent(place, PING, Host=host)
    assert (answered.status_code, answered.json()["reason"]) == (421, "foreign_host")


@pytest.mark.parametrize("origin", ["http://evil.example", "null", "http://localhost.evil.example", "file://", "x"])
def test_a_page_of_another_place_is_refused_even_with_a_key(place: Place, origin: str) -> None:
    answered = sent(place, PING, Origin=origin)
    assert (answered.status_code, answered.json()["reason"]) == (421, "foreign_host")
    assert "access-control-allow-origin" not in answered.headers


# --- bodies ---


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"[]", b"null", b"[" * 100_000, b"\xff", json.dumps([PING] * 1000).encode(), b'{"jsonrpc": "2.0"}'],
    ids=lambda body: repr(body[:20]),
)
def test_a_body_that_is_no_message_is_refused_and_changes_nothing(place: Place, body: bytes) -> None:
    for version in ("2025-11-25", "2026-07-28", "1999-01-01"):
        answered = httpx2.post(
            place.server.url,
            content=body,
            headers={
                "Authorization": f"Bearer {place.server.key}",
                "Content-Type": "application/json",
                **ACCEPT,
                "MCP-Protocol-Version": version,
            },
        )
        assert 400 <= answered.status_code < 500, answered.text
        assert len(answered.content) < 4000
    assert sent(place, HELLO).status_code == 200


def test_a_huge_body_is_refused_before_it_is_read(place: Place) -> None:
    answered = sent(place, {**PING, "params": {"cursor": "x" * (5 << 20)}})
    assert (answered.status_code, answered.json()["reason"]) == (413, "body_too_large")


# --- ending ---


async def test_a_client_of_today_that_hangs_up_takes_its_run_with_it(place: Place, tmp_path: Path) -> None:
    marker = f"rf-mcp-hangup-{tmp_path.name}"
    async with over_http(place.server) as client:
        call = asyncio.ensure_future(client.call_tool("run_shell", {"command": f"exec -a {marker} sleep 1000"}))
        await eventually(lambda: len(running(marker)) == 1)
    await asyncio.gather(call, return_exceptions=True)
    await eventually(lambda: running(marker) == [])


@pytest.mark.parametrize("name", STARTS)
async def test_a_server_that_is_told_to_end_leaves_nothing(tmp_path: Path, name: str) -> None:
    marker = f"rf-mcp-{name}-{tmp_path.name}"
    with STARTS[name](tmp_path) as server:
        try:
            async with over_http(server, era="legacy") as client:
                await client.call_tool("start_process", {"command": f"exec -a {marker} sleep 1000"})
                await eventually(lambda: len(running(marker)) == 1)
                server.process.terminate()
                await asyncio.to_thread(server.process.wait)
                assert running(marker) == []
        except* httpx2.HTTPError:
            pass  # the client misses its server
