"""Pages that nobody trusts, in a real Chromium: what they try to reach, write, open, keep or exhaust."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator

import pytest
from tests import browser_processes as processes
from tests.browser_lab import GRANTED, HIDDEN, WEB, BrowserLab, ledger, rules, running_lab

from ringfence.browser.port import Bounds, Extract
from ringfence.browser.tab import ChromiumTab
from ringfence.errors import CapabilityBlocked, InvalidRequest, TimedOut, Unavailable

pytestmark = [pytest.mark.needs("browser"), pytest.mark.guarantee(33)]


@pytest.fixture(scope="module")
def lab() -> Iterator[BrowserLab]:
    with running_lab() as lab:
        yield lab


_SHARED = """onconnect = ({ports: [port]}) => fetch('/shared', {method: 'POST', body: 'x'})
  .then(() => 'sent', () => 'no').then((said) => port.postMessage(said));"""


async def session(lab: BrowserLab) -> ChromiumTab:
    """Return the one page that all these tests share, with nothing on the record yet."""
    lab.web.forget()
    tab = await lab.browsers.tab("shared", "tests", rules(*GRANTED), ledger())
    await tab.open(lab.web.show("/empty", ""), 10)
    lab.web.forget()
    return tab


async def said(tab: ChromiumTab) -> dict[str, str]:
    """Return what the page said of each thing it tried."""
    text = (await tab.extract(Extract.TEXT, "#said", {}))["text"]
    return {what: how for what, _, how in (line.partition(" ") for line in text.splitlines())}


# --- where it goes ---


async def test_a_page_reaches_no_host_that_was_not_granted_and_no_address_inside(lab: BrowserLab) -> None:
    tab = await session(lab)
    body = f"""
      <link rel=dns-prefetch href=//{HIDDEN}><link rel=preconnect href=//{HIDDEN}><link rel=prefetch href=//{HIDDEN}/p>
      <link rel=stylesheet href=http://{HIDDEN}/css><script src=http://{HIDDEN}/js></script>
      <img src=http://169.254.169.254/latest/meta-data/><img src=http://10.0.0.5/><img src=http://[::1]:3128/>
      <iframe src=http://{HIDDEN}/frame></iframe><object data=http://{HIDDEN}/object></object>
      <iframe srcdoc="<img src=http://192.168.1.1/>"></iframe>
      <iframe src="data:text/html,<script>fetch('http://{HIDDEN}/data')</script>"></iframe>"""
    places = (
        f"http://{HIDDEN}/f http://inside.example.com/ http://169.254.169.254/ http://127.0.0.1:3128/ "
        f"http://localhost/ http://127.1/ http://0x7f000001/ http://2130706433/ https://{HIDDEN}/ https://10.0.0.5/ "
        "http://[fd00::1]/ http://[::ffff:10.0.0.5]/ http://metadata.google.internal/ http://100.100.100.200/ http://[fd00:ec2::254]/"
    ).split()
    script = f"""
      for (const url of {places!r}) await attempt(url, () => fetch(url, {{mode: 'no-cors'}}).then((r) => r.type));
      await attempt('events', () => new Promise((r) => {{
        new EventSource('http://{HIDDEN}/e').onerror = () => r(1); }}));
      await attempt('worker', () => new Promise((r) => {{
        const code = `fetch('http://{HIDDEN}/w', {{mode: 'no-cors'}}).finally(() => postMessage(1))`;
        new Worker(URL.createObjectURL(new Blob([code]))).onmessage = () => r(1); }}));"""
    await tab.open(lab.web.act("/reach", script, body), 12)
    assert len(await said(tab)) >= len(places) + 2
    assert lab.web.canary == []
    assert {address for address, _ in lab.web.dialled} == {"93.184.216.34"}
    assert {host for _, host, _ in lab.web.seen} == {WEB}


async def test_no_packet_of_a_page_leaves_beside_the_proxy(lab: BrowserLab) -> None:
    tab = await session(lab)
    script = """
      await attempt('transport', async () => {
        await new WebTransport('https://93.184.216.36/').ready; return 'open'; });
      await attempt('rtc', async () => {
        const servers = [{urls: 'stun:93.184.216.36:3478'},
          {urls: 'turn:93.184.216.36:443?transport=tcp', username: 'a', credential: 'b'}];
        const peer = new RTCPeerConnection({iceServers: servers});
        let found = 0;
        peer.onicecandidate = (event) => { if (event.candidate) found += 1; };
        peer.createDataChannel('x');
        await peer.setLocalDescription(await peer.createOffer());
        await new Promise((r) => setTimeout(r, 1000));
        return found; });"""
    await tab.open(lab.web.act("/rtc", script), 12)
    heard = await said(tab)
    assert heard["rtc"] in ("0", "ReferenceError")
    assert heard["transport"] != "open"
    assert lab.web.canary == []


@pytest.mark.parametrize("how", ["redirect", "refresh", "script", "https"])
async def test_no_redirect_leads_to_where_nothing_is_granted(lab: BrowserLab, how: str) -> None:
    tab = await session(lab)
    away = f"https://{HIDDEN}/away" if how == "https" else f"http://{HIDDEN}/away"
    match how:
        case "refresh":
            url = lab.web.show("/go", f"<meta http-equiv=refresh content='0;url={away}'>")
        case "script":
            url = lab.web.show("/go", f"<script>location = '{away}'</script>")
        case _:
            url = lab.web.show("/go", "", status=302, Location=away)
    arriving = (
        contextlib.suppress(CapabilityBlocked) if how in ("refresh", "script") else pytest.raises(CapabilityBlocked)
    )
    with arriving:  # the first two are pages of their own, and arrive
        await tab.open(url, 10)
    await tab.open(lab.web.show("/after", ""), 10)
    assert {host for _, host, _ in lab.web.seen} == {WEB}
    assert lab.web.canary == []


async def test_a_name_that_leads_inside_is_refused_though_it_was_granted(lab: BrowserLab) -> None:
    tab = await session(lab)
    with pytest.raises(CapabilityBlocked) as refusal:
        await tab.open("http://inside.example.com/", 10)
    assert refusal.value.reason == "private_address"
    assert lab.web.canary == []


# --- what it does ---


async def test_a_page_writes_nothing_anywhere_by_any_method_or_form(lab: BrowserLab) -> None:
    tab = await session(lab)
    script = """
      for (const method of ['POST', 'PUT', 'DELETE', 'PATCH'])
        await attempt(method, () => fetch('/write', {method}).then((r) => r.status));
      await attempt('keepalive', () =>
        fetch('/keep', {method: 'POST', body: 'x', keepalive: true}).then((r) => r.status));
      await attempt('xhr', () => {
        const asked = new XMLHttpRequest(); asked.open('POST', '/xhr', false); asked.send('x'); return 'sent'; });
      await attempt('beacon', () => navigator.sendBeacon('/beacon', 'x'));
      await attempt('worker', () => new Promise((r) => {
        const code = `fetch('http://web.example.com/w', {method: 'POST', mode: 'no-cors'})
          .then(() => 'sent', () => 'no').then(postMessage)`;
        new Worker(URL.createObjectURL(new Blob([code]))).onmessage = (event) => r(event.data); }));
      const form = document.createElement('form');
      Object.assign(form, {method: 'POST', action: '/form', target: 'frame'});
      document.body.append(form); form.submit();
      const ping = document.createElement('a');
      Object.assign(ping, {href: '#here', ping: '/ping'}); document.body.append(ping); ping.click();
      document.body.insertAdjacentHTML('beforeend', `<iframe srcdoc="<form method=post action=http://web.example.com/inner
        id=f></form><script>f.submit()<\\/script>"></iframe>`);
      await attempt('shared', () => new Promise((r) => {
        const shared = new SharedWorker('/shared.js');
        shared.port.onmessage = (event) => r(event.data); shared.port.start(); }));
      addEventListener('pagehide', () => {
        navigator.sendBeacon('/left-beacon', 'x');
        fetch('/left-keep', {method: 'POST', keepalive: true, body: 'x'}); });
      await fetch('/once-more');"""
    lab.web.show("/shared.js", _SHARED, Content_Type="text/javascript")
    opened = await tab.open(lab.web.act("/write", script, "<iframe name=frame></iframe>"), 12)
    heard = await said(tab)
    assert [heard[method] for method in ("POST", "PUT", "DELETE", "PATCH", "keepalive")] == ["TypeError"] * 5
    assert heard["xhr"] == "NetworkError"
    assert (heard["worker"], heard["shared"]) == ("no", "no")
    for path in ("/after", "/after-that"):  # what a page sends when it is left
        await tab.open(lab.web.show(path, ""), 10)
    assert {method for method, _, _ in lab.web.seen} == {"GET"}
    assert "method" in opened.blocked


async def test_a_form_that_posts_when_clicked_is_refused_and_told(lab: BrowserLab) -> None:
    tab = await session(lab)
    await tab.open(lab.web.show("/form", "<form method=post action=/sent><button>send</button></form>"), 10)
    with pytest.raises(CapabilityBlocked) as refusal:
        await tab.click("button")
    assert refusal.value.reason == "method"
    assert lab.web.came("POST") == []


async def test_no_socket_is_opened_beside_requests(lab: BrowserLab) -> None:
    await session(lab)
    tab = await lab.browsers.tab("sockets", "tests", rules(*GRANTED), ledger())
    script = """
      const socket = (url) => new Promise((r) => {
        const made = new WebSocket(url); made.onopen = () => r('open'); made.onerror = () => r('error'); });
      for (const url of ['ws://web.example.com/ws', 'wss://web.example.com/ws', 'ws://hidden.example.net/ws'])
        await attempt(url, () => socket(url));"""
    await tab.open(lab.web.act("/sockets", script), 12)
    assert set((await said(tab)).values()) == {"error"}
    went = await tab.close()
    assert "websocket" in {place.reason for place in went.destinations if (place.host, place.port) == (WEB, 443)}
    assert lab.web.canary == []


async def test_a_page_opens_no_other_and_gets_no_worker_file_or_permission(lab: BrowserLab) -> None:
    tab = await session(lab)
    lab.web.show("/service.js", "", Content_Type="text/javascript")
    lab.web.show("/file", "content", Content_Type="application/octet-stream", Content_Disposition="attachment")
    script = """
      await attempt('popup', () => String(window.open('http://web.example.com/popup')));
      await attempt('service', async () => {
        await navigator.serviceWorker.register('/service.js'); return 'registered'; });
      for (const name of ['geolocation', 'notifications', 'camera', 'microphone', 'clipboard-read', 'midi'])
        await attempt(name, async () => (await navigator.permissions.query({name})).state);
      await attempt('picker', async () => { await showOpenFilePicker(); return 'shown'; });
      await attempt('usb', async () => { await navigator.usb.requestDevice({filters: []}); return 'given'; });
      alert('first'); say('prompt', String(prompt('second'))); say('confirm', confirm('third'));
      const link = document.createElement('a');
      Object.assign(link, {href: '/file', download: 'x'}); document.body.append(link); link.click();
      await fetch('/once-more');"""
    opened = await tab.open(lab.web.act("/powers", script), 12)
    heard = await said(tab)
    assert heard["popup"] == "null"
    assert heard["service"] != "registered"
    assert {heard[name] for name in ("geolocation", "notifications", "camera", "microphone", "clipboard-read")} == {
        "denied"
    }
    assert heard["picker"] != "shown"
    assert heard["usb"] != "given"
    assert (heard["prompt"], heard["confirm"]) == ("null", "false")
    assert "dialog" in opened.blocked
    assert not [path for _, _, path in lab.web.seen if path in ("/popup", "/service.js")]


async def test_a_window_that_a_click_opens_is_closed_and_the_page_stays(lab: BrowserLab) -> None:
    tab = await session(lab)
    lab.web.show("/popup", "<script>fetch('/from-popup', {method: 'POST'})</script>")
    await tab.open(lab.web.show("/link", "<a href=/popup target=_blank>open</a>"), 10)
    opened = await tab.click("a")
    assert opened.url.endswith("/link")
    assert "popup" in {*opened.blocked, *(await tab.open(lab.web.show("/after", ""), 10)).blocked}
    assert lab.web.came("POST") == []


async def test_a_download_is_refused_and_nothing_of_it_is_written(lab: BrowserLab) -> None:
    tab = await session(lab)
    url = lab.web.show("/file", "content", Content_Type="application/octet-stream", Content_Disposition="attachment")
    with pytest.raises(CapabilityBlocked) as refusal:
        await tab.open(url, 10)
    assert refusal.value.reason == "mime"


@pytest.mark.parametrize(
    "url",
    [
        "file:///etc/passwd",
        "chrome://version/",
        "view-source:http://web.example.com/x",
        "data:text/html,<h1>x",
        "devtools://devtools/",
    ],
)
async def test_neither_a_page_nor_a_caller_shows_anything_but_pages_of_http(lab: BrowserLab, url: str) -> None:
    tab = await session(lab)
    with pytest.raises(InvalidRequest):
        await tab.open(url, 10)
    script = f"""
      say('open', String(window.open('{url}')));
      const link = document.createElement('a'); link.href = '{url}'; document.body.append(link); link.click();
      await fetch('/once-more');"""
    await tab.open(lab.web.act("/escape", script, f"<iframe src='{url}'></iframe>"), 10)
    await tab.click("a")
    text = (await tab.extract(Extract.TEXT, None, {}))["text"]
    assert "root:" not in text
    assert "Command Line" not in text
    opened = await tab.open(lab.web.show("/after", ""), 10)
    assert opened.url.endswith("/after")


# --- what it says of itself ---


async def test_a_page_cannot_change_what_reads_it(lab: BrowserLab) -> None:
    tab = await session(lab)
    script = """
      document.querySelector = document.querySelectorAll = () => { throw 1; };
      Object.prototype.toJSON = Array.prototype.toJSON = () => 'forged';
      Object.defineProperty(Node.prototype, 'innerText', {get: () => 'forged'});
      Object.defineProperty(HTMLElement.prototype, 'innerText', {get: () => 'forged'});
      Array.prototype.push = String.prototype.slice = String.prototype.trim = () => 'forged';"""
    await tab.open(lab.web.act("/forge", script, "<p class=real>real</p>"), 10)
    assert await tab.extract(Extract.TEXT, ".real", {}) == {"text": "real", "truncated": False}
    assert (await tab.extract(Extract.FIELDS, None, {"p": ".real"}))["fields"] == {"p": ["real"]}


@pytest.mark.parametrize("selector", ["a'); alert(1); ('", 'a"+alert(1)+"', "`${alert(1)}`", "a{b}", "script:has("])
async def test_a_selector_is_never_code(lab: BrowserLab, selector: str) -> None:
    tab = await session(lab)
    await tab.open(lab.web.show("/page", "<p>text"), 10)
    for verb in (tab.extract(Extract.TEXT, selector, {}), tab.screenshot(selector, False), tab.click(selector)):
        with pytest.raises(InvalidRequest) as refusal:
            await verb
        assert refusal.value.reason == "invalid_selector"
    assert (await tab.open(lab.web.show("/after", ""), 10)).blocked == ()


async def test_text_is_typed_into_fields_and_a_file_is_no_field(lab: BrowserLab) -> None:
    tab = await session(lab)
    await tab.open(
        lab.web.show(
            "/fields", "<form action=/found><input name=q value=old><input type=file><button>go</button></form>"
        ),
        10,
    )
    await tab.type("input[name=q]", "new <words>")
    with pytest.raises(InvalidRequest):
        await tab.type("input[type=file]", "/etc/passwd")
    opened = await tab.click("button")
    assert opened.url.endswith("/found?q=new+%3Cwords%3E")
    assert opened.status == 404


# --- what it costs ---


async def test_a_page_of_a_hundred_thousand_pixels_makes_no_picture(lab: BrowserLab) -> None:
    tab = await session(lab)
    await tab.open(lab.web.show("/tall", "<p id=top>x</p><div id=tall style='height:100000px;width:50px'></div>"), 10)
    for selector, full_page in ((None, True), ("#tall", False)):
        with pytest.raises(CapabilityBlocked) as refusal:
            await tab.screenshot(selector, full_page)
        assert refusal.value.reason == "too_large"
    assert (await tab.screenshot(None, False)).startswith(b"\x89PNG")
    assert (await tab.screenshot("#top", False)).startswith(b"\x89PNG")


async def test_a_page_of_a_million_elements_is_read_within_its_bounds(lab: BrowserLab) -> None:
    tab = await session(lab)
    script = """const links = Array.from({length: 6000}, (_, i) => `<a href=/${i}>x</a>`).join('');
      document.getElementById('many').innerHTML = links + '<i>'.repeat(100).concat('</i>'.repeat(100)).repeat(1e4);"""
    await tab.open(lab.web.act("/many", script, "<div id=many style='display:none'></div>"), 25)
    links = await tab.extract(Extract.LINKS, None, {})
    assert (len(links["links"]), links["truncated"]) == (1000, True)
    fields = await tab.extract(Extract.FIELDS, None, {"a": "a"})
    assert (len(fields["fields"]["a"]), fields["truncated"]) == (5000, True)
    with pytest.raises(CapabilityBlocked) as refusal:
        await tab.extract(Extract.TREE, None, {})
    assert refusal.value.reason == "too_large"


async def test_text_without_end_is_cut(lab: BrowserLab) -> None:
    tab = await session(lab)
    await tab.open(lab.web.show("/long", "<pre>" + "x" * 3_000_000), 15)
    text = await tab.extract(Extract.TEXT, None, {})
    assert (len(text["text"]), text["truncated"]) == (262_144, True)


@pytest.mark.parametrize("script", ["while (true) alert(1);", "while (true);"])
async def test_a_page_that_never_ends_is_an_error_and_the_next_one_is_new(lab: BrowserLab, script: str) -> None:
    await session(lab)
    tab = await lab.browsers.tab("shared", "tests", rules(*GRANTED), ledger())
    url = lab.web.show("/endless", f"<script>{script}</script>")
    with pytest.raises((TimedOut, Unavailable)):
        await tab.open(url, 2)
    assert not tab.alive
    again = await session(lab)
    assert (await again.open(lab.web.show("/fine", "<title>fine"), 10)).title == "fine"


async def test_a_dead_renderer_is_an_error_and_the_next_page_is_in_a_new_box(lab: BrowserLab) -> None:
    tab = await session(lab)
    await tab.open(lab.web.show("/page", "<p>text"), 10)
    before = tab.box.sandbox_id
    for pid in processes.renderers(tab.box.browser_pid()):
        os.kill(pid, signal.SIGKILL)
    with pytest.raises(Unavailable) as refusal:
        await tab.extract(Extract.TEXT, None, {})
    assert refusal.value.reason == "browser_crashed"
    again = await session(lab)
    assert again.box.sandbox_id != before
    assert (await again.open(lab.web.show("/fine", "<title>fine"), 10)).title == "fine"


@pytest.mark.needs("root")
async def test_a_page_that_takes_all_memory_ends_within_its_cgroup(lab: BrowserLab) -> None:
    tab = await session(lab)
    cgroup = tab.box.place.cgroup
    assert cgroup is not None
    script = """const held = []; for (;;) { const part = new Uint8Array(32 << 20); part.fill(1); held.push(part); }"""
    url = lab.web.show("/hog", f"<script>{script}</script>")
    with pytest.raises((Unavailable, TimedOut)):
        await tab.open(url, 15)
    a_dying_task = 1 << 20  # the kernel lets it have a few pages
    assert (cgroup.memory_peak_bytes() or 0) <= Bounds().memory_bytes + a_dying_task
    again = await session(lab)
    assert (await again.open(lab.web.show("/fine", "<title>fine"), 10)).title == "fine"
