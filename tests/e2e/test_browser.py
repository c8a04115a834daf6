"""Every door to the browser, in front of a real Chromium in its box and a web of the tests' own."""

from __future__ import annotations

import ast
import asyncio
import json
import re
import struct
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.browser_lab import OTHER, WEB, BrowserLab, Web, running_lab

import ringfence
from ringfence import BrowserAction, BrowserRouter, SandboxManager, WorldInterface, wiring
from ringfence.browser.browsers import ChromiumBrowsers
from ringfence.database.address import open_database
from ringfence.journal.reader import reading
from ringfence.outcome import BrokerOutcome

pytestmark = [pytest.mark.needs("browser"), pytest.mark.needs("native")]

POLICY = """
policies:
  tools:
    browser_automation:
      network_access: true
      allowed_domains: ["*.example.com"]
      denied_domains: ["other.example.com"]
      max_depth: 3
"""
HOME = (
    '<title>Home</title><h1>Hello</h1><a href="/next">next</a>'
    '<p id="small" style="position:absolute;margin:0;left:10px;top:200px;width:80px;height:40px">p</p>'
)


class Shared:
    """The browsers of all engines of this module: a warm one waits while a test before it ends."""

    def __init__(self, browsers: ChromiumBrowsers) -> None:
        self.all = browsers
        self.tab = browsers.tab

    async def close(self) -> None:
        """Stay, for the next engine."""


@pytest.fixture(scope="module")
def running() -> Iterator[BrowserLab]:
    with running_lab() as lab:
        yield lab


@pytest.fixture(autouse=True)
def lab(running: BrowserLab, monkeypatch: pytest.MonkeyPatch) -> Iterator[Web]:
    """Let engines reach the tests' web, by the very code that reaches the real one."""
    monkeypatch.setattr(wiring, "make_browsers", lambda _: Shared(running.browsers))
    web = running.web
    web.forget()
    web.show("/", HOME)
    web.show("/next", '<title>Next</title><a id="on" href="/">on</a>')
    yield web
    for held in tuple(running.browsers._held.values()):
        asyncio.run(held.tab.close())


def manager(at: Path, text: str = POLICY, session: str | None = "s", **options: Any) -> SandboxManager:
    policy = at / "policy.yaml"
    policy.write_text(text)
    return SandboxManager(session, home=at / "home", policy_file=policy, pool_size=0, **options)


def size_of(png: bytes | None) -> tuple[int, int]:
    assert png is not None
    assert png.startswith(b"\x89PNG\r\n\x1a\n")
    width, height = struct.unpack(">II", png[16:24])
    return width, height


def records(home: Path) -> list[dict[str, Any]]:
    with reading(open_database(home, None)) as reader:
        return [json.loads(place.text or "") for log in reader.logs() for place in reader.records(log.number)]


async def reason(doing: Any) -> str:
    with pytest.raises(ringfence.RingfenceError) as refused:
        await doing
    return refused.value.reason


async def test_a_page_is_opened_read_pictured_and_closed(tmp_path: Path, lab: Web) -> None:
    lab.show("/from", "", status=302, Location="/")
    async with manager(tmp_path) as held:
        opened = await held.browse_page(f"http://{WEB}/from")
        assert (opened.out["url"], opened.out["status"], opened.out["title"]) == (f"http://{WEB}/", 200, "Home")
        assert opened.out["hops"] == [f"http://{WEB}/from"]
        assert opened.out["untrusted"] is True
        assert opened.used.bytes_in > 0
        assert {each.meta["host"] for each in opened.effects if each.meta["decision"] == "allowed"} == {WEB}
        text = await held.extract_page()
        assert b"Hello" in (text.content or b"")
        links = json.loads((await held.extract_page("links")).content or b"")
        assert f"http://{WEB}/next" in json.dumps(links)
        fields = json.loads((await held.extract_page("fields", fields={"head": "h1"})).content or b"")
        assert "Hello" in json.dumps(fields["head"])
        tree = await held.extract_page("tree")
        assert b"Hello" in (tree.content or b"")
        whole = await held.screenshot_page()
        assert size_of(whole.content) == (1280, 720)
        part = await held.screenshot_page(selector="#small", save_as="work/p.png")
        assert size_of(part.content) == (80, 40)
        resized = await held.screenshot_page(width=800, height=600)
        assert size_of(resized.content) == (800, 600)
        kept = await held.perform(ringfence.operation.brokered.FsRead(whole.out["artifact"]["path"]))
        assert kept.content == whole.content
        assert bytes(await held.workspace.read("p.png")) == part.content
        assert (await held.close_page()).out["closed"] is True
        assert await reason(held.extract_page()) == "no_page"


