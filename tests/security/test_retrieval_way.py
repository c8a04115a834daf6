"""Attack safe retrieval: rules 22 to 26 one by one, which hold for a connection and for wherever redirects lead."""

from __future__ import annotations

import asyncio
import re
import socket
from pathlib import Path
from typing import Any

import pytest
from tests.hostile_web import OTHER, PUBLIC, Server
from tests.security.retrieval_net import LISTED, Internet
from tests.security.retrieval_net import net as net
from tests.security.retrieval_net import tls as tls

from ringfence.egress.dialing import Dialer
from ringfence.errors import Unavailable

pytestmark = pytest.mark.guarantee(28)

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
