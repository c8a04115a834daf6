"""The browser by HTTP, by a manager with an address, by MCP and by the command, each in front of the lab's internet."""

from __future__ import annotations

import base64
import json
import struct
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests import net_lab
from tests.hostile_web import PUBLIC
from tests.net_lab import Lab

from ringfence import BrowserAction, BrowserRouter, RingfenceError, SandboxManager

pytestmark = [pytest.mark.needs("net_lab"), pytest.mark.needs("browser"), pytest.mark.needs("root")]

POLICY = """
policies:
  tools:
    browser_automation:
      network_access: true
      allowed_domains: ["*.x.test"]
      denied_domains: ["b.x.test"]
"""
PAGE = "http://web.x.test/to?to=/"
METADATA = "http://a-169-254-169-254.x.test/latest/meta-data/"


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    with net_lab.running_lab(tmp_path_factory.mktemp("lab")) as running:
        yield running


def policy_in(at: Path) -> Path:
    path = at / "policy.yaml"
    path.write_text(POLICY)
    return path


def size_of(png: bytes) -> list[int]:
    return list(struct.unpack(">II", png[16:24]))


async def reason(doing: Any) -> str:
    try:
        await doing
    except RingfenceError as refused:
        return refused.reason
    return "done"


# --- a manager of its own, and one with an address, are the same ---


async def told_by(held: SandboxManager) -> dict[str, Any]:
    """Say all that whoever uses a manager sees of a page, but for names that are given anew each time."""
    opened = await held.browse_page(PAGE)
    text = await held.extract_page()
    shot = await held.screenshot_page(width=640, height=480, save_as="work/page.png")
    kept = bytes(await held.workspace.read("page.png"))
    refused = [await reason(held.browse_page(url)) for url in (METADATA, "http://b.x.test/", "http://10.0.0.5/")]
    return {
        "opened": dict(opened.out),
        "text": (text.content or b"").decode(),
        "picture": size_of(shot.content or b""),
        "kept": kept == shot.content and shot.out["saved_as"],
        "refused": refused,
        "clicked": await reason(held.click_page("a")),
        "moved": opened.used.bytes_in > 0,
        "recorded": [bool(opened.evidence_id), bool(opened.exec_id)],
        "hosts": sorted({str(each.meta["host"]) for each in opened.effects if each.meta["decision"] == "allowed"}),
    }


SAME: dict[str, Any] = {
    "opened": {
        "url": "http://web.x.test/", "status": 200, "title": "", "hops": [PAGE], "blocked": [], "depth": 0,
        "backend": "external_browser", "cut_off": False, "untrusted": True,
    },
    "text": "hello",
    "picture": [640, 480],
    "kept": "/workspace/work/page.png",
    "refused": ["private_address", "blacklist", "domain"],
    "clicked": "manifest_mismatch",
    "moved": True,
    "recorded": [True, True],
    "hosts": ["web.x.test"],
}  # fmt: skip


async def by_manager(at: Path) -> Any:
    async with SandboxManager("p", home=at / "own", policy_file=policy_in(at), pool_size=0) as held:
        return await told_by(held)


async def by_address(at: Path) -> Any:
    from tests.http_service import serving

    with serving(at / "home", "--policy", str(policy_in(at))) as service:
        async with SandboxManager("q", url=f"http://127.0.0.1:{service.port}", api_key=service.key) as distant:
            return await told_by(distant)


@pytest.mark.parametrize("way", ["by_manager", "by_address"])
def test_a_manager_with_an_address_browses_as_one_with_an_engine_does(lab: Lab, tmp_path: Path, way: str) -> None:
    told = lab.inside(__file__, way, tmp_path)
    assert told["returned"] == SAME
    assert set(told["reached"]) <= {PUBLIC, "127.0.0.1"}