# --- what a page may not do, and how far it is led ---


async def test_a_page_that_submits_downloads_and_opens_windows_is_only_read(tmp_path: Path, lab: Web) -> None:
    lab.show("/file", "x", Content_Disposition="attachment; filename=x.exe", Content_Type="application/octet-stream")
    lab.show(
        "/pushy",
        '<form id="f" action="/stolen" method="post"><input name="a" value="b"></form><a id="d" href="/file">d</a>'
        "<script>window.open('/popup'); fetch('/stolen', {method: 'POST', body: document.cookie}).catch(() => 0);"
        "document.getElementById('d').click(); setTimeout(() => document.getElementById('f').submit(), 50);</script>",
    )
    async with manager(tmp_path) as held:
        opened = await held.browse_page(f"http://{WEB}/pushy")
        await held.extract_page()
        assert lab.came("POST") == []
        assert "method" in opened.out["blocked"]
        await held.close_page()
    assert list((tmp_path / "home").rglob("x.exe")) == []


async def test_links_are_followed_max_depth_times(tmp_path: Path) -> None:
    async with manager(tmp_path) as held:
        for number in range(4):
            outcome = await held.browse_page(f"http://{WEB}/{'next' if number % 2 else ''}")
            assert outcome.out["depth"] == number
        assert await reason(held.browse_page(f"http://{WEB}/next")) == "depth"


async def test_a_cookie_of_one_page_is_not_sent_by_the_next(tmp_path: Path, lab: Web) -> None:
    lab.show("/cookie", "<script>document.cookie='seen=1';localStorage.a='1';document.write('set')</script>")
    lab.show("/ask", "<script>document.write(document.cookie + (localStorage.a || 'nothing'))</script>")
    async with manager(tmp_path) as held:
        await held.browse_page(f"http://{WEB}/cookie")
        await held.browse_page(f"http://{WEB}/ask")
        assert (await held.extract_page()).content == b"seen=11"
        await held.close_page()
        await held.browse_page(f"http://{WEB}/ask")
        assert (await held.extract_page()).content == b"nothing"


async def test_a_script_cannot_be_asked_for_in_any_form(tmp_path: Path, lab: Web) -> None:
    async with manager(tmp_path) as held:
        await held.browse_page(f"http://{WEB}/")
        for selector in ("xpath=//h1", "text=Hello", "h1 >> nth=0", "js=document.cookie", "internal:control=x"):
            assert await reason(held.extract_page(selector=selector)) == "invalid_selector"
        assert await reason(held.browse_page("javascript:alert(1)")) == "invalid_url"
        assert await reason(held.browse_page("data:text/html,<script>1</script>")) == "invalid_url"


# --- the policy of 001 ---


async def test_allowed_and_denied_domains_hold_for_the_page_and_for_all_it_asks_for(tmp_path: Path, lab: Web) -> None:
    lab.show("/mixed", f'<p>mixed</p><img src="http://{OTHER}/x.png"><img src="http://hidden.example.net/y.png">')
    lab.show("/away", "", status=302, Location=f"http://{OTHER}/")
    async with manager(tmp_path) as held:
        opened = await held.browse_page(f"http://{WEB}/mixed")
        decided = {(str(each.meta["host"]), str(each.meta["decision"])) for each in opened.effects}
        assert decided >= {(OTHER, "denied"), ("hidden.example.net", "denied")}
        assert {host for host, decision in decided if decision == "allowed"} == {WEB}
        assert await reason(held.browse_page(f"http://{OTHER}/")) == "blacklist"
        assert await reason(held.browse_page("http://example.com/")) == "domain"
        assert await reason(held.browse_page("http://a.example.com.evil.test/")) == "domain"
        assert await reason(held.browse_page("http://inside.example.com/")) in ("private_address", "domain", "address")
        with pytest.raises(ringfence.Denied):
            await held.browse_page(f"http://{WEB}/away")
    assert {host for _, host, _ in lab.seen} == {WEB}
    assert lab.canary == []


async def test_a_role_that_scrapes_may_browse_and_run_nothing(tmp_path: Path) -> None:
    roles = POLICY + "  agent_roles:\n    web_scraper: {inherits: default, tools: [browser_automation]}\n"
    async with manager(tmp_path, roles, role="web_scraper") as held:
        assert (await held.browse_page(f"http://{WEB}/")).out["status"] == 200
        assert await reason(held.execute_code("python", "1")) == "tool_denied"


@pytest.mark.parametrize(
    ("more", "options", "why"),
    [
        ("      browser_scope: [extract]\n", {}, "scope"),
        ("", {"executors": {"browser": False}}, "executor_disabled"),
    ],
    ids=["scope", "off"],
)
async def test_what_is_not_granted_or_switched_off_is_refused(
    tmp_path: Path, more: str, options: dict[str, Any], why: str
) -> None:
    async with manager(tmp_path, POLICY + more, **options) as held:
        with pytest.raises(ringfence.Denied) as refused:
            await held.browse_page(f"http://{WEB}/")
        assert refused.value.reason in (why, "manifest_mismatch")


async def test_where_the_extra_is_missing_it_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "playwright", None)
    monkeypatch.setitem(sys.modules, "playwright.async_api", None)
    monkeypatch.setattr(wiring, "make_browsers", lambda out: ChromiumBrowsers(out.proxy))
    async with manager(tmp_path) as held:
        with pytest.raises(ringfence.Unavailable) as refused:
            await held.browse_page(f"http://{WEB}/")
    assert (refused.value.reason, refused.value.retryable) == ("browser_backend_missing", False)
    assert "ringfence[browser]" in (refused.value.fix or "")


async def test_without_a_policy_nothing_is_reached(tmp_path: Path, lab: Web) -> None:
    async with SandboxManager("s", home=tmp_path / "home", pool_size=0) as held:
        with pytest.raises(ringfence.Denied):
            await held.browse_page(f"http://{WEB}/")
    assert lab.dialled == []


async def test_clicking_and_typing_need_their_own_verbs(tmp_path: Path, lab: Web) -> None:
    lab.show("/form", '<input id="i"><a id="go" href="/next">go</a><p id="o"></p><script>'
             "i.addEventListener('input', () => o.textContent = 'typed ' + i.value)</script>")  # fmt: skip
    async with manager(tmp_path) as held:
        await held.browse_page(f"http://{WEB}/form")
        for doing in (held.click_page("#go"), held.type_page("#i", "x")):
            with pytest.raises(ringfence.Denied):
                await doing
    verbs = POLICY + "      browser_scope: [open, extract, screenshot, click, type]\n"
    async with manager(tmp_path, verbs) as held:
        await held.browse_page(f"http://{WEB}/form")
        await held.type_page("#i", "words")
        assert (await held.extract_page(selector="#o")).content == b"typed words"
        led = await held.click_page("#go")
        assert (led.out["url"], led.out["title"], led.out["depth"]) == (f"http://{WEB}/next", "Next", 1)


async def test_a_page_is_charged_for_what_it_loads_and_cut_off_at_what_is_left(tmp_path: Path, lab: Web) -> None:
    lab.show("/picture", "x" * 300_000, Content_Type="image/png")
    lab.show("/large", '<p>large</p><img src="/picture">')
    budget = POLICY + "      budget: {bytes_in: 200000}\n"
    async with manager(tmp_path, budget) as held:
        small = await held.browse_page(f"http://{WEB}/")
        assert 0 < small.used.bytes_in < 10_000
        large = await held.browse_page(f"http://{WEB}/large")
        assert large.out["cut_off"] is True
        assert 190_000 < large.used.bytes_in <= 200_000


# --- the router of 002 ---


def boxes_of(held: SandboxManager) -> int:
    browsers: Any = held.engine.browsers
    return len(browsers.made.all._held)