async def by_http(at: Path) -> Any:
    from tests.http_service import serving

    with serving(at / "home", "--policy", str(policy_in(at))) as service:

        def ask(project: str | None = "p", **operation: Any) -> Any:
            body = {"operation": operation, **({} if project is None else {"project_id": project})}
            return service.ask("POST", "/sandbox/ops", body)

        wrong = ask(op="browser_nav", url=PAGE, backend="another")
        sessionless = ask(None, op="browser_nav", url=PAGE)
        async with SandboxManager("p", url=f"http://127.0.0.1:{service.port}", api_key=service.key) as distant:
            router = BrowserRouter("p", distant)
            routed = await router.execute(BrowserAction("navigate", {"url": PAGE}), context={"is_research": True})
        picture = ask(op="browser_screenshot")
        served = service.ask("GET", f"/sandbox/execs/{picture.json['exec_id']}/artifacts/screenshot.png")
        too_large = ask(op="browser_screenshot", width=10_000)
        closed = ask(op="browser_close")
    return {
        "routed": [routed.out["backend"], routed.content],
        "wrong": [wrong.status, sessionless.status],
        "picture": size_of(base64.b64decode(picture.json["content_b64"])),
        "served": [served.status, served.body.startswith(b"\x89PNG")],
        "too_large": [too_large.status, too_large.reason],
        "closed": closed.json["out"],
    }


def test_the_service_carries_out_each_operation_and_serves_pictures_as_artifacts(lab: Lab, tmp_path: Path) -> None:
    assert lab.inside(__file__, "by_http", tmp_path)["returned"] == {
        "routed": ["aio_browser", None],
        "wrong": [422, 422],
        "picture": [1280, 720],
        "served": [200, True],
        "too_large": [403, "viewport"],
        "closed": {"closed": True},
    }


# --- MCP ---


async def by_mcp(at: Path) -> Any:
    from tests.mcp_servers import over_stdio, structured, text_of

    (at / "home").mkdir()
    async with over_stdio(at / "home", "--policy", str(policy_in(at))) as client:
        good = await client.call_tool("browse_page", {"url": PAGE})
        shot = await client.call_tool("screenshot_page", {})
        kept = await client.call_tool("read_file", {"path": structured(shot)["path"], "length": 100})
        bad = await client.call_tool("browse_page", {"url": METADATA})
        return {
            "good": structured(good),
            "text": text_of(good),
            "shot": [structured(shot)["width"], [each.type for each in shot.content]],
            "kept": structured(kept)["content_base64"],
            "bad": structured(bad)["error"],
        }


def test_a_model_browses_and_is_told_whose_words_it_reads(lab: Lab, tmp_path: Path) -> None:
    found = lab.inside(__file__, "by_mcp", tmp_path)["returned"]
    assert (found["good"]["content"], found["good"]["untrusted"]) == ("hello", True)
    assert found["text"].startswith("[what follows is from http://web.x.test/ ")
    assert found["shot"] == [1280, ["text", "image"]]
    assert base64.b64decode(found["kept"]).startswith(b"\x89PNG")
    assert found["bad"]["reason"] == "private_address"


# --- the command ---


async def by_command(at: Path) -> Any:
    from tests.command_line import COMMAND, surroundings

    def browse(*words: str) -> list[Any]:
        done = subprocess.run(
            [*COMMAND, "browse", *words], env=surroundings(at / "home"), capture_output=True, text=True, check=False
        )
        return [done.returncode, done.stdout, done.stderr]

    policy = str(policy_in(at))
    shot = at / "page.png"
    good = browse(PAGE, "--policy", policy, "--screenshot", str(shot), "--json")
    again = browse(PAGE, "--policy", policy, "--screenshot", str(shot))
    refused = browse("http://elsewhere.test/", "--policy", policy, "--screenshot", str(at / "none.png"))
    return {
        "good": [good[0], json.loads(good[1])],
        "shot": size_of(shot.read_bytes()),
        "again": again,
        "refused": [*refused, (at / "none.png").exists()],
        "ungoverned": browse(PAGE)[0],
    }


def test_the_command_opens_prints_and_saves(lab: Lab, tmp_path: Path) -> None:
    found = lab.inside(__file__, "by_command", tmp_path)["returned"]
    code, told = found["good"]
    assert (code, told["extracted"]["content"], told["opened"]["status"]) == (0, "hello", 200)
    assert found["shot"] == [1280, 720]
    assert found["again"][0] == 2
    assert found["refused"][0] == 3
    assert found["refused"][3] is False
    assert found["ungoverned"] == 3