async def test_a_router_has_one_browser_and_takes_the_one_that_fits(tmp_path: Path) -> None:
    navigate = BrowserAction("navigate", {"url": f"http://{WEB}/"})
    async with manager(tmp_path) as held, BrowserRouter("s", held) as router:
        light = await router.execute(navigate)
        assert (light.out["backend"], router.backend, boxes_of(held)) == ("external_browser",) * 2 + (1,)
        research = await router.execute(navigate, context={"is_research": True})
        assert (research.out["backend"], boxes_of(held)) == ("aio_browser", 1)
        filed = await router.execute(navigate, context={"needs_file_access": True})
        assert (filed.out["backend"], filed.out["depth"]) == ("aio_browser", 0)
        saved = await router.execute(BrowserAction("screenshot", {"save_as": "work/shot.png"}))
        assert saved.out["saved_as"] == "/workspace/work/shot.png"
        text = await router.execute(BrowserAction("extract", {"selector": "h1"}))
        assert text.content == b"Hello"
        await router.execute(navigate)
        assert await reason(router.execute(BrowserAction("screenshot", {"save_as": "work/x.png"}))) == "invalid_value"
        assert await reason(router.execute(BrowserAction("evaluate", {"script": "1"}))) == "unknown_operation"
        assert await reason(router.execute(BrowserAction("navigate", {"link": "x"}))) == "invalid_operation"
        await router.close()
        assert boxes_of(held) == 0


async def test_the_example_of_002_runs_with_its_import_line_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    printed = (Path(__file__).parent / "documents" / "002_4_5.txt").read_text()
    program = re.sub(r"^from app\.[\w.]+ import ", "from ringfence import ", printed, flags=re.MULTILINE)
    program = program.replace("https://example.com", f"http://{WEB}/")  # whose certificate no test can have
    (tmp_path / "policy.yaml").write_text(POLICY)
    monkeypatch.setenv("RINGFENCE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("RINGFENCE_POLICY", str(tmp_path / "policy.yaml"))
    names: dict[str, Any] = {}
    code = compile(program, "<example>", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
    await eval(code, names)
    result = names["result"]
    assert (result.out["status"], result.out["backend"], result.out["title"]) == (200, "aio_browser", "Home")
    await names["router"].close()


async def test_evidence_names_the_browser_and_the_page(tmp_path: Path) -> None:
    async with manager(tmp_path) as held, BrowserRouter("s", held) as router:
        action = BrowserAction("navigate", {"url": f"http://{WEB}/?secret=1"})
        outcome = await router.execute(action, context={"is_research": True})
    told = [record for record in records(tmp_path / "home") if record.get("exec_id") == outcome.exec_id]
    begun, ended = told
    assert begun["op"] == {
        "kind": "browser_nav", "url": f"http://{WEB}/", "has_query": True, "backend": "aio_browser",
    }  # fmt: skip
    assert WEB in {place["host"] for place in ended["network"]["destinations"] if place["decision"] == "allowed"}


# --- an agent's tools ---


async def test_an_agents_tools_share_the_sessions_page(tmp_path: Path) -> None:
    async with manager(tmp_path) as held:
        world = WorldInterface(held)
        await world.execute({"tool": "browser_nav", "params": {"url": f"http://{WEB}/"}})
        outcome = await world.execute({"tool": "browser_extract", "params": {"selector": "h1"}})
        assert isinstance(outcome, BrokerOutcome)
        assert outcome.content == b"Hello"
        shot = await world.execute({"tool": "browser_screenshot", "params": {"full_page": True}})
        assert isinstance(shot, BrokerOutcome)
        assert size_of(shot.content)[0] == 1280


async def test_a_call_that_is_cancelled_takes_its_page_along(tmp_path: Path, lab: Web) -> None:
    lab.show("/spin", "<p>spin</p><script>setTimeout(() => { for (;;); }, 0)</script>")
    async with manager(tmp_path) as held:
        await held.browse_page(f"http://{WEB}/")
        opening = asyncio.ensure_future(held.browse_page(f"http://{WEB}/spin"))
        while not any(path == "/spin" for _, _, path in lab.seen):  # noqa: ASYNC110  a server's thread
            await asyncio.sleep(0.01)
        opening.cancel()
        with pytest.raises(asyncio.CancelledError):
            await opening
        assert boxes_of(held) == 0
        assert await reason(held.extract_page()) == "no_page"
        assert (await held.browse_page(f"http://{WEB}/")).out["depth"] == 0
